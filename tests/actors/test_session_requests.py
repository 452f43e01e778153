"""A client's session that an endpoint asks about a hold, in a cluster that keeps no sessions."""

from __future__ import annotations

from random import Random

import pytest
from support.role_harness import RoleHarness

from fencelock.actors.api.message import Acquire, Cancel, Cancelled, Granted
from fencelock.actors.api.session_message import ConfirmHold, DisownHold, HoldLost
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.actors.session.lease import Stage
from fencelock.actors.session.session import ClientSession

A, B = Address("a/proxy"), Address("b/proxy")
ANN, ME = Address("c/ann"), Address("c/session")


class RequestHarness(RoleHarness[ClientSession]):
    """A session ``c`` with two endpoints of a cluster that keeps no sessions, as it has said."""

    def __init__(self) -> None:
        super().__init__(
            lambda host: ClientSession(ME, host, session="c", endpoints=(A, B), random=Random(1))
        )
        self.role.session_state.endpoints.current = A
        for stage in (Stage.OPENING, Stage.UNKEPT):
            self.role.session_state.session_lease.enter(stage)
        self.role.session_state.session_lease.assigned = "c"

    def acquire(self) -> int:
        """Ask for lock ``x``; return the number under which an endpoint was asked."""
        (send,) = self.hear(ANN, Acquire(lock="x", owner="ann"))
        assert isinstance(send.message, Acquire)
        return send.message.request

    def grant(self, request: int) -> list[Send]:
        return self.hear(A, Granted(lock="x", fence=7, session="c", owner="ann", request=request))


@pytest.fixture
def harness() -> RequestHarness:
    return RequestHarness()


CONFIRM = ConfirmHold(lock="x", fence=7, session="c")


def test_a_session_that_is_asked_about_a_hold_of_its_own_does_not_answer(
    harness: RequestHarness,
) -> None:
    harness.grant(harness.acquire())

    assert harness.hear(A, CONFIRM) == []
    assert harness.hear(B, CONFIRM) == []


def test_a_session_disowns_what_it_does_not_hold_and_takes_no_late_grant_of_it(
    harness: RequestHarness,
) -> None:
    request = harness.acquire()

    said = harness.hear(A, CONFIRM)
    cancel = Cancel(lock="x", session="c", owner="ann", request=request)
    assert Send(A, DisownHold(lock="x", fence=7, session="c")) in said
    assert Send(A, cancel) in said
    assert [send.to for send in harness.grant(request)] == []

    cancelled = Cancelled(lock="x", session="c", owner="ann", request=request)
    (anew,) = harness.hear(A, cancelled)
    assert isinstance(anew.message, Acquire)
    assert anew.message.request > request


def test_a_stranger_and_another_session_are_not_answered(harness: RequestHarness) -> None:
    assert harness.hear(Address("z/proxy"), CONFIRM) == []
    assert harness.hear(A, ConfirmHold(lock="x", fence=7, session="d")) == []


def test_a_late_grant_of_an_earlier_life_of_the_endpoint_does_not_cancel_what_is_held(
    harness: RequestHarness,
) -> None:
    """An endpoint that restarts may grant a request anew, before its earlier messages arrive."""
    request = harness.acquire()
    harness.grant(request)

    late = Granted(lock="x", fence=5, session="c", owner="ann", request=request)

    assert harness.hear(A, late) == []
    assert harness.hear(B, late) == [
        Send(B, Cancel(lock="x", session="c", owner="ann", request=request))
    ]


def test_a_session_that_is_told_that_an_operator_took_its_lock_holds_it_no_more(
    harness: RequestHarness,
) -> None:
    harness.grant(harness.acquire())

    harness.hear(A, HoldLost(lock="x", fence=7, session="c", owner="ann", detail="an operator"))

    assert harness.role.session_state.holds == {}
    assert "client.holds_lost" in harness.counted
