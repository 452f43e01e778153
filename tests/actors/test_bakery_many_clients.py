"""Many requests, locks and members of `bakery` at once, by the numbers of the design page."""

from __future__ import annotations

from functools import partial

from support.bakery_cluster_harness import GRACE_MS, HOLD_MS, NO_COPIES, ClusterHarness

from fencelock.actors.api.message import Granted, Release, Released
from fencelock.actors.api.session_message import HoldLost, Unlocking

LONG_MS = 60_000


def held_by(harness: ClusterHarness, lock: str) -> list[Granted]:
    return [granted for granted in harness.answers(Granted) if granted.lock == lock]


def is_in_line(harness: ClusterHarness, lock: str, turns: int) -> bool:
    return len(held_by(harness, lock)) == turns


def test_locks_are_independent_and_each_has_its_own_line() -> None:
    """Eight requests over five locks, three of them for one."""
    harness = ClusterHarness(3).start().ready()
    names = ["a", "b", "c", "d", "e", "e", "e", "a"]
    for number, name in enumerate(names):
        harness.acquire(f"n{number % 3 + 1}", name, f"o{number}", hold_ms=LONG_MS)
    harness.until(lambda: len(harness.answers(Granted)) >= 5)
    harness.run(2_000)
    assert sorted(granted.lock for granted in harness.answers(Granted)) == ["a", "b", "c", "d", "e"]
    fences: list[int] = []
    for turn in range(3):
        current = held_by(harness, "e")[turn]
        fences.append(current.fence)
        harness.release("n2", current)
        if turn < 2:
            harness.until(partial(is_in_line, harness, "e", turn + 2))
    assert fences == sorted(set(fences))
    assert len(held_by(harness, "a")) == 1  # The line of another lock did not move.


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


def test_ten_members_are_led_by_three_and_a_majority_is_six() -> None:
    harness = ClusterHarness(10).found()
    harness.start(*harness.names[:5])
    harness.run(4_000)
    assert harness.serving() == []
    assert "5 of 10 members are connected, 6 are needed" in harness.detail("n1")
    harness.world.power_on("n6")
    harness.ready()
    leaders = harness.serving()
    assert len(leaders) == 3
    for name in harness.names[6:]:
        harness.world.power_on(name)
    harness.run(3_000)
    assert harness.serving() == leaders  # Who comes later gets the list.
    assert harness.lock("n10").lock == "x"
