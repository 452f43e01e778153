"""A client's session chooses its endpoints, and leaves the silent ones."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.session_harness import ANN, BEN, ME, WATCHER, A, B, SessionHarness, of, one
from support.unkept_session import UnkeptSession, refusal

from fencelock.actors.api import message as api
from fencelock.actors.effect import Send
from fencelock.actors.message import node_of
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.actors.session import refusals
from fencelock.actors.session.message import EndpointChanged
from fencelock.actors.session.requests import LockKey


def test_a_broken_link_moves_what_waits_under_a_new_number_and_cancels_the_old(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire(wait_ms=9_000)
    unkept.hear(BEN, api.Inspect(lock="y"))
    unkept.run(150)
    said = unkept.hear(ME, LinkDown(node="a"))
    assert one(api.Cancel, said, A).request == 1
    moved = one(api.Acquire, said, B)
    assert (moved.request, moved.wait_ms) == (3, 8_850)
    assert one(api.Inspect, said, B).request == 4
    assert of(api.Cancel, unkept.run(5_000), A)


def test_an_answer_for_another_endpoint_by_one_that_comes_back_does_no_harm(
    unkept: UnkeptSession,
) -> None:
    """After its keep-alive reply the request goes to it under a new number; its old reply is
    late."""
    unkept.hear(BEN, api.Inspect(lock="y"))
    unkept.hear(ME, LinkDown(node="b"))
    unkept.hear(ME, LinkDown(node="a"))
    free = api.LockStatus(lock="y", holder=None, waiters=(), waits_for=(), session="c", request=1)
    said = unkept.hear(B, free)
    moved = one(api.Inspect, said, B)
    assert moved.request == 2
    answered = unkept.hear(B, replace(free, request=moved.request))
    assert one(api.LockStatus, answered, BEN).lock == "y"


def test_a_grant_of_the_endpoint_that_was_left_reaches_nobody(unkept: UnkeptSession) -> None:
    asked = unkept.acquire()
    said = unkept.hear(ME, LinkDown(node="a"))
    moved = Send(B, one(api.Acquire, said, B))
    assert of(api.Granted, unkept.grant(asked, fence=7)) == []
    assert one(api.Granted, unkept.grant(moved, fence=9), ANN).fence == 9
    assert unkept.role.session_state.holds[LockKey("x", "ann")].endpoint == B


def test_the_watcher_is_told_of_another_endpoint_once(harness: SessionHarness) -> None:
    harness.open(harness.acquire())
    assert of(EndpointChanged, harness.run_kept(1_000, A, B)) == []
    harness.hear(ME, LinkDown(node="a"))
    said = harness.run_kept(5_000, B)
    assert of(EndpointChanged, said, WATCHER) == [EndpointChanged(endpoint="b", former="a")]


def test_an_endpoint_that_is_silent_while_something_waits_is_left(unkept: UnkeptSession) -> None:
    for number, endpoint in ((2, A), (3, B)):
        unkept.hear(endpoint, api.Alive(session="c", node=node_of(endpoint), request=number))
    unkept.acquire()
    said = unkept.run_kept(2_900, B)
    assert of(api.Acquire, said, B) == []
    assert of(api.KeepAlive, said, A)
    assert of(api.Acquire, unkept.run_kept(400, B), B)
    assert "client.endpoint_silent" in unkept.counted


def test_an_endpoint_that_answers_greetings_is_kept_however_long_the_wait(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire()
    said = unkept.run_kept(60_000, A)
    assert of(api.Acquire, said, B) == []
    assert of(api.Refused, said) == []


def test_a_first_endpoint_that_was_never_heard_is_left_sooner_if_another_was(
    unkept: UnkeptSession,
) -> None:
    unkept.hear(B, api.Alive(session="c", node="b", request=3))
    unkept.acquire()
    assert of(api.Acquire, unkept.run_kept(800, B), B)


def test_a_session_stays_with_the_new_endpoint_when_the_old_one_is_back(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire()
    unkept.hear(ME, LinkDown(node="a"))
    assert of(api.Acquire, unkept.hear(ME, LinkUp(node="a"))) == []
    assert unkept.acquire(BEN).to == B


def test_with_no_endpoint_left_a_wait_stays_and_goes_to_the_first_that_is_back(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire()
    unkept.hear(ME, LinkDown(node="b"))
    assert of(api.Acquire, unkept.hear(ME, LinkDown(node="a"))) == []
    assert of(api.KeepAlive, unkept.run(2_000), B)
    said = unkept.hear(ME, LinkUp(node="b"))
    assert of(api.Acquire, said, B)
    assert of(api.Cancel, said, A)


def test_an_endpoint_that_is_heard_again_takes_what_is_stranded(unkept: UnkeptSession) -> None:
    unkept.acquire()
    said = unkept.run(9_000)  # First the one, then the other is silent.
    greeting = [send for send in said if send.to == A and isinstance(send.message, api.KeepAlive)][
        -1
    ]
    assert "client.endpoint_silent" in unkept.counted
    back = unkept.alive(greeting)
    assert one(api.Cancel, back, A).request == 1  # The old wait there has to end first.
    done = api.Cancelled(lock="x", session="c", owner="ann", request=1)
    assert of(api.Acquire, unkept.hear(A, done), A)


def test_moving_to_and_fro_never_keeps_more_than_one_pending_cancel_per_endpoint(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire()
    for _ in range(20):
        for node in ("a", "b"):
            unkept.hear(ME, LinkDown(node=node))
            unkept.hear(ME, LinkUp(node=node))
    assert len(unkept.role.session_state.in_flight.cancels) <= 2
    assert len(unkept.role.session_state.in_flight.pending) == 1


def test_a_new_link_repeats_at_once_what_is_unanswered_there(unkept: UnkeptSession) -> None:
    asked = unkept.acquire()
    assert of(api.Acquire, unkept.hear(ME, LinkUp(node="a")), A) == [asked.message]


def test_a_new_link_is_greeted_so_that_it_is_known_who_answers(unkept: UnkeptSession) -> None:
    assert [type(send.message) for send in unkept.hear(ME, LinkUp(node="b"))] == [api.KeepAlive]


def test_links_that_are_no_endpoints_are_counted(unkept: UnkeptSession) -> None:
    for event in (
        LinkUp(node="z"),
        LinkDown(node="z"),
        LinkRefused(node="z", detail=""),
    ):
        assert unkept.hear(ME, event) == []
    assert unkept.counted == ["client.unknown_link"] * 3


def test_a_hold_keeps_its_endpoint_greeted_and_a_silent_endpoint_does_not_lose_it(
    unkept: UnkeptSession,
) -> None:
    unkept.held()
    said = unkept.run(20_000)
    assert 15 <= len(of(api.KeepAlive, said, A)) <= 25
    assert of(api.KeepAlive, said, B) == []
    assert len(unkept.role.session_state.holds) == 1
    assert unkept.acquire(BEN).to == B


def test_pending_cancels_count_against_the_limit_so_that_none_is_ever_forgotten(
    unkept: UnkeptSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "PENDING_MAX", 2)
    for lock in ("1", "2"):
        unkept.acquire(lock=lock)
        unkept.hear(ANN, api.Abandon())
    assert refusal(unkept.hear(ANN, api.Acquire(lock="3"))).reason is api.Reason.OVERLOADED
