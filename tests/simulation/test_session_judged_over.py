"""A wait that a proxy judged over: what the session of a client that is kept does about copies."""

from __future__ import annotations

from support.session_harness import ANN, A, B, SessionHarness, of, one

from fencelock.actors.api.message import Acquire, Cancel, Reason, Refused


def test_a_wait_that_was_said_again_and_judged_over_is_withdrawn_before_the_next(
    harness: SessionHarness,
) -> None:
    """A leader of `bakery` may have granted it to one proxy while another judged it to be over."""
    said = harness.open(harness.acquire(wait_ms=500))
    again = harness.run_kept(300, A, B)
    assert of(Acquire, again)
    said = harness.refuse(again, Reason.TIMED_OUT)
    assert one(Refused, said, ANN).reason is Reason.TIMED_OUT
    assert one(Cancel, said, A).request == of(Acquire, again)[0].request
    assert of(Acquire, harness.acquire()) == []
    assert of(Acquire, harness.undo(said), A)


def test_a_wait_that_was_said_once_is_over_when_its_proxy_says_so(harness: SessionHarness) -> None:
    said = harness.refuse(harness.open(harness.acquire(wait_ms=0)), Reason.TIMED_OUT)
    assert of(Cancel, said) == []
    assert of(Acquire, harness.acquire(), A)
