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
from support.table_scene import (
    A,
    B,
    C,
    advanced,
    applied,
    outcome,
    status_of,
    summary,
    table_of_three,
    text_of,
)

from fencelock.actors.api.message import Acquire, Reason
from fencelock.actors.api.session_message import Renew
from fencelock.actors.table import snapshot
from fencelock.actors.table.deadline import GRACE_MS, ROUNDING_MS, LeasedHold
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.state import TableState
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, Result

PLAIN = Acquire(lock="L", session=B, owner="o", request=1)
LEASE_MS = 400 + 100 + ROUNDING_MS
WEEK_MS = 7 * 24 * 3_600_000


def acquire(session: str = A, request: int = 1, **fields: Any) -> Acquire:
    made = Acquire(lock="L", session=session, owner="o", request=request)
    return replace(made, hold_ms=400, grace_ms=100, **fields)


def renew(request: int = 2, fence: int = 1, **fields: Any) -> Renew:
    made = Renew(lock="L", fence=fence, session=A, owner="o", request=request)
    return replace(made, **fields)


def left_ms(table: LockTable) -> int | None:
    status = status_of(table, "L")
    assert status.holder is not None
    return status.left_ms


def test_a_hold_ends_after_its_grace_and_the_next_has_a_higher_fence(table: LockTable) -> None:
    granted = outcome(table, acquire())
    assert (granted.hold_ms, granted.grace_ms) == (400, 100)
    assert applied(table, PLAIN) == ["t.2 waits"]
    assert advanced(table, LEASE_MS - 1) == []
    lost, given = table.advance(LEASE_MS)
    assert [summary(lost), summary(given)] == ["HoldLost 1", "t.2 holds 1 under 2"]
    assert getattr(lost, "decided") is True  # noqa: B009
    assert "taken away when its duration and its grace were over" in text_of(lost)
    assert table.advance(10_000 - 1) == []  # The next hold has no deadline.


def test_a_grace_that_is_not_named_is_five_seconds(table: LockTable) -> None:
    assert outcome(table, replace(acquire(), grace_ms=0)).grace_ms == GRACE_MS == 5_000


@pytest.mark.parametrize(
    ("hold_ms", "grace_ms", "text"),
    [
        (99, 100, "duration is 99 ms, 100 to 604800000 ms are allowed"),
        (WEEK_MS + 1, 100, "duration is 604800001 ms, 100 to 604800000 ms are allowed"),
        (-1, 0, "duration is -1 ms, 100 to 604800000 ms are allowed"),
        (100, 99, "grace is 99 ms, 100 to 604800000 ms are allowed"),
        (100, WEEK_MS + 1, "grace is 604800001 ms, 100 to 604800000 ms are allowed"),
        (0, 100, "grace is 100 ms, and needs a duration: without one a hold has no end"),
    ],
)
def test_durations_out_of_their_limits_are_refused_with_a_reason(
    table: LockTable, hold_ms: int, grace_ms: int, text: str
) -> None:
    command = replace(acquire(), hold_ms=hold_ms, grace_ms=grace_ms)
    no = outcome(table, command)
    assert (no.reason, text_of(no, command)) == (Reason.INVALID, f"lock 'L': {text}")
    assert outcome(table, acquire()).fence == 1


def test_status_shows_the_time_that_is_left(table: LockTable) -> None:
    table.apply(0, acquire())
    table.advance(100)
    assert left_ms(table) == LEASE_MS - 100


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
