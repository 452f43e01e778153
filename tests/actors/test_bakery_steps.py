"""Races of tickets, leaders and coordinators, and numbers at their limit."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.bakery_cluster_harness import ClusterHarness

from fencelock.actors.api.lock_message import Granted, Reason, Refused
from fencelock.actors.bakery.backend import PROXY_END_DELAY_MS
from fencelock.actors.bakery.config import election_of
from fencelock.actors.bakery.leader import Leader
from fencelock.actors.bakery.ticket import FENCE_COUNTER_MAX, Ticket, Turn, Who, pack_fence
from fencelock.actors.bakery.wire import Chosen
from fencelock.actors.effect import Spawn
from fencelock.actors.message import NS_PER_MS, Address
from fencelock.cluster.node.topology import MakeRoles, bakery
from fencelock.verification.simulation.planting import planted


class OneView(Leader):
    """A leader for which its own view is enough."""

    def handle(self, sender: Any, event: Any, now: Any) -> Any:
        self.epoch_state.quorum = 1
        return super().handle(sender, event, now)


def one_view(spawn: Spawn) -> Spawn:
    return replace(spawn, role=OneView) if spawn.role is Leader else spawn


def both_ask_over_a_slow_link(make_roles: MakeRoles, seed: int) -> ClusterHarness:
    """Two leaders own the same request and learn of each other late; the third reaches both."""
    harness = ClusterHarness(3, seed=seed, make_roles=make_roles).led()
    harness.cut_between(("n2", "n3"), ms=300, holds=True)
    harness.acquire("n2", owner="bbb")
    harness.acquire("n3", owner="aaa")
    harness.run(400)
    return harness


@pytest.mark.parametrize("seed", range(6))
def test_two_requests_over_a_slow_link_are_granted_one_after_the_other(seed: int) -> None:
    harness = both_ask_over_a_slow_link(bakery, seed)
    first = harness.answers(Granted)
    assert len(first) <= 1
    harness.until(lambda: len(harness.answers(Granted)) == 2)
    fences = [granted.fence for granted in harness.answers(Granted)]
    assert fences == sorted(set(fences))


def test_both_owners_are_let_in_with_one_view_for_an_entering_set() -> None:
    """Both would be granted."""
    harness = both_ask_over_a_slow_link(planted(bakery, one_view), 0)
    assert len(harness.answers(Granted)) == 2


@pytest.mark.parametrize("seed", range(4))
def test_two_coordinators_never_have_two_seatings_of_one_epoch(seed: int) -> None:
    """The two smallest members lose each other's messages, and have clocks that differ."""
    harness = ClusterHarness(5, seed=seed).found().start("n1", "n2", "n3")
    harness.cut_between(("n1", "n2"))
    harness.world.nodes["n2"].run_clock_at(1_000_500)
    harness.world.power_on("n4")
    harness.world.power_on("n5")
    known: dict[int, tuple[Chosen, ...]] = {}
    for _ in range(400):
        harness.run(10)
        for name in harness.names:
            role_slot = harness.world.nodes[name].scheduler.roles.get(election_of(name))
            if role_slot is None:
                continue  # Its node does not know yet that its journal is no old copy.
            coordinator: Any = role_slot.role
            seating = coordinator.promises.seating
            assert known.setdefault(seating.epoch, seating.leaders) == seating.leaders
    proxy = harness.serving()[0]
    assert harness.lock(proxy).lock == "x"


@pytest.mark.parametrize("release_ms", [270, 290, 296, 298, 300, 302, 310, 330, 450])
def test_a_grant_that_races_with_a_timeout_is_reported_once_and_leaves_nothing(
    release_ms: int,
) -> None:
    harness = ClusterHarness(3).start().ready()
    first = harness.lock("n1")
    asked = harness.acquire("n2", owner="ben", wait_ms=300)
    harness.run(release_ms)
    harness.release("n1", first)
    harness.run(500)
    answered = [*harness.answers(Granted, asked), *harness.answers(Refused, asked)]
    assert len(answered) == 1
    if isinstance(answered[0], Granted):
        harness.release("n2", answered[0])
    last = harness.acquire("n3", owner="eve")
    assert harness.granted(last, 3_000).fence > first.fence


def test_one_leader_that_refuses_does_not_outweigh_a_quorum() -> None:
    harness = ClusterHarness(3).led()
    stale = harness.leader("n3")
    other = Ticket(
        "x", Who("gone", "gone"), 1, Turn(1, "n3", 900), Address("n3/proxy"), 60_000, 60_000, ""
    )
    now = harness.world.nodes["n3"].now()
    entry = stale.tickets.put(other, "n3", now, None)
    stale.tickets.vote(entry, pack_fence(1, 1), now)
    asked = harness.acquire("n1")
    assert harness.granted(asked, 500).fence > pack_fence(1, 1)


def test_numbers_at_their_limit_stop_nothing() -> None:
    harness = ClusterHarness(3).start().ready()
    for name in harness.serving():
        harness.leader(name).tickets.note("x", FENCE_COUNTER_MAX)
    first = harness.lock("n1")
    asked = harness.acquire("n2", owner="ben")
    harness.release("n1", first)
    assert harness.granted(asked).fence > first.fence


def test_fences_at_their_limit_refuse_one_lock_until_the_next_epoch() -> None:
    harness = ClusterHarness(3).start().ready()
    for name in harness.serving():
        harness.leader(name).tickets.note(
            "x", 0, pack_fence(harness.epoch(), FENCE_COUNTER_MAX - 1)
        )
    asked = harness.acquire("n1")
    refused = harness.refused(asked)
    assert refused.reason is Reason.OVERLOADED
    assert "reached their limit" in refused.detail
    assert harness.lock("n1", "y").lock == "y"
    epoch = harness.epoch()
    harness.world.crash("n3")
    harness.world.power_on("n3")  # In its new life it is not the leader that it was.
    harness.until_later_epoch(epoch)
    assert harness.lock("n1", owner="ben").fence > pack_fence(epoch + 1, 0)


@pytest.mark.parametrize("holds", [True, False])
def test_a_client_that_dies_is_not_waited_for_longer_than_its_lease(*, holds: bool) -> None:
    """A dead client that waits is passed over, one that holds is after its lease."""
    harness = ClusterHarness(3).start().ready()
    first = harness.lock("n1")
    if not holds:
        harness.acquire("n2", owner="ben")
        harness.run(50)
        harness.release("n1", first)
        harness.run(50)
    harness.world.crash("u")
    harness.world.power_on("u")
    began = harness.world.time
    harness.number += 100
    granted = harness.lock("n3", owner="eve")
    assert granted.fence > first.fence
    assert (harness.world.time - began) // NS_PER_MS < 3_500


def test_a_leader_ends_a_wait_on_time_and_reports_what_was_in_the_way() -> None:
    """Before the proxy does by itself: only leaders know that it was not granted meanwhile."""
    harness = ClusterHarness(3).start().ready()
    proxy = harness.serving()[0]
    harness.lock(proxy, owner="ann", hold_ms=5_000)
    asked = harness.acquire(proxy, owner="ben", wait_ms=300)
    waited_ms = harness.until(lambda: bool(harness.answers(Refused, asked)))
    (refused,) = harness.answers(Refused, asked)
    assert refused.reason is Reason.TIMED_OUT
    assert 300 <= waited_ms < 300 + PROXY_END_DELAY_MS
    assert all(len(harness.leader(name).tickets) == 1 for name in harness.serving())
