"""Leaders of `bakery` lost, cut off and back again."""

from __future__ import annotations

from typing import Any

import pytest
from support.bakery_cluster_harness import ClusterHarness

from fencelock.actors.api.message import Granted, Released
from fencelock.actors.api.session_message import HoldLost
from fencelock.actors.bakery.config import BAKERY_TIMING, election_of
from fencelock.actors.message import NS_PER_MS, address_of
from fencelock.verification.simulation.network import Cut


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_lost_leader_changes_nothing_for_who_holds(nodes: int) -> None:
    """Two granted tickets outlive the leader they came through."""
    harness = ClusterHarness(nodes).start().ready()
    lost = harness.serving()[-1]
    first = harness.lock(lost, "x", hold_ms=900, grace_ms=600)
    second = harness.lock(lost, "y", hold_ms=900, grace_ms=600)
    harness.world.crash(lost)
    proxy = next(name for name in harness.names if name != lost)
    began = harness.world.time
    waiting = [harness.acquire(proxy, lock, "ben") for lock in ("x", "y")]
    fences = [harness.granted(number).fence for number in waiting]
    assert fences[0] > first.fence
    assert fences[1] > second.fence
    assert (harness.world.time - began) // NS_PER_MS > 1_200  # Not before both leases were over.


def test_a_lost_leader_is_replaced_at_once_and_the_others_stay() -> None:
    harness = ClusterHarness(5).start().ready()
    before = harness.serving()
    epoch = harness.epoch()
    harness.world.crash(before[0])
    took_ms = harness.until(lambda: len(harness.serving()) == 3 and harness.epoch() > epoch)
    assert took_ms < 2_000
    assert set(before[1:]) < set(harness.serving())


def test_two_leaders_lost_at_once_are_waited_out_and_said_so() -> None:
    harness = ClusterHarness(5).start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    leaders = harness.serving()
    held = harness.lock(leaders[0], hold_ms=1_000, grace_ms=500)
    proxy = harness.others()[0]
    for name in leaders[:2]:
        harness.world.crash(name)
    began = harness.world.time
    waiting = harness.acquire(proxy, owner="ben")
    role: Any = harness.world.role_at(address_of(proxy, "proxy"))
    harness.until(
        lambda: "every lease must be over first, in" in role.backend.in_flight.readiness.detail
    )
    granted = harness.granted(waiting)
    assert (harness.world.time - began) // NS_PER_MS >= 1_500
    assert granted.fence > held.fence


def test_leaders_of_a_minority_grant_nothing_to_anybody() -> None:
    """Two leaders of three, cut off from the other three members."""
    harness = ClusterHarness(5).start().ready()
    leaders = harness.serving()
    cut_off = leaders[:2]
    harness.cut(cut_off)
    harness.run(1_500)
    inside = harness.acquire(cut_off[0], owner="cut off")
    outside = harness.acquire(next(n for n in harness.names if n not in cut_off), owner="ben")
    harness.granted(outside)
    harness.run(2_000)
    assert harness.answers(Granted, inside) == []


def test_an_isolated_leader_with_a_queue_grants_nothing() -> None:
    harness = ClusterHarness(5).start().ready()
    alone = harness.serving()[0]
    harness.lock(alone)
    waiting = harness.acquire(alone, owner="ben")
    harness.run(50)
    harness.cut([alone])
    harness.run(6_000)
    assert harness.answers(Granted, waiting) == []


def test_a_leader_that_restarts_has_lost_its_seat_until_a_new_epoch() -> None:
    harness = ClusterHarness(3).start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    epoch, back = harness.epoch(), harness.serving()[0]
    held = harness.lock(harness.serving()[1])
    harness.world.crash(back)
    harness.run(20)
    harness.world.power_on(back)
    harness.until(lambda: harness.epoch() > epoch and back in harness.serving())
    waiting = harness.acquire(back, owner="ben")
    assert harness.granted(waiting).fence > held.fence
    assert [event.fence for event in harness.answers(HoldLost)] == [held.fence]


def test_fences_rise_over_empty_queues_epochs_and_a_restart_of_all() -> None:
    harness = ClusterHarness(3).start().ready()
    fences: list[int] = []
    for turn in range(4):
        granted = harness.lock("n1", owner=f"o{turn}")
        fences.append(granted.fence)
        harness.release("n2", granted)
        harness.until(lambda: len(harness.answers(Released)) == len(fences))
        if turn == 1:
            harness.world.crash(harness.serving()[0])
            harness.run(100)
            harness.world.power_on_all()
        if turn == 2:
            for name in harness.names:
                harness.world.crash(name)
            harness.world.power_on_all()
    assert fences == sorted(set(fences))


def test_jumping_clocks_change_nothing() -> None:
    """A clock that jumps ends that node's own leases early; nobody is granted more."""
    harness = ClusterHarness(3).start().ready()
    held = harness.lock("n1", hold_ms=1_000, grace_ms=500)
    one = harness.others()[0] if harness.others() else harness.serving()[-1]
    harness.world.nodes[one].jump_clock(3_600_000)
    waiting = harness.acquire("n2", owner="ben")
    harness.run(700)
    assert harness.answers(Granted, waiting) == []
    assert harness.granted(waiting).fence > held.fence


def test_a_cluster_that_is_down_and_up_again_keeps_what_is_granted() -> None:
    harness = ClusterHarness(3).start().ready()
    held = harness.lock("n1", hold_ms=4_000, grace_ms=500)
    waiting = harness.acquire("n2", owner="ben")
    harness.run(50)
    for name in harness.names:
        harness.cut([name], 1_500)
    harness.run(2_500)
    assert harness.answers(Granted, waiting) == []
    harness.release("n3", held)
    assert harness.granted(waiting).fence > held.fence


def deaf(seed: int) -> ClusterHarness:
    """Cut n1 and n2 from each other; the other three, of which one leads, still reach both."""
    harness = ClusterHarness(5, seed=seed).start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    assert {"n1", "n2"} & set(harness.serving())
    links = [("n1", "n2"), ("n2", "n1")]
    harness.world.network.cut(links, Cut(harness.world.time + 600_000 * NS_PER_MS, holds=False))
    return harness


@pytest.mark.parametrize("seed", [2, 3])
def test_two_coordinators_that_are_deaf_to_each_other_leave_the_leaders_in_peace(seed: int) -> None:
    """Each misses the other among the leaders, and all the rest hear both: found by a seed."""
    harness = deaf(seed)
    epoch, served = harness.epoch(), 0
    for _ in range(1_500):
        harness.run(20)
        served += len(harness.serving()) > 1
    assert served > 1_500 * 95 // 100
    assert harness.epoch() - epoch < 3


@pytest.mark.parametrize("seed", [2, 3])
def test_a_leader_that_the_next_coordinator_was_deaf_to_is_replaced(seed: int) -> None:
    harness = deaf(seed)
    harness.run(5_000)
    lost = next(name for name in ("n1", "n2") if name in harness.serving())
    epoch = harness.epoch()
    harness.world.crash(lost)
    took_ms = harness.until(lambda: harness.epoch() > epoch and len(harness.serving()) == 3)
    assert took_ms < 3_000


@pytest.mark.parametrize("seed", [2, 3])
def test_who_was_overruled_often_replaces_a_lost_leader_at_once_when_it_hears_all(
    seed: int,
) -> None:
    """Each time that the first member was cut off, its seating was replaced, and it paused."""
    harness = ClusterHarness(5, seed=seed).start().ready()
    for _ in range(6):
        harness.until(lambda: len(harness.serving()) == 3)
        harness.cut(["n1"], 1_500)
        harness.run(3_000)
        lost = next(name for name in harness.serving() if name != "n1")
        epoch = harness.epoch()
        harness.world.crash(lost)
        harness.until(lambda epoch=epoch: harness.epoch() > epoch, 1_500)  # type: ignore[misc]
        harness.world.power_on(lost)
        harness.run(1_000)
    role: Any = harness.world.role_at(election_of("n1"))
    assert role.duel_backoff.pause_ms > BAKERY_TIMING.backoff_ms
