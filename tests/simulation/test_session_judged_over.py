"""A wait that a gate judged over: what the session of a client that is kept does about copies."""

from __future__ import annotations

from support.session_harness import ANN, A, B, SessionHarness, of, one

from fencelock.actors.api.message import Acquire, Cancel, Reason, Refused


def test_a_wait_that_was_said_again_and_judged_over_is_withdrawn_before_the_next(
    parley: SessionHarness,
) -> None:
    """A leader of `bakery` may have granted it to one gate while another judged that it is over."""
    said = parley.open(parley.acquire(wait_ms=500))
    again = parley.run_kept(300, A, B)
    assert of(Acquire, again)
    said = parley.refuse(again, Reason.TIMED_OUT)
    assert one(Refused, said, ANN).reason is Reason.TIMED_OUT
    assert one(Cancel, said, A).request == of(Acquire, again)[0].request
    assert of(Acquire, parley.acquire()) == []
    assert of(Acquire, parley.undo(said), A)


def test_a_wait_that_was_said_once_is_over_when_its_gate_says_so(parley: SessionHarness) -> None:
    said = parley.refuse(parley.open(parley.acquire(wait_ms=0)), Reason.TIMED_OUT)
    assert of(Cancel, said) == []
    assert of(Acquire, parley.acquire(), A)
