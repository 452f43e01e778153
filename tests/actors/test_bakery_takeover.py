"""A leader that takes a hold over first gives back its own vote for another ticket."""

from __future__ import annotations

import pytest
from support.leader_trio import GRACE_MS, HOLD_MS, LeaderTrio

from fencelock.actors.bakery.message import AddTicket, Entering, Extend
from fencelock.actors.bakery.proxy_message import HoldRenewed, Lock, Locked, RenewHold
from fencelock.actors.bakery.ticket import Who


def lock(owner: str, *, shared: bool) -> Lock:
    return Lock(
        lock="x",
        who=Who("c", owner),
        request=1,
        wait_ms=None,
        hold_ms=HOLD_MS,
        grace_ms=GRACE_MS,
        label="",
        shared=shared,
    )


@pytest.mark.parametrize("shared", [False, True])
def test_a_hold_that_is_taken_over_and_renewed_stands_beside_no_vote_of_the_same_leader(
    *, shared: bool
) -> None:
    """n3 votes for bob, whom no other leader knows; then it receives ann's grant by n1 and n2."""
    trio = LeaderTrio()
    trio.lose_between("n1", "n3", Entering, AddTicket)
    trio.ask("n1", lock("ann", shared=shared))
    trio.settle()
    (granted,) = trio.heard(Locked)
    trio.pass_time(200)
    trio.lost = {(AddTicket, "n3", "n1"), *((kind, "n3", "n2") for kind in (AddTicket, Extend))}
    trio.ask("n3", lock("bob", shared=False))
    trio.settle()
    trio.ask("n3", lock("ann", shared=shared))
    trio.settle()
    trio.pass_time(HOLD_MS - 200)
    trio.ask("n3", RenewHold(lock="x", who=granted.who, fence=granted.fence, hold_ms=0, number=5))
    trio.settle()
    renewals = [one for one in trio.heard(HoldRenewed) if one.fence]
    trio.pass_time(GRACE_MS + 1)  # Ann's lease is over at n2, which missed the renewal.
    trio.lost = {(AddTicket, "n3", "n1")}
    trio.pass_time(100)
    bob = [one for one in trio.heard(Locked) if one.who.owner == "bob"]
    assert not (renewals and bob)
