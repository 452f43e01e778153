"""Bugs planted in `bakery`, each seen by the judge named for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from support.bakery_cluster_harness import ClusterHarness
from support.judged import PlantedBug, clean, demand_met, seen_in
from support.planted_bugs import as_plant, instead, returning

from fencelock.actors.api.lock_message import Granted
from fencelock.actors.bakery import leader_requests, state_transfer
from fencelock.actors.bakery.config import leader_of, proxy_of
from fencelock.actors.bakery.election import Election
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.epochs import DurablePromises
from fencelock.actors.bakery.invariants import INVARIANTS
from fencelock.actors.bakery.leader_selection import ClusterView
from fencelock.actors.bakery.state_transfer import Import, StateTransfer
from fencelock.actors.bakery.table import (
    NOTHING_DRAWN,
    ModeQueue,
    TicketEntry,
    TicketPhase,
    TicketQueue,
    TicketTable,
    Tombstones,
)
from fencelock.actors.bakery.ticket import Ticket, Turn, Who, pack_fence
from fencelock.actors.bakery.ticket_attempt import TicketAttempt, TicketAttempts, TicketStep, locked
from fencelock.actors.bakery.wire import Chosen, Locked, NotLeading
from fencelock.actors.effect import Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.verification.simulation.bakery_judge import LeasesJudge
from fencelock.verification.simulation.bakery_run import draw_bakery_plan, run_bakery_seed
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.nemesis import Blow
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.semaphores import RWLOCKS
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError, ViolationReport

pytestmark = pytest.mark.long

SEEDS_SOUND = 8

PARTS = 4
"""Parts of these seeds; tests of them run side by side."""

SEEDS_MOST = 100
"""In so many runs a bug is seen at least once; in most it takes fewer than ten."""


LATE = RunPlan(
    nodes=5,
    clients=4,
    locks=1,
    ttl_ms=1_000,
    chaos_ms=4_000,
    safety_only=True,
    faults=Faults(delay_us=10_000, sync_us=20_000, reordering=True, late_per_mille=50, late_ms=500),
)
"""Messages of members and of leaders arrive long after they were sent."""

PROMPT = dataclasses.replace(LATE, faults=Faults(delay_us=2_000, sync_us=100))
"""The same without any faults but blows."""

CROWD = RunPlan(
    clients=4,
    locks=1,
    ttl_ms=3_000,
    chaos_ms=1_500,
    safety_only=True,
    faults=Faults(delay_us=2_000, sync_us=100),
)
"""Many want one lock at once, in a short run without any faults but blows."""


def first_in_line(table: TicketTable, entry: TicketEntry, now: Instant) -> Turn | None:
    """Check only the first by turn, as the original does: the holder may be behind it."""
    turns = [
        other.ticket.turn
        for other in table.entries()
        if other.ticket.lock == entry.ticket.lock
        and other.phase is not TicketPhase.ENTERING
        and not other.is_over(now)
    ]
    first = min(turns)
    return first if first < entry.ticket.turn else None


def no_owner_enters(table: TicketTable, entry: TicketEntry, now: Instant) -> Turn | None:
    """Check only the waiting tickets."""
    queue = table.queues[entry.ticket.lock]
    first = queue.exclusive.line[0].ticket.turn if queue.exclusive.line else entry.ticket.turn
    return first if first < entry.ticket.turn else None


@as_plant
def from_another(
    sound: Any, attempts: TicketAttempts, leader: str, collected: Any, now: Instant
) -> Any:
    """Take each reply for that of another leader."""
    others = attempts.epoch_state.others
    return sound(attempts, others[collected.epoch % len(others)], collected, now)


@as_plant
def of_any_request(
    sound: Any, attempts: TicketAttempts, leader: str, collected: Any, now: Instant
) -> Any:
    """Take an answer to one request for an answer to any other of the lock."""
    effects = list(sound(attempts, leader, collected, now))
    for other in list(attempts.own.values()):
        ticket = other.entry.ticket
        if ticket.lock == collected.lock and other.step is TicketStep.ENTERING:
            instead = replace(collected, who=ticket.who, request=ticket.request)
            effects += sound(attempts, leader, instead, now)
    return effects


def any_of(electorate: Electorate, nodes: Collection[str]) -> bool:
    """Take one member for a quorum."""
    return bool(nodes)


def by_name(view: ClusterView) -> list[Chosen]:
    """Take a leader that lives anew for the one that was chosen."""
    names = {member.node for member in view.members}
    return [leader for leader in view.seating.leaders if leader.node in names]


def own_fence(attempts: TicketAttempts, entry: TicketEntry) -> int:
    return pack_fence(attempts.epoch_state.epoch, attempts.serial)


@as_plant
def no_fence_noted(
    sound: Any, table: TicketTable, lock: str, highest: int, fence: int = 0, *, shared: bool = False
) -> None:
    sound(table, lock, highest)


def again_with_another_fence(entry: TicketEntry) -> Send:
    granted = locked(entry)
    assert isinstance(granted.message, Locked)
    return Send(granted.to, replace(granted.message, fence=entry.fence - 1))


def same_node(mine: Chosen, other: Chosen) -> bool:
    return mine.node == other.node


def hash_of_node(chosen: Chosen) -> int:
    return hash(chosen.node)


def recovers_nothing(durable_promises: type[DurablePromises], records: object) -> DurablePromises:
    return durable_promises()


def half_of_the_duration(ticket: Ticket) -> int:
    return ticket.hold_ms // 2


@as_plant
def wins_alone(sound: Any, attempts: TicketAttempts, one: TicketAttempt, now: Instant) -> Any:
    quorum, attempts.epoch_state.quorum = attempts.epoch_state.quorum, 1
    effects = sound(attempts, one, now)
    attempts.epoch_state.quorum = quorum
    return effects


SAME_NODE = (
    (ClusterView, "living", instead(by_name)),
    (Chosen, "__eq__", instead(same_node)),
    (Chosen, "__hash__", instead(hash_of_node)),
)
MUTANTS = {
    "epochs are not kept": PlantedBug(
        "one-seating-an-epoch",
        ((DurablePromises, "recover", instead(classmethod(recovers_nothing))),),
    ),
    "whatever is proposed is promised": PlantedBug(
        "one-seating-an-epoch",
        ((DurablePromises, "may_promise", returning(True)),),
        (Blow.MINORITY,),
        LATE,
        first=1,
    ),
    "one member knows the seating": PlantedBug(
        "seating-known-by-majority", ((Electorate, "is_quorum", instead(any_of)),)
    ),
    "no hand-over barrier": PlantedBug(
        "merged-tables-complete", ((Import, "complete", instead(True)),), (Blow.BOUNCE,), first=9
    ),
    "two leaders lost are not waited out": PlantedBug(
        "merged-tables-complete",
        ((Election, "left_ms", returning(0)),),
        (Blow.TWO_LOST,),
        first=7,
    ),
    "a leader returns with an empty table": PlantedBug(
        "merged-tables-complete", SAME_NODE, (Blow.BOUNCE,)
    ),
    "a table is given away, and goes on": PlantedBug(
        "no-lower-epoch", ((StateTransfer, "leave", returning([])),), (Blow.CUT_OFF,), LATE
    ),
    "a vote though another holds": PlantedBug(
        "no-conflicting-votes", ((TicketTable, "ahead", instead(no_owner_enters)),)
    ),
    "a vote for who is first, as in the source": PlantedBug(
        "no-conflicting-votes",
        ((TicketTable, "ahead", instead(first_in_line)),),
        (Blow.SLOW,),
        first=1,
    ),
    "votes count for any request": PlantedBug(
        "answers-count-once", ((TicketAttempts, "on_collected", from_another),), first=3
    ),
    "answers count for any request": PlantedBug(
        "answers-count-once", ((TicketAttempts, "on_max", of_any_request),), first=7
    ),
    "a quorum of one": PlantedBug(
        "quorum-before-grant", ((TicketAttempts, "grant", wins_alone),), first=3
    ),
    "numbers begin anew": PlantedBug(
        "fences-rise", ((TicketTable, "counters_of", returning(NOTHING_DRAWN)),)
    ),
    "a fence of the leader's own": PlantedBug(
        "fences-rise",
        (
            (TicketAttempts, "_next_fence", instead(own_fence)),
            (TicketTable, "note", no_fence_noted),
        ),
    ),
    "leases are shorter at leaders": PlantedBug(
        "lease-outlives-belief",
        ((Ticket, "lease_ms", instead(property(half_of_the_duration))),),
        first=8,
    ),
    "what was dropped is taken up again": PlantedBug(
        "dropped-stays-dropped", ((Tombstones, "is_over", returning(False)),), first=5
    ),
    "a table does not report what was dropped": PlantedBug(
        "dropped-stays-dropped",
        ((Tombstones, "newest", returning([])),),
        (Blow.APART, Blow.ONE_LOST),
        PROMPT,
        first=7,
    ),
    "a repeated answer is another": PlantedBug(
        "one-reply", ((leader_requests, "locked", instead(again_with_another_fence)),), first=2
    ),
}


SEEN_BY_CLIENTS: dict[str, tuple[RunPlan | None, int]] = {
    "no hand-over barrier": (None, 7),
    "two leaders lost are not waited out": (None, 9),
    "a leader returns with an empty table": (CROWD, 12),
    "leases are shorter at leaders": (None, 3),
    "epochs are not kept": (None, 0),
}
"""Planted bugs by which two clients hold a lock, with a plan that provokes this, or None, and the
first seed of the search."""


@pytest.mark.parametrize("bug", MUTANTS)
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    planted = MUTANTS[bug]
    run = partial(run_bakery_seed, plan=planted.plan, blows=planted.blows)
    planted.assert_seen(monkeypatch, run, SEEDS_MOST)


@pytest.mark.parametrize("bug", SEEN_BY_CLIENTS)
def test_two_holders_are_seen_where_clients_see_them(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """No judge looks inside: these bugs show as two holders, or as a lower fence."""
    MUTANTS[bug].plant(monkeypatch)
    (provoked, first), blows = SEEN_BY_CLIENTS[bug], MUTANTS[bug].blows
    for seed in range(first, first + SEEDS_MOST):
        # With such a bug, clients may wait forever once the faults are over.
        plan = provoked or dataclasses.replace(draw_bakery_plan(seed), safety_only=True)
        violation = run_bakery_seed(seed, plan=plan, blows=blows, judged=frozenset()).violation
        if violation and ("mutual exclusion" in violation or "fences" in violation):
            return
    pytest.fail(f"not seen in {SEEDS_MOST} seeds")


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_seen_where_nothing_is_planted(part: int) -> None:
    seen = clean(map(run_bakery_seed, range(part, SEEDS_SOUND, PARTS)))
    assert not seen["notice.error"]  # No member is accused.
    assert seen["grants"] >= SEEDS_SOUND // PARTS  # One a seed: none of them is idle.


def test_a_late_grant_for_which_no_request_waits_is_no_second_reply() -> None:
    """Its lease is over, and the request was granted again meanwhile (seed 871477)."""
    world = ClusterHarness(3).start().world
    judge = LeasesJudge(world, ViolationReport(INVARIANTS), clocks_true=True)
    client, proxy = Address("c/session"), proxy_of("n1")
    first, again = (
        Granted(lock="x", fence=fence, session="c", owner="o", request=1) for fence in (5, 9)
    )
    event = NotLeading(lock="x", who=Who("c", "o"), owner="")
    delivered = Delivery(world.time, "n1", leader_of("n2"), proxy, event, 1)
    judge.at_proxy(delivered, [Send(client, again)])

    judge.at_proxy(delivered, [Observe("bakery.stray_grant"), Send(client, first)])

    with pytest.raises(ViolationError, match="one-reply"):
        judge.at_proxy(delivered, [Send(client, first)])


SEEDS = 6

SHARED_SEEDS_MOST = 40
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


run_shared = partial(run_bakery_seed, workload=RWLOCKS)


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    def run(seed: int) -> tuple[RunReport, ...]:
        return run_seed("bakery", seed, workload=RWLOCKS), run_shared(seed)

    demand_met(run, MET, range(SEEDS), SHARED_SEEDS_MOST)


@as_plant
def past_a_waiting_writer(sound: Any, table: TicketTable, entry: TicketEntry, now: Instant) -> Any:
    """Let a shared ticket overtake exclusive tickets that wait."""
    found = sound(table, entry, now)
    if not entry.ticket.shared or table.queues[entry.ticket.lock].exclusive.holding:
        return found
    return None


def exclusive_ones(queue: TicketQueue, *, shared: bool) -> tuple[ModeQueue, ...]:
    """Assume that shared tickets do not conflict with exclusive ones."""
    return (queue.exclusive,)


@as_plant
def record_without_mode(sound: Any, entry: TicketEntry, before: int, now: Instant) -> Any:
    """Forget the mode of a ticket that is handed over."""
    record = sound(entry, before, now)
    turn = record.ticket.turn
    return record._replace(
        ticket=record.ticket._replace(turn=turn._replace(serial=abs(turn.serial)))
    )


def highest_alone(tickets: TicketTable, now: Instant, held: object) -> list[TicketEntry]:
    """Keep only the hold with the highest fence after a hand-over, also of shared tickets."""
    for queue in list(tickets.queues.values()):
        for entry in queue.holders()[:-1]:
            tickets.unvote(entry, Instant(now + 10**9))
    return []


def fence_without_rank(attempts: TicketAttempts, entry: TicketEntry) -> int:
    """Draw the next fence of a shared ticket as that of an exclusive one."""
    mine = pack_fence(attempts.epoch_state.epoch, entry.ticket.turn.number)
    return max(mine, attempts.table.counters_of(entry.ticket.lock).fence + 1)


SHARED_MUTANTS = {
    "a shared vote past a waiting writer": PlantedBug(
        "modes-kept", ((TicketTable, "ahead", past_a_waiting_writer),)
    ),
    "an exclusive vote beside readers": PlantedBug(
        "no-conflicting-votes", ((TicketQueue, "against", instead(exclusive_ones)),)
    ),
    "the mode is lost in the hand-over": PlantedBug(
        "modes-kept",
        ((state_transfer, "_record", record_without_mode),),
        (Blow.ONE_LOST,),
        first=26,
    ),
    "one reader holds after a hand-over": PlantedBug(
        "merged-tables-complete",
        ((state_transfer, "_keep_the_highest", instead(highest_alone)),),
        (Blow.ONE_LOST,),
        first=15,
    ),
    "two readers get one fence": PlantedBug(
        "fences-rise",
        ((TicketAttempts, "_next_fence", instead(fence_without_rank)),),
        (Blow.SLOW,),
        first=3,
    ),
}


@pytest.mark.parametrize("bug", SHARED_MUTANTS)
def test_every_bug_planted_in_shared_tickets_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    planted = SHARED_MUTANTS[bug]
    run = partial(run_shared, blows=planted.blows)
    planted.assert_seen(monkeypatch, run, SHARED_SEEDS_MOST)


def test_a_writer_beside_readers_is_seen_where_clients_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TicketQueue, "against", exclusive_ones)
    reports = (run_shared(seed, judged=frozenset()) for seed in range(SHARED_SEEDS_MOST))
    assert seen_in("capacity", reports)
