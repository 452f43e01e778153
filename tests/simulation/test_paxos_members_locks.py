"""Bugs planted in the locks of a group whose members change, seen by the judges named for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from support.planted_bugs import hold_of

from fencelock.actors.api.message import Acquire, Granted, Release
from fencelock.actors.api.session_message import CloseReason
from fencelock.actors.table import requests
from fencelock.actors.table import state as table_state
from fencelock.actors.table.resource import TableHold
from fencelock.actors.table.retained import count_span
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.session import Sessions
from fencelock.actors.table.state import TableState
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.verification.simulation.paxos_plan import draw_members_plan
from fencelock.verification.simulation.paxos_run import run_log_seed

SEEDS = 30

RIGHT_RESTORE: Callable[[LockMachine, Sequence[bytes]], None] = LockMachine.restore
RIGHT_GRANT: Callable[..., Any] = TableState.grant
RIGHT_BEGIN: Callable[..., Any] = vars(requests)["begin"]
RIGHT_DEADLINE: Callable[[Sessions, Any], int] = Sessions.deadline
RIGHT_PASS_ON: Callable[..., None] = vars(TableState)["_pass_on"]


def without_sessions(machine: LockMachine, chunks: Sequence[bytes]) -> None:
    """Take over a snapshot without the sessions, and so without holds and waits."""
    RIGHT_RESTORE(machine, chunks)
    for session in list(machine.table.sessions.by_id.values()):
        machine.table.close(session, CloseReason.EXPIRED, 0, [])


def to_everybody(table: TableState, command: Any, out: list[Any]) -> None:
    """Grant a lock to whoever asks."""
    table.resources.pop(command.lock, None)
    requests.acquire(table, command, out)


def from_one(table: TableState, *grant: Any) -> Any:
    """Begin with the first fence again after every tenth."""
    table.fence %= 10
    return RIGHT_GRANT(table, *grant)


def with_a_new_fence(
    table: Any, owner_state: Any, hold: TableHold, command: Any, out: list[Any]
) -> None:
    """Let an owner that enters again have another fence."""
    del table, owner_state
    hold.count += 1
    hold.granted_count, hold.request = hold.count, command.request
    hold.fence += 1
    out.append(hold.answer())


def to_the_last(table: TableState, hold: TableHold, out: list[Any]) -> None:
    """Grant a lock to the one that has waited for the shortest time."""
    queue = table.resources[hold.owner_state.lock].queue
    if queue:
        queue.move_to_end(next(reversed(queue)), last=False)
    RIGHT_PASS_ON(table, hold, out)


def to_ended(table: TableState, command: Any, out: list[Any]) -> None:
    """Grant a lock in a session that has ended."""
    if command.session in table.sessions.by_id:
        requests.acquire(table, command, out)
        return
    table.fence += 1
    granted = Granted(
        lock=command.lock,
        fence=table.fence,
        session=command.session,
        owner=command.owner,
        request=command.request,
    )
    out.append(granted)


def of_anybody(table: TableState, command: Release, out: list[Any]) -> None:
    """Release a lock, whoever holds it."""
    session, hold = table.sessions.by_id.get(command.session), hold_of(table, command.lock)
    if session is None or hold is None:
        requests.release(table, command, out)
        return
    key = (command.owner, command.lock)
    owner_state = session.owner_states.get(key) or session.enter(key)
    owner_state.request = command.request
    out.append(owner_state.released(0))
    table.end_hold(hold, out)


def again(table: TableState, command: Any, out: list[Any]) -> Any:
    """Do a request whenever it comes."""
    session = table.sessions.by_id.get(command.session)
    known = session and session.owner_states.get((command.owner, command.lock))
    if known and known.request == command.request and known.wait is None:
        known.request -= 1
    return RIGHT_BEGIN(table, command, out)


def too_early(sessions: Sessions, session: Any) -> int:
    """Let sessions end after half of their TTL."""
    return RIGHT_DEADLINE(sessions, session) - int(session.ttl_ms) // 2


class Mutant(NamedTuple):
    """A bug: which judge is to see it, and where it is."""

    judged: str
    told: str
    """The beginning of what the judge says."""
    patched: Any
    name: Any
    value: Any
    first: int = 0
    """The seed with which the search begins."""


MUTANTS = {
    "a snapshot lacks the sessions": Mutant(
        "one-holder", "fences: ", LockMachine, "restore", without_sessions, first=38
    ),
    "a held lock is granted": Mutant("one-holder", "one-holder, ", RULES, Acquire, to_everybody),
    "fences begin again": Mutant("fences-rise", "fences-rise, ", TableState, "grant", from_one),
    "the fences of a span are granted again": Mutant(
        "fences-rise", "fences-rise, ", table_state, "begin_span", count_span
    ),
    "an owner enters under another fence": Mutant(
        "same-fence-again", "same-fence-again, ", requests, "_enter_again", with_a_new_fence
    ),
    "the last waiter is first": Mutant(
        "queue-in-log-order", "queue-in-log-order, ", TableState, "_pass_on", to_the_last
    ),
    "an ended session is granted": Mutant(
        "ended-gets-nothing", "ended-gets-nothing, ", RULES, Acquire, to_ended
    ),
    "anybody releases": Mutant(
        "release-by-fence", "release-by-fence, ", RULES, Release, of_anybody, first=12
    ),
    "a repetition is done": Mutant("one-outcome", "one-outcome, ", requests, "begin", again),
    "a session ends too early": Mutant(
        "session-outlives-trust", "session-outlives-trust, ", Sessions, "deadline", too_early
    ),
}


@pytest.mark.parametrize("bug", MUTANTS)
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    judged, told, patched, name, value, first = MUTANTS[bug]
    if patched is RULES:
        monkeypatch.setitem(RULES, name, value)
    else:
        monkeypatch.setattr(patched, name, value)
    others: list[str] = []
    for seed in range(first, first + SEEDS):
        report = run_log_seed(seed, plan=draw_members_plan(seed), judged=frozenset({judged}))
        if f" ms: {told}" in (report.violation or ""):
            return
        others += [report.violation[:400]] if report.violation else []
    pytest.fail(f"not seen by {judged} in {SEEDS} seeds, which saw {others[:3]}")
