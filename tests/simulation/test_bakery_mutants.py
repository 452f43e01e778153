"""Bugs planted in `bakery` that played scenarios show; seeds show more (`.._mutants_judged`)."""

from __future__ import annotations

import pytest
from support.bakery_cluster_harness import NO_COPIES, ClusterHarness
from support.planted_bugs import instead, plant

from fencelock.actors.api.message import Granted
from fencelock.actors.bakery.config import proxy_of
from fencelock.actors.bakery.epochs import EpochState
from fencelock.actors.bakery.message import Unlock
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.verification.simulation.bakery_judge import BakeryJudge
from fencelock.verification.simulation.violation import ViolationError


def self_confident(epoch_state: EpochState, now: Instant) -> bool:
    return epoch_state.serving


def test_a_minority_of_leaders_that_trusts_itself_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trust of a majority of the members two sides hold the same lock."""
    plant(monkeypatch, EpochState, "trusted", instead(self_confident))
    harness = ClusterHarness(5, NO_COPIES).start().ready()
    cut_off = harness.serving()[:2]
    harness.cut(cut_off)
    harness.run(1_500)
    inside = harness.acquire(cut_off[0], owner="cut off")
    assert harness.granted(inside).lock == "x"


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


def test_two_sides_are_caught_by_the_played_scenario_only_when_planted() -> None:
    harness = ClusterHarness(5, NO_COPIES).start().ready()
    cut_off = harness.serving()[:2]
    harness.cut(cut_off)
    harness.run(1_500)
    inside = harness.acquire(cut_off[0], owner="cut off")
    harness.run(2_000)
    assert harness.answers(Granted, inside) == []


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
