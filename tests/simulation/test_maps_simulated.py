"""Maps under all faults, and planted bugs that judges find."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import repetitions_count
from support.workloads import LOSSES, SEEDS, demand_caught, demand_clean

from fencelock.actors.api.map import EntryList, GetEntry, ListEntries, PutEntry
from fencelock.actors.paxos.queries import Queries
from fencelock.actors.table import map_rules, requests
from fencelock.actors.table.map import Entry
from fencelock.verification.simulation.maps import MAPS, MapJudge, MapLog


def test_no_seed_breaks_a_promise_and_every_fault_occurred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: Counter[str] = Counter()
    judge_change, judge_read = MapLog._judge_change, MapJudge._judge_read  # pyright: ignore[reportPrivateUsage]
    end = MapLog._end  # pyright: ignore[reportPrivateUsage]

    def changed(log: MapLog, command: Any, *rest: Any) -> None:
        seen["changed"] += 1
        seen["guarded"] += bool(command.guard)
        seen["by version"] += bool(command.version)
        seen["ephemeral"] += isinstance(command, PutEntry) and command.ephemeral
        judge_change(log, command, *rest)

    def read(judge: MapJudge, user: Any, asked: Any, reply: EntryList) -> None:
        seen["read"] += 1
        seen["found"] += bool(reply.entries)
        judge_read(judge, user, asked, reply)

    def ended(log: MapLog, session: str, slot: int) -> None:
        seen["ended"] += any(states[-1].session == session for states in log.states.values())
        end(log, session, slot)

    monkeypatch.setattr(MapLog, "_judge_change", changed)
    monkeypatch.setattr(MapJudge, "_judge_read", read)
    monkeypatch.setattr(MapLog, "_end", ended)
    demand_clean(MAPS, (*LOSSES, "contender.map_not_held", "contender.map_session_expired"))
    assert seen["changed"] > 20 * SEEDS
    assert seen["found"] > 10 * SEEDS
    assert min(seen["guarded"], seen["by version"], seen["ephemeral"]) > SEEDS
    assert seen["ended"] >= 3  # One session in thirty ends with an entry of its own.


CONDITIONS = map_rules._meets_conditions  # pyright: ignore[reportPrivateUsage]
TAKE = Queries.take


def no_guard(table: Any, owner_state: Any, command: Any, out: Any) -> Any:
    return CONDITIONS(table, owner_state, replace(command, guard="", fence=0), out)


def any_version(table: Any, owner_state: Any, command: Any, out: Any) -> Any:
    return CONDITIONS(table, owner_state, replace(command, version=None), out)


def stays(entry: Entry, table: Any, out: Any) -> None:
    del entry, table, out


def any_age(queries: Queries, sender: Any, request: Any, now: Any) -> Any:
    if isinstance(request, GetEntry | ListEntries):
        request = replace(request, age_ms=60_000)
    return TAKE(queries, sender, request, now)


@pytest.mark.parametrize(
    ("plants", "judge"),
    [
        ({(map_rules, "_meets_conditions"): no_guard}, "guard"),
        ({(map_rules, "_meets_conditions"): any_version}, "versions"),
        ({(requests, "begin_update"): repetitions_count(requests.begin_update)}, "once"),
        ({(Entry, "end_with_session"): stays}, "reads"),
        ({(Queries, "take"): any_age}, "was known"),
    ],
    ids=["no guard", "any version", "done again", "outlives its session", "old reads"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plants: dict[tuple[object, str], object], judge: str
) -> None:
    demand_caught(monkeypatch, MAPS, plants, judge)
