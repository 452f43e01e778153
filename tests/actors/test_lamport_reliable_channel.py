"""The reliable channel of `lamport`, and its streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.effects import HOST, T0

from fencelock.actors.clock import Carry
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.lamport.message import (
    Acknowledge,
    AskDue,
    Confirm,
    ConfirmDue,
    Congested,
    Delivered,
    Hello,
    Introduce,
    Neighbors,
    Parcel,
    PeerJoined,
    Request,
    ResendDue,
)
from fencelock.actors.lamport.reliable_channel import (
    BACKLOG_MAX,
    CONFIRM_AT,
    CONFIRM_DELAY_MS,
    RESEND_MS,
    RESEND_MS_MAX,
    WINDOW,
    ArrivalResult,
    Incoming,
    Outgoing,
    ReliableChannel,
)
from fencelock.actors.message import Address, Local, Message

OURS, THEIRS, THEIR_NEXT = 11, 22, 33
PEER = Address("b/channel")
PROCESS = Address("a/process")


def content(number: int) -> Acknowledge:
    return Acknowledge(lock="x", stamp=number + 1)


def parcel(number: int, *, boot: int = THEIRS, your_boot: int = OURS, confirmed: int = 0) -> Parcel:
    return Parcel(
        boot=boot,
        your_boot=your_boot,
        number=number,
        confirmed=confirmed,
        content=content(number),
    )


def carry(number: int, *nodes: str) -> Carry:
    return Carry(nodes=nodes or ("b",), message=content(number))


def sent(effects: Effects, kind: type[Message | Local]) -> list[Message | Local]:
    return [e.message for e in effects if isinstance(e, Send) and type(e.message) is kind]


def numbers(effects: Effects) -> list[int]:
    return [p.number for p in sent(effects, Parcel) if isinstance(p, Parcel)]


def delivered(effects: Effects) -> list[int]:
    messages = [d.message for d in sent(effects, Delivered) if isinstance(d, Delivered)]
    return [message.stamp - 1 for message in messages]


class ChannelOfA:
    """The channel of ``a``, beside ``b``."""

    def __init__(self) -> None:
        self.channel = ReliableChannel(
            Address("a/channel"), HOST, node="a", boot=OURS, process=PROCESS
        )

    def local(self, event: Neighbors | Carry | ResendDue | ConfirmDue | AskDue) -> Effects:
        return self.channel.handle(Address("a/anyone"), event, T0)

    def hear(self, event: Parcel | Confirm | Hello | Introduce, sender: Address = PEER) -> Effects:
        return self.channel.handle(sender, event, T0)

    def nonce(self) -> int:
        nonce = self.channel.peers["b"].nonce
        assert nonce is not None
        return nonce

    def meet(self, boot: int = THEIRS) -> Effects:
        return self.hear(Introduce(boot=boot, your_boot=OURS, nonce=self.nonce()))


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


def test_it_asks_the_same_question_again_ever_more_slowly_until_it_is_answered(
    fresh: ChannelOfA,
) -> None:
    waits = list[int]()
    for _ in range(6):
        effects = fresh.local(AskDue(node="b"))
        assert sent(effects, Hello) == [Hello(boot=OURS, nonce=fresh.nonce())]
        waits += [e.after_ms for e in effects if isinstance(e, Wake)]
    assert waits[0] > RESEND_MS
    assert waits[-1] == RESEND_MS_MAX

    fresh.meet()
    assert fresh.local(AskDue(node="b")) == ()


def test_a_life_that_answers_the_question_is_met_and_the_process_told(fresh: ChannelOfA) -> None:
    joined = PeerJoined(node="b", boot=THEIRS)

    assert fresh.meet() == [Send(PROCESS, joined), Observe("lamport.peer_joined")]


def test_a_parcel_of_a_life_not_met_is_dropped_and_answered_by_a_question(
    bench: ChannelOfA,
) -> None:
    bench.local(AskDue(node="b"))
    effects = bench.hear(parcel(0, boot=THEIR_NEXT))

    assert delivered(effects) == []
    assert sent(effects, Hello) == [Hello(boot=OURS, nonce=bench.nonce())]
    assert bench.channel.peers["b"].boot == THEIRS
    assert sent(bench.hear(parcel(0, boot=THEIR_NEXT)), Hello) == []  # Not one each.


def test_a_parcel_for_a_former_life_of_ours_is_dropped(bench: ChannelOfA) -> None:
    assert delivered(bench.hear(parcel(0, your_boot=OURS + 1))) == []
    assert delivered(bench.hear(parcel(0))) == [0]


def test_a_late_introduction_of_a_former_life_is_not_believed(bench: ChannelOfA) -> None:
    """It replies to a request that has a reply already, so it may be older than the known life."""
    bench.hear(Hello(boot=THEIR_NEXT, nonce=1))
    asked = bench.nonce()
    bench.meet(THEIR_NEXT)

    late = bench.hear(Introduce(boot=THEIRS, your_boot=OURS, nonce=asked))
    assert late == (Observe("lamport.late_introduce_dropped"),)
    assert bench.channel.peers["b"].boot == THEIR_NEXT


def test_an_introduction_to_a_former_life_of_ours_is_not_believed(fresh: ChannelOfA) -> None:
    fresh.hear(Introduce(boot=THEIRS, your_boot=OURS + 1, nonce=fresh.nonce()))

    assert fresh.channel.peers["b"].boot is None


def test_a_late_hello_of_a_former_life_is_answered_and_not_believed(bench: ChannelOfA) -> None:
    bench.local(Neighbors(nodes=("a", "b")))
    bench.meet(THEIR_NEXT)
    effects = bench.hear(Hello(boot=THEIRS, nonce=7))

    assert sent(effects, Introduce) == [Introduce(boot=OURS, your_boot=THEIRS, nonce=7)]
    assert bench.channel.peers["b"].boot == THEIR_NEXT
    assert sent(bench.meet(THEIR_NEXT), PeerJoined) == []


def test_a_new_life_gets_nothing_that_was_meant_for_its_former(bench: ChannelOfA) -> None:
    for number in range(3):
        bench.local(carry(number))
    bench.hear(Hello(boot=THEIR_NEXT, nonce=1))
    bench.meet(THEIR_NEXT)

    assert list(bench.local(ResendDue(node="b"))) == []
    (first,) = sent(bench.local(carry(9)), Parcel)
    assert first == Parcel(
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
    early = bench.hear(parcel(1))
    assert delivered(early) == []
    assert Observe("lamport.early_held") in early
    assert delivered(bench.hear(parcel(0))) == [0, 1]
    again = bench.hear(parcel(1))
    assert delivered(again) == []
    assert Observe("lamport.repeat_dropped") in again


def test_a_confirmation_rides_on_a_parcel_or_goes_bare_a_little_later(bench: ChannelOfA) -> None:
    effects = bench.hear(parcel(0))
    assert effects[-1] == Wake(CONFIRM_DELAY_MS, ConfirmDue(node="b"))
    assert bench.local(ConfirmDue(node="b")) == [
        Send(PEER, Confirm(boot=OURS, your_boot=THEIRS, confirmed=1))
    ]

    bench.hear(parcel(1))
    (reply,) = sent(bench.local(carry(0)), Parcel)
    assert isinstance(reply, Parcel)
    assert reply.confirmed == 2
    assert bench.local(ConfirmDue(node="b")) == []


def test_many_parcels_are_confirmed_without_delay(bench: ChannelOfA) -> None:
    confirms = [
        confirm for n in range(CONFIRM_AT) for confirm in sent(bench.hear(parcel(n)), Confirm)
    ]

    assert confirms == [Confirm(boot=OURS, your_boot=THEIRS, confirmed=CONFIRM_AT)]


def test_what_is_not_confirmed_is_sent_again_ever_more_slowly(bench: ChannelOfA) -> None:
    bench.local(carry(0))
    bench.local(carry(1))
    waits = list[int]()
    for _ in range(5):
        effects = bench.local(ResendDue(node="b"))
        assert numbers(effects) == [0, 1]
        assert Observe("lamport.resent", 2) in effects
        waits += [e.after_ms for e in effects if isinstance(e, Wake)]
    assert waits == [400, 800, 1600, 1600, 1600]

    bench.hear(Confirm(boot=THEIRS, your_boot=OURS, confirmed=1))
    assert bench.local(ResendDue(node="b")) == (Wake(RESEND_MS, ResendDue(node="b")),)
    assert numbers(bench.local(ResendDue(node="b"))) == [1]
    bench.hear(Confirm(boot=THEIRS, your_boot=OURS, confirmed=2))
    assert bench.local(ResendDue(node="b")) == ()


def test_an_impossible_confirmation_is_counted_and_changes_nothing(bench: ChannelOfA) -> None:
    bench.local(carry(0))

    assert bench.hear(Confirm(boot=THEIRS, your_boot=OURS, confirmed=2)) == [
        Observe("lamport.impossible_confirm")
    ]
    assert len(bench.channel.peers["b"].outgoing) == 1


@pytest.mark.parametrize("sender", ["z/channel", "b/process", "a/channel"])
def test_whoever_is_no_neighbors_courier_is_not_heard(bench: ChannelOfA, sender: str) -> None:
    effects = bench.hear(parcel(0), Address(sender))

    assert effects == (Observe("lamport.stranger_dropped"),)


def test_a_long_backlog_is_told_and_so_is_its_end(bench: ChannelOfA) -> None:
    told: list[Message | Local] = []
    for number in range(BACKLOG_MAX + 2):
        told += sent(bench.local(carry(number)), Congested)
    assert told == [Congested(node="b", congested=True)]

    relief: list[Message | Local] = []
    for confirmed in range(WINDOW, BACKLOG_MAX, WINDOW):
        confirm = Confirm(boot=THEIRS, your_boot=OURS, confirmed=confirmed)
        relief += sent(bench.hear(confirm), Congested)
    assert relief == [Congested(node="b", congested=False)]


def test_a_backlog_ends_with_the_life_it_was_for(bench: ChannelOfA) -> None:
    for number in range(BACKLOG_MAX + 1):
        bench.local(carry(number))
    bench.hear(Hello(boot=THEIR_NEXT, nonce=1))

    assert sent(bench.meet(THEIR_NEXT), Congested) == [Congested(node="b", congested=False)]


# Streams: numbered, confirmed, within a window; delivered once and in order


def test_a_stream_sends_no_more_than_its_window_before_it_is_confirmed() -> None:
    outgoing = Outgoing[int]()
    for number in range(WINDOW + 10):
        outgoing.push(number)

    assert [number for number, _ in outgoing.fresh()] == list(range(WINDOW))
    assert outgoing.fresh() == []
    assert outgoing.confirm(4)
    assert outgoing.fresh() == [(n, n) for n in range(WINDOW, WINDOW + 4)]
    assert outgoing.unconfirmed() == [(n, n) for n in range(4, WINDOW + 4)]


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
def test_what_arrives_in_any_order_and_twice_is_delivered_once_in_order(
    order: list[int], repeats: list[int]
) -> None:
    incoming, got = Incoming[int](), list[int]()
    for number in [*order, *repeats]:
        got += incoming.accept(number, number)[1]
        assert got == list(range(len(got)))

    assert got == list(range(12))
    assert incoming.early == {}


def test_what_is_too_early_to_be_held_back_is_dropped() -> None:
    incoming = Incoming[int]()

    assert incoming.accept(WINDOW, 0) == (ArrivalResult.BEYOND, [])
    assert incoming.accept(WINDOW - 1, 0) == (ArrivalResult.EARLY, [])
    assert incoming.accept(WINDOW - 1, 0) == (ArrivalResult.REPEATED, [])
    assert list(incoming.early) == [WINDOW - 1]
