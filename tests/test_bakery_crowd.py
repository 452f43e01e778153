"""Many requests, locks and members of `bakery` at once, by the numbers of the design page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fencelock.actors.lock.message import Granted, Refused, Release, Released
from fencelock.actors.lock.session_message import HoldLost, Unlocking
from fencelock.actors.message import address_of
from fencelock.cluster.simulation.bakery_town import GRACE_MS, HOLD_MS, Town

LONG_MS = 60_000


def held_by(town: Town, lock: str) -> list[Granted]:
    return [granted for granted in town.answers(Granted) if granted.lock == lock]


def has(town: Town, kind: type, times: int) -> Callable[[], bool]:
    return lambda: len(town.answers(kind)) >= times


def led_by_three() -> Town:
    town = Town(5).start()
    town.until(lambda: len(town.serving()) == 3)
    return town


def is_later(town: Town, epoch: int) -> bool:
    return town.epoch() > epoch


def is_in_line(town: Town, lock: str, turns: int) -> bool:
    return len(held_by(town, lock)) == turns


def test_locks_are_independent_and_each_has_its_own_line() -> None:
    """Scenarios 80, 81 and 84: eight requests over five locks, three of them for one."""
    town = Town(3).start().ready()
    names = ["a", "b", "c", "d", "e", "e", "e", "a"]
    for number, name in enumerate(names):
        town.acquire(f"n{number % 3 + 1}", name, f"o{number}", hold_ms=LONG_MS)
    town.until(has(town, Granted, 5))
    town.run(2_000)
    assert sorted(granted.lock for granted in town.answers(Granted)) == ["a", "b", "c", "d", "e"]
    fences: list[int] = []
    for turn in range(3):
        current = held_by(town, "e")[turn]
        fences.append(current.fence)
        town.release("n2", current)
        if turn < 2:
            town.until(partial(is_in_line, town, "e", turn + 2))
    assert fences == sorted(set(fences))
    assert len(held_by(town, "a")) == 1  # The line of another lock did not move.


def test_nobody_releases_what_another_holds() -> None:
    """Scenario 50 (!): it is answered, and has no effect."""
    town = Town(3).start().ready()
    held = town.lock("n1", hold_ms=LONG_MS)
    wrongs = ("x", "ben", held.fence), ("x", "ann", held.fence + 1), ("y", "ann", 1)
    for lock, owner, fence in wrongs:
        told = len(town.answers(Refused))
        town.number += 1
        wrong = Release(lock=lock, fence=fence, session="u", owner=owner, request=town.number)
        town.say("n2", wrong)
        town.until(has(town, Refused, told + 1))
    assert town.answers(Released) == []
    waiting = town.acquire("n3", owner="eve", wait_ms=500)
    town.until(lambda: bool(town.answers(Refused, waiting)))
    assert f"under fence {held.fence}" in town.answers(Refused, waiting)[0].detail


def test_deadlines_go_on_after_a_hand_over() -> None:
    """Scenarios 88 and 89: the holder is warned, and loses the lock, by a new set of leaders."""
    town = led_by_three()
    gate = town.others()[0]
    held = town.lock(gate)
    for lost in town.serving()[:2]:
        before = town.epoch()
        town.world.crash(lost)
        town.until(partial(is_later, town, before))
    town.until(has(town, HoldLost, 1))
    assert [word.fence for word in town.answers(HoldLost)] == [held.fence]
    assert {word.fence for word in town.answers(Unlocking)} <= {held.fence}
    assert town.lock(gate, owner="ben").fence > held.fence
    assert HOLD_MS + GRACE_MS < LONG_MS


def test_a_member_that_leads_nothing_comes_and_goes_without_an_election() -> None:
    """Scenario 98."""
    town = led_by_three()
    epoch, leaders = town.epoch(), town.serving()
    first, second = town.others()
    held = town.lock(first, hold_ms=LONG_MS)
    town.world.crash(second)
    town.run(2_000)
    town.world.power_on(second)
    town.run(2_000)
    assert (town.epoch(), town.serving()) == (epoch, leaders)
    town.cut([second], 2_000)
    town.run(4_000)
    assert (town.epoch(), town.serving()) == (epoch, leaders)
    town.release(second, held)
    town.until(has(town, Released, 1))


def test_with_less_than_a_majority_no_leader_serves_and_a_request_is_kept() -> None:
    """Scenario 99 (!): there three leaders go on, and nobody is told."""
    town = led_by_three()
    gate, gone = town.serving()[0], [town.serving()[1], *town.others()]
    for name in gone:
        town.world.crash(name)
    town.run(1_000)  # For so long leaders are trusted that a majority answered.
    asked = town.acquire(gate)
    town.run(3_000)
    assert town.answers(Granted, asked) == []
    assert "2 of 5 members are connected, 3 are needed" in _detail(town, gate)
    for name in gone:
        town.world.power_on(name)
    assert town.granted(asked).lock == "x"


def test_ten_members_are_led_by_three_and_a_majority_is_six() -> None:
    """Scenarios 93, 94 and 96."""
    town = Town(10).found()
    town.start(*town.names[:5])
    town.run(4_000)
    assert town.serving() == []
    assert "5 of 10 members are connected, 6 are needed" in _detail(town, "n1")
    town.world.power_on("n6")
    town.ready()
    leaders = town.serving()
    assert len(leaders) == 3
    for name in town.names[6:]:
        town.world.power_on(name)
    town.run(3_000)
    assert town.serving() == leaders  # Who comes later gets the list.
    assert town.lock("n10").lock == "x"


def _detail(town: Town, gate: str) -> str:
    return str(town.world.role_at(address_of(gate, "proxy")).errands.readiness.detail)
