"""Locks in the replicated table: held, awaited, entered again, repeated, cancelled, forgotten.

Outcomes are compared as texts, ``owner#request what``. `test_table_kinds.py` has the rules that
locks share with other objects.
"""

from __future__ import annotations

import pytest
from support.table_scene import status_of, text_of

from fencelock.actors.api.message import (
    Acquire,
    Cancel,
    Cancelled,
    Contender,
    Granted,
    KeepAlive,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.session_message import Evict, Evicted, HoldLost, Open
from fencelock.actors.table.session import IDLE_MAX
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, LogCommand, Queued, Result

TTL_MS = 24 * 3_600_000


def summary_of(outcome: Result) -> str:
    match outcome:
        case Granted():
            text = f"held {outcome.fence} x{outcome.count}"
        case Released():
            text = f"freed x{outcome.count}"
        case Refused():
            text = outcome.reason.name
        case Queued():
            text = "queued"
        case Cancelled():
            text = "undone"
        case _:
            return type(outcome).__name__
    return f"{outcome.owner}#{outcome.request} {text}"


class TableLog:
    """A table with one session and its owners' commands, each with the next request number."""

    def __init__(self) -> None:
        self.table = LockTable()
        self.now = 1_000
        self.request = 0
        self.table.apply(self.now, Open(session="s", ttl_ms=TTL_MS, label="host:7"))

    def number(self, again: int | None) -> int:
        self.request += again is None
        return self.request if again is None else again

    def apply(self, command: LogCommand) -> list[str]:
        return [summary_of(outcome) for outcome in self.table.apply(self.now, command)]

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
        return self.apply(command)

    def release(
        self, owner: str, fence: int, *, again: int | None = None, lock: str = "L"
    ) -> list[str]:
        request = self.number(again)
        command = Release(session="s.1", owner=owner, request=request, lock=lock, fence=fence)
        return self.apply(command)

    def cancel(self, owner: str, request: int) -> list[str]:
        self.request = max(self.request, request)
        return self.apply(Cancel(session="s.1", owner=owner, request=request, lock="L"))

    def keep_alive(self) -> None:
        self.table.apply(self.now, KeepAlive(session="s.1"))

    def sleep(self, ms: int) -> list[str]:
        self.now += ms
        return [summary_of(outcome) for outcome in self.table.advance(self.now)]

    @property
    def holder(self) -> tuple[str, int, int | None] | None:
        seen = status_of(self.table, "L").holder
        return None if seen is None else (seen.owner, seen.times, seen.fence)

    @property
    def queue(self) -> list[str]:
        awaited = self.table.awaited("L")
        owners = [wait.owner_state for wait in awaited.waits] if awaited is not None else []
        return [f"{one.owner}#{one.request}" for one in owners]


@pytest.fixture
def log() -> TableLog:
    return TableLog()


@pytest.mark.parametrize("wait_ms", [None, 0, 1_000])
def test_a_holder_enters_again_under_the_same_fence(log: TableLog, wait_ms: int | None) -> None:
    """Rules holder-enters-again, fences-rise."""
    log.acquire("a")
    assert log.acquire("a", wait_ms) == ["a#2 held 1 x2"]


def test_a_release_of_one_of_many_holds_keeps_the_lock(log: TableLog) -> None:
    """Rules one-holder, releases-are-counted, holds-are-limited: without a limit, any number is."""
    for _ in range(1_000):
        log.acquire("a", limit=0)
    assert log.acquire("b") == ["b#1001 queued"]
    assert log.release("a", 1) == ["a#1002 freed x999"]
    assert log.holder == ("a", 999, 1)


def test_status_shows_holder_and_contenders_in_order(log: TableLog) -> None:
    """Rule status-is-complete."""
    log.acquire("a")
    log.acquire("a")
    log.sleep(5)
    log.acquire("b")
    log.acquire("c", 100)
    log.sleep(7)
    status = status_of(log.table, "L")
    assert status.holder == Contender("s", "s.1", "a", 1, 12, "host:7, label of a", 2)
    assert status.waiters == (
        Contender("s", "s.1", "b", None, 7, "host:7, label of b"),
        Contender("s", "s.1", "c", None, 7, "host:7, label of c"),
    )


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("wait_ms", [None, 0, 60_000])
def test_beyond_the_limit_acquires_fail(log: TableLog, limit: int, wait_ms: int | None) -> None:
    """Rule holds-are-limited: it does not wait, for it would wait for itself."""
    for _ in range(limit):
        log.acquire("a", limit=limit)
    assert log.acquire("a", wait_ms, limit=limit) == [
        f"a#{limit + 1} {'ALREADY_HELD' if limit == 1 else 'LIMIT_REACHED'}"
    ]
    assert (log.holder, log.queue) == (("a", limit, 1), [])


# Force


def test_an_operator_takes_a_lock_and_all_are_notified(log: TableLog) -> None:
    """Audited; the next holder has a new fence; the former owner's release gets the reason."""
    log.acquire("a")
    log.acquire("b")
    log.sleep(70)
    evict = Evict(operator="root", request=1, lock="L", fence=1)
    forced, lost, next_held = log.table.apply(log.now, evict)
    assert isinstance(forced, Evicted)
    assert (forced.operator, forced.holder.owner, forced.fence) == ("root ()", "a", 1)
    assert (forced.session, forced.request, forced.time_ms) == ("", 1, 1_070)
    assert forced.holder.since_ms == 70
    assert isinstance(lost, HoldLost)
    assert lost == HoldLost(
        session="s.1", owner="a", lock="L", fence=1, detail="", decided=True, why=lost.why
    )
    assert "taken by 'root ()'" in text_of(lost)
    assert summary_of(next_held) == "b#2 held 2 x1"
    for _ in range(2):
        assert log.release("a", 1, again=3) == ["a#3 OWNERSHIP_LOST"]
    assert log.release("a", 1, again=4) == ["a#4 NOT_HELD"]
    # Asked again, it does not hit the next holder.
    assert log.table.apply(log.now, evict) == [*log.table.forced()] == [forced]
    assert log.holder == ("b", 1, 2)


# Outcomes that are kept, and forgotten


def test_the_last_outcome_is_kept_for_a_ttl_after_the_last_release(log: TableLog) -> None:
    """Rule outcomes-are-kept: longer than a client repeats a request."""
    log.acquire("a")
    log.release("a", 1)
    log.keep_alive()
    log.sleep(TTL_MS - 1)
    assert log.release("a", 1, again=2) == ["a#2 freed x0"]
    log.sleep(1)
    assert log.release("a", 1, again=2) == ["a#2 FORGOTTEN"]
    assert log.acquire("a", again=1) == ["a#1 FORGOTTEN"]
    assert log.cancel("a", 1) == ["a#1 undone"]
    session = log.table.sessions.by_id["s.1"]
    assert (session.owner_states, session.idle, session.floor) == ({}, {}, 2)
    assert log.acquire("a") == ["a#3 held 2 x1"]


def test_a_new_leader_lets_what_was_asked_before_it_be_asked_again(log: TableLog) -> None:
    """Rule outcomes-are-kept: however long there was no leader."""
    log.acquire("a")
    log.release("a", 1)
    log.now += 3 * TTL_MS
    log.apply(ExtendSessions(leader="m"))
    for ms in (0, TTL_MS - 1):
        log.sleep(ms)
        assert log.release("a", 1, again=2) == ["a#2 freed x0"]
    log.sleep(1)
    assert log.release("a", 1, again=2) == ["a#2 FORGOTTEN"]


def test_an_owner_that_holds_or_waits_is_never_forgotten(log: TableLog) -> None:
    """Rule outcomes-are-kept."""
    log.acquire("a")
    log.acquire("b")
    for _ in range(6):
        log.sleep(TTL_MS // 2)
        log.keep_alive()
    assert log.acquire("a", again=1) == ["a#1 held 1 x1"]
    assert log.acquire("b", again=2) == ["b#2 queued"]


def test_one_outcome_is_kept_of_an_owner_and_lock_however_much_it_asks(log: TableLog) -> None:
    """Rule outcomes-are-bounded: also of what failed."""
    log.acquire("a")
    for _ in range(4_998):
        log.acquire("b", 0)
    owner_states = log.table.sessions.by_id["s.1"].owner_states
    assert len(owner_states) == 2
    assert owner_states["b", "L"].request == 4_999


def test_the_quietest_are_forgotten_and_what_they_asked_is_not_redone(log: TableLog) -> None:
    """Rule outcomes-are-bounded: an owner per task is no leak."""
    log.acquire("holder")
    for i in range(IDLE_MAX + 10):
        log.acquire(f"t{i}", 0)
    session = log.table.sessions.by_id["s.1"]
    assert len(session.owner_states) == IDLE_MAX + 1
    assert session.floor == 11
    log.release("holder", 1)
    assert log.acquire("t9", again=11) == ["t9#11 FORGOTTEN"]
    assert log.acquire("t11", again=13) == ["t11#13 TIMED_OUT"]
    assert log.acquire("t9") == [f"t9#{IDLE_MAX + 13} held 2 x1"]


def test_a_request_that_many_others_overtook_may_be_asked_anew(log: TableLog) -> None:
    """Rule outcomes-are-bounded: it never took effect, and holds nothing."""
    for i in range(IDLE_MAX + 6):
        log.cancel(f"t{i}", i + 6)
    assert log.acquire("late", again=5) == ["late#5 FORGOTTEN"]
    assert log.table.resources == {}
    assert log.acquire("late") == [f"late#{IDLE_MAX + 12} held 1 x1"]
