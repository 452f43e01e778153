"""A lock client of `central`."""

from __future__ import annotations

from typing import Any

import pytest
from support.central_scene import BROKER_A, SERVER, A, LoneClient, request
from support.expect import checked
from support.role_harness import T0, only_sent

from fencelock.actors.central import wire as messages
from fencelock.actors.central.lock_client import RETRANSMIT_MS
from fencelock.actors.central.wire import Mode
from fencelock.actors.effect import Observe, Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy.event import (
    HoldReleased,
    LockGranted,
    LockRevoked,
    QueueFull,
    ReleaseOutcome,
)

REQUEST = Send(SERVER, request(A))
IDLE = Send(BROKER_A, messages.Idle(wants=1))


def released_as(sequence: int) -> Send:
    return Send(SERVER, messages.Release(lock="l", client=A, sequence=sequence))


def got(ticket: int, fence: int) -> Send:
    return Send(BROKER_A, LockGranted(lock="l", ticket=ticket, fence=fence))


def settled(number: int) -> Send:
    return Send(
        BROKER_A, HoldReleased(lock="l", fence=number, session="s", outcome=ReleaseOutcome.FREED)
    )


def confirmed(number: int) -> Send:
    return Send(BROKER_A, messages.Revoked(lock="l", client=A, number=number))


def client_in(state: str) -> LoneClient:
    """Return a client whose ticket 1 came so far, under 5; ticket 2 may want the lock, too."""
    mode, _, wanted = state.partition(", ")
    client = LoneClient()
    assert client.wants(1) == [REQUEST, Wake]
    if mode != "none":
        client.granted(5)
        assert client.rings() == []
    if mode in ("releasing", "released"):
        client.gives(1)
    if mode == "released":
        client.acked(5)
        client.rings()
    if wanted:
        client.wants(2)
    return client


NONE, HELD, RELEASING, RELEASED = Mode.NONE, Mode.HELD, Mode.RELEASING, Mode.RELEASED
STEPS: list[tuple[str, tuple[Any, ...], list[Any], Mode, int]] = [
    ("none", ("rings",), [REQUEST, Wake], NONE, 0),
    ("none", ("granted", 5), [got(1, 5)], HELD, 5),
    ("held", ("rings",), [], HELD, 5),
    *(("held", ("granted", number), [], HELD, 5) for number in (4, 5, 6)),
    *(("held", ("acked", number), [], HELD, 5) for number in (4, 5, 6)),
    ("held", ("gives", 1), [released_as(5), Wake], RELEASING, 5),
    ("held", ("revoked", 4), [confirmed(4)], HELD, 5),
    ("releasing", ("rings",), [released_as(5), Wake], RELEASING, 5),
    ("releasing", ("acked", 5), [settled(5), IDLE], RELEASED, 5),
    # The page compares with "larger than" and takes 6; that loses the lock (`LockServer`).
    *(("releasing", ("acked", number), [], RELEASING, 5) for number in (4, 6)),
    *(("releasing", ("granted", number), [], RELEASING, 5) for number in (4, 5)),
    ("releasing", ("revoked", 5), [settled(5), IDLE, confirmed(5)], RELEASED, 5),
    ("releasing, wanted", ("granted", 6), [settled(5), got(2, 6)], HELD, 6),
    ("released", ("acked", 5), [], RELEASED, 5),
    ("released", ("rings",), [], RELEASED, 5),
    ("released", ("wants", 2), [REQUEST, Wake], RELEASED, 5),
    *(("released", ("granted", number), [], RELEASED, 5) for number in (4, 5)),
    ("released", ("granted", 9), [released_as(9), Wake], RELEASING, 9),
    ("released, wanted", ("rings",), [REQUEST, Wake], RELEASED, 5),
    ("released, wanted", ("granted", 9), [got(2, 9)], HELD, 9),
]


@pytest.mark.parametrize(
    ("before", "event", "effects", "mode", "number"),
    STEPS,
    ids=[f"{before} {' '.join(map(str, event))}" for before, event, *_ in STEPS],
)
def test_each_mode_answers_each_event_as_the_page_has_it(
    before: str, event: tuple[Any, ...], effects: list[Any], mode: Mode, number: int
) -> None:
    client = client_in(before)
    name, *arguments = event
    for _ in range(2 if name == "rings" else 1):
        assert getattr(client, name)(*arguments) == effects
        client.is_in(mode, number)


def test_a_grant_after_the_owner_gave_up_is_released_at_once(lone_client: LoneClient) -> None:
    lone_client.wants(1)
    assert lone_client.gives(1) == [IDLE]

    assert lone_client.granted(5) == [released_as(5)]  # The timer of the request is on its way.
    assert lone_client.rings() == [released_as(5), Wake]


def test_two_owners_are_served_in_turn_and_under_two_numbers(held: LoneClient) -> None:
    assert held.wants(2) == []
    assert held.wants(3) == []
    assert held.gives(1) == [released_as(5), Wake]
    assert held.acked(5) == [settled(5), REQUEST]
    assert held.granted(6) == [got(2, 6)]
    assert held.gives(2) == [released_as(6)]
    assert held.acked(6) == [settled(6), REQUEST]
    assert held.granted(7) == [got(3, 7)]


def test_an_owner_that_gives_up_waiting_is_passed_over(held: LoneClient) -> None:
    held.wants(2)
    held.wants(3)
    assert held.gives(2) == []
    held.gives(1)
    held.acked(5)

    assert held.granted(6) == [got(3, 6)]


def test_a_client_that_knows_of_others_lets_them_go_first(held: LoneClient) -> None:
    held.granted(5)  # The server reminds: another client asks.
    held.wants(2)
    held.gives(1)

    assert held.acked(5) == [settled(5)]
    assert held.rings() == [REQUEST, Wake]


def test_a_give_for_a_ticket_that_was_refused_is_nothing(lone_client: LoneClient) -> None:
    assert lone_client.gives(1) == []


def test_a_crowded_server_refuses_all_who_wait(lone_client: LoneClient) -> None:
    lone_client.wants(1)
    lone_client.wants(2)

    effects = lone_client.receives(SERVER, messages.ServerFull(lock="l", locks_max=10))

    detail = "the server holds 10 locks, its limit"
    assert effects == [
        Send(BROKER_A, QueueFull(lock="l", ticket=1, detail=detail)),
        Send(BROKER_A, QueueFull(lock="l", ticket=2, detail=detail)),
        Send(BROKER_A, messages.Idle(wants=2)),
    ]
    assert lone_client.rings() == []


def test_a_late_refusal_does_not_touch_who_holds(held: LoneClient) -> None:
    held.wants(2)

    assert held.receives(SERVER, messages.ServerFull(lock="l", locks_max=10)) == []
    assert list(held.client.tickets) == [1, 2]


@pytest.mark.parametrize(
    ("sender", "event", "mark"),
    [
        (SERVER, messages.Grant(lock="l", client=A, number=9), "central.grant_malformed"),
        (BROKER_A, messages.Grant(lock="m", client=A, number=9), "central.grant_malformed"),
        (BROKER_A, messages.Grant(lock="l", client=A, number=0), "central.grant_not_newer"),
        (
            BROKER_A,
            messages.Grant(lock="l", client=A, number=messages.CENTRAL_NUMBER_MAX + 1),
            "central.grant_not_newer",
        ),
        (Address("b/x"), messages.ReleaseAck(lock="l", sequence=1), "central.ack_malformed"),
        (SERVER, messages.ReleaseAck(lock="m", sequence=1), "central.ack_malformed"),
        (Address("b/x"), messages.ServerFull(lock="l", locks_max=1), "central.crowded_malformed"),
    ],
)
def test_messages_that_no_honest_peer_sends_change_nothing(
    lone_client: LoneClient,
    sender: Address,
    event: messages.Grant | messages.ReleaseAck | messages.ServerFull,
    mark: str,
) -> None:
    lone_client.wants(1)
    before = dict(lone_client.client.state())

    assert lone_client.client.handle(sender, event, T0) == (Observe(mark),)
    assert dict(lone_client.client.state()) == before


def test_retransmissions_are_spread_around_their_period(lone_client: LoneClient) -> None:
    lone_client.wants(1)
    waits = [
        effect.after_ms
        for _ in range(500)
        for effect in lone_client.client.handle(A, messages.ClientRetransmit(), T0)
        if isinstance(effect, Wake)
    ]

    assert len(waits) == 500
    assert RETRANSMIT_MS // 2 <= min(waits) < max(waits) <= RETRANSMIT_MS * 3 // 2


# Holds that end without their lock client


def test_held_ends_by_a_revoke_and_the_next_owner_asks(held: LoneClient) -> None:
    held.wants(2)

    taken, *rest = held.revoked(5)

    assert only_sent([checked(Send, taken)], LockRevoked).ticket == 1
    assert rest == [settled(5), REQUEST, Wake, confirmed(5)]
    held.is_in(Mode.RELEASED, 5)


def test_a_grant_that_comes_after_its_revoke_is_ignored(lone_client: LoneClient) -> None:
    lone_client.wants(1)
    assert lone_client.revoked(5) == [confirmed(5)]

    assert lone_client.granted(5) == []
    assert lone_client.granted(6) == [got(1, 6)]
