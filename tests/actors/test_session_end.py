"""The end of a client's session: unanswered waits, surveys, closing."""

from __future__ import annotations

import pytest
from support.session_harness import ANN, BEN, ME, A, B, of, one
from support.session_play import UnkeptSession, node_status, refusal

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


def test_a_wait_with_a_limit_that_no_gate_decides_ends_a_margin_after_it(
    play: UnkeptSession,
) -> None:
    play.acquire(wait_ms=2_000)
    assert of(Refused, play.run_kept(6_400, A)) == []
    assert refusal(play.run_kept(300, A)).reason is Reason.UNAVAILABLE


def test_a_wait_ends_when_every_gate_is_silent_naming_each(play: UnkeptSession) -> None:
    play.acquire(wait_ms=2_000)
    assert of(Refused, play.run(2_000)) == []
    answer = refusal(play.run(4_600))
    assert answer.reason is Reason.UNAVAILABLE
    assert "a (silent for" in answer.detail
    assert "b (silent for" in answer.detail
    assert of(Cancel, play.run(60_000))  # What it may still be granted is withdrawn.


def test_with_every_link_broken_a_wait_ends_when_its_limit_does(play: UnkeptSession) -> None:
    play.hear(ME, LinkDown(node="a"))
    play.hear(ME, LinkDown(node="b"))
    play.acquire(wait_ms=0)
    assert refusal(play.run(200)).reason is Reason.UNAVAILABLE
    play.acquire(wait_ms=2_000)
    assert of(Refused, play.run(1_900)) == []
    assert refusal(play.run(300)).reason is Reason.UNAVAILABLE


def test_a_wait_without_limit_goes_on_for_ever(play: UnkeptSession) -> None:
    play.acquire()
    assert of(Refused, play.run(3_600_000)) == []


@pytest.mark.parametrize("question", [Inspect(lock="x"), Describe()])
def test_a_question_ends_unanswered_after_its_time(
    play: UnkeptSession, question: Inspect | Describe
) -> None:
    play.hear(ANN, question)
    assert of(Refused, play.run(9_900)) == []
    assert refusal(play.run(300)).reason is Reason.UNAVAILABLE
    play.run(1_000)
    assert play.alarms == []


def test_when_every_gate_is_of_another_cluster_every_request_ends_so(play: UnkeptSession) -> None:
    play.acquire()
    assert of(Refused, play.hear(ME, LinkRefused(node="a", detail="cluster 'd'"))) == []
    answer = refusal(play.hear(ME, LinkRefused(node="b", detail="cluster 'e'")))
    assert answer.reason is Reason.WRONG_CLUSTER
    assert "cluster 'd'" in answer.detail
    assert "cluster 'e'" in answer.detail
    assert isinstance(answer.error(), WrongClusterError)
    assert refusal(play.hear(ANN, Describe())).reason is Reason.WRONG_CLUSTER
    assert play.role.session_state.in_flight.withdrawals == {}


def test_a_refused_gate_is_not_asked_while_another_is_there(play: UnkeptSession) -> None:
    play.hear(ME, LinkRefused(node="a", detail="cluster 'd'"))
    assert play.acquire().to == B


def test_a_survey_asks_every_gate_and_returns_what_was_said_in_their_order(
    play: UnkeptSession,
) -> None:
    said = play.hear(ANN, Survey())
    assert [send.to for send in said] == [A, B]
    assert play.hear(B, node_status("b", 2)) == []
    (answer,) = play.hear(A, node_status("a", 1))
    assert answer.to == ANN
    assert isinstance(answer.message, Surveyed)
    assert [status.node for status in answer.message.statuses] == ["a", "b"]
    assert answer.message.silent == ()


@pytest.mark.parametrize("broken", [True, False])
def test_a_survey_does_not_wait_for_a_gate_that_is_down_or_silent(
    play: UnkeptSession, broken: bool
) -> None:
    play.hear(ANN, Survey())
    play.hear(A, node_status("a", 1))
    said = play.hear(ME, LinkDown(node="b")) if broken else play.run(2_200)
    (answer,) = [send for send in said if send.to == ANN]
    assert isinstance(answer.message, Surveyed)
    assert answer.message.silent == ("b",)
    assert play.role.session_state.in_flight.pending == {}


def test_closing_releases_cancels_and_answers_when_all_is_confirmed(play: UnkeptSession) -> None:
    play.held()
    play.acquire(BEN, lock="y")
    play.hear(ANN, Inspect(lock="z"))
    said = play.hear(ANN, Close())
    assert one(Release, said, A).fence == 7
    assert one(Cancel, said, A).lock == "y"
    assert {answer.reason for answer in of(Refused, said)} == {Reason.CANCELLED}
    assert len(of(Refused, said)) == 2
    play.hear(A, Cancelled(lock="y", session="c", owner="ben", request=2))
    released = play.hear(A, Released(lock="x", session="c", owner="ann", request=4))
    end = one(End, released, A)
    assert end.session == "c"
    ended = play.hear(A, Ended(session="c", detail="", request=end.request))
    assert ended == [Send(ANN, Closed(unanswered=0))]
    assert play.hear(BEN, Close()) == [Send(BEN, Closed(unanswered=0))]


def test_closing_does_not_wait_for_ever_nor_for_a_gate_that_is_down(play: UnkeptSession) -> None:
    play.held()
    assert Closed(unanswered=1) not in [send.message for send in play.hear(ANN, Close())]
    said = play.run(2_200)
    assert Send(ANN, Closed(unanswered=1)) in said
    other = UnkeptSession()
    other.held()
    other.hear(ME, LinkDown(node="a"))
    assert Send(ANN, Closed(unanswered=1)) in other.hear(ANN, Close())


def test_closing_ends_the_session_at_another_gate_if_the_one_that_granted_is_down(
    play: UnkeptSession,
) -> None:
    """Where holds belong to sessions, that frees holds that the granting node cannot release."""
    play.held()
    play.hear(ME, LinkDown(node="a"))
    play.hear(B, Alive(session="c", node="b", request=1))
    end = one(End, play.hear(ANN, Close()), B)
    assert end.session == "c"
    assert Send(ANN, Closed(unanswered=1)) in play.hear(
        B, Ended(session="c", detail="", request=end.request)
    )


@pytest.mark.parametrize("event", [Acquire(lock="x"), Inspect(lock="x"), Describe(), Survey()])
def test_a_closed_session_serves_nobody(
    play: UnkeptSession, event: Acquire | Inspect | Describe | Survey
) -> None:
    play.hear(ANN, Close())
    answer = refusal(play.hear(ANN, event))
    assert answer.reason is Reason.CANCELLED
    assert "closed" in answer.detail


def test_closing_answers_a_survey_with_what_there_is(play: UnkeptSession) -> None:
    play.hear(BEN, Survey())
    play.hear(A, node_status("a", 1))
    said = play.hear(ANN, Close())
    assert [type(send.message) for send in said if send.to == BEN] == [Surveyed]
