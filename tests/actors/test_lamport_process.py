"""One lock process, by hand: what it makes of each event."""

from __future__ import annotations

import copy

import pytest
from support.effects import HOST

from fencelock.actors.api.message import Contender
from fencelock.actors.clock import Post
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.lamport.message import (
    Acknowledge,
    Content,
    Delivered,
    Greet,
    Neighbors,
    PeerJoined,
    Pending,
    Release,
    Request,
    Welcome,
)
from fencelock.actors.lamport.order import pack_fence
from fencelock.actors.lamport.process import Heard, LockProcess
from fencelock.actors.lamport.requests import WELCOME_MAX
from fencelock.actors.message import NS_PER_MS, Address, Event, Instant
from fencelock.actors.proxy.backend import Give, Got, Look, Ready, Seen, Want

CLOCK, PROXY = Address("b/clock"), Address("b/proxy")
BOOT = 99


class Bench:
    """The process of ``b``, between ``a`` and ``c``; the test is its clock and courier."""

    def __init__(self, *nodes: str) -> None:
        self.process = LockProcess(
            Address("b/process"), HOST, node="b", boot=BOOT, clock=CLOCK, proxy=PROXY
        )
        self.now = 0
        self.say(Neighbors(nodes=nodes or ("a", "b", "c")))

    def say(self, event: Heard) -> Effects:
        return self.process.handle(Address("b/anyone"), event, Instant(self.now * NS_PER_MS))

    def hear(self, origin: str, message: Content) -> Effects:
        return self.say(Delivered(origin=origin, message=message))

    def want(self, ticket: int, lock: str = "x") -> Effects:
        return self.say(Want(lock=lock, ticket=ticket, session=f"s{ticket}", owner="o"))

    def give(self, ticket: int, lock: str = "x") -> Effects:
        return self.say(Give(lock=lock, ticket=ticket))

    def look(self, lock: str = "x") -> Seen:
        (effect,) = self.say(Look(lock=lock, query=1))
        assert isinstance(effect, Send)
        assert isinstance(effect.message, Seen)
        return effect.message

    def requested(self, ticket: int, stamp: int, lock: str = "x") -> Effects:
        """Want, and get the own request back, stamped."""
        self.want(ticket, lock)
        return self.hear("b", Request(lock=lock, stamp=stamp))

    def acknowledged(self, stamp: int) -> Effects:
        return [
            *self.hear("a", Acknowledge(lock="x", stamp=stamp)),
            *self.hear("c", Acknowledge(lock="x", stamp=stamp)),
        ]


@pytest.fixture
def fresh() -> Bench:
    return Bench()


@pytest.fixture
def bench(fresh: Bench) -> Bench:
    for node in ("a", "c"):
        fresh.say(PeerJoined(node=node, boot=1))
    for node in ("a", "c"):
        fresh.hear(node, welcome(2, stamp=1))
    return fresh


def welcome(
    round_: int, *pending: Pending, stamp: int, boot: int = BOOT, complete: bool = True
) -> Welcome:
    return Welcome(boot=boot, round=round_, requests=pending, complete=complete, stamp=stamp)


def posts(effects: Effects) -> list[tuple[tuple[str, ...], Event]]:
    found = [e.message for e in effects if isinstance(e, Send) and e.to == CLOCK]
    return [(post.nodes, post.message) for post in found if isinstance(post, Post)]


def told(effects: Effects) -> list[Event]:
    return [e.message for e in effects if isinstance(e, Send) and e.to == PROXY]


def got(ticket: int, stamp: int, lock: str = "x") -> Got:
    return Got(lock=lock, ticket=ticket, fence=pack_fence(stamp, 1))


REQUEST = (("a", "b", "c"), Request(lock="x"))


def release(stamp: int) -> tuple[tuple[str, ...], Release]:
    return ("a", "c"), Release(lock="x", request=stamp)


# Starting.


def test_it_is_not_ready_before_all_others_have_welcomed_it(fresh: Bench) -> None:
    greet = Greet(boot=BOOT, round=1)
    assert posts(fresh.say(PeerJoined(node="a", boot=1))) == [(("a",), greet)]
    assert posts(fresh.want(1)) == []
    effects = fresh.say(PeerJoined(node="c", boot=1))
    assert posts(effects) == [(("a", "c"), Greet(boot=BOOT, round=2))]
    assert told(effects) == [Ready(ready=False, detail="not heard since start: a, c")]

    assert told(fresh.hear("a", welcome(2, stamp=5))) == [
        Ready(ready=False, detail="not heard since start: c")
    ]
    effects = fresh.hear("c", welcome(2, stamp=6))
    assert told(effects) == [Ready(ready=True, detail="ready")]
    assert posts(effects) == [REQUEST]


def test_a_process_without_others_is_ready_at_once() -> None:
    bench = Bench("b")

    assert posts(bench.want(1)) == [(("b",), Request(lock="x"))]
    assert told(bench.hear("b", Request(lock="x", stamp=1))) == [
        Got(lock="x", ticket=1, fence=pack_fence(1, 0))
    ]


def test_a_welcome_for_a_former_life_does_not_make_it_ready(fresh: Bench) -> None:
    for node in ("a", "c"):
        fresh.say(PeerJoined(node=node, boot=1))
    fresh.hear("a", welcome(2, stamp=5))
    fresh.hear("c", welcome(2, stamp=5, boot=BOOT + 1))

    assert not fresh.process.joining.ready


def test_the_requests_of_others_are_told_in_a_welcome_and_acknowledged_once(
    fresh: Bench,
) -> None:
    fresh.say(PeerJoined(node="a", boot=1))
    part = (Pending("x", 3), Pending("y", 4))
    effects = fresh.hear("a", welcome(1, *part, stamp=9, complete=False))

    assert posts(effects) == [(("a",), Acknowledge(lock="y"))]
    assert fresh.look().holder == Contender("a", "", "", pack_fence(3, 0), 0)
    assert fresh.process.evidence.heard["a"] == 0  # More from before stamp 9 is to come.
    fresh.hear("a", welcome(1, stamp=10))
    assert fresh.process.evidence.heard["a"] == 10


def test_a_greeting_is_answered_with_the_own_requests_in_parts(bench: Bench) -> None:
    for ticket in range(1, WELCOME_MAX + 2):
        bench.requested(ticket, 10 + ticket, lock=f"l{ticket}")
    bench.want(500, "unstamped")

    answer = posts(bench.hear("a", Greet(boot=7, round=3, stamp=5)))
    assert [nodes for nodes, _ in answer] == [("a",), ("a",)]
    first, last = (message for _, message in answer)
    assert isinstance(first, Welcome)
    assert isinstance(last, Welcome)
    assert (first.boot, first.round, first.complete, len(first.requests)) == (7, 3, False, 100)
    assert (last.complete, last.requests) == (True, (Pending("l101", 111),))


def test_a_former_lifes_requests_and_evidence_go_and_ours_stay(bench: Bench) -> None:
    bench.hear("a", Request(lock="x", stamp=5))
    bench.requested(1, 7)
    assert told(bench.acknowledged(9)) == []

    assert told(bench.say(PeerJoined(node="a", boot=2))) == []
    assert bench.look().waiters[0].node == "b"
    assert told(bench.hear("a", Acknowledge(lock="x", stamp=3))) == []
    assert told(bench.hear("a", Acknowledge(lock="x", stamp=8))) == [got(1, 7)]


def test_a_grant_outlives_the_restart_of_another(bench: Bench) -> None:
    bench.requested(1, 7)
    bench.acknowledged(9)
    assert posts(bench.say(PeerJoined(node="a", boot=2))) == []

    holder = bench.look().holder
    assert holder is not None
    assert holder.node == "b"


# Requesting, holding, giving back.


def test_it_requests_once_and_never_stamps_itself(bench: Bench) -> None:
    effects = bench.want(1)
    assert posts(effects) == [REQUEST]
    assert Observe("lamport.request", 2) in effects
    assert bench.process.bids.out["x"].turn is None


def test_local_tickets_queue_first_come_first_served_with_one_request_out(bench: Bench) -> None:
    bench.requested(1, 5)
    assert posts(bench.want(2)) == []
    assert posts(bench.want(3)) == []
    assert told(bench.acknowledged(6)) == [got(1, 5)]

    assert posts(bench.give(1)) == [release(5), REQUEST]
    bench.hear("b", Request(lock="x", stamp=10))
    assert told(bench.acknowledged(11)) == [got(2, 10)]


def test_locks_do_not_wait_for_each_other(bench: Bench) -> None:
    bench.requested(1, 5)
    bench.requested(2, 6, lock="y")

    assert told(bench.acknowledged(7)) == [got(1, 5), got(2, 6, lock="y")]


def test_who_leaves_the_line_is_forgotten_without_a_word(bench: Bench) -> None:
    bench.requested(1, 5)
    bench.want(2)

    assert bench.give(2) == ()
    assert posts(bench.give(1)) == [release(5)]


def test_a_wait_given_up_releases_its_request_though_it_was_not_granted(bench: Bench) -> None:
    bench.requested(1, 5)
    bench.want(2)

    assert posts(bench.give(1)) == [release(5), REQUEST]
    assert told(bench.acknowledged(9)) == []


def test_a_wait_given_up_before_it_was_stamped_is_released_when_it_is(bench: Bench) -> None:
    bench.want(1)
    bench.want(2)
    assert bench.give(1) == ()
    assert [waiter.session for waiter in bench.look().waiters] == ["s2"]

    assert posts(bench.hear("b", Request(lock="x", stamp=5))) == [release(5), REQUEST]
    bench.hear("b", Request(lock="x", stamp=8))
    assert told(bench.acknowledged(9)) == [got(2, 8)]


def test_a_give_that_crosses_with_the_grant_releases(bench: Bench) -> None:
    bench.requested(1, 5)
    assert told(bench.acknowledged(6)) == [got(1, 5)]
    assert posts(bench.give(1)) == [release(5)]

    assert bench.give(1) == (Observe("lamport.give_unknown"),)


def test_after_all_is_released_nothing_is_left(bench: Bench) -> None:
    before = copy.deepcopy(bench.process.requests.queues), copy.deepcopy(bench.process.bids.out)
    bench.hear("a", Request(lock="x", stamp=3))
    bench.requested(1, 5)
    bench.want(2)
    bench.hear("a", Release(lock="x", request=3, stamp=6))
    bench.acknowledged(8)
    bench.give(2)
    bench.give(1)

    process = bench.process
    assert (process.requests.queues, process.bids.out) == before == ({}, {})
    assert (process.bids.lines, process.bids.tickets) == ({}, 0)
    assert process.uncovered.turns == {}


def test_its_state_can_be_copied(bench: Bench) -> None:
    bench.requested(1, 5)
    bench.want(2)
    state = copy.deepcopy(dict(bench.process.state()))
    bench.acknowledged(6)

    assert state["bids"].out["x"].granted_at is None
