"""Sessions of clients where two faults coincide: no hold is left to nobody, or believed in."""

from __future__ import annotations

from support.session_harness import ANN, ME, WATCHER, B, SessionHarness, of, one

from fencelock.actors.api.message import (
    Acquire,
    Cancel,
    Granted,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.message import Address
from fencelock.actors.role_message import LinkDown, LinkRefused
from fencelock.actors.session.message import HoldsLost

HELPER = Address("c/helper")


def test_a_wait_given_up_at_a_wrong_gate_is_withdrawn_since_an_earlier_gate_heard_of_it(
    parley: SessionHarness,
) -> None:
    parley.open(parley.acquire(wait_ms=1_000))
    assert one(Acquire, parley.hear(ME, LinkDown(node="a")), B)
    parley.hear(ME, LinkRefused(node="b", detail="another cluster"))
    said = parley.run(6_000)
    assert one(Refused, said, ANN).reason is Reason.UNAVAILABLE
    assert of(Cancel, said)


def test_a_late_no_to_the_release_of_a_lost_hold_spares_the_next_hold(
    parley: SessionHarness,
) -> None:
    """The first hold was taken by an operator, unheard: the owner enters again, and waits."""
    parley.hold(limit=0)
    again = parley.acquire(user=ANN, token=2, limit=0)
    asked = Release(lock="x", fence=7, owner="ann", request=3)
    assert of(Release, parley.hear(HELPER, asked)) == []  # It goes after what is under way.
    said = parley.grant(again, fence=9)
    assert one(Granted, said, ANN).fence == 9
    assert one(HoldsLost, said, WATCHER).losses[0].fence == 7
    said = parley.refuse(said, Reason.NOT_HELD)
    assert of(HoldsLost, said) == []
    assert one(Released, parley.free(parley.release(fence=9)), ANN).count == 0


def test_what_is_not_held_on_a_release_of_one_level_is_lost_on_the_others(
    parley: SessionHarness,
) -> None:
    parley.hold(limit=0)
    parley.grant(parley.acquire(token=2, limit=0), fence=7, count=2)
    said = parley.refuse(parley.release(token=3), Reason.NOT_HELD)
    assert one(Refused, said, ANN).reason is Reason.NOT_HELD
    assert one(HoldsLost, said, WATCHER).losses[0].fence == 7
    assert one(Refused, parley.release(token=4), ANN).reason is Reason.OWNERSHIP_LOST
