"""Locks in the replicated table: acquire, wait, re-enter, release, force. Rule by rule.

Outcomes are compared in words, as ``owner#request what``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencelock.actors.api.message import Acquire, Cancel, Granted, Refused, Release, Released
from fencelock.actors.api.session_message import Open
from fencelock.actors.table.report import HolderSeen
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Queued, Result


def word(outcome: Result) -> str:
    match outcome:
        case Granted():
            text = f"held {outcome.fence} x{outcome.count}"
        case Released():
            text = f"freed x{outcome.count}"
        case Refused():
            text = outcome.reason.name
        case Queued():
            text = "queued"
        case _:
            return type(outcome).__name__
    return f"{outcome.owner}#{outcome.request} {text}"


class TableLog:
    """A table with one session and its owners' commands, each with the next request number."""

    def __init__(self) -> None:
        self.table = LockTable()
        self.now = 1_000
        self.request = 0
        self.table.apply(self.now, Open(session="s", ttl_ms=1_000_000, label="host:7"))

    def number(self, again: int | None) -> int:
        self.request += again is None
        return self.request if again is None else again

    def acquire(
        self,
        owner: str,
        wait_ms: int | None = None,
        *,
        limit: int = 0,
        again: int | None = None,
        lock: str = "L",
    ) -> list[str]:
        command = Acquire(
            session="s.1",
            owner=owner,
            request=self.number(again),
            lock=lock,
            wait_ms=wait_ms,
            limit=limit,
            label=f"label of {owner}",
        )
        return [word(outcome) for outcome in self.table.apply(self.now, command)]

    def release(
        self, owner: str, fence: int, *, again: int | None = None, lock: str = "L"
    ) -> list[str]:
        request = self.number(again)
        command = Release(session="s.1", owner=owner, request=request, lock=lock, fence=fence)
        return [word(outcome) for outcome in self.table.apply(self.now, command)]

    def cancel(self, owner: str, request: int) -> list[str]:
        command = Cancel(session="s.1", owner=owner, request=request, lock="L")
        return [word(outcome) for outcome in self.table.apply(self.now, command)]

    def sleep(self, ms: int) -> list[str]:
        self.now += ms
        return [word(outcome) for outcome in self.table.advance(self.now)]

    @property
    def holder(self) -> tuple[str, int, int] | None:
        """The holder of L, its count and its fence."""
        seen = self.table.status("L").holder
        return None if seen is None else (seen.owner, seen.times, seen.fence)

    @property
    def queue(self) -> list[str]:
        return [f"{w.owner}#{w.request}" for w in self.table.status("L").waiters]


@pytest.fixture
def log() -> TableLog:
    return TableLog()


@pytest.mark.parametrize("wait_ms", [None, 0, 1_000])
def test_a_free_lock_is_granted_at_once_however_one_would_have_waited(
    log: TableLog, wait_ms: int | None
) -> None:
    """Rule free-is-granted-at-once."""
    assert log.acquire("a", wait_ms) == ["a#1 held 1 x1"]
    assert log.holder == ("a", 1, 1)


@pytest.mark.parametrize("wait_ms", [None, 0, 1_000])
def test_a_holder_enters_again_under_the_same_fence(log: TableLog, wait_ms: int | None) -> None:
    """Rules holder-enters-again, fences-rise."""
    log.acquire("a")
    assert log.acquire("a", wait_ms) == ["a#2 held 1 x2"]


def test_another_owner_of_the_same_session_does_not_get_it(log: TableLog) -> None:
    """Rule one-holder: ownership is by (session, owner), not by session."""
    log.acquire("a")
    assert log.acquire("b") == ["b#2 queued"]
    assert log.holder == ("a", 1, 1)


def test_the_next_ownership_has_a_greater_fence(log: TableLog) -> None:
    """Rule fences-rise."""
    log.acquire("a")
    log.release("a", 1)
    assert log.acquire("b") == ["b#3 held 2 x1"]


@pytest.mark.parametrize("wait_ms", [None, 60_000])
def test_a_release_grants_the_waiter_in_the_same_step(log: TableLog, wait_ms: int | None) -> None:
    """Rule release-grants-the-next."""
    log.acquire("a")
    log.acquire("b", wait_ms)
    assert log.release("a", 1) == ["a#3 freed x0", "b#2 held 2 x1"]
    assert log.holder == ("b", 1, 2)


def test_waiters_are_served_in_the_order_of_the_log(log: TableLog) -> None:
    """Rule queue-in-log-order."""
    log.acquire("a")
    for owner in "bcd":
        log.acquire(owner)
    order = [log.release(owner, fence + 1)[1] for fence, owner in enumerate("abc")]
    assert order == ["b#2 held 2 x1", "c#3 held 3 x1", "d#4 held 4 x1"]


def test_a_wait_without_limit_never_ends_by_time(log: TableLog) -> None:
    """Rule waits-end-by-log-time."""
    log.acquire("a")
    log.acquire("b", None)
    assert log.table.timeouts.items == {}
    assert log.sleep(900_000) == []
    assert log.queue == ["b#2"]


def test_a_try_at_a_held_lock_fails_at_once_and_changes_nothing(log: TableLog) -> None:
    """Rule tries-never-wait: nor does it count as a claim of its session."""
    log.acquire("a")
    assert log.acquire("b", 0) == ["b#2 TIMED_OUT"]
    assert (log.holder, log.queue, log.table.claims) == (("a", 1, 1), [], 1)
    assert log.table.sessions.by_id["s.1"].claims == 1


@pytest.mark.parametrize("wait_ms", [1, 100, 1_501, 60_000])
def test_a_wait_ends_at_its_time_and_not_before(log: TableLog, wait_ms: int) -> None:
    """Rule waits-end-by-log-time: short and long waits alike, by log time alone."""
    log.acquire("a")
    log.acquire("b", wait_ms)
    assert log.table.due_ms() == 1_000 + wait_ms
    assert log.sleep(wait_ms - 1) == []
    assert log.sleep(1) == ["b#2 TIMED_OUT"]
    assert (log.holder, log.queue) == (("a", 1, 1), [])


def test_a_wait_that_ended_is_not_granted_any_more(log: TableLog) -> None:
    """Rule waits-end-by-log-time: not even by a release at the very time of its end."""
    log.acquire("a")
    log.acquire("b", 100)
    log.now += 100
    assert log.release("a", 1) == ["b#2 TIMED_OUT", "a#3 freed x0"]
    assert log.holder is None


ENDS: dict[str, Callable[[TableLog], list[str]]] = {
    "granted": lambda log: log.release("a", 1),
    "timed out": lambda log: log.sleep(100),
    "cancelled": lambda log: log.cancel("b", 2),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_wait_that_is_over_leaves_no_deadline(log: TableLog, end: str) -> None:
    """Rule waits-end-by-log-time."""
    log.acquire("a")
    log.acquire("b", 100)
    assert len(log.table.timeouts.items) == 1
    ENDS[end](log)
    assert (log.table.timeouts.items, log.queue) == ({}, [])


def test_nothing_ends_but_by_log_time(log: TableLog) -> None:
    """Rules waits-end-by-log-time, log-time-alone: at the same place."""
    late = TableLog()
    for one in (log, late):
        one.acquire("a")
        one.acquire("b", 100)
    log.sleep(50)
    log.sleep(50)
    late.now += 100
    assert late.acquire("c", 0) == ["b#2 TIMED_OUT", "c#3 TIMED_OUT"]
    assert log.acquire("c", 0) == ["c#3 TIMED_OUT"]
    assert log.table.digest() == late.table.digest()


def test_a_free_lock_cannot_be_released(log: TableLog) -> None:
    """Rule only-holders-release."""
    assert log.release("a", 0) == ["a#1 NOT_HELD"]
    assert log.release("a", 7) == ["a#2 NOT_HELD"]


def test_the_last_release_frees(log: TableLog) -> None:
    """Rule releases-are-counted."""
    log.acquire("a")
    assert log.release("a", 1) == ["a#2 freed x0"]
    assert log.table.status("L")[:4] == ("L", None, 0, ())


def test_a_release_of_one_of_two_holds_keeps_the_lock(log: TableLog) -> None:
    """Rule releases-are-counted."""
    log.acquire("a")
    log.acquire("a")
    log.acquire("b")
    assert log.release("a", 1) == ["a#4 freed x1"]
    assert log.holder == ("a", 1, 1)


def test_an_owner_that_does_not_hold_cannot_release_even_with_the_right_fence(
    log: TableLog,
) -> None:
    """Rule only-holders-release: the owner needs the fence too."""
    log.acquire("a")
    assert log.release("b", 1) == ["b#2 NOT_HELD"]
    assert log.release("a", 2) == ["a#3 NOT_HELD"]
    assert log.holder == ("a", 1, 1)


def test_status_tells_of_holder_and_contenders_in_order(log: TableLog) -> None:
    """Rule status-is-complete."""
    log.acquire("a")
    log.acquire("a")
    log.sleep(5)
    log.acquire("b")
    log.acquire("c", 100)
    log.sleep(7)
    status = log.table.status("L")
    assert status.holder == HolderSeen("s.1", "a", "host:7, label of a", 1, 2, 1_000, 12)
    assert [(w.owner, w.label, w.waited_ms, w.left_ms) for w in status.waiters] == [
        ("b", "host:7, label of b", 7, None),
        ("c", "host:7, label of c", 7, 93),
    ]


def test_a_lock_may_be_held_any_number_of_times_without_a_limit(log: TableLog) -> None:
    """Rule holds-are-limited."""
    for _ in range(1_000):
        log.acquire("a", limit=0)
    assert log.holder == ("a", 1_000, 1)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("wait_ms", [None, 0, 60_000])
def test_beyond_the_limit_an_acquire_fails_at_once(
    log: TableLog, limit: int, wait_ms: int | None
) -> None:
    """Rule holds-are-limited: it does not wait, for it would wait for itself."""
    for _ in range(limit):
        log.acquire("a", limit=limit)
    assert log.acquire("a", wait_ms, limit=limit) == [
        f"a#{limit + 1} {'ALREADY_HELD' if limit == 1 else 'LIMIT_REACHED'}"
    ]
    assert (log.holder, log.queue) == (("a", limit, 1), [])


def test_after_another_owner_the_limit_counts_from_nothing(log: TableLog) -> None:
    """Rule holds-are-limited."""
    for _ in range(2):
        log.acquire("b", limit=2)
    for _ in range(2):
        log.release("b", 1)
    assert log.acquire("a", limit=2) == ["a#5 held 2 x1"]
    assert log.acquire("a", limit=2) == ["a#6 held 2 x2"]


def test_fences_rise_over_all_names_and_begin_at_one(log: TableLog) -> None:
    """Rules fences-rise, free-leaves-nothing: one counter for the table, drawn at the grant."""
    said = [log.acquire("a", lock=f"L{i % 3}") for i in range(3)]
    for i in range(3):
        log.release("a", i + 1, lock=f"L{i}")
    said += [log.acquire("a", lock=f"L{i}") for i in (2, 0, 1)]
    assert [words[0].split()[2] for words in said] == ["1", "2", "3", "4", "5", "6"]
