"""The end of a client's session: unanswered waits, surveys, closing."""

from __future__ import annotations

import pytest
from support.session_harness import ANN, BEN, ME, A, B, of, one
from support.unkept_session import UnkeptSession, node_status, refusal

from fencelock.actors.api.message import (
    Acquire,
    Alive,
    Cancel,
    Cancelled,
    Describe,
    Inspect,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.session_message import End, Ended
from fencelock.actors.effect import Send
from fencelock.actors.error import WrongClusterError
from fencelock.actors.role_message import LinkDown, LinkRefused
from fencelock.actors.session.message import Close, Closed, Survey, Surveyed


def test_a_wait_with_a_limit_that_no_endpoint_decides_ends_a_margin_after_it(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire(wait_ms=2_000)
    assert of(Refused, unkept.run_kept(2_400, A)) == []
    assert refusal(unkept.run_kept(300, A)).reason is Reason.UNAVAILABLE


def test_an_acquire_that_does_not_wait_has_time_to_be_decided(unkept: UnkeptSession) -> None:
    unkept.acquire(wait_ms=0)
    assert of(Refused, unkept.run_kept(1_400, A)) == []
    assert refusal(unkept.run_kept(300, A)).reason is Reason.UNAVAILABLE


def test_a_wait_ends_when_every_endpoint_is_silent_naming_each(unkept: UnkeptSession) -> None:
    unkept.acquire(wait_ms=6_000)
    assert of(Refused, unkept.run(6_000)) == []
    answer = refusal(unkept.run(600))
    assert answer.reason is Reason.UNAVAILABLE
    assert "a (silent for" in answer.detail
    assert "b (silent for" in answer.detail
    assert of(Cancel, unkept.run(60_000))  # What it may still be granted is withdrawn.


def test_with_every_link_broken_a_wait_ends_when_its_limit_does(unkept: UnkeptSession) -> None:
    unkept.hear(ME, LinkDown(node="a"))
    unkept.hear(ME, LinkDown(node="b"))
    unkept.acquire(wait_ms=0)
    assert refusal(unkept.run(200)).reason is Reason.UNAVAILABLE
    unkept.acquire(wait_ms=2_000)
    assert of(Refused, unkept.run(1_900)) == []
    assert refusal(unkept.run(300)).reason is Reason.UNAVAILABLE


def test_a_wait_without_limit_goes_on_for_ever(unkept: UnkeptSession) -> None:
    unkept.acquire()
    assert of(Refused, unkept.run(3_600_000)) == []


@pytest.mark.parametrize("question", [Inspect(lock="x"), Describe()])
def test_a_question_ends_unanswered_after_its_time(
    unkept: UnkeptSession, question: Inspect | Describe
) -> None:
    unkept.hear(ANN, question)
    assert of(Refused, unkept.run(9_900)) == []
    assert refusal(unkept.run(300)).reason is Reason.UNAVAILABLE
    unkept.run(1_000)
    assert unkept.alarms == []


def test_when_every_endpoint_is_of_another_cluster_every_request_ends_so(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire()
    assert of(Refused, unkept.hear(ME, LinkRefused(node="a", detail="cluster 'd'"))) == []
    answer = refusal(unkept.hear(ME, LinkRefused(node="b", detail="cluster 'e'")))
    assert answer.reason is Reason.WRONG_CLUSTER
    assert "cluster 'd'" in answer.detail
    assert "cluster 'e'" in answer.detail
    assert isinstance(answer.error(), WrongClusterError)
    assert refusal(unkept.hear(ANN, Describe())).reason is Reason.WRONG_CLUSTER
    assert unkept.role.session_state.in_flight.cancels == {}


def test_a_refused_endpoint_is_not_asked_while_another_is_there(unkept: UnkeptSession) -> None:
    unkept.hear(ME, LinkRefused(node="a", detail="cluster 'd'"))
    assert unkept.acquire().to == B


def test_a_survey_asks_every_endpoint_and_returns_what_was_said_in_their_order(
    unkept: UnkeptSession,
) -> None:
    said = unkept.hear(ANN, Survey())
    assert [send.to for send in said] == [A, B]
    assert unkept.hear(B, node_status("b", 2)) == []
    (answer,) = unkept.hear(A, node_status("a", 1))
    assert answer.to == ANN
    assert isinstance(answer.message, Surveyed)
    assert [status.node for status in answer.message.statuses] == ["a", "b"]
    assert answer.message.silent == ()


@pytest.mark.parametrize("broken", [True, False])
def test_a_survey_does_not_wait_for_an_endpoint_that_is_down_or_silent(
    unkept: UnkeptSession, broken: bool
) -> None:
    unkept.hear(ANN, Survey())
    unkept.hear(A, node_status("a", 1))
    said = unkept.hear(ME, LinkDown(node="b")) if broken else unkept.run(2_200)
    (answer,) = [send for send in said if send.to == ANN]
    assert isinstance(answer.message, Surveyed)
    assert answer.message.silent == ("b",)
    assert unkept.role.session_state.in_flight.pending == {}


def test_closing_releases_cancels_and_answers_when_all_is_confirmed(unkept: UnkeptSession) -> None:
    unkept.held()
    unkept.acquire(BEN, lock="y")
    unkept.hear(ANN, Inspect(lock="z"))
    said = unkept.hear(ANN, Close())
    assert one(Release, said, A).fence == 7
    assert one(Cancel, said, A).lock == "y"
    assert {answer.reason for answer in of(Refused, said)} == {Reason.CANCELLED}
    assert len(of(Refused, said)) == 2
    unkept.hear(A, Cancelled(lock="y", session="c", owner="ben", request=2))
    released = unkept.hear(A, Released(lock="x", session="c", owner="ann", request=4))
    end = one(End, released, A)
    assert end.session == "c"
    ended = unkept.hear(A, Ended(session="c", detail="", request=end.request))
    assert ended == [Send(ANN, Closed(unanswered=0))]
    assert unkept.hear(BEN, Close()) == [Send(BEN, Closed(unanswered=0))]


def test_closing_does_not_wait_for_ever_nor_for_an_endpoint_that_is_down(
    unkept: UnkeptSession,
) -> None:
    unkept.held()
    assert Closed(unanswered=1) not in [send.message for send in unkept.hear(ANN, Close())]
    said = unkept.run(2_200)
    assert Send(ANN, Closed(unanswered=1)) in said
    other = UnkeptSession()
    other.held()
    other.hear(ME, LinkDown(node="a"))
    assert Send(ANN, Closed(unanswered=1)) in other.hear(ANN, Close())


def test_closing_ends_the_session_at_another_endpoint_if_the_one_that_granted_is_down(
    unkept: UnkeptSession,
) -> None:
    """Where holds belong to sessions, that frees holds that the granting node cannot release."""
    unkept.held()
    unkept.hear(ME, LinkDown(node="a"))
    unkept.hear(B, Alive(session="c", node="b", request=1))
    end = one(End, unkept.hear(ANN, Close()), B)
    assert end.session == "c"
    assert Send(ANN, Closed(unanswered=1)) in unkept.hear(
        B, Ended(session="c", detail="", request=end.request)
    )


@pytest.mark.parametrize("event", [Acquire(lock="x"), Inspect(lock="x"), Describe(), Survey()])
def test_a_closed_session_serves_nobody(
    unkept: UnkeptSession, event: Acquire | Inspect | Describe | Survey
) -> None:
    unkept.hear(ANN, Close())
    answer = refusal(unkept.hear(ANN, event))
    assert answer.reason is Reason.CANCELLED
    assert "closed" in answer.detail


def test_closing_answers_a_survey_with_what_there_is(unkept: UnkeptSession) -> None:
    unkept.hear(BEN, Survey())
    unkept.hear(A, node_status("a", 1))
    said = unkept.hear(ANN, Close())
    assert [type(send.message) for send in said if send.to == BEN] == [Surveyed]
