"""The reliable channel of `lamport`: its streams, and three channels over an unreliable network.

What one channel does stands in `transcripts/lamport-channel.txt`. A stream is numbered, confirmed,
and within a window; it is delivered once and in order.
"""

from __future__ import annotations

import heapq
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.role_harness import HOST, T0

from fencelock.actors.clock import Carry
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.lamport import wire as messages
from fencelock.actors.lamport.reliable_channel import (
    CHANNEL_WINDOW,
    Incoming,
    Outgoing,
    Peer,
    ReliableChannel,
)
from fencelock.actors.message import Address, Event, Message, Timer, address_of, node_of


def test_a_stream_sends_no_more_than_its_window_before_it_is_confirmed() -> None:
    outgoing = Outgoing[int]()
    for number in range(CHANNEL_WINDOW + 10):
        outgoing.push(number)

    assert [number for number, _ in outgoing.fresh()] == list(range(CHANNEL_WINDOW))
    assert outgoing.fresh() == []
    assert outgoing.confirm(4)
    assert outgoing.fresh() == [(n, n) for n in range(CHANNEL_WINDOW, CHANNEL_WINDOW + 4)]
    assert outgoing.unconfirmed() == [(n, n) for n in range(4, CHANNEL_WINDOW + 4)]


def test_a_confirmation_of_what_was_never_sent_changes_nothing() -> None:
    outgoing = Outgoing[int]()
    outgoing.push(0)
    outgoing.fresh()
    outgoing.push(1)

    assert not outgoing.confirm(2)
    assert not outgoing.confirm(-1)
    assert outgoing.confirm(1)
    assert outgoing.confirm(0)  # An old one, late.
    assert outgoing.fresh() == [(1, 1)]


@given(st.permutations(range(12)), st.lists(st.integers(0, 11)))
def test_messages_that_arrive_in_any_order_and_twice_are_delivered_once_in_order(
    order: list[int], repeats: list[int]
) -> None:
    incoming, got = Incoming[int](), list[int]()
    for number in [*order, *repeats]:
        got += incoming.accept(number, number)[1]
        assert got == list(range(len(got)))

    assert got == list(range(12))
    assert incoming.early == {}


def test_messages_too_early_to_be_held_back_are_dropped() -> None:
    incoming = Incoming[int]()

    assert incoming.accept(CHANNEL_WINDOW, 0) == ("lamport.beyond_dropped", [])
    assert incoming.accept(CHANNEL_WINDOW - 1, 0) == ("lamport.early_held", [])
    assert incoming.accept(CHANNEL_WINDOW - 1, 0) == ("lamport.repeat_dropped", [])
    assert list(incoming.early) == [CHANNEL_WINDOW - 1]


NODES = ("a", "b", "c")
Life = tuple[str, int]
"""A node and the boot id of a life."""


class Net:
    """Three channels, a random network between them, and the expected content of each stream."""

    def __init__(self, seed: int, kind: type[ReliableChannel] = ReliableChannel) -> None:
        self.kind = kind
        self.random = Random(seed)
        self.trouble = True
        self.time = 0
        self.pushed = 0
        self.agenda: list[tuple[int, int, Life, Address, Event]] = []
        self.couriers: dict[str, ReliableChannel] = {}
        self.met: dict[Life, dict[str, int]] = {}
        """For each life, the life in which it believes each other node to be."""
        self.carried: dict[tuple[Life, Life], list[int]] = {}
        self.delivered: dict[tuple[Life, Life], list[int]] = {}
        self.words = 0
        for node in NODES:
            self.start(node)

    def life(self, node: str) -> Life:
        return node, self.couriers[node].boot

    def start(self, node: str) -> None:
        boot = self.random.getrandbits(63)
        process = address_of(node, "process")
        address = address_of(node, "channel")
        self.couriers[node] = self.kind(address, HOST, node=node, boot=boot, process=process)
        self.met[node, boot] = {}
        self.handle(node, Address(f"{node}/node"), messages.Neighbors(nodes=NODES))

    def handle(self, node: str, sender: Address, event: Event) -> None:
        effects = self.couriers[node].handle(sender, event, T0)  # type: ignore[arg-type]
        for effect in effects:
            match effect:
                case Wake(after_ms, timer):
                    self.later(after_ms, self.life(node), sender, timer)
                case Send(_, messages.Delivered(origin=origin, message=message)):
                    pair = (origin, self.met[self.life(node)][origin]), self.life(node)
                    self.delivered.setdefault(pair, []).append(message.stamp)
                case Send(_, messages.PeerJoined(node=peer, boot=boot)):
                    self.met[self.life(node)][peer] = boot
                case Send(to, Message() as message):
                    self.throw(node, to, message)
                case Observe():
                    pass
                case other:
                    raise AssertionError(other)

    def throw(self, node: str, to: Address, message: Message) -> None:
        copies = self.random.choice((0, 0, 1, 1, 1, 2)) if self.trouble else 1
        for _ in range(copies):
            delay = self.random.choice((1, 2, 5, 30, 400, 3_000)) if self.trouble else 1
            anyone: Life = (node_of(to), 0)
            self.later(delay, anyone, address_of(node, "channel"), message)

    def later(self, after_ms: int, life: Life, sender: Address, event: Event) -> None:
        self.pushed += 1
        heapq.heappush(self.agenda, (self.time + after_ms, self.pushed, life, sender, event))

    def carry(self, node: str) -> None:
        """Send one message from ``node`` to both others."""
        self.words += 1
        others = tuple(other for other in NODES if other != node)
        for other in others:
            boot = self.met[self.life(node)].get(other)
            if boot is not None:
                pair = self.life(node), (other, boot)
                self.carried.setdefault(pair, []).append(self.words)
        message = messages.Acknowledge(lock="x", stamp=self.words)
        self.handle(node, Address(f"{node}/clock"), Carry(nodes=others, message=message))

    def step(self) -> None:
        self.time, _, life, sender, event = heapq.heappop(self.agenda)
        node, boot = life
        if isinstance(event, Timer) and boot != self.couriers[node].boot:
            return
        self.handle(node, sender, event)

    def check(self) -> None:
        for pair, got in self.delivered.items():
            carried = self.carried.get(pair, [])
            assert got == carried[: len(got)], pair

    def run(self, events: int) -> None:
        for _ in range(events):
            if self.agenda:
                self.step()
            if not self.agenda or self.random.random() < 0.1:
                self.carry(self.random.choice(NODES))
            if self.random.random() < 0.004:
                self.start(self.random.choice(NODES))
            self.check()


def end_well(seed: int, kind: type[ReliableChannel] = ReliableChannel) -> None:
    net = Net(seed, kind)
    net.run(1_200)
    net.trouble = False
    while net.agenda and net.time < 1_000_000:
        net.step()
    net.check()
    assert net.agenda == []  # No timer runs while nothing is to be done.
    for node in NODES:
        for other in NODES:
            if other != node:
                pair = net.life(node), net.life(other)
                assert net.met[pair[0]][other] == net.couriers[other].boot
                assert net.delivered.get(pair, []) == net.carried.get(pair, [])


@pytest.mark.parametrize("seed", range(40))
def test_between_two_lives_all_is_delivered_once_in_order_whatever_happens(seed: int) -> None:
    """Once the network is good again, nothing is left behind."""
    end_well(seed)


def test_the_harness_meets_restarts_and_unfinished_streams() -> None:
    lives, unfinished = 0, 0
    for seed in range(10):
        net = Net(seed)
        net.run(1_200)
        lives += len(net.met)
        unfinished += sum(net.delivered.get(p, []) != words for p, words in net.carried.items())

    assert lives >= 50
    assert unfinished >= 20


def test_a_frame_of_a_courier_is_one_of_four() -> None:
    kinds = {messages.Parcel, messages.Confirm, messages.Hello, messages.Introduce}

    assert {kind for kind in ReliableChannel.accepts if issubclass(kind, Message)} == kinds


class BelievesAnyIntroduction(ReliableChannel):
    """Planted bug: accepts an `Introduce` that is late, or that an earlier life of the peer
    sent."""

    def _on_introduce(self, peer: Peer, introduce: messages.Introduce) -> Effects:
        peer.nonce = introduce.nonce
        return super()._on_introduce(peer, introduce)


class ForgetsLives(ReliableChannel):
    """Planted bug: accepts every parcel as if it belonged to the known life of the peer and to its
    own."""

    def _meets(self, peer: Peer, event: messages.Parcel | messages.Confirm) -> bool:
        return peer.boot is not None


class KeepsStreams(ReliableChannel):
    """Goes on counting where the former life of a peer left off."""

    def _on_introduce(self, peer: Peer, introduce: messages.Introduce) -> Effects:
        outgoing, incoming = peer.outgoing, peer.incoming
        effects = super()._on_introduce(peer, introduce)
        peer.outgoing, peer.incoming = outgoing, incoming
        return effects


@pytest.mark.parametrize("mutant", [BelievesAnyIntroduction, ForgetsLives, KeepsStreams])
def test_a_planted_bug_is_caught(mutant: type[ReliableChannel]) -> None:
    caught = False
    for seed in range(40):
        try:
            end_well(seed, mutant)
        except (AssertionError, ValueError):
            caught = True
            break
    assert caught
