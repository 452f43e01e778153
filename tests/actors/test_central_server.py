from __future__ import annotations

import pytest
from support.central_scene import BROKER_A, SERVER, A, B, granted, release, request
from support.effects import HOST, T0, counted, not_counted

from fencelock.actors.api.message import Contender
from fencelock.actors.central import message as messages
from fencelock.actors.central.server import LockServer
from fencelock.actors.effect import Observe, Persist, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant


@pytest.fixture
def server() -> LockServer:
    return LockServer(SERVER, HOST)


def acked(client: Address, sequence: int) -> Send:
    return Send(client, messages.ReleaseAck(lock="l", sequence=sequence))


def test_a_free_lock_is_granted_under_the_next_number(server: LockServer) -> None:
    assert server.handle(A, request(A), T0) == (granted(A, 1),)
    assert server.handle(A, request(A, "other"), T0) == (granted(A, 2, "other"),)


def test_who_asks_while_holding_hears_the_same_number_again(server: LockServer) -> None:
    server.handle(A, request(A), T0)

    effects = server.handle(A, request(A), T0)

    assert not_counted(effects) == [granted(A, 1)]
    assert server.granted == 1


def test_who_asks_for_a_held_lock_gets_no_answer_and_the_holder_is_reminded(
    server: LockServer,
) -> None:
    server.handle(A, request(A), T0)

    effects = server.handle(B, request(B), T0)

    assert not_counted(effects) == [granted(A, 1)]
    assert counted(effects) == ["central.holder_reminded"]
    assert server.held["l"].client == A


def test_a_release_of_what_is_held_frees_the_lock_and_is_acknowledged(server: LockServer) -> None:
    server.handle(A, request(A), T0)

    assert server.handle(A, release(A, 1), T0) == (acked(A, 1),)
    assert server.held == {}
    assert server.handle(B, request(B), T0) == (granted(B, 2),)


def test_an_old_release_is_only_acknowledged_and_by_its_own_number(server: LockServer) -> None:
    server.handle(A, request(A), T0)
    server.handle(A, release(A, 1), T0)
    server.handle(A, request(A), T0)

    effects = server.handle(A, release(A, 1), T0)

    assert not_counted(effects) == [acked(A, 1)]
    assert server.held["l"].number == 2


def test_a_release_by_another_client_frees_nothing(server: LockServer) -> None:
    server.handle(A, request(A), T0)

    assert not_counted(server.handle(B, release(B, 1), T0)) == [acked(B, 1)]
    assert server.held["l"].client == A


def test_a_free_lock_leaves_nothing_behind_and_its_numbers_still_rise(server: LockServer) -> None:
    for number in range(1, 100, 2):
        assert server.handle(A, request(A), T0) == (granted(A, number),)
        server.handle(A, release(A, number), T0)
        server.handle(B, request(B, "other"), T0)
        server.handle(B, release(B, number + 1, "other"), T0)
    assert server.held == {}


def test_numbers_begin_above_the_floor() -> None:
    server = LockServer(SERVER, HOST, granted=1_000)

    assert server.handle(A, request(A), T0) == (granted(A, 1_001),)


@pytest.mark.parametrize(
    ("sender", "event", "mark"),
    [
        (B, request(A), "central.request_malformed"),
        (A, request(A, ""), "central.request_malformed"),
        (A, request(A, "x" * 257), "central.request_malformed"),
        (A, request(Address("a/")), "central.request_malformed"),
        (A, request(Address("a/" + "x" * 129)), "central.request_malformed"),
        (A, request(Address("a/b/c")), "central.request_malformed"),
        (A, release(Address("a/b/c"), 1), "central.release_malformed"),
        (A, release(Address("a/b\n"), 1), "central.release_malformed"),
        (
            A,
            messages.Request(lock="l", client=A, session="s" * 300, owner="o"),
            "central.request_malformed",
        ),
        (B, release(A, 1), "central.release_malformed"),
        (A, release(A, 0), "central.release_malformed"),
        (A, release(A, messages.NUMBER_MAX + 1), "central.release_malformed"),
        (A, messages.Peek(lock="", query=1), "central.peek_malformed"),
    ],
)
def test_what_no_honest_peer_says_is_counted_and_dropped(
    server: LockServer,
    sender: Address,
    event: messages.Request | messages.Release | messages.Peek,
    mark: str,
) -> None:
    before = dict(server.state())

    assert server.handle(sender, event, T0) == (Observe(mark),)
    assert dict(server.state()) == before


def test_a_full_table_crowds_out_and_reminds_the_holders_in_turn() -> None:
    server = LockServer(SERVER, HOST, locks_max=2)
    server.handle(A, request(A, "one"), T0)
    server.handle(A, request(A, "two"), T0)

    first = server.handle(B, request(B, "three"), T0)
    second = server.handle(B, request(B, "three"), T0)

    crowded = Send(B, messages.ServerFull(lock="three", locks_max=2))
    assert not_counted(first) == [crowded, granted(A, 2, "two")]
    assert not_counted(second) == [crowded, granted(A, 1, "one")]
    assert not_counted(server.handle(A, request(A, "one"), T0)) == [granted(A, 1, "one")]


def test_a_peek_names_the_holder_and_for_how_long(server: LockServer) -> None:
    server.handle(A, request(A), T0)

    effects = server.handle(
        Address("b/watch"), messages.Peek(lock="l", query=7), Instant(5 * NS_PER_MS)
    )

    holder = Contender(node="a", session="s", owner="o", fence=1, since_ms=5)
    assert effects == (Send(Address("b/watch"), messages.Peeked(lock="l", query=7, holder=holder)),)


def test_a_peek_at_a_free_lock_names_nobody(server: LockServer) -> None:
    assert server.handle(BROKER_A, messages.Peek(lock="l", query=7), T0) == (
        Send(BROKER_A, messages.Peeked(lock="l", query=7, holder=None)),
    )


def test_a_probe_is_answered(server: LockServer) -> None:
    assert server.handle(BROKER_A, messages.Probe(), T0) == (Send(BROKER_A, messages.Probed()),)


def test_with_a_journal_every_change_is_durable_before_it_is_spoken_of() -> None:
    server = LockServer(SERVER, HOST, journal=True)
    held = messages.Held(lock="l", client=A, number=1, session="s", owner="o")

    assert server.handle(A, request(A), T0) == (Persist(held), granted(A, 1))
    assert server.handle(A, release(A, 1), T0) == (
        Persist(messages.Freed(lock="l", number=1)),
        acked(A, 1),
    )


def test_what_changes_nothing_is_not_written() -> None:
    server = LockServer(SERVER, HOST, journal=True)
    server.handle(A, request(A), T0)

    for event in (request(A), request(B), release(B, 1)):
        effects = server.handle(event.client, event, T0)
        assert not any(isinstance(effect, Persist) for effect in effects)


def test_a_restarted_server_goes_on_where_its_journal_ends() -> None:
    first = LockServer(SERVER, HOST, journal=True)
    records = [
        effect.record
        for event in (request(A), request(B, "m"), release(B, 2, "m"), request(B, "n"))
        for effect in first.handle(event.client, event, T0)
        if isinstance(effect, Persist)
    ]

    again = LockServer(SERVER, HOST, journal=True, records=tuple(records))

    assert again.begin(T0) == (Observe("central.holdings_replayed", 2),)
    assert (again.granted, again.held) == (first.granted, first.held)
    assert not_counted(again.handle(A, request(A), T0)) == [granted(A, 1)]
    assert not_counted(again.handle(A, request(A, "m"), T0))[-1] == granted(A, 4, "m")


def test_a_new_server_has_nothing_to_say(server: LockServer) -> None:
    assert server.begin(T0) == ()
