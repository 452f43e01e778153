"""Clients of Redis doors in the simulator, beside native users of the same locks: no seed breaks a
promise, and planted bugs of the table and of the door are caught."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from msgspec.structs import replace
from support.judged import LOSSES, demand_caught, demand_clean
from support.planted_bugs import hold_of, repetitions_count

from fencelock.actors.api.redis import ChangeKeys, KeyState, ReadKeys
from fencelock.actors.paxos.queries import Queries
from fencelock.actors.redis import command, script
from fencelock.actors.table import redis, requests
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.table import LockTable
from fencelock.verification.simulation.redis_doors import REDIS_DOORS
from fencelock.verification.simulation.run import run_seed

MET = (
    *("door.enters", "door.granted", "door.again", "door.leaves", "door.told", "door.refused"),
    *("redis.connected", "redis.told", *LOSSES),
)

STATE_OF, IS_NEW, CHANGE, SETTING = (
    redis._state_of,  # pyright: ignore[reportPrivateUsage]
    redis._is_new,  # pyright: ignore[reportPrivateUsage]
    redis._change,  # pyright: ignore[reportPrivateUsage]
    command._setting,  # pyright: ignore[reportPrivateUsage]
)
MOVE, TAKE = KeyHold.move, Queries.take


def test_no_seed_of_redis_doors_breaks_a_promise() -> None:
    demand_clean(REDIS_DOORS, MET)


def test_an_unlock_by_a_client_that_counts_a_hold_that_was_over_ends_all_that_it_holds() -> None:
    assert run_seed("paxos", 830137, workload=REDIS_DOORS).violation is None


def any_value_is_expected(table: Any, name: str, change: ChangeKeys) -> KeyState:
    state = STATE_OF(table, name, change)
    return KeyState.EQUAL if state is KeyState.OTHER and change.expected else state


def any_value_is_reserved(table: Any, name: str, change: ChangeKeys) -> KeyState:
    hold = hold_of(table, name)
    if isinstance(hold, KeyHold):
        change = replace(change, value=hold.key.value)
    return STATE_OF(table, name, change)


def force_keeps_the_fence(change: ChangeKeys, state: KeyState) -> bool:
    return state is not KeyState.OTHER and IS_NEW(change, state)


def deadlines_are_5_ms_early(hold: KeyHold, table: Any, deadline_ms: int | None) -> None:
    MOVE(hold, table, None if deadline_ms is None else deadline_ms - 5)


def deadlines_never_become_earlier(hold: KeyHold, table: Any, deadline_ms: int | None) -> None:
    now = hold.ends_at_ms
    MOVE(hold, table, deadline_ms if now is None else max(now, deadline_ms or now))


def the_time_without_a_leader_counts(table: LockTable, time_ms: int) -> None:
    table.sessions.extend(max(table.time_ms, time_ms))


def the_door_says_ok(*how: Any, **more: Any) -> Generator[Any, Any, tuple[bool, bytes | None]]:
    _, before = yield from SETTING(*how, **more)
    return True, before


def the_door_names_no_receipt(request: Any, **fields: Any) -> Any:
    fields.pop("receipt", None)
    return replace(request, **fields)


def re_entries_do_not_count(
    table: Any, owner_state: Any, name: str, state: KeyState, change: ChangeKeys, out: Any
) -> Any:
    return CHANGE(table, owner_state, name, state, replace(change, counts=False), out)


def remembers_nothing(*how: Any) -> None:
    del how


def reads_are_old(queries: Queries, sender: Any, request: Any, now: Any) -> Any:
    if isinstance(request, ReadKeys):
        request = replace(request, age_ms=60_000)
    return TAKE(queries, sender, request, now)


PLANTED: dict[str, tuple[object, str, object, str]] = {
    "any value is expected": (redis, "_state_of", any_value_is_expected, "state: "),
    "any value is reserved": (redis, "_state_of", any_value_is_reserved, "state: "),
    "force keeps the fence": (redis, "_is_new", force_keeps_the_fence, "fences: "),
    "deadlines are early": (KeyHold, "move", deadlines_are_5_ms_early, "deadline: "),
    "deadlines only rise": (KeyHold, "move", deadlines_never_become_earlier, "deadline: "),
    "a new leader": (LockTable, "shift", the_time_without_a_leader_counts, "early: "),
    "a repetition counts": (
        requests,
        "begin_update",
        repetitions_count(requests.begin_update),
        "once: ",
    ),
    "the door says OK": (command, "_setting", the_door_says_ok, "mutual exclusion: "),
    "the door names no receipt": (script, "replace", the_door_names_no_receipt, "once: "),
    "nothing is remembered": (redis, "_remember", remembers_nothing, "once: "),
    "re-entries do not count": (redis, "_change", re_entries_do_not_count, "counts: "),
    "reads are old": (Queries, "take", reads_are_old, "reads: "),
}
"""A planted bug by its place and name, and a word of the violation that the seeds must show."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    place, name, broken, word = PLANTED[bug]
    demand_caught(monkeypatch, REDIS_DOORS, {(place, name): broken}, word, first=1)
