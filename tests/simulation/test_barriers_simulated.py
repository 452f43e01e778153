"""Cyclic barriers end to end under all faults, and planted bugs that judges find."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import repetitions_count
from support.workloads import UNHELD, demand_caught, demand_clean

from fencelock.actors.table import barrier, requests
from fencelock.actors.table.barrier import Barrier
from fencelock.verification.simulation.barriers import BARRIERS

MET = (
    "contender.passes_as_0",
    "contender.passes_as_3",
    "contender.refused_broken",
    *UNHELD,
)


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    demand_clean(BARRIERS, MET)


def a_party_leaves_without_the_others(one: Barrier, table: Any, why: Any, out: Any) -> None:
    if not one.queue:
        BREAK(one, table, why, out)


def one_more_has_arrived(one: Barrier) -> int:
    return len(one.queue or ()) + 1


def all_have_the_same_index(owner_state: Any, index: int, generation: int) -> Any:
    return replace(PASSED(owner_state, index, generation), index=0)


def generations_are_counted_down(owner_state: Any, index: int, generation: int) -> Any:
    return PASSED(owner_state, index, (1 << 40) - generation)


BREAK = Barrier.remove
PASSED = barrier._passed  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("plants", "judge"),
    [
        ({(Barrier, "remove"): a_party_leaves_without_the_others}, "broken"),
        ({(Barrier, "waiting"): property(one_more_has_arrived)}, "together"),
        ({(requests, "begin_update"): repetitions_count(requests.begin_update)}, "once"),
        ({(barrier, "_passed"): all_have_the_same_index}, "index"),
        ({(barrier, "_passed"): generations_are_counted_down}, "generations"),
    ],
    ids=["not broken", "too early", "counts twice", "same index", "generations fall"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plants: dict[tuple[object, str], object], judge: str
) -> None:
    demand_caught(monkeypatch, BARRIERS, plants, judge)
