"""Semaphores in the replicated table: texts of refusals, and the report.

`test_table_model.py` compares who gets how many permits with the model.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from support.expect import checked, only
from support.table_scene import A, B, C, applied, held, restored, status_of, summary, text_of

from fencelock.actors.api.message import Reason, Refused, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.semaphore import (
    SEMAPHORE,
    AcquirePermits,
    ReleasePermits,
    Resized,
    ResizeSemaphore,
)
from fencelock.actors.table.table import LockTable

LOCK = object_name(SEMAPHORE, "S")


def acquire(session: str, amount: int = 1, request: int = 1, **fields: Any) -> AcquirePermits:
    made = AcquirePermits(
        semaphore="S", permits=3, amount=amount, session=session, owner="o", request=request
    )
    return replace(made, **fields)


def part(session: str, fence: int, amount: int, request: int = 2) -> ReleasePermits:
    return ReleasePermits(
        semaphore="S", fence=fence, amount=amount, session=session, owner="o", request=request
    )


def full(session: str, fence: int, request: int = 2) -> Release:
    return Release(lock=LOCK, fence=fence, session=session, owner="o", request=request)


def test_more_than_a_hold_has_is_not_released(table: LockTable) -> None:
    applied(table, acquire(A, 2))
    no = only(Refused, table.apply(0, part(A, 1, 3)))
    assert no.reason is Reason.INVALID
    assert text_of(no) == ("semaphore 'S': 3 permits were released, 2 are held under fence 1")
    assert applied(table, part(A, 7, 1, 3)) == ["s.1 NOT_HELD"]
    assert applied(table, part(B, 1, 1)) == ["t.2 NOT_HELD"]
    assert status_of(table, LOCK).holders[0].times == 2


def test_the_number_of_permits_travels_with_the_claim(table: LockTable) -> None:
    applied(table, acquire(A))
    no = only(Refused, table.apply(0, acquire(B, permits=5)))
    assert (no.reason, text_of(no)) == (
        Reason.INVALID,
        "semaphore 'S' has 3 permits; this client asked for one with 5",
    )
    applied(table, full(A, 1))
    assert table.resources == {}  # free-leaves-nothing
    assert applied(table, acquire(B, 5, 2, permits=5)) == ["t.2 holds 5 under 2"]


def test_the_report_names_holders_and_waiters_in_order(table: LockTable) -> None:
    applied(table, acquire(A, 2, label="first"))
    applied(table, acquire(B, 3))
    applied(table, acquire(C, 1))
    report = status_of(table, LOCK)
    assert [(one.session, one.times, one.fence, one.label) for one in report.holders] == [
        (A, 2, 1, "first")
    ]
    assert [(one.session, one.times) for one in report.waiters] == [(B, 3), (C, 1)]
    assert report.permits == 3
    (line,) = held(table)
    assert (line.lock, line.waiting) == (LOCK, 2)


def drain(session: str, request: int = 1, **fields: Any) -> AcquirePermits:
    return acquire(session, 0, request, wait_ms=0, **fields)


def test_a_drain_does_not_overtake_a_claim_that_waits(table: LockTable) -> None:
    applied(table, acquire(A))
    assert applied(table, acquire(B, 3)) == ["t.2 waits"]
    no = only(Refused, table.apply(0, drain(C)))
    assert text_of(no) == "semaphore 'S': 1 of 3 permits are held, 1 in its queue"
    assert status_of(table, LOCK).free == 2


def test_a_report_has_the_permits_that_are_free(table: LockTable) -> None:
    assert status_of(table, LOCK).free is None  # It leaves no state.
    applied(table, acquire(A, 2))
    applied(table, acquire(B, 2))
    assert status_of(table, LOCK).free == 1
    assert status_of(restored(table), LOCK).free == 1


def resize(session: str, size: int, request: int = 1, **fields: Any) -> ResizeSemaphore:
    made = ResizeSemaphore(
        semaphore="S", permits=3, size=size, session=session, owner="r", request=request
    )
    return replace(made, **fields)


def resized(table: LockTable, command: ResizeSemaphore) -> tuple[int, int]:
    """Return the size and the free permits of the reply, which comes first."""
    one = checked(Resized, table.apply(table.time_ms, command)[0])
    return one.size, one.free


def test_claims_that_are_too_large_for_the_new_size_are_refused(table: LockTable) -> None:
    applied(table, acquire(A))
    applied(table, acquire(B, 3))
    applied(table, acquire(C))
    outcomes = table.apply(0, resize(A, 2))
    assert [summary(one) for one in outcomes] == ["Resized", "t.2 INVALID", "u.3 holds 1 under 2"]
    assert text_of(outcomes[1]) == "semaphore 'S' has 2 permits; this client asked for one with 3"


def test_a_size_that_is_not_the_present_one_is_not_changed(table: LockTable) -> None:
    applied(table, acquire(A))
    (no,) = table.apply(0, resize(B, 5, permits=4))
    assert text_of(no) == "semaphore 'S' has 3 permits; this client asked for one with 4"
    assert resized(table, resize(B, 5, 2)) == (5, 4)
    assert resized(table, resize(C, 5)) == (5, 4)  # Another client has done it.
    assert applied(table, acquire(B)) == ["t.2 INVALID"]
    assert applied(table, acquire(B, request=2, permits=5)) == ["t.2 holds 1 under 2"]
