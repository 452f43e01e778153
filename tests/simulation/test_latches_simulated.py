"""Count-down latches end to end under all faults, and planted bugs that judges find."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import repetitions_count
from support.workloads import UNHELD, demand_caught, demand_clean

from fencelock.actors.api.latch import CountDown, LatchPassed
from fencelock.actors.table import latch, requests
from fencelock.actors.table.latch import Latch
from fencelock.actors.table.resource import Wait
from fencelock.actors.table.state import TableState
from fencelock.verification.simulation.latches import LATCHES

MET = (
    "contender.counts_down",
    "contender.passes",
    *UNHELD,
)


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    demand_clean(LATCHES, MET)


def only_a_lone_waiter_passes(table: TableState, wait: Wait, answer: Any, out: Any) -> None:
    if not isinstance(answer, LatchPassed) or table.objects[answer.lock].waiting == 1:
        ANSWER(table, wait, answer, out)


def a_latch_passes_at_1(table: TableState, owner_state: Any, out: Any) -> bool:
    one = table.objects[owner_state.lock]
    if isinstance(one, Latch) and one.left == 1:
        requests.conclude(table, owner_state, LatchPassed(**owner_state.fields()), out)
        return False
    return ROOM(table, owner_state, out)


def a_latch_is_gone_too_early(table: TableState, owner_state: Any, command: Any, out: Any) -> Any:
    return LATCH_OF(table, owner_state, replace(command, keep_ms=command.keep_ms // 4), out)


def a_latch_is_gone_too_late(table: TableState, owner_state: Any, command: Any, out: Any) -> Any:
    return LATCH_OF(table, owner_state, replace(command, keep_ms=command.keep_ms * 4), out)


def the_whole_count_goes(table: TableState, owner_state: Any, command: Any, out: Any) -> Any:
    found = LATCH_OF(table, owner_state, command, out)
    if found is not None and isinstance(command, CountDown) and command.amount > 1:
        table.marked -= found.mark()
        found.left = min(found.left, command.amount)
        table.marked += found.mark()
    return found


ANSWER, ROOM = TableState.answer_wait, requests.has_room
LATCH_OF = latch._latch_of  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("plants", "judge"),
    [
        ({(requests, "begin_update"): repetitions_count(requests.begin_update)}, "once"),
        ({(TableState, "answer_wait"): only_a_lone_waiter_passes}, "release"),
        ({(latch, "has_room"): a_latch_passes_at_1}, "early"),
        ({(latch, "_latch_of"): a_latch_is_gone_too_early}, "count"),
        ({(latch, "_latch_of"): a_latch_is_gone_too_late}, "count"),
        ({(latch, "_latch_of"): the_whole_count_goes}, "count"),
    ],
    ids=["counts twice", "stays", "passes at 1", "gone too early", "gone too late", "amount"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plants: dict[tuple[object, str], object], judge: str
) -> None:
    demand_caught(monkeypatch, LATCHES, plants, judge)
