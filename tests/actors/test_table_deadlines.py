"""Deadlines of holds in the replicated table, and planted bugs that the model finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import (
    Plant,
    acquiring_again_reports_the_whole,
    as_plant,
    demand_found,
    hold_of,
    instead,
    the_time_without_a_leader_counts,
    with_fields,
)
from support.table_comparison import DeadlineComposer
from support.table_scene import A, B, C, table_of_three

from fencelock.actors.api.lock_message import Acquire, Renew
from fencelock.actors.table import snapshot
from fencelock.actors.table.deadline import ROUNDING_MS, LeasedHold
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.state import TableState
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, Result


def acquire(session: str = A, request: int = 1, **fields: Any) -> Acquire:
    made = Acquire(lock="L", session=session, owner="o", request=request)
    return replace(made, hold_ms=400, grace_ms=100, **fields)


def renew(request: int = 2, fence: int = 1, **fields: Any) -> Renew:
    made = Renew(lock="L", fence=fence, session=A, owner="o", request=request)
    return replace(made, **fields)


def busy() -> LockTable:
    table = table_of_three()
    table.apply(0, acquire(limit=0))
    table.apply(0, acquire(B))
    table.apply(100, replace(acquire(C), lock="M", hold_ms=5_000))
    table.apply(150, renew(hold_ms=700))
    table.apply(900, ExtendSessions(leader="b"))
    return table


def test_the_numbers_and_the_digest_distinguish_deadlines() -> None:
    table = busy()
    (part,) = table.snapshot()
    at, known = next((at, one) for at, one in enumerate(part.owner_states) if one.hold)
    assert known.hold is not None
    assert known.hold.lease is not None
    lease = known.hold.lease._replace(deadline_ms=known.hold.lease.deadline_ms + 1)
    later = known._replace(hold=known.hold._replace(lease=lease))
    changed = (*part.owner_states[:at], later, *part.owner_states[at + 1 :])
    other = LockTable.restore((replace(part, owner_states=changed),))
    assert other.numbers() != table.numbers()
    assert other.digest() != table.digest()


def test_the_numbers_do_not_depend_on_how_often_the_leader_changed() -> None:
    table = busy()
    table.apply(1_000, ExtendSessions(leader="c"))
    copy = LockTable.restore(table.snapshot())
    assert copy.deadlines.skipped_ms == 0
    for one in (table, copy):
        one.apply(1_500, ExtendSessions(leader="d"))
        one.apply(1_500, renew(9))
    assert (copy.digest(), copy.numbers()) == (table.digest(), table.numbers())


def renews_with(change: Callable[[LeasedHold, Renew], Renew]) -> Plant:
    @as_plant
    def plant(sound: Any, table: TableState, command: Renew, out: list[Result]) -> None:
        hold = hold_of(table, command.lock)
        sound(table, change(hold, command) if isinstance(hold, LeasedHold) else command, out)

    return plant


def a_repetition_counts_again(hold: LeasedHold, command: Renew) -> Renew:
    if hold.renewal == command.request:
        hold.renewal = 0
    return command


def any_fence_is_right(hold: LeasedHold, command: Renew) -> Renew:
    owner = hold.owner_state.owner
    return replace(command, fence=hold.fence) if owner == command.owner else command


def a_renewal_may_shorten(hold: LeasedHold, table: TableState) -> None:
    if hold.table is not None:
        hold.end(table)
        hold.table = None
    hold.extend(table, table.time_ms + hold.lasts_ms + hold.grace_ms + ROUNDING_MS)


@as_plant
def ended_holds_stay_in_the_heap(sound: Any, hold: LeasedHold, table: TableState) -> None:
    sound(hold, table)
    table.timeouts.add(hold)


PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "time without a leader counts": (LockTable, "shift", instead(the_time_without_a_leader_counts)),
    "a repeated renewal counts again": (RULES, Renew, renews_with(a_repetition_counts_again)),
    "any fence renews": (RULES, Renew, renews_with(any_fence_is_right)),
    "a renewal may shorten": (LeasedHold, "restart", instead(a_renewal_may_shorten)),
    "ended holds stay in the heap": (LeasedHold, "end", ended_holds_stay_in_the_heap),
    "acquiring again reports the whole": (
        LeasedHold,
        "acquire_again",
        instead(acquiring_again_reports_the_whole),
    ),
    "a snapshot loses deadlines": (snapshot, "_hold_record", with_fields(lease=None)),
    "a wait loses its terms": (snapshot, "_wait_record", with_fields(hold_ms=0)),
}


@pytest.mark.parametrize("bug", PLANTS)
def test_every_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    demand_found(monkeypatch, DeadlineComposer, *PLANTS[bug])
