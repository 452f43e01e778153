"""A client's session chooses its endpoints, and leaves the silent ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.session_harness import ANN, BEN, ME, A, B, of, one
from support.session_play import UnkeptSession, refusal

from fencelock.actors.api import message as api
from fencelock.actors.effect import Send
from fencelock.actors.message import node_of
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.actors.session import admission
from fencelock.actors.session.pending import Claim


def test_a_broken_link_moves_what_waits_under_a_new_number_and_cancels_the_old(
    play: UnkeptSession,
) -> None:
    play.acquire(wait_ms=9_000)
    play.hear(BEN, api.Inspect(lock="y"))
    play.run(150)
    said = play.hear(ME, LinkDown(node="a"))
    assert one(api.Cancel, said, A).request == 1
    moved = one(api.Acquire, said, B)
    assert (moved.request, moved.wait_ms) == (3, 8_850)
    assert one(api.Inspect, said, B).request == 4
    assert of(api.Cancel, play.run(5_000), A)


def test_an_answer_for_another_gate_by_one_that_comes_back_does_no_harm(
    play: UnkeptSession,
) -> None:
    """Its sign of life takes the question to it, under a new number; what it said is late."""
    play.hear(BEN, api.Inspect(lock="y"))
    play.hear(ME, LinkDown(node="b"))
    play.hear(ME, LinkDown(node="a"))
    free = api.LockStatus(lock="y", holder=None, waiters=(), waits_for=(), session="c", request=1)
    said = play.hear(B, free)
    moved = one(api.Inspect, said, B)
    assert moved.request == 2
    answered = play.hear(B, replace(free, request=moved.request))
    assert one(api.LockStatus, answered, BEN).lock == "y"


def test_a_grant_of_the_gate_that_was_left_reaches_nobody(play: UnkeptSession) -> None:
    asked = play.acquire()
    said = play.hear(ME, LinkDown(node="a"))
    moved = Send(B, one(api.Acquire, said, B))
    assert of(api.Granted, play.grant(asked, fence=7)) == []
    assert one(api.Granted, play.grant(moved, fence=9), ANN).fence == 9
    assert play.role.session_state.holds[Claim("x", "ann")].endpoint == B


def test_a_gate_that_is_silent_while_something_waits_is_left(play: UnkeptSession) -> None:
    for number, gate in ((2, A), (3, B)):
        play.hear(gate, api.Alive(session="c", node=node_of(gate), request=number))
    play.acquire()
    said = play.run_kept(2_900, B)
    assert of(api.Acquire, said, B) == []
    assert of(api.KeepAlive, said, A)
    assert of(api.Acquire, play.run_kept(400, B), B)
    assert "client.gate_silent" in play.counted


def test_a_gate_that_answers_greetings_is_kept_however_long_the_wait(play: UnkeptSession) -> None:
    play.acquire()
    said = play.run_kept(60_000, A)
    assert of(api.Acquire, said, B) == []
    assert of(api.Refused, said) == []


def test_a_first_gate_that_was_never_heard_is_left_sooner_if_another_was(
    play: UnkeptSession,
) -> None:
    play.hear(B, api.Alive(session="c", node="b", request=3))
    play.acquire()
    assert of(api.Acquire, play.run_kept(800, B), B)


def test_a_session_stays_with_the_new_gate_when_the_old_one_is_back(play: UnkeptSession) -> None:
    play.acquire()
    play.hear(ME, LinkDown(node="a"))
    assert of(api.Acquire, play.hear(ME, LinkUp(node="a"))) == []
    assert play.acquire(BEN).to == B


def test_with_no_gate_left_a_wait_stays_and_goes_to_the_first_that_is_back(
    play: UnkeptSession,
) -> None:
    play.acquire()
    play.hear(ME, LinkDown(node="b"))
    assert of(api.Acquire, play.hear(ME, LinkDown(node="a"))) == []
    assert of(api.KeepAlive, play.run(2_000), B)
    said = play.hear(ME, LinkUp(node="b"))
    assert of(api.Acquire, said, B)
    assert of(api.Cancel, said, A)


def test_a_gate_that_is_heard_again_takes_what_is_stranded(play: UnkeptSession) -> None:
    play.acquire()
    said = play.run(9_000)  # First the one, then the other is silent.
    greeting = [send for send in said if send.to == A and isinstance(send.message, api.KeepAlive)][
        -1
    ]
    assert "client.gate_silent" in play.counted
    back = play.alive(greeting)
    assert one(api.Cancel, back, A).request == 1  # The old wait there has to end first.
    done = api.Cancelled(lock="x", session="c", owner="ann", request=1)
    assert of(api.Acquire, play.hear(A, done), A)


def test_moving_to_and_fro_never_keeps_more_than_one_withdrawal_per_gate(
    play: UnkeptSession,
) -> None:
    play.acquire()
    for _ in range(20):
        for node in ("a", "b"):
            play.hear(ME, LinkDown(node=node))
            play.hear(ME, LinkUp(node=node))
    assert len(play.role.session_state.in_flight.withdrawals) <= 2
    assert len(play.role.session_state.in_flight.pending) == 1


def test_a_new_link_repeats_at_once_what_is_unanswered_there(play: UnkeptSession) -> None:
    asked = play.acquire()
    assert of(api.Acquire, play.hear(ME, LinkUp(node="a")), A) == [asked.message]


def test_a_new_link_is_greeted_so_that_it_is_known_who_answers(play: UnkeptSession) -> None:
    assert [type(send.message) for send in play.hear(ME, LinkUp(node="b"))] == [api.KeepAlive]


def test_links_that_are_no_gates_are_counted(play: UnkeptSession) -> None:
    for event in (
        LinkUp(node="z"),
        LinkDown(node="z"),
        LinkRefused(node="z", detail=""),
    ):
        assert play.hear(ME, event) == []
    assert play.counted == ["client.unknown_link"] * 3


def test_a_hold_keeps_its_gate_greeted_and_a_silent_gate_does_not_lose_it(
    play: UnkeptSession,
) -> None:
    play.held()
    said = play.run(20_000)
    assert 15 <= len(of(api.KeepAlive, said, A)) <= 25
    assert of(api.KeepAlive, said, B) == []
    assert len(play.role.session_state.holds) == 1
    assert play.acquire(BEN).to == B


def test_withdrawals_count_against_the_limit_so_that_none_is_ever_forgotten(
    play: UnkeptSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PENDING_MAX", 2)
    for lock in ("1", "2"):
        play.acquire(lock=lock)
        play.hear(ANN, api.Abandon())
    assert refusal(play.hear(ANN, api.Acquire(lock="3"))).reason is api.Reason.OVERLOADED
