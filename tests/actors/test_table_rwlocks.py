"""Read/write locks in the replicated table: readers, writers, downgrades, snapshots."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from support.expect import only
from support.table_scene import advanced, applied, status_of, text_of

from fencelock.actors.api.message import Cancel, Reason, Refused, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS, AcquireReadWrite, Downgrade
from fencelock.actors.api.session_message import End
from fencelock.actors.table.table import LockTable

LOCK = object_name(RWLOCK, "S")
A, B, C = "s.1", "t.2", "u.3"


def read(session: str, request: int = 1, **fields: Any) -> AcquireReadWrite:
    made = AcquireReadWrite(rwlock="S", session=session, owner="o", request=request)
    return replace(made, **fields)


def write(session: str, request: int = 1, **fields: Any) -> AcquireReadWrite:
    return read(session, request, write=True, **fields)


def release(session: str, fence: int, request: int = 2) -> Release:
    return Release(lock=LOCK, fence=fence, session=session, owner="o", request=request)


def downgrade(session: str, fence: int, request: int = 2) -> Downgrade:
    return Downgrade(rwlock="S", fence=fence, session=session, owner="o", request=request)


def test_readers_share_and_a_writer_is_alone(table: LockTable) -> None:
    assert applied(table, read(A)) == ["s.1 holds 1 under 1"]
    assert applied(table, read(B)) == ["t.2 holds 1 under 2"]
    assert applied(table, write(C)) == ["u.3 waits"]
    assert applied(table, release(A, 1)) == ["s.1 has 0 left"]
    assert applied(table, release(B, 2)) == ["t.2 has 0 left", "u.3 holds 1 under 3"]
    assert applied(table, read(A, 3)) == ["s.1 waits"]
    assert applied(table, write(B, 3)) == ["t.2 waits"]
    assert applied(table, release(C, 3)) == ["u.3 has 0 left", "s.1 holds 1 under 4"]


def test_a_reader_behind_a_waiting_writer_waits(table: LockTable) -> None:
    applied(table, read(A))
    assert applied(table, write(B)) == ["t.2 waits"]
    assert applied(table, read(C)) == ["u.3 waits"]
    assert applied(table, read(C, owner="p", wait_ms=0)) == ["u.3 TIMED_OUT"]
    assert applied(table, read(A, 2)) == ["s.1 holds 2 under 1"]  # It would wait for itself.


def test_a_reader_may_hold_it_several_times_and_a_writer_may_read(table: LockTable) -> None:
    for times in (1, 2, 3):
        assert applied(table, read(A, times)) == [f"s.1 holds {times} under 1"]
    for left in (2, 1, 0):
        assert applied(table, release(A, 1, 9 - left)) == [f"s.1 has {left} left"]
    applied(table, write(B, 1))
    assert applied(table, read(B, 2)) == ["t.2 holds 2 under 2"]
    assert applied(table, write(B, 3)) == ["t.2 holds 3 under 2"]
    assert applied(table, read(A, 20)) == ["s.1 waits"]
    assert applied(table, release(B, 2, 4)) == ["t.2 has 2 left"]
    assert applied(table, release(B, 2, 5)) == ["t.2 has 1 left"]
    assert applied(table, release(B, 2, 6)) == ["t.2 has 0 left", "s.1 holds 1 under 3"]


def test_an_upgrade_is_refused_with_a_text_that_says_what_to_do(table: LockTable) -> None:
    applied(table, read(A))
    no = only(Refused, table.apply(0, write(A, 2)))
    assert no.reason is Reason.ALREADY_HELD
    assert "rwlock 'S': this owner holds it for reading, under fence 1: release it" in text_of(no)
    assert applied(table, write(A, 2)) == ["s.1 ALREADY_HELD"]
    assert applied(table, release(A, 1, 3)) == ["s.1 has 0 left"]
    assert table.resources == {}  # free-leaves-nothing


def test_a_downgrade_is_one_step_and_lets_readers_in(table: LockTable) -> None:
    applied(table, write(A))
    for command in (read(B), read(C), write(B, owner="p"), read(C, owner="p")):
        applied(table, command)
    told = ["s.1 has 1 left", "t.2 holds 1 under 2", "u.3 holds 1 under 3"]
    assert applied(table, downgrade(A, 1)) == told
    assert applied(table, downgrade(A, 1)) == ["s.1 has 1 left"]  # A repetition.
    assert [one.times for one in status_of(table, LOCK).holders] == [1, 1, 1]


def test_a_downgrade_keeps_the_number_of_holds(table: LockTable) -> None:
    applied(table, write(A, 1))
    applied(table, read(A, 2))
    applied(table, downgrade(A, 1, 3))
    assert applied(table, write(A, 4)) == ["s.1 ALREADY_HELD"]
    assert applied(table, release(A, 1, 5)) == ["s.1 has 1 left"]
    assert applied(table, release(A, 1, 6)) == ["s.1 has 0 left"]
    assert table.resources == {}


def test_only_a_writer_downgrades(table: LockTable) -> None:
    applied(table, read(A))
    no = only(Refused, table.apply(0, downgrade(A, 1)))
    assert (no.reason, text_of(no)) == (
        Reason.INVALID,
        "rwlock 'S': it is held for reading under fence 1, so there is nothing to downgrade",
    )
    assert applied(table, downgrade(A, 7, 3)) == ["s.1 NOT_HELD"]
    assert applied(table, downgrade(B, 1)) == ["t.2 NOT_HELD"]


def test_the_fence_of_a_writer_is_above_those_of_all_earlier_readers(table: LockTable) -> None:
    applied(table, read(A))
    applied(table, write(B))
    applied(table, read(C))
    assert applied(table, release(A, 1)) == ["s.1 has 0 left", "t.2 holds 1 under 2"]
    assert applied(table, downgrade(B, 2)) == ["t.2 has 1 left", "u.3 holds 1 under 3"]


def test_a_cancelled_acquire_releases_one_hold(table: LockTable) -> None:
    applied(table, write(A, 1))
    applied(table, read(A, 2))
    applied(table, read(B))
    cancel = Cancel(lock=LOCK, session=A, owner="o", request=2)
    assert applied(table, cancel) == ["Cancelled"]
    assert applied(table, release(A, 1, 3)) == ["s.1 has 0 left", "t.2 holds 1 under 2"]


def test_a_session_that_ends_and_a_wait_that_times_out_let_others_in(table: LockTable) -> None:
    applied(table, read(A))
    applied(table, write(B, wait_ms=50))
    applied(table, read(C))
    assert advanced(table, 50) == ["t.2 TIMED_OUT", "u.3 holds 1 under 2"]
    applied(table, write(B, 2))
    applied(table, release(C, 2))
    told = applied(table, End(session=A))
    assert told == ["Ended", "t.2 holds 1 under 3"]


def test_the_report_tells_who_reads_who_writes_and_who_waits_for_what(table: LockTable) -> None:
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
