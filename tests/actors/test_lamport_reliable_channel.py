"""The reliable channel of `lamport`: by hand, and over an unreliable network."""

from __future__ import annotations

import heapq
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.expect import present
from support.role_harness import HOST, T0, only_sent, sent

from fencelock.actors.clock import Carry
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.lamport import wire as messages
from fencelock.actors.lamport.reliable_channel import (
    CHANNEL_WINDOW,
    CONFIRM_AT,
    CONFIRM_DELAY_MS,
    REFILL_AT,
    RESEND_MS,
    RESEND_MS_MAX,
    Incoming,
    Outgoing,
    Peer,
    ReliableChannel,
)
from fencelock.actors.lamport.wire import (
    Acknowledge,
    AskDue,
    Busy,
    Confirm,
    ConfirmDue,
    Delivered,
    Hello,
    Introduce,
    Neighbors,
    Parcel,
    PeerJoined,
    Probe,
    Request,
    ResendDue,
)
from fencelock.actors.message import Address, Event, Message, Timer, address_of, node_of

OURS, THEIRS, THEIR_NEXT = 11, 22, 33
PEER = Address("b/channel")
PROCESS = Address("a/process")


def content(number: int) -> Request:
    return Request(lock="x", stamp=number + 1)


def parcel(number: int, *, boot: int = THEIRS, your_boot: int = OURS, confirmed: int = 0) -> Parcel:
    return Parcel(
        boot=boot, your_boot=your_boot, number=number, confirmed=confirmed, content=content(number)
    )


def carry(number: int, *nodes: str) -> Carry:
    return Carry(nodes=nodes or ("b",), message=content(number))


def numbers(effects: Effects) -> list[int]:
    return [parcel.number for parcel in sent(effects, Parcel)]


def delivered(effects: Effects) -> list[int]:
    return [one.message.stamp - 1 for one in sent(effects, Delivered)]


class ChannelOfA:
    """The channel of ``a``, beside ``b``."""

    def __init__(self) -> None:
        self.channel = ReliableChannel(
            Address("a/channel"), HOST, node="a", boot=OURS, process=PROCESS
        )

    def local(self, event: Neighbors | Carry | ResendDue | ConfirmDue | AskDue) -> Effects:
        return self.channel.handle(Address("a/anyone"), event, T0)

    def receive(
        self, event: Parcel | Confirm | Hello | Introduce, sender: Address = PEER
    ) -> Effects:
        return self.channel.handle(sender, event, T0)

    def nonce(self) -> int:
        return present(self.channel.peers["b"].nonce)

    def meet(self, boot: int = THEIRS) -> Effects:
        return self.receive(Introduce(boot=boot, your_boot=OURS, nonce=self.nonce()))


@pytest.fixture
def fresh() -> ChannelOfA:
    bench = ChannelOfA()
    bench.local(Neighbors(nodes=("a", "b")))
    return bench


@pytest.fixture
def bench(fresh: ChannelOfA) -> ChannelOfA:
    fresh.meet()
    return fresh


def test_a_courier_first_asks_every_other_who_it_is() -> None:
    bench = ChannelOfA()
    effects = bench.local(Neighbors(nodes=("a", "b", "c")))

    assert [e.to for e in effects if isinstance(e, Send)] == ["b/channel", "c/channel"]
    assert [type(m) for m in sent(effects, Hello)] == [Hello, Hello]


def test_it_asks_again_ever_more_slowly_until_it_is_answered(fresh: ChannelOfA) -> None:
    waits = list[int]()
    for _ in range(6):
        effects = fresh.local(AskDue(node="b"))
        assert sent(effects, Hello) == [Hello(boot=OURS, nonce=fresh.nonce())]
        waits += [e.after_ms for e in effects if isinstance(e, Wake)]
    assert waits[0] > RESEND_MS
    assert waits[-1] == RESEND_MS_MAX

    fresh.meet()
    assert fresh.local(AskDue(node="b")) == ()


def test_a_life_that_answers_the_hello_is_met_and_the_process_notified(fresh: ChannelOfA) -> None:
    joined = PeerJoined(node="b", boot=THEIRS)

    assert fresh.meet() == [Send(PROCESS, joined), Observe("lamport.peer_joined")]


def test_a_parcel_of_a_life_not_met_is_dropped_and_questioned(bench: ChannelOfA) -> None:
    bench.local(AskDue(node="b"))
    effects = bench.receive(parcel(0, boot=THEIR_NEXT))

    assert delivered(effects) == []
    assert sent(effects, Hello) == [Hello(boot=OURS, nonce=bench.nonce())]
    assert bench.channel.peers["b"].boot == THEIRS
    assert sent(bench.receive(parcel(0, boot=THEIR_NEXT)), Hello) == []  # Not one each.


def test_a_parcel_for_a_former_life_of_ours_is_dropped(bench: ChannelOfA) -> None:
    assert delivered(bench.receive(parcel(0, your_boot=OURS + 1))) == []
    assert delivered(bench.receive(parcel(0))) == [0]


def test_a_late_introduction_of_a_former_life_is_not_believed(bench: ChannelOfA) -> None:
    """It replies to a request that has a reply already, so it may be older than the known life."""
    bench.receive(Hello(boot=THEIR_NEXT, nonce=1))
    asked = bench.nonce()
    bench.meet(THEIR_NEXT)

    late = bench.receive(Introduce(boot=THEIRS, your_boot=OURS, nonce=asked))
    assert late == (Observe("lamport.late_introduce_dropped"),)
    assert bench.channel.peers["b"].boot == THEIR_NEXT


def test_an_introduction_to_a_former_life_of_ours_is_not_believed(fresh: ChannelOfA) -> None:
    fresh.receive(Introduce(boot=THEIRS, your_boot=OURS + 1, nonce=fresh.nonce()))

    assert fresh.channel.peers["b"].boot is None


def test_a_late_hello_of_a_former_life_is_answered_and_not_believed(bench: ChannelOfA) -> None:
    bench.local(Neighbors(nodes=("a", "b")))
    bench.meet(THEIR_NEXT)
    effects = bench.receive(Hello(boot=THEIRS, nonce=7))

    assert sent(effects, Introduce) == [Introduce(boot=OURS, your_boot=THEIRS, nonce=7)]
    assert bench.channel.peers["b"].boot == THEIR_NEXT
    assert sent(bench.meet(THEIR_NEXT), PeerJoined) == []


def test_a_new_life_gets_nothing_that_was_meant_for_its_former(bench: ChannelOfA) -> None:
    for number in range(3):
        bench.local(carry(number))
    bench.receive(Hello(boot=THEIR_NEXT, nonce=1))
    bench.meet(THEIR_NEXT)

    assert list(bench.local(ResendDue(node="b"))) == []
    assert only_sent(bench.local(carry(9)), Parcel) == Parcel(
        boot=OURS, your_boot=THEIR_NEXT, number=0, confirmed=0, content=content(9)
    )


def test_nothing_is_kept_for_a_node_that_was_never_met(fresh: ChannelOfA) -> None:
    assert fresh.local(carry(0)) == [Observe("lamport.unaddressed_dropped")]


def test_a_nodes_own_copy_comes_straight_back(bench: ChannelOfA) -> None:
    request = Request(lock="x", stamp=5)
    effects = bench.local(Carry(nodes=("a", "b"), message=request))

    assert effects[0] == Send(PROCESS, Delivered(origin="a", message=request))
    assert numbers(effects) == [0]


def test_early_ones_are_held_back_and_repeats_dropped(bench: ChannelOfA) -> None:
    early = bench.receive(parcel(1))
    assert delivered(early) == []
    assert Observe("lamport.early_held") in early
    assert delivered(bench.receive(parcel(0))) == [0, 1]
    again = bench.receive(parcel(1))
    assert delivered(again) == []
    assert Observe("lamport.repeat_dropped") in again


def test_a_confirmation_rides_on_a_parcel_or_goes_bare_a_little_later(bench: ChannelOfA) -> None:
    effects = bench.receive(parcel(0))
    assert effects[-1] == Wake(CONFIRM_DELAY_MS, ConfirmDue(node="b"))
    assert bench.local(ConfirmDue(node="b")) == [
        Send(PEER, Confirm(boot=OURS, your_boot=THEIRS, confirmed=1))
    ]

    bench.receive(parcel(1))
    assert only_sent(bench.local(carry(0)), Parcel).confirmed == 2
    assert bench.local(ConfirmDue(node="b")) == []


def test_one_timer_runs_for_the_confirmation_of_several_parcels(bench: ChannelOfA) -> None:
    effects = [*bench.receive(parcel(0)), *bench.receive(parcel(1))]
    assert [one for one in effects if isinstance(one, Wake)] == [
        Wake(CONFIRM_DELAY_MS, ConfirmDue(node="b"))
    ]


def test_many_parcels_are_confirmed_without_delay(bench: ChannelOfA) -> None:
    confirms = [
        confirm for n in range(CONFIRM_AT) for confirm in sent(bench.receive(parcel(n)), Confirm)
    ]

    assert confirms == [Confirm(boot=OURS, your_boot=THEIRS, confirmed=CONFIRM_AT)]


def test_an_unconfirmed_message_is_sent_again_ever_more_slowly(bench: ChannelOfA) -> None:
    bench.local(carry(0))
    bench.local(carry(1))
    waits = list[int]()
    for _ in range(5):
        effects = bench.local(ResendDue(node="b"))
        assert numbers(effects) == [0, 1]
        assert Observe("lamport.resent", 2) in effects
        waits += [e.after_ms for e in effects if isinstance(e, Wake)]
    assert waits == [400, 800, 1600, 1600, 1600]

    bench.receive(Confirm(boot=THEIRS, your_boot=OURS, confirmed=1))
    assert bench.local(ResendDue(node="b")) == (Wake(RESEND_MS, ResendDue(node="b")),)
    assert numbers(bench.local(ResendDue(node="b"))) == [1]
    bench.receive(Confirm(boot=THEIRS, your_boot=OURS, confirmed=2))
    assert bench.local(ResendDue(node="b")) == ()


def test_an_impossible_confirmation_is_counted_and_changes_nothing(bench: ChannelOfA) -> None:
    bench.local(carry(0))

    assert bench.receive(Confirm(boot=THEIRS, your_boot=OURS, confirmed=2)) == [
        Observe("lamport.impossible_confirm")
    ]
    assert len(bench.channel.peers["b"].outgoing) == 1


@pytest.mark.parametrize("sender", ["z/channel", "b/process", "a/channel"])
def test_messages_from_other_roles_than_couriers_of_neighbors_are_dropped(
    bench: ChannelOfA, sender: str
) -> None:
    effects = bench.receive(parcel(0), Address(sender))

    assert effects == (Observe("lamport.stranger_dropped"),)


def test_a_window_of_unconfirmed_requests_is_reported_and_so_is_room_for_more(
    bench: ChannelOfA,
) -> None:
    notices = [sent(bench.local(carry(number)), Busy) for number in range(2 * CHANNEL_WINDOW)]
    assert [number for number, found in enumerate(notices) if found] == [CHANNEL_WINDOW - 1]
    assert notices[CHANNEL_WINDOW - 1] == [Busy(node="b", busy=True)]

    def confirm(number: int) -> list[Busy]:
        event = Confirm(boot=THEIRS, your_boot=OURS, confirmed=number)
        return sent(bench.receive(event), Busy)

    assert confirm(CHANNEL_WINDOW) == []
    assert confirm(2 * CHANNEL_WINDOW - REFILL_AT) == []
    assert confirm(2 * CHANNEL_WINDOW - REFILL_AT + 1) == [Busy(node="b", busy=False)]


def test_an_acknowledgement_that_waits_is_replaced_by_the_next_one(bench: ChannelOfA) -> None:
    def acknowledge(stamp: int) -> Effects:
        return bench.local(Carry(nodes=("b",), message=Acknowledge(lock="x", stamp=stamp)))

    for number in range(CHANNEL_WINDOW):
        assert numbers(acknowledge(number + 1)) == [number]  # Sent at once, and each for itself.
    assert acknowledge(1_000) == []
    assert acknowledge(1_001) == [Observe("lamport.replaced")]
    bench.local(carry(1_001))
    assert acknowledge(1_003) == []
    later = bench.receive(Confirm(boot=THEIRS, your_boot=OURS, confirmed=CHANNEL_WINDOW))
    assert [parcel.content for parcel in sent(later, Parcel)] == [
        Acknowledge(lock="x", stamp=1_001),
        content(1_001),
        Acknowledge(lock="x", stamp=1_003),
    ]


def test_a_probe_that_waits_replaces_acknowledgements_and_probes_that_came_last(
    bench: ChannelOfA,
) -> None:
    for number in range(CHANNEL_WINDOW):
        bench.local(carry(number))
    for stamp in range(100, 200, 2):
        bench.local(Carry(nodes=("b",), message=Probe(stamp=stamp)))
        bench.local(Carry(nodes=("b",), message=Acknowledge(lock="x", stamp=stamp + 1)))
    later = bench.receive(Confirm(boot=THEIRS, your_boot=OURS, confirmed=CHANNEL_WINDOW))
    assert [parcel.content for parcel in sent(later, Parcel)] == [
        Probe(stamp=198),
        Acknowledge(lock="x", stamp=199),
    ]


def test_a_backlog_ends_with_the_life_it_was_for(bench: ChannelOfA) -> None:
    for number in range(CHANNEL_WINDOW):
        bench.local(carry(number))
    bench.receive(Hello(boot=THEIR_NEXT, nonce=1))

    assert sent(bench.meet(THEIR_NEXT), Busy) == [Busy(node="b", busy=False)]


# Streams: numbered, confirmed, within a window; delivered once and in order


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
