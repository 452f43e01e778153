"""The replicated table against a dumb model of it, and planted bugs that this must find.

Both get the same random log, with repetitions, expiry, force and restores; what comes of each
command is compared word by word, and the invariants are judged on the table alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.actors.lock import operation, table_snapshot
from holdfast.actors.lock.command import (
    AcquireLock,
    CancelWait,
    CloseReason,
    CloseSession,
    Command,
    ExtendSessions,
    ForceRelease,
    KeepSession,
    OpenSession,
    ReleaseLock,
)
from holdfast.actors.lock.holding import Lock
from holdfast.actors.lock.outcome import Denial, Denied, Held, Outcome, SessionClosed
from holdfast.actors.lock.session import Sessions
from holdfast.actors.lock.table import LockTable
from holdfast.actors.lock.table_state import TableState
from holdfast.cluster.simulation.table_model import Model, Word, word_of

Step = tuple[int, int, int, int, int, int]


def release(session: str, owner: str, request: int, lock: str, fence: int) -> ReleaseLock:
    return ReleaseLock(session=session, owner=owner, request=request, lock=lock, fence=fence)


class Writer:
    """Turns numbers into a log that stays interesting: it repeats, overtakes and gives up."""

    def __init__(self) -> None:
        self.said: list[Command] = [ExtendSessions(master="m")]

    def command(self, step: Step, model: Model) -> Command:
        kind, _, who, which, what, chance = step
        session = f"{'ab'[who % 2]}.{max(1, model.opened - chance % 4)}"
        live = [one["id"] for one in model.sessions]
        session = live[who % len(live)] if live and chance % 8 else session
        owner, lock, request = "pq"[which % 2], "LMN"[what % 3], len(self.said)
        hold = model.holder(lock)
        acquire = AcquireLock(
            session=session,
            owner=owner,
            request=request,
            lock=lock,
            wait_ms=(None, 0, 60, 200)[chance % 4],
            limit=(0, 1, 2)[chance % 3],
        )
        match kind:
            case 0 | 1:
                ttl = (150, 400, 5_000)[chance % 3]
                made: Command = OpenSession(session="ab"[who % 2], ttl_ms=ttl)
            case 2:
                made = KeepSession(session=session)
            case 3:
                close = CloseSession(session=session, reason=CloseReason.FORCED)
                made = close if chance % 2 else ExtendSessions(master="m")
            case 4 if chance % 3:
                seen = hold.fence if hold else 1
                made = ForceRelease(operator="root", request=request, lock=lock, fence=seen)
            case 5 | 6 | 7 | 8:
                fence = hold.fence if hold and chance % 5 else chance
                who_says = (hold.session, hold.owner) if hold and chance % 7 else (session, owner)
                made = release(*who_says, request, lock, fence)
            case 9 | 10 | 11:
                return self.said[-1 - chance % min(len(self.said), 12)]
            case 12:
                past = self.said[-1 - chance % min(len(self.said), 12)]
                old = past if isinstance(past, AcquireLock) else acquire
                self.said.append(acquire)  # It may come after its own cancel.
                who_was = {"session": old.session, "owner": old.owner}
                return CancelWait(**who_was, request=old.request, lock=old.lock)
            case _:
                made = acquire
        self.said.append(made)
        return made


Queue = dict[tuple[str, str, int], int]  # (session, owner, request) to ticket, in order.


def queue_of(lock: Lock) -> Queue:
    return {(w.session, w.owner, w.request): w.ticket for w in lock.waits.values()}


@dataclass
class Judge:
    """The invariants, judged on what the table says and shows, without the model."""

    grants: dict[int, tuple[str, str, str]] = field(default_factory=dict[int, tuple[str, str, str]])
    settled: dict[Word, Word] = field(default_factory=dict[Word, Word])
    closed: list[str] = field(default_factory=list[str])

    def on_held(self, table: LockTable, before: dict[str, Queue], held: Held) -> None:
        who = (held.session, held.owner, held.lock)
        assert held.fence in self.grants or held.fence > max(self.grants, default=0)  # L2
        assert self.grants.setdefault(held.fence, who) == who  # L1
        assert held.session not in self.closed  # L4
        queue = before.get(held.lock, {})
        ticket = queue.get((held.session, held.owner, held.request), 0)
        now = table.locks[held.lock].waits if held.lock in table.locks else ()
        assert not [t for t in queue.values() if t < ticket and t in now]  # L3

    def judge(self, table: LockTable, before: dict[str, Queue], out: list[Outcome]) -> None:
        lasting = (Denial.TIMED_OUT, Denial.NOT_HELD, Denial.LIMIT_REACHED)
        for one in out:
            if isinstance(one, SessionClosed):
                self.closed.append(one.session)
            if isinstance(one, Held):
                self.on_held(table, before, one)
            if isinstance(one, Held) or (isinstance(one, Denied) and one.reason in lasting):
                key = (one.session, one.owner, one.request, one.lock)
                assert self.settled.setdefault(key, word_of(one)) == word_of(one)  # L5
        assert max(self.grants, default=0) == table.fence
        claims = 0
        for name, lock in table.locks.items():  # L7: whatever is in the table is held.
            members = [lock.hold.session, *(wait.session for wait in lock.waits.values())]
            assert all(session in table.sessions.by_id for session in members)  # L4
            assert self.grants[lock.hold.fence] == (lock.hold.session, lock.hold.owner, name)
            assert lock.hold.count >= 1
            claims += len(members)
        assert claims == table.claims == sum(s.claims for s in table.sessions.by_id.values())
        assert (table.due_ms() or table.time_ms + 1) > table.time_ms


def run(steps: Iterable[Step]) -> None:
    """Play ``steps`` to the table and the model, and assert that they agree throughout."""
    table, model, writer, judge = LockTable(), Model(), Writer(), Judge()
    for opening in (OpenSession(session=name, ttl_ms=5_000) for name in "ab"):
        assert [word_of(o) for o in table.apply(0, opening)] == model.apply(0, opening)
    for step in steps:
        at = table.time_ms + (0, 0, 0, 1, 5, 40, 100, 200)[step[1] % 8]
        before = {name: queue_of(lock) for name, lock in table.locks.items()}
        command = writer.command(step, model)
        out = table.apply(at, command)
        assert [word_of(one) for one in out] == model.apply(at, command), command
        judge.judge(table, before, out)
        if step[5] % 11 == 0:
            copy = LockTable.restore(table.snapshot())
            assert copy.digest() == table.digest()
            table = copy
    end = table.time_ms + 10_000
    assert [word_of(one) for one in table.advance(end)] == model.advance(end)
    assert (table.locks, table.sessions.by_id, table.claims) == ({}, {}, 0)  # L7, L13


@given(st.lists(st.tuples(st.integers(0, 19), *[st.integers(0, 63)] * 5), max_size=60))
@settings(max_examples=250, deadline=None)
def test_the_table_does_what_the_model_does(steps: list[Step]) -> None:
    """L1 to L5, L7 and every rule that the model knows."""
    run(steps)


def steps_of(seed: int) -> list[Step]:
    chance = random.Random(seed)
    return [
        (chance.randrange(20), *(chance.randrange(64) for _ in range(5)))  # type: ignore[misc]
        for _ in range(150)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_long_logs_too(seed: int) -> None:
    run(steps_of(seed))


Plant = Callable[[Any], Any]  # From a sound function to a broken one.


def reused_fence(sound: Any) -> Any:
    def broken(table: TableState, hold: Any, out: list[Outcome]) -> None:
        sound(table, hold, out)
        table.fence -= hold.lock not in table.locks

    return broken


def last_come_first_served(sound: Any) -> Any:
    def broken(table: TableState, hold: Any, out: list[Outcome]) -> None:
        waits = table.locks[hold.lock].waits
        if waits:
            waits.move_to_end(next(reversed(waits)), last=False)
        sound(table, hold, out)

    return broken


def closing_forgets(what: str, *reasons: CloseReason) -> Plant:
    def plant(sound: Any) -> Any:
        def broken(table: TableState, session: Any, reason: CloseReason, *rest: Any) -> None:
            for owner in session.owners.values():
                if reason in reasons:
                    getattr(owner, what).clear()
            sound(table, session, reason, *rest)

        return broken

    return plant


def retry_is_applied_again(sound: Any) -> Any:
    def broken(table: TableState, command: Any, out: list[Outcome]) -> Any:
        session = table.sessions.by_id.get(command.session)
        owner = session.owners.get(command.owner) if session is not None else None
        if owner is not None and owner.request == command.request and not owner.waits:
            owner.request -= 1
        return sound(table, command, out)

    return broken


def release_as(*words: str) -> Plant:
    def plant(sound: Any) -> Any:
        def broken(table: TableState, command: ReleaseLock, out: list[Outcome]) -> None:
            lock = table.locks.get(command.lock)
            right = {word: getattr(lock.hold, word) for word in words} if lock else {}
            sound(table, replace(command, **right), out)

        return broken

    return plant


def timed_out_wait_stays(sound: Any) -> Any:
    def broken(table: TableState, wait: Any, reason: Denial, *rest: Any) -> None:
        sound(table, wait, reason, *rest)
        if reason is Denial.TIMED_OUT:
            table.locks[wait.lock].waits[wait.ticket] = replace(wait, due_ms=None)

    return broken


def no_memos(sound: Any) -> Any:
    def broken(session: Any) -> Any:
        for record in sound(session):
            yield record._replace(request=0, outcome=None) if hasattr(record, "name") else record

    return broken


def no_deadlines(sound: Any) -> Any:
    def broken(*parts: Any) -> Any:
        return sound(*parts)._replace(due_ms=None)

    return broken


def nothing(*_: Any) -> None:
    pass


def same_number_again(sound: Any) -> Any:
    def broken(sessions: Sessions, session: Any) -> None:
        sound(sessions, session)
        sessions.opened -= 1

    return broken


PLANTS: dict[str, tuple[Any, str, Plant]] = {
    "a fence given back": (TableState, "_pass_on", reused_fence),
    "last come first served": (TableState, "_pass_on", last_come_first_served),
    "waits outlive their session": (TableState, "close", closing_forgets("waits", *CloseReason)),
    "expiry frees nothing": (TableState, "close", closing_forgets("holds", CloseReason.EXPIRED)),
    "a wait that timed out stays": (TableState, "end_wait", timed_out_wait_stays),
    "a retry is applied again": (operation, "_begin", retry_is_applied_again),
    "any fence releases": (operation, "release", release_as("fence")),
    "any owner releases": (operation, "release", release_as("session", "owner", "fence")),
    "a snapshot without memos": (table_snapshot, "_owner_records", no_memos),
    "a snapshot without deadlines": (table_snapshot, "_wait_record", no_deadlines),
    "commands are no sign of life": (Sessions, "keep", lambda _: nothing),
    "a new master extends nothing": (Sessions, "extend", lambda _: nothing),
    "an old session id again": (Sessions, "drop", same_number_again),
}


@pytest.mark.parametrize("bug", PLANTS)
def test_every_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    """By a difference, by a judge, or by an assertion or a hole in the table itself."""
    place, name, plant = PLANTS[bug]
    monkeypatch.setattr(place, name, plant(getattr(place, name)))
    with pytest.raises((AssertionError, KeyError)):
        run(step for seed in range(20) for step in steps_of(seed))
