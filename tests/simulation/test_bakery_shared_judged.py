"""Shared locks of `bakery` under all faults, and planted bugs that judges find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.judged import assert_seen

from fencelock.actors.bakery import state_transfer
from fencelock.actors.bakery.table import ModeQueue, TicketEntry, TicketQueue, TicketTable
from fencelock.actors.bakery.ticket import Record, Turn, pack_fence
from fencelock.actors.bakery.ticket_attempt import TicketAttempts
from fencelock.actors.message import Instant
from fencelock.verification.simulation.bakery_nemesis import Blow
from fencelock.verification.simulation.bakery_run import run_bakery_seed
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.rwlocks import RWLOCKS

SEEDS = 6

SEEDS_MOST = 40
"""Number of runs in which each bug must be found. Most bugs are found in fewer than five."""

MET = (
    "bakery.granted",
    "bakery.lease_over",
    "bakery.renewed",
    "bakery.round_lost",
    "client.holds_lost",
    "client.wait_renewed",
    "contender.lost",
)
"""Counters that must rise in the seeds; otherwise these had too few faults."""

Ahead = Callable[[TicketTable, TicketEntry, Instant], Turn | None]

AHEAD: Ahead = TicketTable.ahead
RECORD: Callable[[TicketEntry, int, Instant], Record] = state_transfer._record  # pyright: ignore[reportPrivateUsage]


def run_shared(seed: int, blows: tuple[Blow, ...], judged: frozenset[str] | None) -> RunReport:
    return run_bakery_seed(seed, blows=blows, judged=judged, workload=RWLOCKS)


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    marks: Counter[str] = Counter()
    missing = list(MET)
    for seed in range(SEEDS_MOST):
        if seed >= SEEDS and not missing:
            break
        for report in (run_seed("bakery", seed, workload=RWLOCKS), run_shared(seed, (), None)):
            assert report.violation is None, (seed, report.violation)
            marks.update(report.marks)
        missing = [name for name in missing if not marks[name]]
    assert missing == []


def past_a_waiting_writer(table: TicketTable, entry: TicketEntry, now: Instant) -> Turn | None:
    """Let a shared ticket overtake exclusive tickets that wait."""
    found = AHEAD(table, entry, now)
    if not entry.ticket.shared or table.queues[entry.ticket.lock].exclusive.holding:
        return found
    return None


def exclusive_ones(queue: TicketQueue, *, shared: bool) -> tuple[ModeQueue, ...]:
    """Assume that shared tickets do not conflict with exclusive ones."""
    del shared
    return (queue.exclusive,)


def record_without_mode(entry: TicketEntry, before: int, now: Instant) -> Record:
    """Forget the mode of a ticket that is handed over."""
    record = RECORD(entry, before, now)
    turn = record.ticket.turn
    return record._replace(
        ticket=record.ticket._replace(turn=turn._replace(serial=abs(turn.serial)))
    )


def highest_alone(tickets: TicketTable, now: Instant, held: object) -> list[TicketEntry]:
    """Keep only the hold with the highest fence after a hand-over, also of shared tickets."""
    del held
    for queue in list(tickets.queues.values()):
        for entry in queue.holders()[:-1]:
            tickets.unvote(entry, Instant(now + 10**9))
    return []


def fence_without_rank(attempts: TicketAttempts, entry: TicketEntry) -> int:
    """Draw the next fence of a shared ticket as that of an exclusive one."""
    mine = pack_fence(attempts.epoch_state.epoch, entry.ticket.turn.number)
    return max(mine, attempts.table.counters_of(entry.ticket.lock).fence + 1)


MUTANTS: dict[str, tuple[str, tuple[Any, str, Any], tuple[Blow, ...]]] = {
    "a shared vote past a waiting writer": (
        "modes-kept",
        (TicketTable, "ahead", past_a_waiting_writer),
        (),
    ),
    "an exclusive vote beside readers": (
        "no-conflicting-votes",
        (TicketQueue, "against", exclusive_ones),
        (),
    ),
    "the mode is lost in the hand-over": (
        "modes-kept",
        (state_transfer, "_record", record_without_mode),
        (Blow.ONE_LOST,),
    ),
    "one reader holds after a hand-over": (
        "merged-tables-complete",
        (state_transfer, "_keep_the_highest", highest_alone),
        (Blow.ONE_LOST,),
    ),
    "two readers get one fence": (
        "fences-rise",
        (TicketAttempts, "_next_fence", fence_without_rank),
        (Blow.SLOW,),
    ),
}


RARE = {
    "the mode is lost in the hand-over": 26,
    "one reader holds after a hand-over": 15,
    "two readers get one fence": 3,
}
"""The first seed of the search, which keeps the search short."""


@pytest.mark.parametrize("bug", MUTANTS)
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    judge, patch, blows = MUTANTS[bug]
    monkeypatch.setattr(*patch)

    def run(seed: int, judged: frozenset[str]) -> RunReport:
        return run_shared(seed, blows, judged)

    first = RARE.get(bug, 0)
    assert_seen(judge, range(first, first + SEEDS_MOST), run)


def test_a_writer_beside_readers_is_seen_where_clients_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TicketQueue, "against", exclusive_ones)
    for seed in range(SEEDS_MOST):
        violation = run_shared(seed, (), frozenset()).violation
        if violation and "capacity" in violation:
            return
    pytest.fail(f"not seen in {SEEDS_MOST} seeds")
