"""A client's session that a gate asks whether it holds a lock, where the cluster keeps none."""

from __future__ import annotations

from random import Random

import pytest
from support.role_harness import RoleHarness

from fencelock.actors.api.message import Acquire, Cancel, Cancelled, Granted
from fencelock.actors.api.session_message import ConfirmHold, DisownHold, HoldLost
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.actors.session.session import ClientSession
from fencelock.actors.session.session_lease import Stage

A, B = Address("a/proxy"), Address("b/proxy")
ANN, ME = Address("c/ann"), Address("c/session")


class RequestHarness(RoleHarness[ClientSession]):
    """A session ``c`` with two gates of a cluster that keeps no sessions, as it has said."""

    def __init__(self) -> None:
        super().__init__(
            lambda host: ClientSession(ME, host, session="c", endpoints=(A, B), random=Random(1))
        )
        self.role.session_state.endpoints.current = A
        self.role.session_state.session_lease.enter(Stage.UNKEPT)
        self.role.session_state.session_lease.assigned = "c"

    def acquire(self) -> int:
        """Ask for lock ``x``; return the number under which a gate was asked."""
        (send,) = self.hear(ANN, Acquire(lock="x", owner="ann"))
        assert isinstance(send.message, Acquire)
        return send.message.request

    def grant(self, request: int) -> list[Send]:
        return self.hear(A, Granted(lock="x", fence=7, session="c", owner="ann", request=request))


@pytest.fixture
def play() -> RequestHarness:
    return RequestHarness()


CONFIRM = ConfirmHold(lock="x", fence=7, session="c")


def test_a_session_that_is_asked_about_a_hold_of_its_own_does_not_answer(
    play: RequestHarness,
) -> None:
    play.grant(play.acquire())

    assert play.hear(A, CONFIRM) == []
    assert play.hear(B, CONFIRM) == []


def test_a_session_disowns_what_it_does_not_hold_and_takes_no_late_grant_of_it(
    play: RequestHarness,
) -> None:
    request = play.acquire()

    said = play.hear(A, CONFIRM)
    cancel = Cancel(lock="x", session="c", owner="ann", request=request)
    assert Send(A, DisownHold(lock="x", fence=7, session="c")) in said
    assert Send(A, cancel) in said
    assert [send.to for send in play.grant(request)] == []

    cancelled = Cancelled(lock="x", session="c", owner="ann", request=request)
    (anew,) = play.hear(A, cancelled)
    assert isinstance(anew.message, Acquire)
    assert anew.message.request > request


def test_a_stranger_and_another_session_are_not_answered(play: RequestHarness) -> None:
    assert play.hear(Address("z/proxy"), CONFIRM) == []
    assert play.hear(A, ConfirmHold(lock="x", fence=7, session="d")) == []


def test_a_late_grant_of_an_earlier_life_of_the_gate_does_not_cancel_what_is_held(
    play: RequestHarness,
) -> None:
    """A gate that restarts may grant the same request anew; what it said before comes later."""
    request = play.acquire()
    play.grant(request)

    late = Granted(lock="x", fence=5, session="c", owner="ann", request=request)

    assert play.hear(A, late) == []
    assert play.hear(B, late) == [
        Send(B, Cancel(lock="x", session="c", owner="ann", request=request))
    ]


def test_a_session_that_is_told_that_an_operator_took_its_lock_holds_it_no_more(
    play: RequestHarness,
) -> None:
    play.grant(play.acquire())

    play.hear(A, HoldLost(lock="x", fence=7, session="c", owner="ann", detail="an operator"))

    assert play.role.session_state.holds == {}
    assert "client.holds_lost" in play.counted
