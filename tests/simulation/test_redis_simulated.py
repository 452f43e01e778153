"""Clients of Redis doors in the simulator, beside native users of the same locks: no seed breaks a
promise, and planted bugs of the table and of the door are caught."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from msgspec.structs import replace
from support.judged import LOSSES, demand_caught, demand_clean
from support.planted_bugs import (
    Plant,
    a_deadline_never_becomes_earlier,
    any_value_is_expected,
    any_value_is_reserved,
    as_plant,
    force_keeps_the_fence,
    instead,
    nothing,
    repetitions_count,
    the_time_without_a_leader_counts,
)

from fencelock.actors.api.redis import ChangeKeys, KeyState, ReadKeys
from fencelock.actors.paxos.queries import Queries
from fencelock.actors.redis import command, script
from fencelock.actors.table import redis, requests
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.table import LockTable
from fencelock.verification.simulation.redis_doors import REDIS_DOORS
from fencelock.verification.simulation.run import run_seed

MET = (
    *("door.enters", "door.granted", "door.again", "door.leaves", "door.notified", "door.refused"),
    *("redis.connected", "redis.notified", *LOSSES),
)


def test_no_seed_of_redis_doors_breaks_a_promise() -> None:
    demand_clean(REDIS_DOORS, MET)


def test_an_unlock_by_a_client_that_counts_a_hold_that_was_over_ends_all_that_it_holds() -> None:
    assert run_seed("paxos", 830137, workload=REDIS_DOORS).violation is None


@as_plant
def deadlines_are_5_ms_early(
    sound: Any, hold: KeyHold, table: Any, deadline_ms: int | None, *watched: Any
) -> None:
    sound(hold, table, None if deadline_ms is None else deadline_ms - 5, *watched)


Setting = Generator[Any, Any, tuple[bool, bytes | None]]


@as_plant
def the_door_replies_ok(sound: Callable[..., Setting], *how: Any, **more: Any) -> Setting:
    _, before = yield from sound(*how, **more)
    return True, before


def the_door_names_no_receipt(request: Any, **fields: Any) -> Any:
    fields.pop("receipt", None)
    return replace(request, **fields)


@as_plant
def re_entries_do_not_count(
    sound: Any,
    table: Any,
    owner_state: Any,
    name: str,
    state: KeyState,
    change: ChangeKeys,
    out: Any,
) -> Any:
    return sound(table, owner_state, name, state, replace(change, counts=False), out)


@as_plant
def reads_are_old(sound: Any, queries: Queries, sender: Any, request: Any, now: Any) -> Any:
    if isinstance(request, ReadKeys):
        request = replace(request, age_ms=60_000)
    return sound(queries, sender, request, now)


PLANTED: dict[str, tuple[object, str, Plant, str]] = {
    "any value is expected": (redis, "_state_of", any_value_is_expected, "state: "),
    "any value is reserved": (redis, "_state_of", any_value_is_reserved, "state: "),
    "force keeps the fence": (redis, "_is_new", force_keeps_the_fence, "fences: "),
    "deadlines are early": (KeyHold, "move", deadlines_are_5_ms_early, "deadline: "),
    "deadlines only rise": (KeyHold, "move", a_deadline_never_becomes_earlier, "deadline: "),
    "a new leader": (LockTable, "shift", instead(the_time_without_a_leader_counts), "early: "),
    "a repetition counts": (
        requests,
        "begin_update",
        repetitions_count,
        "once: ",
    ),
    "the door replies OK": (command, "_setting", the_door_replies_ok, "mutual exclusion: "),
    "the door names no receipt": (script, "replace", instead(the_door_names_no_receipt), "once: "),
    "nothing is remembered": (redis, "_remember", instead(nothing), "once: "),
    "re-entries do not count": (redis, "_change", re_entries_do_not_count, "counts: "),
    "reads are old": (Queries, "take", reads_are_old, "reads: "),
}
"""A planted bug by its place and name, and a part of the violation that the seeds must show."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    place, name, broken, text = PLANTED[bug]
    demand_caught(monkeypatch, REDIS_DOORS, [(place, name, broken)], text, first=1)
