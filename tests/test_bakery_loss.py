"""Leaders of `bakery` lost, cut off and back again: M2 to M20 of the design page."""

from __future__ import annotations

from typing import Any

import pytest

from fencelock.actors.bakery.config import election_of
from fencelock.actors.bakery.rivalry import Rivalry
from fencelock.actors.lock.message import Granted, Released
from fencelock.actors.lock.session_message import HoldLost
from fencelock.actors.message import NS_PER_MS, address_of
from fencelock.cluster.simulation.bakery_town import Town
from fencelock.cluster.simulation.network import Cut


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_lost_leader_changes_nothing_for_who_holds(nodes: int) -> None:
    """M2, M3, M14, scenarios 90 to 97: two granted tickets outlive the leader they came through."""
    town = Town(nodes).start().ready()
    lost = town.serving()[-1]
    first = town.lock(lost, "x", hold_ms=900, grace_ms=600)
    second = town.lock(lost, "y", hold_ms=900, grace_ms=600)
    town.world.crash(lost)
    gate = next(name for name in town.names if name != lost)
    began = town.world.time
    waiting = [town.acquire(gate, lock, "ben") for lock in ("x", "y")]
    fences = [town.granted(number).fence for number in waiting]
    assert fences[0] > first.fence
    assert fences[1] > second.fence
    assert (town.world.time - began) // NS_PER_MS > 1_200  # Not before both leases were over.


def test_a_lost_leader_is_replaced_at_once_and_the_others_stay() -> None:
    """Scenario 97, M15."""
    town = Town(5).start().ready()
    before = town.serving()
    epoch = town.epoch()
    town.world.crash(before[0])
    took_ms = town.until(lambda: len(town.serving()) == 3 and town.epoch() > epoch)
    assert took_ms < 2_000
    assert set(before[1:]) < set(town.serving())


def test_two_leaders_lost_at_once_are_waited_out_and_said_so() -> None:
    """M7."""
    town = Town(5).start().ready()
    leaders = town.serving()
    held = town.lock(leaders[0], hold_ms=1_000, grace_ms=500)
    for name in leaders[:2]:
        town.world.crash(name)
    gate = town.others()[0]
    began = town.world.time
    waiting = town.acquire(gate, owner="ben")
    door: Any = town.world.role_at(address_of(gate, "proxy"))
    town.until(lambda: "every lease must be over first, in" in door.errands.readiness.detail)
    granted = town.granted(waiting)
    assert (town.world.time - began) // NS_PER_MS >= 1_500
    assert granted.fence > held.fence


def test_leaders_of_a_minority_grant_nothing_to_anybody() -> None:
    """M4, F2: two leaders of three, cut off from the other three members."""
    town = Town(5).start().ready()
    leaders = town.serving()
    cut_off = leaders[:2]
    town.cut(cut_off)
    town.run(1_500)
    inside = town.acquire(cut_off[0], owner="cut off")
    outside = town.acquire(next(n for n in town.names if n not in cut_off), owner="ben")
    town.granted(outside)
    town.run(2_000)
    assert town.answers(Granted, inside) == []


def test_an_isolated_leader_with_a_queue_grants_nothing() -> None:
    """M19, F33."""
    town = Town(5).start().ready()
    alone = town.serving()[0]
    town.lock(alone)
    waiting = town.acquire(alone, owner="ben")
    town.run(50)
    town.cut([alone])
    town.run(6_000)
    assert town.answers(Granted, waiting) == []


def test_a_leader_that_restarts_has_lost_its_seat_until_a_new_epoch() -> None:
    """M6, F6."""
    town = Town(3).start().ready()
    town.until(lambda: len(town.serving()) == 3)
    epoch, back = town.epoch(), town.serving()[0]
    held = town.lock(town.serving()[1])
    town.world.crash(back)
    town.run(20)
    town.world.power_on(back)
    town.until(lambda: town.epoch() > epoch and back in town.serving())
    waiting = town.acquire(back, owner="ben")
    assert town.granted(waiting).fence > held.fence
    assert [event.fence for event in town.answers(HoldLost)] == [held.fence]


def test_fences_rise_over_empty_queues_epochs_and_a_restart_of_all() -> None:
    """M16, F10."""
    town = Town(3).start().ready()
    fences: list[int] = []
    for turn in range(4):
        granted = town.lock("n1", owner=f"o{turn}")
        fences.append(granted.fence)
        town.release("n2", granted)
        town.until(lambda: len(town.answers(Released)) == len(fences))
        if turn == 1:
            town.world.crash(town.serving()[0])
            town.run(100)
            town.world.power_on_all()
        if turn == 2:
            for name in town.names:
                town.world.crash(name)
            town.world.power_on_all()
    assert fences == sorted(set(fences))


def test_jumping_clocks_change_nothing() -> None:
    """M17, F11: a clock that jumps ends that node's own leases early; nobody is granted more."""
    town = Town(3).start().ready()
    held = town.lock("n1", hold_ms=1_000, grace_ms=500)
    one = town.others()[0] if town.others() else town.serving()[-1]
    town.world.nodes[one].jump_clock(3_600_000)
    waiting = town.acquire("n2", owner="ben")
    town.run(700)
    assert town.answers(Granted, waiting) == []
    assert town.granted(waiting).fence > held.fence


def test_a_cluster_that_is_down_and_up_again_keeps_what_is_granted() -> None:
    """M20, A7, F34."""
    town = Town(3).start().ready()
    held = town.lock("n1", hold_ms=4_000, grace_ms=500)
    waiting = town.acquire("n2", owner="ben")
    town.run(50)
    for name in town.names:
        town.cut([name], 1_500)
    town.run(2_500)
    assert town.answers(Granted, waiting) == []
    town.release("n3", held)
    assert town.granted(waiting).fence > held.fence


def deaf(seed: int) -> Town:
    """Have n1 and n2 not hear each other, while the other three hear both, of which one leads."""
    town = Town(5, seed=seed).start().ready()
    town.until(lambda: len(town.serving()) == 3)
    assert {"n1", "n2"} & set(town.serving())
    links = [("n1", "n2"), ("n2", "n1")]
    town.world.network.cut(links, Cut(town.world.time + 600_000 * NS_PER_MS, holds=False))
    return town


@pytest.mark.parametrize("seed", [2, 3])
def test_two_coordinators_that_are_deaf_to_each_other_leave_the_rest_in_peace(seed: int) -> None:
    """Each misses the other among the leaders, and all the rest hear both: found by a seed."""
    town = deaf(seed)
    epoch, served = town.epoch(), 0
    for _ in range(1_500):
        town.run(20)
        served += len(town.serving()) > 1
    assert served > 1_500 * 95 // 100
    assert town.epoch() - epoch < 30  # In 30 s.


@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_a_leader_that_the_next_coordinator_was_deaf_to_is_replaced_though_that_pauses(
    seed: int,
) -> None:
    """It has been overruled again and again, and knows nothing of the loss."""
    town = deaf(seed)
    town.run(15_000)
    rivalries: dict[str, Rivalry] = {
        name: town.world.role_at(election_of(name)).rivalry for name in ("n1", "n2")
    }

    def not_heard() -> str:
        """Return who leads while the other one pauses; empty if nobody does."""
        nodes = town.world.nodes
        paused = {name for name, one in rivalries.items() if one.until > nodes[name].now()}
        lead = rivalries.keys() & set(town.serving())
        return min(lead) if lead and not lead & paused and len(paused) == 1 else ""

    town.until(lambda: bool(not_heard()))
    lost, epoch = not_heard(), town.epoch()
    town.world.crash(lost)
    took_ms = town.until(lambda: town.epoch() > epoch and len(town.serving()) == 3)
    assert took_ms < 3_000


@pytest.mark.parametrize("seed", [2, 3])
def test_who_was_overruled_often_replaces_a_lost_leader_at_once_when_it_hears_all(
    seed: int,
) -> None:
    """Each time that the first member was cut off, its seating was replaced, and it paused."""
    town = Town(5, seed=seed).start().ready()
    for _ in range(6):
        town.until(lambda: len(town.serving()) == 3)
        town.cut(["n1"], 1_500)
        town.run(3_000)
        lost = next(name for name in town.serving() if name != "n1")
        epoch = town.epoch()
        town.world.crash(lost)
        town.until(lambda epoch=epoch: town.epoch() > epoch, 1_500)  # type: ignore[misc]
        town.world.power_on(lost)
        town.run(1_000)
    role: Any = town.world.role_at(election_of("n1"))
    assert role.rivalry.pause_ms > 1_500
