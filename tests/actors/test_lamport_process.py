"""The lock process of `lamport`, and input that it refuses."""

from __future__ import annotations

import copy

import pytest
from support.expect import checked, present
from support.lamport_scene import BOOT, REQUEST, LoneProcess, got, posts, release, to_proxy, welcome

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.clock import STAMP_MAX
from fencelock.actors.effect import Observe
from fencelock.actors.lamport.order import WELCOME_MAX, pack_fence
from fencelock.actors.lamport.wire import (
    Acknowledge,
    Greet,
    KnownRequest,
    PeerJoined,
    Release,
    Request,
    Welcome,
)
from fencelock.actors.proxy.event import LockGranted, Ready

# Starting.


def test_it_is_not_ready_before_all_others_have_welcomed_it(alone: LoneProcess) -> None:
    greet = Greet(boot=BOOT, round=1)
    assert posts(alone.handle(PeerJoined(node="a", boot=1))) == [(("a",), greet)]
    assert posts(alone.want(1)) == []
    effects = alone.handle(PeerJoined(node="c", boot=1))
    assert posts(effects) == [(("a", "c"), Greet(boot=BOOT, round=2))]
    assert to_proxy(effects) == [
        Ready(ready=False, detail="nothing received since the start from a, c")
    ]

    assert to_proxy(alone.receive("a", welcome(2, stamp=5))) == [
        Ready(ready=False, detail="nothing received since the start from c")
    ]
    effects = alone.receive("c", welcome(2, stamp=6))
    assert to_proxy(effects) == [Ready(ready=True, detail="ready")]
    assert posts(effects) == [REQUEST]


def test_a_process_without_others_is_ready_at_once() -> None:
    lone = LoneProcess("b")

    assert posts(lone.want(1)) == [(("b",), Request(lock="x"))]
    assert to_proxy(lone.receive("b", Request(lock="x", stamp=1))) == [
        LockGranted(lock="x", ticket=1, fence=pack_fence(1, 0))
    ]


def test_a_welcome_for_a_former_life_does_not_make_it_ready(alone: LoneProcess) -> None:
    for node in ("a", "c"):
        alone.handle(PeerJoined(node=node, boot=1))
    alone.receive("a", welcome(2, stamp=5))
    alone.receive("c", welcome(2, stamp=5, boot=BOOT + 1))

    assert not alone.process.rejoin.ready


def test_requests_of_others_arrive_in_a_welcome_and_are_acknowledged_once(
    alone: LoneProcess,
) -> None:
    alone.handle(PeerJoined(node="a", boot=1))
    part = (KnownRequest("x", 3), KnownRequest("y", 4))
    effects = alone.receive("a", welcome(1, *part, stamp=9, complete=False))

    assert posts(effects) == [(("a",), Acknowledge(lock="y"))]
    assert alone.look().holder == Contender("a", "", "", pack_fence(3, 0), 0)
    assert alone.process.evidence.received["a"] == 0  # More from before stamp 9 is to come.
    alone.receive("a", welcome(1, stamp=10))
    assert alone.process.evidence.received["a"] == 10


def test_a_greeting_is_answered_with_the_own_requests_in_parts(joined: LoneProcess) -> None:
    for ticket in range(1, WELCOME_MAX + 2):
        joined.requested(ticket, 10 + ticket, lock=f"l{ticket}")
    joined.want(500, "unstamped")

    answer = posts(joined.receive("a", Greet(boot=7, round=3, stamp=5)))
    assert [nodes for nodes, _ in answer] == [("a",), ("a",)]
    first, last = (checked(Welcome, message) for _, message in answer)
    assert (first.boot, first.round, first.complete, len(first.requests)) == (7, 3, False, 100)
    assert (last.complete, last.requests) == (True, (KnownRequest("l101", 111),))


def test_a_former_lifes_requests_and_evidence_go_and_ours_stay(joined: LoneProcess) -> None:
    joined.receive("a", Request(lock="x", stamp=5))
    joined.requested(1, 7)
    assert to_proxy(joined.acknowledged(9)) == []

    assert to_proxy(joined.handle(PeerJoined(node="a", boot=2))) == []
    assert joined.look().waiters[0].node == "b"
    assert to_proxy(joined.acknowledge("a", 3, "x")) == []
    assert to_proxy(joined.acknowledge("a", 8, "x")) == [got(1, 7)]


def test_a_grant_outlives_the_restart_of_another(joined: LoneProcess) -> None:
    joined.requested(1, 7)
    joined.acknowledged(9)
    assert posts(joined.handle(PeerJoined(node="a", boot=2))) == []

    assert present(joined.look().holder).node == "b"


# Requesting, holding, giving back.


def test_it_requests_once_and_never_stamps_itself(joined: LoneProcess) -> None:
    effects = joined.want(1)
    assert posts(effects) == [REQUEST]
    assert Observe("lamport.request", 2) in effects
    assert joined.process.pending.out["x"].turn is None


def test_local_tickets_queue_in_order_with_one_request_out(joined: LoneProcess) -> None:
    joined.requested(1, 5)
    assert posts(joined.want(2)) == []
    assert posts(joined.want(3)) == []
    assert to_proxy(joined.acknowledged(6)) == [got(1, 5)]

    assert posts(joined.give(1)) == [release(5), REQUEST]
    joined.receive("b", Request(lock="x", stamp=10))
    assert to_proxy(joined.acknowledged(11)) == [got(2, 10)]


def test_locks_do_not_wait_for_each_other(joined: LoneProcess) -> None:
    joined.requested(1, 5)
    joined.requested(2, 6, lock="y")

    assert to_proxy(joined.acknowledged(7)) == [got(1, 5), got(2, 6, lock="y")]


def test_an_owner_that_leaves_the_queue_early_is_forgotten_without_a_message(
    joined: LoneProcess,
) -> None:
    joined.requested(1, 5)
    joined.want(2)

    assert joined.give(2) == ()
    assert posts(joined.give(1)) == [release(5)]


def test_a_wait_given_up_releases_its_request_though_not_granted(joined: LoneProcess) -> None:
    joined.requested(1, 5)
    joined.want(2)

    assert posts(joined.give(1)) == [release(5), REQUEST]
    assert to_proxy(joined.acknowledged(9)) == []


def test_a_wait_given_up_before_it_was_stamped_is_released_when_it_is(joined: LoneProcess) -> None:
    joined.want(1)
    joined.want(2)
    assert joined.give(1) == ()
    assert [waiter.session for waiter in joined.look().waiters] == ["s2"]

    assert posts(joined.receive("b", Request(lock="x", stamp=5))) == [release(5), REQUEST]
    joined.receive("b", Request(lock="x", stamp=8))
    assert to_proxy(joined.acknowledged(9)) == [got(2, 8)]


def test_a_give_that_crosses_with_the_grant_releases(joined: LoneProcess) -> None:
    joined.requested(1, 5)
    assert to_proxy(joined.acknowledged(6)) == [got(1, 5)]
    assert posts(joined.give(1)) == [release(5)]

    assert joined.give(1) == (Observe("lamport.give_unknown"),)


def test_nothing_is_left_after_all_is_released(joined: LoneProcess) -> None:
    joined.receive("a", Request(lock="x", stamp=3))
    joined.requested(1, 5)
    joined.want(2)
    joined.receive("a", Release(lock="x", request=3, stamp=6))
    joined.acknowledged(8)
    joined.give(2)
    joined.give(1)

    process = joined.process
    assert (process.requests.queues, process.pending.out) == ({}, {})
    assert (process.pending.lines, process.pending.tickets) == ({}, 0)
    assert process.pending.uncovered == []


def test_its_state_can_be_copied(joined: LoneProcess) -> None:
    joined.requested(1, 5)
    joined.want(2)
    state = copy.deepcopy(dict(joined.process.state()))
    joined.acknowledged(6)

    assert state["pending"].out["x"].granted_at is None


# Invalid messages of peers are counted and dropped, and change nothing


def test_messages_of_a_stranger_are_dropped(joined: LoneProcess) -> None:
    effects = joined.receive("z", Request(lock="x", stamp=5))

    assert effects == (Observe("lamport.stranger_dropped"),)


@pytest.mark.parametrize("stamp", [-1, 0, 3, STAMP_MAX + 1])
def test_a_stamp_that_does_not_rise_is_dropped(joined: LoneProcess, stamp: int) -> None:
    joined.receive("a", Request(lock="y", stamp=3))
    effects = joined.receive("a", Request(lock="x", stamp=stamp))

    assert effects == (Observe("lamport.impossible_stamp"),)
    assert list(joined.process.requests.queues) == ["y"]


@pytest.mark.parametrize("stamp", [-1, 0, 9, 10])
def test_a_request_in_a_welcome_is_older_than_it(joined: LoneProcess, stamp: int) -> None:
    effects = joined.receive("a", welcome(2, KnownRequest("x", stamp), stamp=9))

    assert Observe("lamport.impossible_stamp") in effects
    assert joined.process.requests.queues == {}


@pytest.mark.parametrize("lock", ["", "x" * 257, "a\nb"])
def test_a_lock_name_beyond_the_limits_is_dropped(joined: LoneProcess, lock: str) -> None:
    effects = joined.receive("a", Request(lock=lock, stamp=5))

    assert effects == [Observe("lamport.impossible_lock")]
    assert joined.process.requests.queues == {}
