"""Leases longer than the bound of an epoch, and renewals."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.bakery_cluster_harness import GRACE_MS, HOLD_MS, NO_COPIES, ClusterHarness
from support.leader_trio import ANN, FENCE, LIVES, NAMES, LeaderTrio, lock_request, seats, ticket_of

from fencelock.actors.api.lock_message import Granted, Reason, Refused, Released, Renewed
from fencelock.actors.bakery.config import (
    BAKERY_TIMING,
    TRUST_MS_MAX,
    BakeryTiming,
    Terms,
    election_of,
    leader_of,
)
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.max_lease import RECENT_MS, MaxLease, OwnBound, longest_lease_ms
from fencelock.actors.bakery.ticket import LEASE_MS_MAX, TERM_MS_MAX, Who
from fencelock.actors.bakery.wire import (
    BoundStatement,
    Entering,
    Extend,
    Extended,
    HoldRenewed,
    Locked,
    NotLeading,
    RenewHold,
    Seating,
    Vouch,
    Vouched,
)
from fencelock.actors.effect import Observe, Send
from fencelock.actors.message import NS_PER_MS, Instant, later

BOB = Who("c", "bob")
LONG_MS = 60_000
LOWERED_MS = 20_000
"""Time after which a bound that is not needed has been lowered, for certain (ms)."""
SEATING = Seating(1, LIVES, 10_000)


def test_a_long_lease_that_waited_over_a_hand_over_is_granted_when_its_epoch_knows_of_it() -> None:
    """When two leaders are lost, a seating only waits for the leases up to its known bound."""
    trio = LeaderTrio()
    trio.hold("n1", "n2", "n3")
    trio.ask("n1", lock_request(BOB, hold_ms=5_000))
    trio.settle()
    for leader in trio.leaders.values():
        leader.epoch_state.bound.begin(1, 1_000)
    trio.unlock("n1")
    trio.settle()
    assert trio.received(Locked) == []
    assert Vouch(epoch=1, number=1, bound_ms=5_500) in trio.received(Vouch)
    for leader in trio.leaders.values():
        leader.epoch_state.bound.wait_for(5_500, serving=True)
        leader.epoch_state.bound.on_known(Vouched(epoch=1, number=1))
    trio.pass_time(BAKERY_TIMING.resend_ms)
    assert [message.hold_ms for message in trio.received(Locked)] == [5_000]


def test_no_leader_votes_for_a_lease_that_it_did_not_state() -> None:
    trio = LeaderTrio()
    trio.leaders["n1"].epoch_state.bound.begin(1, LONG_MS)
    trio.ask("n1", lock_request(hold_ms=LONG_MS - 500))
    trio.settle()
    assert trio.received(Locked) == []
    known = [trio.leaders[name].tickets.of("x", ANN)[0].fence for name in ("n2", "n3")]
    assert known == [0, 0]


def test_a_leader_states_a_long_lease_when_its_ticket_enters() -> None:
    """So it is known when a vote is wanted, which would have to wait for it otherwise."""
    trio = LeaderTrio()
    for hold_ms in (LONG_MS, LONG_MS + 1):
        ticket = ticket_of(number=0, leader="n1", hold_ms=hold_ms)
        trio.deliver(leader_of("n1"), "n2", Entering(epoch=1, ticket=ticket))
    stated = [message.bound_ms for message in trio.received(Vouch)]
    assert stated[0] >= LONG_MS + ticket.grace_ms
    assert trio.leaders["n2"].epoch_state.wait_for_bound(stated[0] + 1) != []


def test_statements_are_confirmed_by_a_quorum_and_only_the_last_one_counts() -> None:
    bound, electorate = MaxLease("n1"), Electorate(0, seats(*NAMES))
    first = Vouch(epoch=1, number=1, bound_ms=LONG_MS)
    assert len(bound.begin(SEATING, first, electorate)) == len(NAMES)
    assert bound.on_vouched("n2", Vouched(epoch=1, number=1), electorate) == []
    second = replace(first, number=2, bound_ms=10_000)
    bound.begin(SEATING, second, electorate)
    assert bound.on_vouched("n3", Vouched(epoch=1, number=1), electorate) == []
    assert bound.on_vouched("n3", Vouched(epoch=1, number=2), electorate) == []
    assert bound.on_vouched("n1", Vouched(epoch=1, number=2), electorate) != []
    assert bound.begin(Seating(2, LIVES, 10), second, electorate) == []


def test_a_leader_that_lowered_its_bound_does_not_raise_it_by_a_late_confirmation() -> None:
    bound = OwnBound("n1", default_ms=1_000)
    bound.begin(1, 1_000)
    (_, sent) = bound.wait_for(LONG_MS, serving=True)
    assert isinstance(sent, Send)
    assert sent.message == Vouch(epoch=1, number=1, bound_ms=LONG_MS)
    for seconds in (10, 20, 30):
        bound.lower(0, Instant(seconds * 1_000 * NS_PER_MS))
    bound.on_known(Vouched(epoch=1, number=1))
    assert (bound.bound_ms, bound.stated_ms, bound.number) == (1_000, 1_000, 2)


@pytest.mark.parametrize(
    ("max_ms", "hold_ms", "grace_ms", "why"),
    [
        (10_000, 3_000, 7_000, ""),
        (10_000, 2_999, 0, "duration is 2999 ms, 3000 to 10000 ms are allowed"),
        (10_000, 0, 2_999, "grace is 2999 ms, 3000 to 10000 ms are allowed"),
        (10_000, 3_001, 7_000, "duration 3001 ms and grace 7000 ms are 10001 ms together, and"),
        (LEASE_MS_MAX, TERM_MS_MAX, TERM_MS_MAX, ""),
        (LEASE_MS_MAX, TERM_MS_MAX + 1, 0, f"3000 to {TERM_MS_MAX} ms are allowed"),
    ],
)
def test_durations_are_allowed_up_to_their_bounds(
    max_ms: int, hold_ms: int, grace_ms: int, why: str
) -> None:
    found = Terms(max_ms=max_ms).why_invalid(hold_ms, grace_ms)
    assert why in found
    assert bool(found) == bool(why)


def test_the_usual_lease_is_a_duration_and_a_grace() -> None:
    assert Terms(hold_ms=4_000, grace_ms=3_000).lease_ms == 7_000


def test_every_time_of_members_grows_with_the_round_trip() -> None:
    names = [name for name in vars(BakeryTiming) if name.endswith("_ms") and name[0] != "r"]
    for name in [*names, "resend_ms"]:
        grown = getattr(BakeryTiming(1_000), name) - getattr(BakeryTiming(100), name)
        assert grown == 900, name
    assert BakeryTiming(1_000).repeat_ms - BakeryTiming(100).repeat_ms == 2_700


def test_a_bound_is_lowered_two_intervals_after_the_last_long_lease() -> None:
    bound = OwnBound("n1", default_ms=10_000)
    bound.begin(3, 10_000)
    assert not bound.is_raised
    assert bound.wait_for(20_000, serving=True) != []
    assert bound.wait_for(5_000, serving=True) == []
    bound.on_known(Vouched(epoch=3, number=1))
    assert (bound.bound_ms, bound.is_raised) == (20_000, True)
    for interval, stated_ms in ((1, 20_000), (2, 20_000), (3, 10_000)):
        turn = later(Instant(0), interval * RECENT_MS)
        bound.lower(0, Instant(turn - NS_PER_MS))
        assert bound.stated_ms == 20_000
        bound.lower(0, turn)
        assert bound.stated_ms == stated_ms
    assert (bound.bound_ms, bound.number) == (10_000, 2)


@pytest.mark.parametrize(
    ("longest_ms", "stated_ms", "bound_ms"),
    [(20_000, 20_000, 20_000), (20_001, 40_000, 40_000), (10_000, 10_000, 10_000)],
)
def test_a_bound_is_lowered_to_half_or_to_the_default(
    longest_ms: int, stated_ms: int, bound_ms: int
) -> None:
    bound = OwnBound("n1", default_ms=10_000)
    bound.begin(3, 40_000)
    bound.lower(longest_ms, later(Instant(0), RECENT_MS))
    assert (bound.stated_ms, bound.bound_ms) == (stated_ms, bound_ms)


def test_a_bound_that_is_not_confirmed_is_not_obeyed_when_it_is_lowered() -> None:
    bound = OwnBound("n1", default_ms=10_000)
    bound.begin(3, 10_000)
    bound.stated_ms = 60_000
    bound.lower(30_000, later(Instant(0), RECENT_MS))
    assert (bound.stated_ms, bound.bound_ms, bound.known) == (30_000, 10_000, False)
    bound.on_known(Vouched(epoch=3, number=1))
    assert bound.lower(30_000, later(Instant(0), RECENT_MS + 1)) == []


def test_no_lease_is_waited_for_longer_than_any_can_be() -> None:
    seating = Seating(1, LIVES, LEASE_MS_MAX + 2)
    assert longest_lease_ms(seating, ()) == LEASE_MS_MAX + 1


@pytest.mark.parametrize(
    ("stated", "longest"),
    [
        ((), 10_000),
        ((("n1", LONG_MS),), 10_000),
        ((("n1", LONG_MS), ("n3", LONG_MS)), LONG_MS),
        ((("n1", LONG_MS), ("n2", 2_000), ("n3", 1_000)), 2_000),
    ],
)
def test_the_longest_lease_is_one_that_as_many_leaders_stated_as_make_a_quorum(
    stated: tuple[tuple[str, int], ...], longest: int
) -> None:
    statements = [BoundStatement(leader, 1, bound_ms) for leader, bound_ms in stated]
    assert longest_lease_ms(SEATING, statements) == longest


def bounds(harness: ClusterHarness) -> list[int]:
    """Return the longest lease that may exist, according to each member."""
    found: list[int] = []
    for name in harness.names:
        if harness.world.nodes[name].up:
            promises: Any = harness.world.role_at(election_of(name)).promises
            found.append(longest_lease_ms(promises.seating, promises.installed.statements))
    return found


def pause_after_two_are_lost(harness: ClusterHarness) -> int:
    """Lose two leaders; return the time until there are others that serve (ms)."""
    harness.until_three_lead()
    epoch = harness.epoch()
    for name in harness.serving()[:2]:
        harness.world.crash(name)
    return harness.until_later_epoch(epoch, 2 * LONG_MS)


def test_a_long_lock_that_was_released_does_not_delay_the_cluster_when_two_leaders_are_lost() -> (
    None
):
    harness = ClusterHarness(5, NO_COPIES).start().ready()
    held = harness.lock("n1", hold_ms=LONG_MS)
    assert min(bounds(harness)) == LONG_MS + GRACE_MS
    harness.release("n1", held)
    harness.answer(Released)
    harness.run(LOWERED_MS)
    assert bounds(harness) == [HOLD_MS + GRACE_MS] * 5
    assert pause_after_two_are_lost(harness) < HOLD_MS + GRACE_MS + TRUST_MS_MAX + 3_000


@pytest.mark.long
def test_a_long_lock_that_is_held_is_waited_for_when_two_leaders_are_lost() -> None:
    harness = ClusterHarness(5, NO_COPIES).start().ready()
    harness.lock("n1", hold_ms=LONG_MS)
    harness.run(LOWERED_MS)
    assert min(bounds(harness)) >= LONG_MS + GRACE_MS - LOWERED_MS
    assert pause_after_two_are_lost(harness) >= LONG_MS + GRACE_MS - LOWERED_MS


def test_a_statement_of_a_node_that_does_not_lead_is_refused() -> None:
    harness = ClusterHarness(5, NO_COPIES).led()
    role: Any = harness.world.role_at(election_of(harness.serving()[0]))
    for sender, bound_ms in ((harness.others()[0], 5), (harness.serving()[0], 0)):
        vouch = Vouch(epoch=role.promises.seating.epoch, number=9, bound_ms=bound_ms)
        refused = role.handle(election_of(sender), vouch, Instant(10**12))
        assert refused[0] == Observe("bakery.vouch_malformed")


# Renewals that one leader knows nothing of, while a quorum holds; losses that one clock claims


LEASE_MS = HOLD_MS + GRACE_MS


def forget_at(harness: ClusterHarness, name: str, *, expired: bool) -> None:
    """Let a leader consider all its holds ended, by its clock; or make it forget its votes and
    holds."""
    leader = harness.leader(name)
    now = Instant(harness.world.nodes[name].now())
    for entry in list(leader.tickets.entries()):
        leader.attempts.forget(entry)
        if expired:
            assert leader.tickets.forget(entry, later(now, LEASE_MS))
        else:
            leader.tickets.remove(entry)


@pytest.mark.parametrize("expired", [True, False])
@pytest.mark.parametrize("through", [0, 1, 2])
def test_a_hold_that_two_of_three_leaders_have_is_renewed_through_the_third(
    through: int, *, expired: bool
) -> None:
    """The first of them owned it, as the others still believe."""
    harness = ClusterHarness(3).led()
    owner = harness.serving()[0]
    granted = harness.lock(owner)
    harness.run(100)
    forget_at(harness, harness.serving()[through], expired=expired)
    waiting = harness.acquire(owner, owner="ben")
    asked = harness.renew(harness.serving()[through], granted)
    harness.answer(Renewed, asked, 1_000)
    harness.run(HOLD_MS)
    assert harness.answers(Refused) == harness.answers(Granted, waiting) == []
    assert harness.granted(waiting).fence > granted.fence


def test_a_hold_that_one_leader_has_alone_is_lost_once_all_were_asked() -> None:
    harness = ClusterHarness(3).led()
    first, *others = harness.serving()
    granted = harness.lock(first)
    harness.run(100)
    harness.release(first, granted)
    harness.run(100)
    assert all(len(harness.leader(name).tickets) == 0 for name in others)
    asked = harness.renew(first, granted)
    assert harness.refused(asked, 1_000).reason is Reason.NOT_HELD


def prolong(*missed: str) -> RenewHold:
    return RenewHold(lock="x", who=ANN, fence=FENCE, hold_ms=0, number=9, missed=missed)


def three_connected(*voters: str) -> LeaderTrio:
    """Let ``voters`` hold a ticket that all of them attribute to n1."""
    trio = LeaderTrio()
    trio.hold(*voters)
    for leader in trio.leaders.values():
        leader.epoch_state.connected = {one.node: one.life for one in LIVES}
    return trio


def test_a_renewal_is_left_to_its_owner_unless_that_does_not_have_it() -> None:
    trio = three_connected("n2", "n3")
    trio.ask("n2", prolong())
    assert [message.owner for message in trio.received(NotLeading)] == ["n1"]
    trio.ask("n2", prolong("n3"))
    assert len(trio.received(NotLeading)) == 2
    trio.ask("n2", prolong("n1"))
    trio.settle()
    assert [message.fence for message in trio.received(HoldRenewed)] == [FENCE]


def test_a_leader_that_alone_has_a_hold_ends_its_renewal_once_both_others_refuse() -> None:
    """They know that it was dropped, and this one missed that."""
    trio = three_connected("n1")
    for name in ("n2", "n3"):
        trio.leaders[name].tickets.drop("x", ANN, 1, 0)
    trio.ask("n1", prolong())
    assert trio.received(HoldRenewed) == []
    trio.settle()
    assert [message.fence for message in trio.received(HoldRenewed)] == [0]
    assert trio.leaders["n1"].requests.pending == {}


def test_one_refusal_of_two_decides_nothing() -> None:
    trio = three_connected("n1")
    trio.leaders["n2"].tickets.drop("x", ANN, 1, 0)
    trio.lost = {(Extend, "n1", "n3")}
    trio.ask("n1", prolong())
    trio.settle()
    assert trio.received(HoldRenewed) == []
    trio.deliver(leader_of("n3"), "n1", Extended(epoch=1, number=1, kept=True))
    assert [message.fence for message in trio.received(HoldRenewed)] == [FENCE]
