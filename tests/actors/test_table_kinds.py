"""The rules of the table that hold for objects of every kind, and the texts of its refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only, present
from support.table_scene import A, B, C, advanced, applied, restored, status_of, text_of

from fencelock.actors.api.barrier import BARRIER, AwaitBarrier
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.latch import LATCH, AwaitLatch
from fencelock.actors.api.lock_all import SEVERAL, AcquireAll
from fencelock.actors.api.lock_message import Acquire, Cancel, Granted, Reason, Refused, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.operator_message import Evict
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.rwlock import RWLOCK, AcquireReadWrite
from fencelock.actors.api.semaphore import SEMAPHORE, AcquirePermits
from fencelock.actors.api.session_message import End
from fencelock.actors.table.sentences import ARGUMENTS, is_sound
from fencelock.actors.table.table import LockTable


@dataclass(frozen=True)
class Kind:
    """A kind of object, as the tests use it."""

    request: Any
    """Waits for the object ``L``, or holds the whole of it."""
    lock: str
    """Its name in releases and cancels."""
    seen: str
    """Its name in the report."""

    def claim(self, session: str, request: int = 1, **fields: Any) -> Any:
        return replace(self.request, session=session, owner="o", request=request, **fields)

    def release(self, session: str, fence: int, request: int = 2) -> Release:
        return Release(lock=self.lock, fence=fence, session=session, owner="o", request=request)

    def waiters(self, table: LockTable) -> list[tuple[str, int]]:
        awaited = table.awaited(self.seen)
        owners = [wait.owner_state for wait in awaited.waits] if awaited is not None else []
        return [(one.session.id, one.request) for one in owners]


def kind(request: Callable[..., Any], kind: str, **fields: Any) -> Kind:
    lock = object_name(kind, "L")
    return Kind(request(**{kind: "L"}, **fields), lock, lock)


HELD = {
    "lock": Kind(Acquire(lock="L", session="", owner="", request=0, limit=0), "L", "L"),
    "semaphore": kind(AcquirePermits, SEMAPHORE, permits=2, amount=2),
    "write lock": kind(AcquireReadWrite, RWLOCK, write=True),
    "election": kind(Lead, ELECTION),
    "several locks": Kind(AcquireAll(locks=("L", "M")), object_name(SEVERAL, "L"), "L"),
}
"""Kinds that one owner can hold alone."""

AWAITED = {
    "latch": kind(AwaitLatch, LATCH, count=1),
    "barrier": kind(AwaitBarrier, BARRIER, parties=3),
}
"""Kinds that cannot be held, and whose callers wait from the beginning."""

held_kinds = pytest.mark.parametrize("kind", HELD.values(), ids=HELD)
all_kinds = pytest.mark.parametrize("kind", (HELD | AWAITED).values(), ids=HELD | AWAITED)


def make_wait(table: LockTable, kind: Kind, *others: Any) -> None:
    """Make callers of an object wait, and let the ``others`` begin to wait."""
    if kind in HELD.values():
        applied(table, kind.claim(A))
    for claim in others:
        assert applied(table, claim) == [f"{claim.session} waits"]


@held_kinds
def test_a_free_object_is_granted_under_a_fence_that_rises(table: LockTable, kind: Kind) -> None:
    """Rules free-is-granted-at-once, fences-rise."""
    fences: list[int] = []
    for request, (session, wait_ms) in enumerate(((A, None), (B, 0), (A, 1_000), (B, None))):
        claim = kind.claim(session, 2 * request + 1, wait_ms=wait_ms)
        granted = only(Granted, table.apply(0, claim))
        assert granted.fence > 0
        fences.append(granted.fence)
        table.apply(0, kind.release(session, granted.fence, 2 * request + 2))
    assert fences == sorted(set(fences))
    assert table.resources == {}


@held_kinds
def test_a_release_grants_the_first_waiter_of_any_kind(table: LockTable, kind: Kind) -> None:
    """Rules release-grants-the-next, queue-in-log-order, waits-end-by-log-time."""
    make_wait(table, kind, kind.claim(B, wait_ms=100), kind.claim(C))
    freed, held = applied(table, kind.release(A, 1))
    assert freed == f"{A} has 0 left"
    assert held.startswith(f"{B} holds")
    assert (kind.waiters(table), table.timeouts.items) == ([(C, 1)], {})
    assert applied(table, kind.release(B, int(held.split()[-1])))[1].startswith(f"{C} holds")


@held_kinds
def test_only_the_holder_of_an_object_releases_it(table: LockTable, kind: Kind) -> None:
    """Rule only-holders-release."""
    assert applied(table, kind.release(A, 1, 1)) == [f"{A} NOT_HELD"]
    applied(table, kind.claim(A, 2))
    assert applied(table, kind.release(B, 1)) == [f"{B} NOT_HELD"]
    assert applied(table, kind.release(A, 9, 3)) == [f"{A} NOT_HELD"]
    assert present(status_of(table, kind.seen).holder).session == A


@held_kinds
def test_a_repeated_grant_or_release_has_no_second_effect(table: LockTable, kind: Kind) -> None:
    """Rule one-outcome."""
    first = applied(table, kind.claim(A))
    assert applied(table, kind.claim(A)) == first
    applied(table, kind.claim(B))
    freed, held = applied(table, kind.release(A, 1))
    assert applied(table, kind.claim(B)) == [held]
    assert applied(table, kind.release(A, 1)) == [freed]
    assert applied(table, kind.release(B, int(held.split()[-1])))[0] == f"{B} has 0 left"


@all_kinds
def test_a_try_never_waits(table: LockTable, kind: Kind) -> None:
    """Rules tries-never-wait, waits-end-by-log-time."""
    make_wait(table, kind)
    before, claims = status_of(table, kind.seen), table.claims
    assert applied(table, kind.claim(B, wait_ms=0)) == [f"{B} TIMED_OUT"]
    assert (status_of(table, kind.seen), table.claims) == (before, claims)
    assert (table.waits_checksum, table.timeouts.items) == (0, {})
    assert table.sessions.by_id[B].claims == 0
    if kind in HELD.values():
        applied(table, kind.release(A, 1))
    assert applied(table, kind.claim(B, wait_ms=0)) == [f"{B} TIMED_OUT"]  # It was sent again.


@all_kinds
def test_a_wait_for_any_object_ends_by_log_time(table: LockTable, kind: Kind) -> None:
    """Rules waits-end-by-log-time, log-time-alone."""
    make_wait(table, kind, kind.claim(B))
    assert table.timeouts.items == {}
    applied(table, kind.claim(C, wait_ms=100))
    assert table.due_ms() == 100
    assert advanced(table, 99) == []
    assert kind.waiters(table) == [(B, 1), (C, 1)]
    assert f"{C} TIMED_OUT" in advanced(table, 100)
    assert table.timeouts.items == {}
    if kind is not AWAITED["barrier"]:  # It is broken.
        assert advanced(table, 9_999) == []
        assert kind.waiters(table) == [(B, 1)]


@all_kinds
def test_a_repeated_wait_neither_cancels_nor_doubles(table: LockTable, kind: Kind) -> None:
    """Rule one-outcome."""
    wait = kind.claim(B, wait_ms=100)
    make_wait(table, kind, wait, wait, *(replace(wait, wait_ms=ms) for ms in (None, 0, 50)))
    assert kind.waiters(table) == [(B, 1)]
    assert (len(table.timeouts.items), table.due_ms()) == (1, 100)
    assert advanced(table, 100) == [f"{B} TIMED_OUT"]
    if kind in HELD.values():
        applied(table, kind.release(A, 1))
    assert applied(table, wait) == [f"{B} TIMED_OUT"]


@all_kinds
def test_a_new_request_cancels_the_wait_of_its_owner(table: LockTable, kind: Kind) -> None:
    """Rule new-request-ends-the-wait."""
    make_wait(table, kind, kind.claim(B), kind.claim(C))
    first = [] if kind is AWAITED["barrier"] else [(C, 1)]  # A barrier breaks.
    for request, wait_ms in ((2, None), (3, 100)):
        cancelled, *_, waits = applied(table, kind.claim(B, request, wait_ms=wait_ms))
        assert (cancelled, waits) == (f"{B} CANCELLED", f"{B} waits")
        assert kind.waiters(table) == [*first, (B, request)]


@all_kinds
def test_a_wait_that_was_cancelled_stays_cancelled(table: LockTable, kind: Kind) -> None:
    """Rules one-outcome, waits-end-by-log-time."""
    make_wait(table, kind, kind.claim(B, wait_ms=100))
    cancel = Cancel(lock=kind.lock, session=B, owner="o", request=1)
    assert applied(table, cancel) == ["Cancelled", f"{B} CANCELLED"]
    assert applied(table, cancel) == ["Cancelled"]
    assert applied(table, kind.claim(B)) == [f"{B} CANCELLED"]
    assert (kind.waiters(table), table.timeouts.items) == ([], {})


@all_kinds
def test_a_cancel_that_overtakes_its_request_wins(table: LockTable, kind: Kind) -> None:
    """Rule one-outcome: it also ends a wait under a lower number."""
    make_wait(table, kind, kind.claim(B))
    cancel = Cancel(lock=kind.lock, session=B, owner="o", request=7)
    assert applied(table, cancel) == ["Cancelled", f"{B} CANCELLED"]
    assert applied(table, kind.claim(B, 7)) == [f"{B} CANCELLED"]
    assert kind.waiters(table) == []


@held_kinds
def test_a_cancelled_grant_goes_to_the_next(table: LockTable, kind: Kind) -> None:
    """Rules one-outcome, release-grants-the-next."""
    make_wait(table, kind, kind.claim(B))
    cancel = Cancel(lock=kind.lock, session=A, owner="o", request=1)
    cancelled, held = applied(table, cancel)
    assert (cancelled, held.startswith(f"{B} holds")) == ("Cancelled", True)
    assert applied(table, cancel) == ["Cancelled"]
    assert applied(table, kind.claim(A)) == [f"{A} CANCELLED"]


@held_kinds
def test_an_operator_takes_a_hold_once_its_owner_learns_it(table: LockTable, kind: Kind) -> None:
    make_wait(table, kind, kind.claim(B))
    evict = Evict(lock=kind.seen, fence=1, operator="root", request=1)
    *taken, held = applied(table, evict)
    assert (taken, held.startswith(f"{B} holds")) == (["Evicted 1", "HoldLost 1"], True)
    assert applied(table, evict) == ["Evicted 1"]
    assert applied(table, replace(evict, fence=9, request=2)) == [" NOT_HELD"]
    assert applied(table, kind.claim(A)) == [f"{A} OWNERSHIP_LOST"]
    assert applied(table, kind.release(A, 1)) == [f"{A} OWNERSHIP_LOST"]


@all_kinds
def test_the_end_of_a_session_ends_its_wait(table: LockTable, kind: Kind) -> None:
    """Rule close-ends-waits-first."""
    make_wait(table, kind, kind.claim(B))
    assert kind.waiters(table) == [(B, 1)]
    outcomes = applied(table, End(session=B))
    assert outcomes == [f"{B} SESSION_EXPIRED", "Ended"]
    assert kind.waiters(table) == []


@held_kinds
def test_the_end_of_a_session_frees_what_it_holds_in_one_step(table: LockTable, kind: Kind) -> None:
    """Rule close-ends-waits-first."""
    make_wait(table, kind, replace(kind.claim(A, 2), owner="p"), kind.claim(B))
    ended, closed, held = applied(table, End(session=A))
    assert (ended, closed) == (f"{A} SESSION_EXPIRED", "Ended")
    assert held.startswith(f"{B} holds")


@all_kinds
def test_every_request_is_a_sign_of_life(table: LockTable, kind: Kind) -> None:
    """Rule requests-keep-alive."""
    table.advance(9_000)
    applied(table, kind.claim(A))
    assert advanced(table, 10_000) == ["Ended", "Ended"]
    assert applied(table, kind.claim(B)) == [f"{B} SESSION_EXPIRED"]
    assert applied(table, kind.claim(A)) != [f"{A} SESSION_EXPIRED"]


@all_kinds
def test_a_restored_table_has_holder_queue_and_deadlines(table: LockTable, kind: Kind) -> None:
    """Rule snapshots-are-complete."""
    make_wait(table, kind, kind.claim(B, wait_ms=100), kind.claim(C))
    copy = restored(table)
    assert status_of(copy, kind.seen) == status_of(table, kind.seen)
    for one in (table, copy):
        assert applied(one, kind.claim(B, wait_ms=100)) == [f"{B} waits"]
    assert advanced(copy, 100) == advanced(table, 100)
    if kind in HELD.values():
        release = kind.release(A, 1)
        assert applied(copy, release) == applied(table, release)
    assert copy.digest() == table.digest()


ME = "ann.1"


def release(request: int, fence: int, *, session: str = ME) -> Release:
    return Release(lock="a", fence=fence, session=session, owner="o", request=request)


@pytest.mark.parametrize("cause", sorted({*Cause} - {Cause.QUOTA_SET, Cause.PURGED}))
def test_every_cause_has_a_sentence(cause: Cause) -> None:
    numbers, texts, seen = ARGUMENTS[cause]
    obstacle = Obstacle("b") if seen else None
    why = Why(cause, (1, 2, 3)[:numbers], ("shop", "entries")[:texts], obstacle)
    assert is_sound(why)
    words = text_of(Refused(lock="a", reason=Reason.INVALID, detail="", why=why))
    assert len(words.split()) > 5
    assert not set("{}") & set(words)
