"""Requests, deadlines and answers of `bakery`, and a cluster that is cut in two."""

from __future__ import annotations

import pytest
from support.bakery_cluster_harness import GRACE_MS, HOLD_MS, NO_COPIES, ClusterHarness
from support.planted_bugs import instead, plant

from fencelock.actors.api.lock_message import (
    Cancel,
    Granted,
    Inspect,
    LockStatus,
    Reason,
    Refused,
    Released,
    Renewed,
    Unlocking,
)
from fencelock.actors.bakery.config import proxy_of
from fencelock.actors.bakery.epochs import EpochState
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.wire import Unlock
from fencelock.actors.bootstrap import GREET_MS
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.verification.simulation.bakery_judge import BakeryJudge
from fencelock.verification.simulation.violation import ViolationError


def test_a_request_before_there_are_leaders_is_kept() -> None:
    harness = ClusterHarness(3).found().start("n1")
    request = harness.acquire("n1")
    harness.run(2_000)
    assert harness.received == []
    harness.world.power_on("n2")
    assert harness.granted(request).lock == "x"


def test_a_request_that_no_leader_can_serve_ends_at_its_own_deadline_with_the_reason() -> None:
    harness = ClusterHarness(3).found().start("n1")
    harness.run(GREET_MS + 100)
    request = harness.acquire("n1", wait_ms=500)
    refusal = harness.refused(request, 2_000)
    assert refusal.reason is Reason.UNAVAILABLE
    assert "cluster is down: 1 of 3 members are connected, 2 are needed" in refusal.detail


def test_a_release_during_the_grace_is_answered() -> None:
    harness = ClusterHarness(3).start().ready()
    first = harness.lock("n1")
    harness.answer(Unlocking)
    harness.release("n2", first)
    harness.answer(Released)


@pytest.mark.parametrize(("hold_ms", "grace_ms"), [(99, 500), (500, 99), (8 * 24 * 3_600_000, 500)])
def test_durations_out_of_their_limits_are_refused(hold_ms: int, grace_ms: int) -> None:
    harness = ClusterHarness(3).start().ready()
    request = harness.acquire("n1", hold_ms=hold_ms, grace_ms=grace_ms)
    assert harness.refused(request).reason is Reason.INVALID


def test_a_lease_above_the_limit_is_refused_with_value_and_limit() -> None:
    """It would keep the cluster waiting for as long when two leaders are lost."""
    harness = ClusterHarness(3).start().ready()
    request = harness.acquire("n1", hold_ms=590_001, grace_ms=10_000)
    refusal = harness.refused(request)
    assert refusal.reason is Reason.INVALID
    assert "590001 ms and grace 10000 ms are 600001 ms together, and 600000 ms" in refusal.detail
    assert "max_hold under [bakery]" in refusal.detail


def test_a_renewal_above_the_limit_is_refused_and_the_hold_stays() -> None:
    harness = ClusterHarness(3).start().ready()
    held = harness.lock("n1", hold_ms=60_000, grace_ms=10_000)
    refusals = [
        harness.refused(harness.renew("n2", held, hold_ms)) for hold_ms in (600_001, 595_000)
    ]
    harness.renew("n2", held, 60_000)
    harness.run(500)
    assert [one.reason for one in refusals] == [Reason.INVALID] * 2
    assert "duration 595000 ms and grace 10000 ms are 605000 ms together" in refusals[1].detail
    assert [one.hold_ms for one in harness.answers(Renewed)] == [60_000]


def test_a_longer_lease_is_given_once_a_majority_knows_of_it() -> None:
    harness = ClusterHarness(3).start().ready()
    granted = harness.lock("n1", hold_ms=60_000, grace_ms=10_000)
    assert (granted.hold_ms, granted.grace_ms) == (60_000, 10_000)
    bounds = [harness.leader(name).epoch_state.bound.bound_ms for name in harness.serving()]
    assert max(bounds) == 70_000


def test_a_late_release_does_not_free_the_next_holder() -> None:
    harness = ClusterHarness(3).start().ready()
    first = harness.lock("n1")
    harness.release("n2", first)
    second = harness.lock("n2", owner="ann", lock="x")
    harness.release("n3", first)
    harness.until(lambda: len(harness.answers(Refused)) + len(harness.answers(Released)) >= 2)
    third = harness.acquire("n1", owner="ben", wait_ms=300)
    harness.refused(third)
    assert second.fence > first.fence


def test_a_request_that_is_cancelled_while_it_waits_is_never_granted() -> None:
    harness = ClusterHarness(3).start().ready()
    first = harness.lock("n1")
    waiting = harness.acquire("n2", owner="ben")
    harness.run(50)
    harness.send("n3", Cancel(lock="x", session="u", owner="ben", request=waiting))
    harness.run(50)
    harness.release("n1", first)
    harness.run(500)
    assert harness.answers(Granted, waiting) == []
    assert harness.lock("n1", owner="eve").fence > first.fence


@pytest.mark.parametrize("name", ["http://a/b?c=d|e", "naïve lock", "a/b/c", "|", "鍵"])
def test_names_are_text_without_a_meaning(name: str) -> None:
    harness = ClusterHarness(3).start().ready()
    assert harness.lock("n1", name).lock == name


def test_a_lock_is_granted_and_given_back_through_any_proxy_and_taken_again_at_once() -> None:
    harness = ClusterHarness(5).start().ready()
    before = 0
    for proxy, other in (("n1", "n5"), ("n2", "n2"), ("n3", "n1"), ("n1", "n1")):
        granted = harness.lock(proxy)
        assert (granted.hold_ms, granted.grace_ms) == (HOLD_MS, GRACE_MS)
        assert granted.fence > before
        before = granted.fence
        harness.release(other, granted)
        harness.answer(Released, harness.number)


def test_a_repeated_request_is_granted_once_and_answered_again() -> None:
    harness = ClusterHarness(3).start().ready()
    first = harness.lock("n1")
    harness.number -= 1
    again = harness.acquire("n3")
    harness.until(lambda: len(harness.answers(Granted, again)) == 2)
    assert {granted.fence for granted in harness.answers(Granted, again)} == {first.fence}


def test_a_hundred_and_ten_requests_at_once_are_served_one_by_one() -> None:
    """None is refused for the burst."""
    harness = ClusterHarness(2).start().ready()
    requests = [harness.acquire("n1", owner=f"o{number}") for number in range(110)]
    fences: list[int] = []
    while len(fences) < len(requests):
        harness.until(lambda: len(harness.answers(Granted)) > len(fences))
        granted = harness.answers(Granted)[-1]
        fences.append(granted.fence)
        harness.release("n2", granted)
    assert fences == sorted(set(fences))
    assert sorted(granted.request for granted in harness.answers(Granted)) == requests


def test_a_look_shows_holder_and_waiters_in_the_order_of_their_tickets() -> None:
    harness = ClusterHarness(3).start().ready()
    first = harness.lock("n1")
    for owner in ("ben", "eve", "dan"):
        harness.acquire("n1", owner=owner)
        harness.run(50)
    status = harness.answer(LockStatus, harness.request("n2", Inspect, lock="x"))
    assert (status.holder.owner, status.holder.fence) == ("ann", first.fence)
    assert [waiter.owner for waiter in status.waiters] == ["ben", "eve", "dan"]


def test_a_status_names_leaders_and_epoch() -> None:
    harness = ClusterHarness(3).start().ready()
    backend = harness.backend("n1")
    harness.until(lambda: backend.is_ready() and len(harness.serving()) == 3)
    readiness = backend.in_flight.readiness
    assert readiness.seating.epoch == harness.epoch()
    assert {leader.node for leader in readiness.seating.leaders} == set(harness.serving())
    assert readiness.detail == "ready"


@pytest.mark.parametrize(("waiting", "kept"), [(True, True), (False, False)])
def test_a_proxy_that_gives_up_ends_only_what_waits(*, waiting: bool, kept: bool) -> None:
    """Found by a seed: the client had moved to another proxy, and held the lock through it."""
    harness = ClusterHarness(3).start().ready()
    one = harness.serving()[0]
    granted = harness.lock(one)
    unlock = Unlock(
        lock="x", who=Who("u", "ann"), request=granted.request, fence=0, number=99, waiting=waiting
    )
    leader = harness.leader(one)
    leader.handle(proxy_of(one), unlock, harness.world.nodes[one].now())
    held = leader.tickets.of("x", Who("u", "ann"))
    assert bool(held) is kept


# Two sides of a cluster that is cut, also without the trust of a majority of the members


def self_confident(epoch_state: EpochState, now: Instant) -> bool:
    return epoch_state.serving


@pytest.mark.parametrize("judged", [frozenset(("quorum-before-grant",)), frozenset[str]()])
def test_two_sides_hold_one_lock_and_the_judge_of_quorums_sees_the_first_grant(
    monkeypatch: pytest.MonkeyPatch, judged: frozenset[str]
) -> None:
    """The majority continues under a new epoch; then two leaders that are cut off also grant."""
    plant(monkeypatch, EpochState, "trusted", instead(self_confident))
    harness = ClusterHarness(5, NO_COPIES).start().ready()
    cut_off, epoch = harness.serving()[:2], harness.epoch()
    harness.world.judges.append(BakeryJudge(harness.world, judged))
    harness.cut(cut_off)
    harness.until(lambda: harness.epoch() > epoch)
    outside = harness.lock(harness.serving()[0], owner="outside")
    since = harness.world.time
    if judged:
        with pytest.raises(ViolationError, match="quorum-before-grant"):
            harness.lock(cut_off[0], owner="cut off")
        return
    inside = harness.lock(cut_off[0], owner="cut off")
    assert outside.hold_ms is not None
    assert harness.world.time - since < outside.hold_ms * NS_PER_MS
    assert (inside.lock, inside.fence < outside.fence) == (outside.lock, True)
