"""Leases that are longer than the bound of an epoch, which a majority is to be told first."""

from __future__ import annotations

from dataclasses import replace

from support.electorates import seats
from support.leader_trio import ANN, FENCE, LIVES, NAMES, LeaderTrio

from fencelock.actors.bakery.config import RESEND_MS
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.event import Raise
from fencelock.actors.bakery.max_lease import MaxLease
from fencelock.actors.bakery.message import Seating, Vouched
from fencelock.actors.bakery.proxy_message import Lock, Locked, Unlock
from fencelock.actors.bakery.ticket import Who

BOB = Who("c", "bob")
LONG_MS = 60_000
LOCK = Lock(lock="x", who=ANN, request=1, wait_ms=None, hold_ms=500, grace_ms=500, label="")


def test_a_long_lease_that_waited_over_a_hand_over_is_granted_when_its_epoch_knows_of_it() -> None:
    """When two leaders are lost, a seating only waits for the leases up to its known bound."""
    trio = LeaderTrio()
    trio.hold("n1", "n2", "n3")
    trio.ask("n1", replace(LOCK, who=BOB, hold_ms=5_000))
    trio.settle()
    for leader in trio.leaders.values():
        leader.epoch_state.bound_ms = 1_000
    trio.ask("n1", Unlock(lock="x", who=ANN, request=1, fence=FENCE, number=1, waiting=False))
    trio.settle()
    assert trio.heard(Locked) == []
    assert Raise(bound_ms=5_500) in trio.heard(Raise)
    trio.leaders["n1"].epoch_state.bound_ms = 5_500
    trio.pass_time(RESEND_MS)
    assert [word.hold_ms for word in trio.heard(Locked)] == [5_000]


def test_a_majority_that_knows_a_bound_is_counted_in_one_epoch() -> None:
    bound, electorate = MaxLease("n1"), Electorate(0, seats(*NAMES))
    bound.begin(Seating(1, LIVES, 10), Raise(bound_ms=LONG_MS), electorate)
    first = Vouched(epoch=1, bound_ms=LONG_MS)
    assert bound.on_vouched("n2", Seating(1, LIVES, 10), first, electorate) == []
    later, second = Seating(2, LIVES, 10), Vouched(epoch=2, bound_ms=LONG_MS)
    bound.begin(later, Raise(bound_ms=LONG_MS), electorate)
    assert bound.on_vouched("n3", later, second, electorate) == []
    assert bound.on_vouched("n1", later, second, electorate) != []
