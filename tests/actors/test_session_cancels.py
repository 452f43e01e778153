"""A wait that its user gave up on while the client was cut off is cancelled once it is back."""

from __future__ import annotations

import pytest
from support.session_harness import ANN, SessionHarness, of, one

from fencelock.actors.api.message import Acquire, Alive, Cancel, Cancelled, KeepAlive, Refused
from fencelock.actors.effect import Send
from fencelock.actors.message import node_of

TTL_MS = 3_600_000
"""So long that the session does not end meanwhile, which would free everything."""

CUT_MS = 60_000


def cut_off(ms: int) -> tuple[SessionHarness, list[Send]]:
    """Return a session ``ms`` after all nodes fell silent, and what it said.

    Its user waited for a second, and was told 4.5 s later that nobody decided.
    """
    harness = SessionHarness(TTL_MS)
    harness.open(harness.acquire(wait_ms=1_000))
    return harness, harness.run(ms)


@pytest.fixture
def harness() -> SessionHarness:
    return cut_off(CUT_MS)[0]


def alive(harness: SessionHarness, said: list[Send]) -> list[Send]:
    """Answer the last greeting in ``said``; return what follows."""
    greeting = [send for send in said if isinstance(send.message, KeepAlive)][-1]
    assert isinstance(greeting.message, KeepAlive)
    word = Alive(
        session=harness.assigned, node=node_of(greeting.to), request=greeting.message.request
    )
    return harness.hear(greeting.to, word)


@pytest.mark.parametrize("ms", range(6_000, 26_000, 500))
def test_a_wait_is_cancelled_with_the_first_sign_of_life_of_a_node(ms: int) -> None:
    """However long the cut was: whichever nodes were given up, and whatever pauses had grown."""
    harness, said = cut_off(ms)
    earlier = cut_off(max(0, ms - 700))[1]  # What was said since may arrive still.
    recent = of(Cancel, said)[len(of(Cancel, earlier)) :]

    cancels = [*recent, *of(Cancel, alive(harness, said)), *of(Cancel, harness.run(100))]

    assert cancels != []


def test_signs_of_life_are_asked_for_each_second_while_a_cancel_is_owed(
    harness: SessionHarness,
) -> None:
    assert len(of(KeepAlive, harness.run(10_000))) >= 8


def test_cancels_are_not_repeated_with_every_sign_of_life(harness: SessionHarness) -> None:
    said = harness.run(2_000)
    first = of(Cancel, alive(harness, said))

    more = [cancel for _ in range(20) for cancel in of(Cancel, alive(harness, said))]

    assert len(first) <= 2  # The endpoint was given up, which is one reason, and is back.
    assert more == []


def test_a_confirmed_cancel_is_not_repeated(harness: SessionHarness) -> None:
    cancel = of(Cancel, alive(harness, harness.run(2_000)))[-1]
    cancelled = Cancelled(lock="x", session=harness.assigned, owner="ann", request=cancel.request)
    harness.hear(harness.role.session_state.endpoints.current, cancelled)

    assert of(Cancel, harness.run(60_000)) == []


def test_the_user_is_told_that_the_outcome_is_unknown_and_what_is_done_about_it() -> None:
    harness = SessionHarness(TTL_MS)
    harness.open(harness.acquire(wait_ms=1_000))

    detail = one(Refused, harness.run(CUT_MS), ANN).detail

    assert "the outcome is unknown" in detail
    assert "cancels the request as soon as it is connected again" in detail


def test_a_request_that_was_never_sent_is_not_called_unknown() -> None:
    harness = SessionHarness(TTL_MS)
    assert of(Acquire, harness.acquire(wait_ms=1_000)) == []  # No session was opened.

    assert "unknown" not in one(Refused, harness.run(CUT_MS), ANN).detail
