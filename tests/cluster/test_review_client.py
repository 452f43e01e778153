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


def test_a_wait_given_up_at_a_wrong_proxy_is_withdrawn_since_an_earlier_proxy_heard_of_it(
    harness: SessionHarness,
) -> None:
    harness.open(harness.acquire(wait_ms=1_000))
    assert one(Acquire, harness.hear(ME, LinkDown(node="a")), B)
    harness.hear(ME, LinkRefused(node="b", detail="another cluster"))
    said = harness.run(6_000)
    assert one(Refused, said, ANN).reason is Reason.UNAVAILABLE
    assert of(Cancel, said)


def test_a_late_no_to_the_release_of_a_lost_hold_spares_the_next_hold(
    harness: SessionHarness,
) -> None:
    """The first hold was taken by an operator, unheard: the owner enters again, and waits."""
    harness.hold(limit=0)
    again = harness.acquire(user=ANN, token=2, limit=0)
    asked = Release(lock="x", fence=7, owner="ann", request=3)
    assert of(Release, harness.hear(HELPER, asked)) == []  # It goes after what is under way.
    said = harness.grant(again, fence=9)
    assert one(Granted, said, ANN).fence == 9
    assert one(HoldsLost, said, WATCHER).losses[0].fence == 7
    said = harness.refuse(said, Reason.NOT_HELD)
    assert of(HoldsLost, said) == []
    assert one(Released, harness.free(harness.release(fence=9)), ANN).count == 0


def test_what_is_not_held_on_a_release_of_one_level_is_lost_on_the_others(
    harness: SessionHarness,
) -> None:
    harness.hold(limit=0)
    harness.grant(harness.acquire(token=2, limit=0), fence=7, count=2)
    said = harness.refuse(harness.release(token=3), Reason.NOT_HELD)
    assert one(Refused, said, ANN).reason is Reason.NOT_HELD
    assert one(HoldsLost, said, WATCHER).losses[0].fence == 7
    assert one(Refused, harness.release(token=4), ANN).reason is Reason.OWNERSHIP_LOST
