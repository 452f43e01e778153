"""Leaders of `bakery` that are lost, or do not receive each other's messages."""

from __future__ import annotations

from typing import Any

import pytest
from support.bakery_cluster_harness import GRACE_MS, HOLD_MS, NO_COPIES, TERMS, ClusterHarness
from support.leader_trio import member, seats

from fencelock.actors.api.lock_message import Granted, HoldLost, Release, Released, Unlocking
from fencelock.actors.bakery.config import BAKERY_TIMING, election_of
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.leader_selection import ClusterView
from fencelock.actors.bakery.wire import Chosen, Member, Seating
from fencelock.actors.message import NS_PER_MS
from fencelock.cluster.node.topology import ProtocolSettings

LONG_MS = 60_000


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


def test_two_leaders_lost_at_once_are_waited_out_and_reported() -> None:
    harness = ClusterHarness(5, NO_COPIES).led()
    leaders = harness.serving()
    held = harness.lock(leaders[0], hold_ms=1_000, grace_ms=500)
    proxy = harness.others()[0]
    for name in leaders[:2]:
        harness.world.crash(name)
    began = harness.world.time
    waiting = harness.acquire(proxy, owner="ben")
    harness.until(lambda: "every lease must be over first, in" in harness.detail(proxy))
    granted = harness.granted(waiting)
    assert (harness.world.time - began) // NS_PER_MS >= 1_500
    assert granted.fence > held.fence


@pytest.mark.parametrize("settings", [TERMS, NO_COPIES], ids=["copies", "no copies"])
def test_leaders_of_a_minority_grant_nothing(settings: ProtocolSettings) -> None:
    """Two leaders of three, cut off from the other three members."""
    harness = ClusterHarness(5, settings).start().ready()
    leaders = harness.serving()
    cut_off = leaders[:2]
    harness.cut(cut_off)
    harness.run(1_500)
    inside = harness.acquire(cut_off[0], owner="cut off")
    outside = harness.acquire(next(n for n in harness.names if n not in cut_off), owner="ben")
    harness.granted(outside)
    harness.run(2_000)
    assert harness.answers(Granted, inside) == []


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
    """A clock that jumps ends that node's own leases early; no client is granted more."""
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


def test_a_client_does_not_release_what_another_holds() -> None:
    """It is answered, and has no effect."""
    harness = ClusterHarness(3).start().ready()
    held = harness.lock("n1", hold_ms=LONG_MS)
    wrongs = ("x", "ben", held.fence), ("x", "ann", held.fence + 1), ("y", "ann", 1)
    for lock, owner, fence in wrongs:
        harness.refused(harness.request("n2", Release, lock=lock, owner=owner, fence=fence))
    assert harness.answers(Released) == []
    waiting = harness.acquire("n3", owner="eve", wait_ms=500)
    assert f"under fence {held.fence}" in harness.refused(waiting).detail


def test_deadlines_go_on_after_a_hand_over() -> None:
    """The holder is warned, and loses the lock, by a new set of leaders."""
    harness = ClusterHarness(5).led()
    proxy = harness.others()[0]
    held = harness.lock(proxy)
    for lost in harness.serving()[:2]:
        before = harness.epoch()
        harness.world.crash(lost)
        harness.until_later_epoch(before)
    harness.answer(HoldLost)
    assert [message.fence for message in harness.answers(HoldLost)] == [held.fence]
    assert {message.fence for message in harness.answers(Unlocking)} <= {held.fence}
    assert harness.lock(proxy, owner="ben").fence > held.fence
    assert HOLD_MS + GRACE_MS < LONG_MS


def test_a_member_comes_and_goes_without_an_election_if_there_are_no_copies() -> None:
    harness = ClusterHarness(5, NO_COPIES).led()
    epoch, leaders = harness.epoch(), harness.serving()
    first, second = harness.others()
    held = harness.lock(first, hold_ms=LONG_MS)
    harness.world.crash(second)
    harness.run(2_000)
    harness.world.power_on(second)
    harness.run(2_000)
    assert (harness.epoch(), harness.serving()) == (epoch, leaders)
    harness.cut([second], 2_000)
    harness.run(4_000)
    assert (harness.epoch(), harness.serving()) == (epoch, leaders)
    harness.release(second, held)
    harness.answer(Released)


def test_no_leader_serves_with_less_than_a_majority_and_a_request_is_kept() -> None:
    """In the original three leaders continue, and no client is notified."""
    harness = ClusterHarness(5).led()
    proxy, gone = harness.serving()[0], [harness.serving()[1], *harness.others()]
    for name in gone:
        harness.world.crash(name)
    harness.run(1_000)  # For so long leaders are trusted that a majority answered.
    request = harness.acquire(proxy)
    harness.run(3_000)
    assert harness.answers(Granted, request) == []
    assert "2 of 5 members are connected, 3 are needed" in harness.detail(proxy)
    for name in gone:
        harness.world.power_on(name)
    assert harness.granted(request).lock == "x"


def deaf(seed: int) -> ClusterHarness:
    """Cut n1 and n2 from each other; the other three, of which one leads, still reach both."""
    harness = ClusterHarness(5, seed=seed).led()
    assert {"n1", "n2"} & set(harness.serving())
    harness.cut_between(("n1", "n2"))
    return harness


@pytest.mark.parametrize("seed", [2, 3])
def test_two_coordinators_that_are_deaf_to_each_other_leave_the_leaders_in_peace(seed: int) -> None:
    """Each misses the other among the leaders; all others receive from both. Found by a seed."""
    harness = deaf(seed)
    epoch, served = harness.epoch(), 0
    for _ in range(600):
        harness.run(20)
        served += len(harness.serving()) > 1
    assert served > 600 * 95 // 100
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


@pytest.mark.long
def test_a_coordinator_that_was_overruled_often_replaces_a_lost_leader_at_once() -> None:
    """Each time that the first member was cut off, its seating was replaced, and it paused; it
    replaces a lost leader without a pause once messages of all arrive."""
    harness = ClusterHarness(5, seed=2).start().ready()
    for _ in range(6):
        harness.until_three_lead()
        harness.cut(["n1"], 1_500)
        harness.run(3_000)
        lost = next(name for name in harness.serving() if name != "n1")
        epoch = harness.epoch()
        harness.world.crash(lost)
        harness.until_later_epoch(epoch, 1_500)
        harness.world.power_on(lost)
        harness.run(1_000)
    role: Any = harness.world.role_at(election_of("n1"))
    assert role.duel_backoff.pause_ms > BAKERY_TIMING.backoff_ms


# Leaders that do not reach each other, though the other members reach them


FAULT_MS = 20_000
REPLACED_MS = 3_000
"""Time within which leaders that receive nothing are replaced (ms)."""


def five(seed: int = 1) -> ClusterHarness:
    return ClusterHarness(5, seed=seed).judged().led()


def promised(harness: ClusterHarness) -> int:
    roles: list[Any] = [harness.world.role_at(election_of(name)) for name in harness.names]
    return max(int(role.promises.promised) for role in roles)


@pytest.mark.parametrize("seed", [0, 2])
def test_three_leaders_that_do_not_reach_each_other_are_replaced_once_and_holds_stay(
    seed: int,
) -> None:
    harness = five(seed)
    one, two, three = harness.serving()
    spare = harness.others()[0]
    held = harness.lock(spare, hold_ms=2 * FAULT_MS)
    harness.cut_between((one, two), (two, three), (one, three), ms=FAULT_MS)
    harness.run(650)
    free = harness.acquire(spare, "free", "ben", wait_ms=10_000)
    harness.granted(free, REPLACED_MS)
    epoch = promised(harness)
    harness.run(FAULT_MS // 2)
    assert promised(harness) == epoch
    harness.release(spare, held)
    assert harness.lock(spare, owner="ben").fence > held.fence


def test_a_leader_that_only_one_other_does_not_reach_keeps_its_seat() -> None:
    harness = five()
    epoch, (one, two, _) = promised(harness), harness.serving()
    harness.cut_between((one, two), ms=FAULT_MS)
    harness.run(5_000)
    assert promised(harness) == epoch
    harness.lock(harness.others()[0])


def test_a_smallest_member_that_reaches_only_one_other_does_not_stop_elections() -> None:
    harness = five()
    harness.cut_between(*(("n1", name) for name in ("n3", "n4", "n5")), ms=FAULT_MS)
    harness.run(700)
    lost = next(name for name in harness.serving() if name not in ("n1", "n2"))
    harness.world.crash(lost)
    harness.until(lambda: len(harness.serving()) == 3 and lost not in harness.serving(), 5_000)
    harness.lock("n2")


def test_deaf_leaders_without_candidates_to_replace_them_are_named_to_clients() -> None:
    harness = ClusterHarness(3).led()
    harness.cut_between(("n1", "n2"), ("n2", "n3"), ("n1", "n3"), ms=FAULT_MS)
    harness.run(2_000)
    assert "1 of 3 members are connected" in harness.detail("n2")


ALL = Electorate(0, seats("n1", "n2", "n3", "n4", "n5"))


def seen(links: dict[str, str]) -> list[Member]:
    """Return members and the nodes that they reach, as ``n1="45"``."""
    return [
        member(
            f"n{name}",
            life=int(name),
            promised=1,
            reaches=tuple(Chosen(f"n{other}", int(other)) for other in others),
        )
        for name, others in links.items()
    ]


SEATING = Seating(1, tuple(Chosen(f"n{number}", number) for number in (1, 2, 3)), 1_000)


def test_a_member_that_is_not_reached_here_is_alive_if_a_quorum_reaches_it() -> None:
    members = seen({"1": "45", "4": "1235", "5": "134"})
    assert [leader.node for leader in ClusterView(SEATING, members, ALL).living()] == ["n1", "n3"]


@pytest.mark.parametrize(
    ("links", "leaders", "deaf"),
    [
        ({"1": "2345", "2": "1345", "3": "1245", "4": "1235", "5": "1234"}, "", False),
        ({"1": "45", "4": "1235", "5": "1234"}, "145", True),
        ({"1": "245", "2": "145", "4": "1235", "5": "1234"}, "124", True),
        ({"1": "345", "3": "145", "2": "45", "4": "1235", "5": "1234"}, "134", True),
        ({"1": "245", "2": "145", "4": "125", "5": "124"}, "124", False),
    ],
    ids=["all reach all", "all deaf", "one unreached", "one deaf", "one lost"],
)
def test_leaders_that_work_together_follow(
    links: dict[str, str], leaders: str, *, deaf: bool
) -> None:
    choice = ClusterView(SEATING, seen(links), ALL).choose()
    assert ("".join(one.node[1:] for one in choice.leaders), choice.deaf) == (leaders, deaf)


def test_the_smallest_voter_that_reaches_a_quorum_coordinates() -> None:
    links = {"1": "2", "2": "1345", "3": "245"}
    assert ClusterView(SEATING, seen(links), ALL).coordinator() == "n2"
    assert ClusterView(SEATING, seen({"1": "2", "2": "1"}), ALL).coordinator() == ""


EVERYONE = {"1": "2345", "2": "1345", "3": "1245", "4": "1235", "5": "1234"}
KEEPERS = SEATING._replace(copies=(Chosen("n4", 4), Chosen("n5", 5)))


def restarted(*voting: str, silent: str) -> list[Member]:
    """Return five members of which the ``voting`` and the ``silent`` ones began another life."""
    lives = {one: Chosen(f"n{one}", int(one)) for one in "12345"}
    lives |= {one: Chosen(f"n{one}", 10 * int(one)) for one in (*voting, *silent)}
    return [
        one._replace(
            life=lives[one.node[1:]].life,
            votes=one.node[1:] not in silent,
            reaches=tuple(lives[other.node[1:]] for other in one.reaches),
        )
        for one in seen(EVERYONE)
    ]


def test_a_member_that_restarted_and_does_not_vote_keeps_no_copies() -> None:
    view = ClusterView(KEEPERS, restarted("4", silent="5"), ALL)
    assert view.copies_for(SEATING.leaders) == (Chosen("n4", 40),)


def test_leaders_that_are_not_obeyed_are_elected_again() -> None:
    view = ClusterView(KEEPERS, seen(EVERYONE), ALL)
    assert view.reelected() == SEATING.leaders


def test_a_lost_leader_is_replaced_once_the_others_are_not_obeyed_though_few_tables_are_left() -> (
    None
):
    view = ClusterView(KEEPERS, restarted("3", silent="45"), ALL)
    assert view.choose().leaders == ()
    assert {*view.reelected()} == {Chosen("n1", 1), Chosen("n2", 2), Chosen("n3", 30)}
