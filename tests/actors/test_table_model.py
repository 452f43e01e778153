"""The replicated table against a dumb model of it, and planted bugs that this must find.

Both get the same random log, with repetitions, expiry, force and restores; what comes of each
command is compared word by word, and the invariants are judged on the table alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.table_play import Dice, play, steps_of

from fencelock.actors.api.message import Reason, Release
from fencelock.actors.api.session_message import CloseReason
from fencelock.actors.table import operation, table_snapshot
from fencelock.actors.table.message import Result
from fencelock.actors.table.operation import OPERATIONS
from fencelock.actors.table.session import Session, Sessions
from fencelock.actors.table.table_state import TableState


@given(st.lists(st.tuples(st.integers(0, 19), *[st.integers(0, 63)] * 5), max_size=60))
@settings(max_examples=250, deadline=None)
def test_the_table_does_what_the_model_does(steps: list[Dice]) -> None:
    """Rule 98: reentrant, not reentrant and limited; and L1 to L5 and L7 on the way."""
    play(steps)


@pytest.mark.parametrize("seed", range(40))
def test_long_logs_too(seed: int) -> None:
    play(steps_of(seed))


Plant = Callable[[Any], Any]  # From a sound function to a broken one.


def reused_fence(sound: Any) -> Any:
    def broken(table: TableState, hold: Any, out: list[Result]) -> None:
        sound(table, hold, out)
        table.fence -= hold.owner_state.lock not in table.locks

    return broken


def last_come_first_served(sound: Any) -> Any:
    def broken(table: TableState, hold: Any, out: list[Result]) -> None:
        waits = table.locks[hold.owner_state.lock].queue
        if waits:
            waits.move_to_end(next(reversed(waits)), last=False)
        sound(table, hold, out)

    return broken


def closing_forgets(what: str, *reasons: CloseReason) -> Plant:
    def plant(sound: Any) -> Any:
        def broken(table: TableState, session: Any, reason: CloseReason, *rest: Any) -> None:
            for owner_state in session.owner_states.values():
                if reason in reasons:
                    setattr(owner_state, what, None)
            sound(table, session, reason, *rest)

        return broken

    return plant


def retry_is_applied_again(sound: Any) -> Any:
    def broken(table: TableState, command: Any, out: list[Result]) -> Any:
        session = table.sessions.by_id.get(command.session)
        key = command.owner, command.lock
        owner_state = session.owner_states.get(key) if session is not None else None
        if (
            owner_state is not None
            and owner_state.request == command.request
            and not owner_state.wait
        ):
            owner_state.request -= 1
        return sound(table, command, out)

    return broken


def release_as(*words: str) -> Plant:
    def plant(sound: Any) -> Any:
        def broken(table: TableState, command: Release, out: list[Result]) -> None:
            hold = table.locks.get(command.lock)
            if hold is not None:
                holder = hold.owner_state
                right: dict[str, Any] = {
                    "fence": hold.fence,
                    "session": holder.session.id,
                    "owner": holder.owner,
                }
                command = replace(command, **{word: right[word] for word in words})
            sound(table, command, out)

        return broken

    return plant


def timed_out_wait_stays(sound: Any) -> Any:
    def broken(table: TableState, wait: Any, reason: Reason, *rest: Any) -> None:
        sound(table, wait, reason, *rest)
        if reason is Reason.TIMED_OUT:
            table.locks[wait.owner_state.lock].enqueue(replace(wait, due_ms=None))

    return broken


def no_memos(sound: Any) -> Any:
    def broken(owner_state: Any) -> Any:
        return sound(owner_state)._replace(request=0, freed=None, denial=None)

    return broken


def no_deadlines(sound: Any) -> Any:
    def broken(*parts: Any) -> Any:
        return sound(*parts)._replace(due_ms=None)

    return broken


def nothing(*_: Any) -> None:
    pass


def no_floor(sound: Any) -> Any:
    def broken(session: Session) -> None:
        before = session.floor
        sound(session)
        session.floor = before

    return broken


def same_number_again(sound: Any) -> Any:
    def broken(sessions: Sessions, session: Any) -> None:
        sound(sessions, session)
        sessions.opened -= 1

    return broken


PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a fence given back": (TableState, "_pass_on", reused_fence),
    "last come first served": (TableState, "_pass_on", last_come_first_served),
    "waits outlive their session": (TableState, "close", closing_forgets("wait", *CloseReason)),
    "expiry frees nothing": (TableState, "close", closing_forgets("hold", CloseReason.EXPIRED)),
    "a wait that timed out stays": (TableState, "end_wait", timed_out_wait_stays),
    "a retry is applied again": (operation, "_begin", retry_is_applied_again),
    "any fence releases": (OPERATIONS, Release, release_as("fence")),
    "any owner releases": (
        OPERATIONS,
        Release,
        release_as("session", "owner", "fence"),
    ),
    "a snapshot without memos": (table_snapshot, "_claimant_record", no_memos),
    "a snapshot without deadlines": (table_snapshot, "_wait_record", no_deadlines),
    "the forgotten may do it again": (Session, "_forget_first", no_floor),
    "nobody is forgotten": (Session, "forget", lambda _: nothing),
    "commands are no sign of life": (Sessions, "keep", lambda _: nothing),
    "a new master extends nothing": (Sessions, "extend", lambda _: nothing),
    "an old session id again": (Sessions, "drop", same_number_again),
}


@pytest.mark.parametrize("bug", PLANTS)
def test_every_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    """By a difference, by a judge, or by an assertion or a hole in the table itself."""
    place, name, plant = PLANTS[bug]
    if isinstance(place, dict):
        monkeypatch.setitem(place, name, plant(place[name]))  # pyright: ignore[reportUnknownArgumentType]
    else:
        monkeypatch.setattr(place, name, plant(getattr(place, name)))
    with pytest.raises((AssertionError, KeyError)):
        play(step for seed in range(20) for step in steps_of(seed))
