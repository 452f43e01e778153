"""Bugs planted in `bakery` that played scenarios show; seeds show more (`.._mutants_judged`)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.bakery_cluster_harness import NO_COPIES, ClusterHarness
from support.expect import present
from support.planted_bugs import as_plant, instead, plant

from fencelock.actors.api.message import Granted
from fencelock.actors.bakery.config import proxy_of
from fencelock.actors.bakery.epochs import EpochState
from fencelock.actors.bakery.message import (
    AddTicket,
    Chosen,
    Collected,
    Lock,
    Locked,
    MaxTicket,
    Seating,
    Unlock,
)
from fencelock.actors.bakery.table import TicketTable
from fencelock.actors.bakery.ticket import Turn, Who
from fencelock.actors.bakery.ticket_attempt import TicketAttempts
from fencelock.actors.effect import Send
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


WHO = Who("c", "ann")
NOW = Instant(10**12)
LIVES = (Chosen("n1", 1), Chosen("n2", 2), Chosen("n3", 3))


def bench() -> TicketAttempts:
    """Three leaders, of which the first, n1, serves and is trusted."""
    epoch_state = EpochState("n1", 1)
    epoch_state.take(Seating(1, LIVES, 10_000))
    epoch_state.serving, epoch_state.trusted_at = True, NOW
    return TicketAttempts(epoch_state, TicketTable())


def collected(number: int, *, voted: bool) -> Collected:
    ahead = None if voted else Turn(1, "n3", 1)
    return Collected(
        epoch=1,
        lock="x",
        who=WHO,
        request=1,
        round=number,
        voted=voted,
        ahead=ahead,
        highest=0,
        known=number,
    )


def votes_after_a_lost_round() -> list[Any]:
    """Let a round be lost and given back; then let a vote of it come, late."""
    attempts = bench()
    asked = Lock(lock="x", who=WHO, request=1, wait_ms=None, hold_ms=500, grace_ms=500, label="")
    attempts.open(proxy_of("n1"), asked, NOW)
    entered = MaxTicket(epoch=1, lock="x", who=WHO, request=1, highest=0, held=0, known=0)
    attempts.on_max("n2", entered, NOW)
    for leader in ("n2", "n3"):
        attempts.on_collected(leader, collected(1, voted=False), NOW)
    again = attempts.advance("x", NOW)
    assert any(isinstance(e, Send) and isinstance(e.message, AddTicket) for e in again)
    effects = attempts.on_collected("n2", collected(1, voted=True), NOW)
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Locked)]


def test_a_vote_of_a_round_that_was_given_back_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers count once: one without a round would count for a vote that was dropped."""
    assert votes_after_a_lost_round() == []

    @as_plant
    def unattributed(
        sound: Any, attempts: TicketAttempts, leader: str, collected: Collected, now: Instant
    ) -> Any:
        attempt = present(attempts.own.get(collected.key))
        return sound(attempts, leader, replace(collected, round=attempt.entry.round), now)

    plant(monkeypatch, TicketAttempts, "on_collected", unattributed)
    assert len(votes_after_a_lost_round()) == 1


def test_an_answer_counts_once_for_its_sender() -> None:
    """With three leaders of which two must answer, the same one twice is one."""
    attempts = bench()
    attempts.epoch_state.quorum = 3
    asked = Lock(lock="x", who=WHO, request=1, wait_ms=None, hold_ms=500, grace_ms=500, label="")
    attempts.open(proxy_of("n1"), asked, NOW)
    entered = MaxTicket(epoch=1, lock="x", who=WHO, request=1, highest=0, held=0, known=0)
    assert attempts.on_max("n2", entered, NOW) == []
    assert attempts.on_max("n2", entered, NOW) == []
    assert attempts.on_max("n3", entered, NOW) != []


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
