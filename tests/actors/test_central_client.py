from __future__ import annotations

from random import Random

import pytest
from support.effects import HOST, T0

from fencelock.actors.central.client import RETRANSMIT_MS, LockClient
from fencelock.actors.central.message import (
    NUMBER_MAX,
    ClientRetransmit,
    Grant,
    Idle,
    Mode,
    Release,
    ReleaseAck,
    Request,
    ServerFull,
    Settled,
)
from fencelock.actors.effect import Effect, Observe, Send, Wake
from fencelock.actors.message import Address, Event
from fencelock.actors.proxy.backend import Full, Give, Got, Want

ME, BROKER = Address("a/clients-1-1"), Address("a/clients")
SERVER = Address("s/server")

SETTLED = {n: Send(BROKER, Settled(lock="l", number=n, session="s")) for n in (5, 6)}
REQUEST = Send(SERVER, Request(lock="l", client=ME, session="s", owner="o"))


class Bench:
    """Drives one lock client; effects less counters and the length of waits."""

    def __init__(self) -> None:
        self.client = LockClient(
            ME, HOST, lock="l", session="s", broker=BROKER, server=SERVER, random=Random(1)
        )

    def hears(self, sender: Address, event: Event) -> list[Effect | type[Wake]]:
        known: object = event
        assert isinstance(known, Want | Give | Grant | ReleaseAck | ServerFull | ClientRetransmit)
        effects = self.client.handle(sender, known, T0)
        return [
            Wake if isinstance(effect, Wake) else effect
            for effect in effects
            if not isinstance(effect, Observe)
        ]

    def wants(self, ticket: int) -> list[Effect | type[Wake]]:
        return self.hears(BROKER, Want(lock="l", ticket=ticket, session="s", owner="o"))

    def gives(self, ticket: int) -> list[Effect | type[Wake]]:
        return self.hears(BROKER, Give(lock="l", ticket=ticket))

    def granted(self, number: int) -> list[Effect | type[Wake]]:
        return self.hears(BROKER, Grant(lock="l", client=ME, number=number))

    def acked(self, sequence: int) -> list[Effect | type[Wake]]:
        return self.hears(SERVER, ReleaseAck(lock="l", sequence=sequence))

    def rings(self) -> list[Effect | type[Wake]]:
        return self.hears(ME, ClientRetransmit())

    def is_in(self, mode: Mode, sequence: int) -> None:
        assert (self.client.mode, self.client.sequence_num) == (mode, sequence)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def held(bench: Bench) -> Bench:
    """Ticket 1 holds under 5, and no timer is on its way."""
    bench.wants(1)
    bench.granted(5)
    bench.rings()
    return bench


@pytest.fixture
def releasing(held: Bench) -> Bench:
    held.gives(1)
    return held


@pytest.fixture
def released(releasing: Bench) -> Bench:
    releasing.acked(5)
    releasing.rings()
    return releasing


def released_as(sequence: int) -> Send:
    return Send(SERVER, Release(lock="l", client=ME, sequence=sequence))


def got(ticket: int, fence: int) -> Send:
    return Send(BROKER, Got(lock="l", ticket=ticket, fence=fence))


def test_none_asks_when_an_owner_wants_and_again_at_each_timeout(bench: Bench) -> None:
    assert bench.wants(1) == [REQUEST, Wake]
    bench.is_in(Mode.NONE, 0)
    assert bench.rings() == [REQUEST, Wake]
    assert bench.rings() == [REQUEST, Wake]


def test_none_is_held_by_a_grant(bench: Bench) -> None:
    bench.wants(1)

    assert bench.granted(5) == [got(1, 5)]
    bench.is_in(Mode.HELD, 5)


def test_held_does_nothing_at_a_timeout(bench: Bench) -> None:
    bench.wants(1)
    bench.granted(5)

    assert bench.rings() == []
    bench.is_in(Mode.HELD, 5)


@pytest.mark.parametrize("number", [4, 5, 6])
def test_held_is_not_held_again(held: Bench, number: int) -> None:
    assert held.granted(number) == []
    held.is_in(Mode.HELD, 5)


@pytest.mark.parametrize("sequence", [4, 5, 6])
def test_held_ignores_acknowledgements(held: Bench, sequence: int) -> None:
    assert held.acked(sequence) == []
    held.is_in(Mode.HELD, 5)


def test_held_releases_when_the_owner_is_done(held: Bench) -> None:
    assert held.gives(1) == [released_as(5), Wake]
    held.is_in(Mode.RELEASING, 5)


def test_releasing_releases_again_at_each_timeout(releasing: Bench) -> None:
    assert releasing.rings() == [released_as(5), Wake]
    assert releasing.rings() == [released_as(5), Wake]
    releasing.is_in(Mode.RELEASING, 5)


def test_releasing_is_released_by_the_acknowledgement(releasing: Bench) -> None:
    assert releasing.acked(5) == [SETTLED[5], Send(BROKER, Idle(wants=1))]
    releasing.is_in(Mode.RELEASED, 5)


@pytest.mark.parametrize("sequence", [4, 6])
def test_releasing_ignores_acknowledgements_of_other_numbers(
    releasing: Bench, sequence: int
) -> None:
    """The page compares with "larger than" and takes 6; that loses the lock (`LockServer`)."""
    assert releasing.acked(sequence) == []
    releasing.is_in(Mode.RELEASING, 5)


@pytest.mark.parametrize("number", [4, 5])
def test_releasing_and_released_ignore_grants_that_are_not_newer(
    releasing: Bench, number: int
) -> None:
    assert releasing.granted(number) == []
    releasing.is_in(Mode.RELEASING, 5)
    releasing.acked(5)
    assert releasing.granted(number) == []
    releasing.is_in(Mode.RELEASED, 5)


def test_releasing_is_held_by_a_newer_grant_if_an_owner_waits(releasing: Bench) -> None:
    releasing.wants(2)

    assert releasing.granted(6) == [SETTLED[5], got(2, 6)]
    releasing.is_in(Mode.HELD, 6)
    assert releasing.acked(5) == []
    releasing.is_in(Mode.HELD, 6)


def test_released_stays_so_and_asks_only_if_an_owner_wants(released: Bench) -> None:
    assert released.acked(5) == []
    released.is_in(Mode.RELEASED, 5)
    assert released.rings() == []
    assert released.wants(2) == [REQUEST, Wake]
    assert released.rings() == [REQUEST, Wake]


def test_released_is_held_by_a_newer_grant(released: Bench) -> None:
    released.wants(2)

    assert released.granted(9) == [got(2, 9)]
    released.is_in(Mode.HELD, 9)


def test_a_grant_that_nobody_wants_is_released_at_once(released: Bench) -> None:
    assert released.granted(9) == [released_as(9), Wake]
    released.is_in(Mode.RELEASING, 9)


def test_a_grant_that_comes_after_the_owner_gave_up_is_released_at_once(bench: Bench) -> None:
    bench.wants(1)
    assert bench.gives(1) == [Send(BROKER, Idle(wants=1))]

    assert bench.granted(5) == [released_as(5)]  # The timer of the request is on its way.
    assert bench.rings() == [released_as(5), Wake]


def test_two_owners_are_served_in_turn_and_under_two_numbers(held: Bench) -> None:
    assert held.wants(2) == []
    assert held.wants(3) == []
    assert held.gives(1) == [released_as(5), Wake]
    assert held.acked(5) == [SETTLED[5], REQUEST]
    assert held.granted(6) == [got(2, 6)]
    assert held.gives(2) == [released_as(6)]
    assert held.acked(6) == [SETTLED[6], REQUEST]
    assert held.granted(7) == [got(3, 7)]


def test_an_owner_that_gives_up_waiting_is_passed_over(held: Bench) -> None:
    held.wants(2)
    held.wants(3)
    assert held.gives(2) == []
    held.gives(1)
    held.acked(5)

    assert held.granted(6) == [got(3, 6)]


def test_a_client_that_heard_of_others_lets_them_go_first(held: Bench) -> None:
    held.granted(5)  # The server reminds: somebody else asks.
    held.wants(2)
    held.gives(1)

    assert held.acked(5) == [SETTLED[5]]
    assert held.rings() == [REQUEST, Wake]


def test_a_give_for_a_ticket_that_was_refused_is_nothing(bench: Bench) -> None:
    assert bench.gives(1) == []


def test_a_crowded_server_refuses_all_who_wait(bench: Bench) -> None:
    bench.wants(1)
    bench.wants(2)

    effects = bench.hears(SERVER, ServerFull(lock="l", locks_max=10))

    detail = "the server holds 10 locks, its limit"
    assert effects == [
        Send(BROKER, Full(lock="l", ticket=1, detail=detail)),
        Send(BROKER, Full(lock="l", ticket=2, detail=detail)),
        Send(BROKER, Idle(wants=2)),
    ]
    assert bench.rings() == []


def test_a_late_refusal_does_not_touch_who_holds(held: Bench) -> None:
    held.wants(2)

    assert held.hears(SERVER, ServerFull(lock="l", locks_max=10)) == []
    assert list(held.client.tickets) == [1, 2]


@pytest.mark.parametrize(
    ("sender", "event", "mark"),
    [
        (SERVER, Grant(lock="l", client=ME, number=9), "central.grant_malformed"),
        (BROKER, Grant(lock="m", client=ME, number=9), "central.grant_malformed"),
        (BROKER, Grant(lock="l", client=ME, number=0), "central.grant_not_newer"),
        (BROKER, Grant(lock="l", client=ME, number=NUMBER_MAX + 1), "central.grant_not_newer"),
        (Address("b/x"), ReleaseAck(lock="l", sequence=1), "central.ack_malformed"),
        (SERVER, ReleaseAck(lock="m", sequence=1), "central.ack_malformed"),
        (Address("b/x"), ServerFull(lock="l", locks_max=1), "central.crowded_malformed"),
    ],
)
def test_what_no_honest_peer_says_changes_nothing(
    bench: Bench, sender: Address, event: Grant | ReleaseAck | ServerFull, mark: str
) -> None:
    bench.wants(1)
    before = dict(bench.client.state())

    assert bench.client.handle(sender, event, T0) == (Observe(mark),)
    assert dict(bench.client.state()) == before


def test_retransmissions_are_spread_around_their_period(bench: Bench) -> None:
    bench.wants(1)
    waits = [
        effect.after_ms
        for _ in range(500)
        for effect in bench.client.handle(ME, ClientRetransmit(), T0)
        if isinstance(effect, Wake)
    ]

    assert len(waits) == 500
    assert RETRANSMIT_MS // 2 <= min(waits) < max(waits) <= RETRANSMIT_MS * 3 // 2
