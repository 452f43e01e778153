"""A request that a former leader may have granted, and the bounds of those that take it over."""

from __future__ import annotations

from support.leader_trio import ANN, LIVES, NAMES, LeaderTrio

from fencelock.actors.bakery.config import BAKERY_TIMING, election_of
from fencelock.actors.bakery.event import BoundKnown, Serve
from fencelock.actors.bakery.message import AddTicket, Entering, Export, Lead, Seating
from fencelock.actors.bakery.proxy_message import Lock, Locked
from fencelock.actors.message import Message

LONG_MS, SHORT_MS = 60_000, 1_000
LOCK = Lock(
    lock="x", who=ANN, request=1, wait_ms=None, hold_ms=LONG_MS - 500, grace_ms=500, label=""
)
LEAD = Lead(
    epoch=2, leaders=LIVES, former=Seating(1, LIVES, LONG_MS), empty=False, bound_ms=SHORT_MS
)


def hand_over(trio: LeaderTrio, lost: set[tuple[type[Message], str, str]]) -> None:
    """Let n1 and n2 merge their tables for epoch 2, without n3; let all three serve."""
    trio.lost = {(Export, name, "n3") for name in ("n1", "n2")}
    for name in ("n1", "n2"):
        trio.say(election_of("n1"), name, LEAD)
    trio.settle()
    trio.lost = lost
    for name in NAMES:
        leader = trio.leaders[name]
        serve = Serve(epoch=2, leaders=LIVES, bound_ms=SHORT_MS)
        trio.perform(name, leader.handle(election_of(name), serve, trio.now))
        leader.epoch_state.trusted_at = trio.now
    trio.settle()


def confirm(trio: LeaderTrio, name: str) -> None:
    """Let a quorum of the members confirm the last statement of ``name``."""
    leader = trio.leaders[name]
    known = BoundKnown(epoch=2, number=leader.epoch_state.bound.number)
    trio.perform(name, leader.handle(election_of(name), known, trio.now))


def test_a_vote_that_only_one_former_leader_has_is_taken_over_under_a_bound_that_is_known() -> None:
    """The epoch begins with the bound of what n1 and n2 know; n3 alone voted for a long lease."""
    trio = LeaderTrio()
    for leader in trio.leaders.values():
        leader.epoch_state.bound.begin(1, LONG_MS)
    trio.lost = {(AddTicket, "n1", "n2")}
    trio.leaders["n1"].epoch_state.trusted_at = None
    trio.ask("n1", LOCK)
    trio.settle()
    assert [bool(trio.leaders[name].tickets.of("x", ANN)[0].fence) for name in NAMES] == [
        True,
        False,
        True,
    ]
    hand_over(trio, {(Entering, "n1", "n2")})
    trio.pass_time(BAKERY_TIMING.resend_ms)
    assert trio.heard(Locked) == []
    confirm(trio, "n1")
    trio.pass_time(BAKERY_TIMING.resend_ms)
    assert trio.heard(Locked) == []
    confirm(trio, "n3")
    trio.pass_time(BAKERY_TIMING.resend_ms)
    assert [one.hold_ms for one in trio.heard(Locked)] == [LOCK.hold_ms]
