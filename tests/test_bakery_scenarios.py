"""Requests, deadlines and answers of `bakery`, by the numbers of the design page."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fencelock.actors.bootstrap import GREET_MS
from fencelock.actors.lock.message import (
    Cancel,
    Granted,
    Inspect,
    LockStatus,
    Reason,
    Refused,
    Released,
)
from fencelock.actors.lock.session_message import HoldLost, Renew, Renewed, Unlocking
from fencelock.actors.message import (
    address_of,
)
from fencelock.cluster.simulation.bakery_town import GRACE_MS, HOLD_MS, Town


def is_more(town: Town, than: int) -> bool:
    return len(town.answers(Released)) > than


def test_a_lock_is_granted_and_given_back_through_any_door() -> None:
    """Scenarios 42, 46, 87, 104."""
    town = Town(5).start().ready()
    granted = town.lock("n1")
    assert (granted.hold_ms, granted.grace_ms) == (HOLD_MS, GRACE_MS)
    town.release("n5", granted)
    town.until(lambda: bool(town.answers(Released)))
    assert town.lock("n3", owner="ben").fence > granted.fence


def test_a_request_before_there_are_leaders_is_kept() -> None:
    """Scenarios 40 and 42."""
    town = Town(3).found().start("n1")
    asked = town.acquire("n1")
    town.run(2_000)
    assert town.heard == []
    town.world.power_on("n2")
    assert town.granted(asked).lock == "x"


def test_a_request_that_nobody_can_serve_ends_at_its_own_deadline_and_says_why() -> None:
    """Scenario 108."""
    town = Town(3).found().start("n1")
    town.run(GREET_MS + 100)
    asked = town.acquire("n1", wait_ms=500)
    town.until(lambda: bool(town.answers(Refused, asked)), 2_000)
    refused = town.answers(Refused, asked)[0]
    assert refused.reason is Reason.UNAVAILABLE
    assert "cluster is down: 1 of 3 members are connected, 2 are needed" in refused.detail


def test_a_holder_is_warned_at_its_deadline_and_loses_the_lock_after_the_grace() -> None:
    """Scenarios 51 and 53."""
    town = Town(3).start().ready()
    first = town.lock("n1")
    second = town.acquire("n2", owner="ben")
    town.until(lambda: bool(town.answers(Unlocking)))
    assert town.answers(Granted, second) == []
    assert town.answers(Unlocking)[0].fence == first.fence
    granted = town.granted(second)
    lost = town.answers(HoldLost)[0]
    assert (lost.fence, lost.owner) == (first.fence, "ann")
    assert granted.fence > first.fence


def test_renewal_keeps_a_lock_beyond_its_duration() -> None:
    town = Town(3).start().ready()
    first = town.lock("n1")
    waiting = town.acquire("n2", owner="ben")
    for number in range(100, 106):
        town.run(HOLD_MS // 2)
        renew = Renew(lock="x", fence=first.fence, session="u", owner="ann", request=number)
        town.say("n1", renew)
    town.run(100)
    assert len(town.answers(Renewed)) == 6
    assert town.answers(Granted, waiting) == []
    assert town.answers(Unlocking) == []


def test_a_release_during_the_grace_is_answered() -> None:
    """Scenario 60 (!), F24."""
    town = Town(3).start().ready()
    first = town.lock("n1")
    town.until(lambda: bool(town.answers(Unlocking)))
    town.release("n2", first)
    town.until(lambda: bool(town.answers(Released)))


@pytest.mark.parametrize(("hold_ms", "grace_ms"), [(99, 500), (500, 99), (8 * 24 * 3_600_000, 500)])
def test_durations_out_of_their_limits_are_refused(hold_ms: int, grace_ms: int) -> None:
    """Scenarios 66 and 103."""
    town = Town(3).start().ready()
    asked = town.acquire("n1", hold_ms=hold_ms, grace_ms=grace_ms)
    town.until(lambda: bool(town.answers(Refused, asked)))
    assert town.answers(Refused, asked)[0].reason is Reason.INVALID


def test_a_longer_lease_is_given_once_a_majority_knows_of_it() -> None:
    town = Town(3).start().ready()
    granted = town.lock("n1", hold_ms=60_000, grace_ms=10_000)
    assert (granted.hold_ms, granted.grace_ms) == (60_000, 10_000)
    bounds = [town.leader(name).office.bound_ms for name in town.serving()]
    assert max(bounds) == 70_000


def test_a_late_release_does_not_free_the_next_holder() -> None:
    """M9, F13."""
    town = Town(3).start().ready()
    first = town.lock("n1")
    town.release("n2", first)
    second = town.lock("n2", owner="ann", lock="x")
    town.release("n3", first)
    town.until(lambda: len(town.answers(Refused)) + len(town.answers(Released)) >= 2)
    third = town.acquire("n1", owner="ben", wait_ms=300)
    town.until(lambda: bool(town.answers(Refused, third)))
    assert second.fence > first.fence


def test_a_request_that_is_cancelled_while_it_waits_is_never_granted() -> None:
    """M9, F21."""
    town = Town(3).start().ready()
    first = town.lock("n1")
    waiting = town.acquire("n2", owner="ben")
    town.run(50)
    town.say("n3", Cancel(lock="x", session="u", owner="ben", request=waiting))
    town.run(50)
    town.release("n1", first)
    town.run(500)
    assert town.answers(Granted, waiting) == []
    assert town.lock("n1", owner="eve").fence > first.fence


@pytest.mark.parametrize("name", ["http://a/b?c=d|e", "naïve lock", "a/b/c", "|", "鍵"])
def test_names_are_text_without_a_meaning(name: str) -> None:
    """M11, F5, F18."""
    town = Town(3).start().ready()
    assert town.lock("n1", name).lock == name


def test_a_lock_can_be_taken_again_at_once_through_another_door() -> None:
    """M12, F22."""
    town = Town(3).start().ready()
    before = 0
    for gate in ("n1", "n2", "n3", "n1"):
        granted = town.lock(gate)
        assert granted.fence > before
        before = granted.fence
        released = len(town.answers(Released))
        town.release(gate, granted)
        town.until(partial(is_more, town, released))


def test_the_same_request_said_again_is_granted_once_and_answered_again() -> None:
    """Scenarios 47 and 57, R."""
    town = Town(3).start().ready()
    first = town.lock("n1")
    town.number -= 1
    again = town.acquire("n3")
    town.until(lambda: len(town.answers(Granted, again)) == 2)
    assert {granted.fence for granted in town.answers(Granted, again)} == {first.fence}


def test_a_hundred_and_ten_requests_at_once_are_served_one_by_one() -> None:
    """Scenario 64 (!): none is refused for the burst, F32."""
    town = Town(2).start().ready()
    asked = [town.acquire("n1", owner=f"o{number}") for number in range(110)]
    fences: list[int] = []
    while len(fences) < len(asked):
        town.until(lambda: len(town.answers(Granted)) > len(fences))
        granted = town.answers(Granted)[-1]
        fences.append(granted.fence)
        town.release("n2", granted)
    assert fences == sorted(set(fences))
    assert sorted(granted.request for granted in town.answers(Granted)) == asked


def test_a_look_shows_holder_and_waiters_in_the_order_of_their_tickets() -> None:
    """Scenarios 49, 77, 83."""
    town = Town(3).start().ready()
    first = town.lock("n1")
    for owner in ("ben", "eve", "dan"):
        town.acquire("n1", owner=owner)
        town.run(50)
    town.say("n2", Inspect(lock="x", session="u", request=900))
    town.until(lambda: bool(town.answers(LockStatus)))
    status = town.answers(LockStatus)[0]
    assert (status.holder.owner, status.holder.fence) == ("ann", first.fence)
    assert [waiter.owner for waiter in status.waiters] == ["ben", "eve", "dan"]


def test_a_status_names_leaders_and_epoch() -> None:
    town = Town(3).start().ready()
    door: Any = town.world.role_at(address_of("n1", "proxy"))
    town.until(lambda: door.errands.readiness.ready and len(town.serving()) == 3)
    readiness = door.errands.readiness
    assert readiness.epoch == town.epoch()
    assert {leader.node for leader in readiness.leaders} == set(town.serving())
    assert readiness.detail == "ready"
