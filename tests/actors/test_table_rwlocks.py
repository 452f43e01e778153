"""Read/write locks in the replicated table: texts of refusals, and the report.

`test_table_model.py` compares what readers and writers get with the model.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from support.expect import only
from support.table_scene import A, B, C, applied, status_of, text_of

from fencelock.actors.api.message import Reason, Refused, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS, AcquireReadWrite, Downgrade
from fencelock.actors.table.table import LockTable

LOCK = object_name(RWLOCK, "S")


def read(session: str, request: int = 1, **fields: Any) -> AcquireReadWrite:
    made = AcquireReadWrite(rwlock="S", session=session, owner="o", request=request)
    return replace(made, **fields)


def write(session: str, request: int = 1, **fields: Any) -> AcquireReadWrite:
    return read(session, request, write=True, **fields)


def release(session: str, fence: int, request: int = 2) -> Release:
    return Release(lock=LOCK, fence=fence, session=session, owner="o", request=request)


def downgrade(session: str, fence: int, request: int = 2) -> Downgrade:
    return Downgrade(rwlock="S", fence=fence, session=session, owner="o", request=request)


def test_an_upgrade_is_refused_with_a_text_that_names_the_next_step(table: LockTable) -> None:
    applied(table, read(A))
    no = only(Refused, table.apply(0, write(A, 2)))
    assert no.reason is Reason.ALREADY_HELD
    assert "rwlock 'S': this owner holds it for reading, under fence 1: release it" in text_of(no)
    assert applied(table, write(A, 2)) == ["s.1 ALREADY_HELD"]
    assert applied(table, release(A, 1, 3)) == ["s.1 has 0 left"]
    assert table.resources == {}  # free-leaves-nothing


def test_only_a_writer_downgrades(table: LockTable) -> None:
    applied(table, read(A))
    no = only(Refused, table.apply(0, downgrade(A, 1)))
    assert (no.reason, text_of(no)) == (
        Reason.INVALID,
        "rwlock 'S': it is held for reading under fence 1, so there is nothing to downgrade",
    )
    assert applied(table, downgrade(A, 7, 3)) == ["s.1 NOT_HELD"]
    assert applied(table, downgrade(B, 1)) == ["t.2 NOT_HELD"]


def test_the_report_shows_who_reads_who_writes_and_who_waits_for_what(table: LockTable) -> None:
    applied(table, read(A, 1, label="first"))
    applied(table, read(A, 2))
    applied(table, write(B))
    applied(table, read(C))
    report = status_of(table, LOCK)
    assert [(one.session, one.times, one.label) for one in report.holders] == [(A, 2, "first")]
    waiters = [(one.session, one.times) for one in report.waiters]
    assert waiters == [(B, RWLOCK_PERMITS), (C, 1)]
    assert report.permits == RWLOCK_PERMITS
    applied(table, release(A, 1, 3))
    applied(table, release(A, 1, 4))
    assert [one.times for one in status_of(table, LOCK).holders] == [RWLOCK_PERMITS]
    no = only(Refused, table.apply(0, read(A, 5, wait_ms=0)))
    assert text_of(no) == (
        "rwlock 'S': held by 'o' of 't.2' under fence 2, for writing, 1 in its queue"
    )
