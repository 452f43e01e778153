"""`bakery` under every fault it survives: seeds, releases, leases, and requests that are ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from support.expect import checked, only, present
from support.judged import assert_seen, clean, demand_met, seen_in
from support.leader_trio import (
    ANN,
    FENCE,
    NAMES,
    NOW,
    LeaderTrio,
    add_ticket,
    lock_request,
    put_hold,
    ticket_of,
)
from support.planted_bugs import Patch, plant, returning

from fencelock.actors.api.lock_message import Reason, Refused
from fencelock.actors.bakery import wire as messages
from fencelock.actors.bakery.config import BAKERY_TIMING, leader_of
from fencelock.actors.bakery.leader_selection import ClusterView
from fencelock.actors.bakery.max_lease import OwnBound
from fencelock.actors.bakery.table import TicketPhase, TicketTable, Tombstones
from fencelock.actors.bakery.ticket import RequestKey, Who, pack_fence
from fencelock.actors.bakery.ticket_attempt import TicketStep
from fencelock.actors.bakery.wire import (
    HoldRenewed,
    Locked,
    LockFailed,
    RenewHold,
    UnlockAll,
    Unlocked,
)
from fencelock.actors.deadline_queue import STALE_MAX
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import later, node_of
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.bakery_run import (
    LONG_LOCKS,
    draw_bakery_plan,
    run_bakery_seed,
    run_deaf_seed,
)
from fencelock.verification.simulation.faults import Faults, promise_of
from fencelock.verification.simulation.nemesis import Blow, LeaderNemesis
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, ViolationError
from fencelock.verification.simulation.world import World

FIRST, SEEDS, SEEDS_MOST = 315, 8, 60
RARE = (
    "bakery.election_given_up",
    "bakery.ceded",
    "bakery.lease_over",
    "bakery.round_lost",
    "bakery.unlocking",
    "bakery.untrusted",
    "client.wait_renewed",
)
"""Counters that a sweep of seeds must reach, or its faults were too few."""


def calm(nodes: int, seed: int = 1) -> RunReport:
    plan = RunPlan(nodes=nodes, clients=3, owners=2, locks=2, chaos_ms=2_000)
    return run_seed("bakery", seed, plan=plan)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_clusters_of_every_size_serve_everybody(nodes: int) -> None:
    assert clean([calm(nodes)])["grants"] >= 8


def test_a_calm_cluster_elects_once() -> None:
    marks = calm(5).marks
    assert (marks["bakery.election_begun"], marks["bakery.installed"]) == (1, 1)


def test_no_seed_breaks_a_promise_and_what_is_rare_was_met() -> None:
    seeds = range(FIRST, FIRST + SEEDS)
    seen = demand_met(lambda seed: [run_seed("bakery", seed)], RARE, seeds, SEEDS_MOST)
    assert not seen["notice.error"]  # No member is accused.
    assert seen["bakery.granted"] > 5 * SEEDS


RELEASE_SEEDS = (5, 0)
"""In the first one a release was refused, before the record of the last release was kept."""


class ReleaseJudge(Judge):
    """Reports a release that a node refused, although its client relied on the hold.

    A session loses a hold at its deadline by itself, and reports that with another reason.
    """

    def __init__(self, world: World) -> None:
        self.world = world

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        """Judge the replies of a session to its contenders."""
        if delivered.node in self.world.members:
            return
        for effect in effects:
            if (
                isinstance(effect, Send)
                and isinstance(effect.message, Refused)
                and effect.message.reason is Reason.NOT_HELD
                and node_of(effect.to) == delivered.node
            ):
                raise ViolationError(f"release refused: {effect.message.detail}")


def run(seed: int) -> str | None:
    """Run one seed with much loss and few blows; return the violation, None if there is none."""
    random, blows = Random(seed), Random(f"{seed}/blows")
    drawn = tuple(blow for blow in Blow if blows.random() < 1 / 2) or tuple(Blow)
    plan = replace(
        draw_bakery_plan(seed),
        nodes=random.choice((3, 5)),
        clients=2,
        owners=1,
        locks=2,
        ttl_ms=3_000,
        chaos_ms=20_000,
        deaths_ms=(),
        strikes_every_ms=0,
        faults=Faults(
            loss_per_mille=random.choice((50, 200)),
            repeat_per_mille=random.choice((0, 300)),
            delay_us=500,
            reordering=random.choice((True, False)),
            late_per_mille=random.choice((0, 100)),
            late_ms=random.choice((300, 1_500)),
        ),
    )

    def judges(world: World) -> list[Judge]:
        nemesis = LeaderNemesis(world, drawn, 2_000)
        nemesis.begin()
        return [nemesis, ReleaseJudge(world)]

    promise = promise_of("bakery", ProtocolSettings())
    return run_seed("bakery", seed, plan=plan, promise=promise, judges=judges).violation


FEW_TABLES = 990_267
"""Two of three leaders live but are no longer obeyed; too few tables are left for a third."""


def test_leaders_that_are_no_longer_obeyed_are_replaced_though_few_tables_are_left() -> None:
    assert run_seed("bakery", FEW_TABLES).violation is None


@pytest.mark.parametrize("seed", RELEASE_SEEDS)
def test_no_release_is_refused_while_its_client_relies_on_the_hold(seed: int) -> None:
    assert run(seed) is None


def test_a_leader_that_forgets_the_last_release_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drop: Callable[[Tombstones, str, Who, int, int], None] = Tombstones.drop

    def forgets(self: Tombstones, lock: str, who: Who, request: int, fence: int = 0) -> None:
        drop(self, lock, who, request, fence)
        if fence:
            self._keep(lock, who, self.of(lock, who)._replace(held=0))  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(Tombstones, "drop", forgets)
    assert "release refused" in (run(RELEASE_SEEDS[1]) or "")


FIRST_SEED, LEASE_SEEDS_MOST = 3, 20


def all_work(view: Any, leaders: Any) -> tuple[int, int]:
    """Take leaders that do not reach each other for ones that work."""
    return len(leaders), 0


BUGS: dict[str, Patch] = {
    "a bound is lowered while its leases live": (TicketTable, "longest_ms", returning(0)),
    "a vote does not wait for its bound": (OwnBound, "wait_for", returning([])),
}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let leaders forget old leases soon."""
    monkeypatch.setattr("fencelock.actors.bakery.max_lease.RECENT_MS", 200)
    monkeypatch.setattr("fencelock.actors.bakery.leader.SWEEP_MS", 200)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("bug", BUGS)
def test_a_lease_beyond_what_the_members_know_is_seen(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    plant(monkeypatch, *BUGS[bug])
    run_long = partial(run_bakery_seed, workload=LONG_LOCKS)
    assert_seen("longest-lease-known", range(FIRST_SEED, FIRST_SEED + LEASE_SEEDS_MOST), run_long)


def test_leaders_that_stay_deaf_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterView, "working", all_work)
    reports = (run_deaf_seed(seed) for seed in range(LEASE_SEEDS_MOST))
    assert seen_in(": deaf-leaders-replaced, ", reports)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("seed", range(2))
def test_long_leases_are_known_while_two_leaders_are_lost(seed: int) -> None:
    blows = (Blow.TWO_LOST, Blow.ONE_LOST, Blow.DEAF)
    assert run_bakery_seed(seed, blows=blows, workload=LONG_LOCKS).violation is None


def test_deaf_leaders_are_replaced_once() -> None:
    assert clean([run_deaf_seed(0)])[Blow.DEAF.value] > 0


LEASE_MS = 1_000
MINUTES_MS = 8 * 60_000


@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1"), ("n2", "n3"), ("n3", "n1")])
def test_the_first_in_rank_of_two_leaders_that_ask_for_votes_goes_on_with_the_request(
    order: tuple[str, str],
) -> None:
    """Each leader misses the other's `Entering`, and learns of it only from the `AddTicket`."""
    trio = LeaderTrio()
    trio.lose_between(*order, messages.Entering)
    for name in order:
        trio.lock(name)
    trio.settle()
    assert trio.owners() == [min(order)]
    for _ in range(3):
        trio.pass_time(BAKERY_TIMING.resend_ms)
    assert len(trio.received(Locked)) == 1
    attempt = present(trio.leaders[min(order)].attempts.own.get(RequestKey("x", ANN, 1)))
    assert attempt.entry.round <= 6


def test_a_leader_that_granted_a_request_keeps_it_whichever_leader_ranks_first() -> None:
    trio = LeaderTrio()
    trio.lock("n2")
    trio.settle()
    (granted,) = trio.received(Locked)
    add = add_ticket(ticket_of(number=9, leader="n1"), pack_fence(1, 9), round=9)
    trio.deliver(leader_of("n1"), "n2", add)
    assert [type(message).__name__ for _, _, message in trio.under_way] == ["Owned"]
    (entry,) = trio.leaders["n2"].tickets.entries()
    assert (entry.owner, entry.fence) == ("n2", granted.fence)


def test_a_leader_that_takes_a_hold_over_goes_before_one_that_knows_of_none() -> None:
    trio = LeaderTrio()
    trio.hold("n3")
    trio.lock("n3")
    attempt = present(trio.leaders["n3"].attempts.own.get(RequestKey("x", ANN, 1)))
    assert attempt.held == FENCE
    trio.under_way.clear()
    add = add_ticket(ticket_of(number=9, leader="n1"), pack_fence(1, 9))
    trio.deliver(leader_of("n1"), "n3", add)
    assert [type(message).__name__ for _, _, message in trio.under_way] == ["Owned"]
    assert attempt.entry.fence == FENCE


@pytest.mark.parametrize("voted", [True, False])
def test_a_leader_leaves_a_request_to_who_takes_its_hold_over_once_it_voted_for_that(
    *, voted: bool
) -> None:
    """A new round of its own would take the vote back, and the other may have won with it."""
    trio = LeaderTrio()
    if not voted:
        put_hold(trio.leaders["n1"].tickets, ticket_of(Who("c", "bob"), 8), FENCE + 1)
    trio.lock("n1")
    trio.under_way.clear()
    trio.deliver(leader_of("n2"), "n1", add_ticket(ticket_of(), round=2, taken=True))
    assert only(messages.Collected, (one for _, _, one in trio.under_way)).voted == voted
    assert trio.owners() == ([] if voted else ["n1"])


def test_a_wait_that_is_over_takes_no_vote_back_that_another_may_have_won_with() -> None:
    """Its client used two proxies, and was let in through the other."""
    trio = LeaderTrio()
    trio.hold("n2", "n3")
    trio.lost = {(messages.AddTicket, "n2", name) for name in NAMES}
    trio.lock("n2", wait_ms=50)
    trio.settle()
    trio.pass_time(60)
    assert [message.request for message in trio.received(LockFailed)] == [1]
    for name in ("n2", "n3"):
        assert trio.entries(name)[0][0] is TicketPhase.HOLDING
    assert trio.owners() == []


def test_a_release_by_fence_also_ends_the_copy_of_a_leader_that_knows_only_the_request() -> None:
    """The leader that gets the release did not vote. Another names the request, and all drop it."""
    trio = LeaderTrio()
    trio.hold("n2", "n3", owner="n3")
    assert trio.leaders["n1"].tickets.put(ticket_of(leader="n3"), "n1", NOW, None) is not None
    trio.unlock("n1")
    trio.settle()
    assert [trio.entries(name) for name in NAMES] == [[], [], []]
    assert trio.received(Unlocked) == [Unlocked(number=1, found=True)]
    assert all(trio.leaders[name].tickets.tombstones.of("x", ANN).dropped == 1 for name in NAMES)


def test_a_reply_to_an_unknown_request_changes_nothing() -> None:
    trio = LeaderTrio()
    trio.hold("n1", "n2", "n3")
    dropped = messages.TicketDropped(epoch=1, number=3, found=True, request=1)
    trio.deliver(leader_of("n2"), "n1", dropped)
    assert trio.entries("n1") == [(TicketPhase.HOLDING, "n1")]


def expired_at_n1() -> LeaderTrio:
    """Let all leaders hold ann's request, and let its time be over by n1's clock."""
    trio = LeaderTrio()
    trio.hold(*NAMES, owner="n2")
    trio.leaders["n1"].tickets.forget_old(later(NOW, LEASE_MS))
    assert trio.entries("n1") == []
    return trio


def answer_of_n1(trio: LeaderTrio, step: Any) -> Any:
    """Let n2 send ``step`` to n1; return the answer."""
    trio.deliver(leader_of("n2"), "n1", step)
    (_, _, answer) = trio.under_way.pop()
    return answer


EXTEND = messages.Extend(epoch=1, ticket=ticket_of(), fence=FENCE, number=1)


def test_a_renewal_takes_up_again_what_was_over_by_one_clock() -> None:
    trio = expired_at_n1()
    assert checked(messages.Extended, answer_of_n1(trio, EXTEND)).kept
    assert trio.entries("n1") == [(TicketPhase.HOLDING, "n2")]


def test_a_renewal_is_refused_where_the_next_one_got_the_vote() -> None:
    trio = expired_at_n1()
    table = trio.leaders["n1"].tickets
    ben = ticket_of(Who("c", "ben"), 8, "n1")
    entry = present(table.put(ben, "n1", NOW, None))
    table.vote(entry, FENCE + 1, NOW)
    assert not checked(messages.Extended, answer_of_n1(trio, EXTEND)).kept
    table.drop("x", ben.who, 1, 0)
    assert not checked(messages.Extended, answer_of_n1(trio, EXTEND)).kept


@pytest.mark.parametrize(("last", "voted"), [(0, True), (FENCE + 1, False)])
def test_a_hold_that_is_taken_over_gets_the_vote_back_of_whose_clock_was_wrong(
    last: int, *, voted: bool
) -> None:
    trio = expired_at_n1()
    trio.leaders["n1"].tickets.note("x", 0, last)
    add = add_ticket(ticket_of(), round=5, taken=True)
    assert checked(messages.Collected, answer_of_n1(trio, add)).voted is voted


def test_a_step_that_takes_nothing_over_is_answered_that_it_ended() -> None:
    trio = expired_at_n1()
    add = add_ticket(ticket_of(), round=5)
    assert isinstance(answer_of_n1(trio, add), messages.TicketEnded)
    assert not trio.under_way


def test_a_hold_is_not_granted_anew_under_a_fence_below_one_that_was_voted_for() -> None:
    """The holder under it may still renew."""
    trio = LeaderTrio()
    trio.hold(*NAMES, owner="gone")
    for name in NAMES:
        trio.leaders[name].tickets.note("x", 0, FENCE + 1)
    trio.lock("n1")
    trio.settle()
    assert trio.received(Locked) == []
    renew = RenewHold(lock="x", who=ANN, fence=FENCE, hold_ms=0, number=9)
    trio.ask("n1", renew)
    trio.settle()
    (renewed,) = trio.received(HoldRenewed)
    assert renewed.fence == FENCE


def test_a_leader_that_renews_for_an_unreachable_owner_has_the_hold_from_then() -> None:
    trio = LeaderTrio()
    trio.hold("n2", "n3", owner="n1")
    trio.lost = {(messages.Extend, "n2", "n1")}
    trio.ask("n2", RenewHold(lock="x", who=ANN, fence=FENCE, hold_ms=0, number=9))
    trio.settle()
    assert [message.fence for message in trio.received(HoldRenewed)] == [FENCE]
    assert trio.entries("n2") == trio.entries("n3") == [(TicketPhase.HOLDING, "n2")]


def test_claims_of_one_session_are_dropped_without_a_look_at_the_others() -> None:
    trio = LeaderTrio()
    table = trio.leaders["n1"].tickets
    for number in range(50):
        other = ticket_of(Who("d", "ann"), 1, lock=f"y{number}")
        assert table.put(other, "n2", NOW, None) is not None
    trio.hold("n1", "n2")
    trio.ask("n1", UnlockAll(session="c", number=4))
    drops = [
        message for _, _, message in trio.under_way if isinstance(message, messages.DropTicket)
    ]
    assert {message.lock for message in drops} == {"x"}
    assert len(table) == 50


def test_a_round_that_is_given_back_leaves_one_owner_only() -> None:
    trio = LeaderTrio()
    trio.lose_between("n1", "n2", messages.Entering)
    trio.lost |= {(messages.Yield, "n2", "n3")}
    trio.lock("n2")
    trio.lock("n1")
    trio.settle()
    assert trio.owners() == ["n1"]
    attempt = present(trio.leaders["n1"].attempts.own.get(RequestKey("x", ANN, 1)))
    assert attempt.step in {TicketStep.HELD, TicketStep.WAITING, TicketStep.VOTING}


def test_a_hold_released_long_before_it_was_due_is_not_kept_until_then() -> None:
    trio = LeaderTrio()
    leader = trio.leaders["n1"]
    for each in trio.leaders.values():
        each.epoch_state.bound.begin(1, 2 * MINUTES_MS)
    most = 0
    for request in range(1, 1_500):
        trio.ask("n1", lock_request(request=request, hold_ms=MINUTES_MS, grace_ms=1_000))
        trio.settle()
        trio.unlock("n1", 0, request=request)
        trio.settle()
        most = max(most, len(leader.attempts.due.heap))
    assert len(trio.received(Locked)) == len(trio.received(Unlocked)) == 1_499
    assert most <= STALE_MAX + 3
    assert len(leader.tickets) == 0
