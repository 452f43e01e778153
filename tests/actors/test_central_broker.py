from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from support.central_scene import BROKER_A, FIRST, PROXY, SERVER, WATCH, want
from support.effects import HOST, T0, at, not_counted

from fencelock.actors.api.message import Contender
from fencelock.actors.central import message as messages
from fencelock.actors.central.broker import DOUBT_MS, WAITERS_SHOWN_MAX, Broker
from fencelock.actors.central.client import LockClient
from fencelock.actors.central.watch import ServerWatch
from fencelock.actors.effect import Observe, Retire, Send, Spawn
from fencelock.actors.message import Address
from fencelock.actors.proxy import message as backend


@pytest.fixture
def broker() -> Broker:
    return Broker(
        BROKER_A, HOST, proxy=PROXY, server=SERVER, boot=0xAB, random=Random(1), tickets_max=4
    )


def test_it_begins_by_setting_a_watch_on_the_server(broker: Broker) -> None:
    assert broker.begin(T0) == (
        Spawn(WATCH, ServerWatch, {"proxy": PROXY, "server": SERVER, "boot": 0xAB}),
    )


def test_the_first_want_of_a_session_for_a_lock_spawns_a_client(broker: Broker) -> None:
    spawn, send = broker.handle(PROXY, want(1), T0)

    assert isinstance(spawn, Spawn)
    assert (spawn.address, spawn.role) == (FIRST, LockClient)
    assert send == Send(FIRST, want(1))
    assert broker.handle(PROXY, want(2), T0) == (Send(FIRST, want(2)),)


def test_another_session_and_another_lock_have_clients_of_their_own(broker: Broker) -> None:
    events = [want(1), want(2, session="t"), want(3, lock="m")]
    spawned = [broker.handle(PROXY, event, T0)[0] for event in events]

    assert [s.address for s in spawned if isinstance(s, Spawn)] == [
        Address(f"a/clients-ab-{number}") for number in (1, 2, 3)
    ]


def test_a_want_too_many_is_refused_with_the_limit(broker: Broker) -> None:
    for ticket in range(1, 5):
        broker.handle(PROXY, want(ticket), T0)

    (full,) = not_counted(broker.handle(PROXY, want(5), T0))

    detail = "4 tickets wait or hold through this node, its limit"
    assert full == Send(PROXY, backend.QueueFull(lock="l", ticket=5, detail=detail))


def test_a_grant_of_a_client_is_passed_to_it(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    grant = messages.Grant(lock="l", client=FIRST, number=7)

    assert broker.handle(SERVER, grant, T0) == (Send(FIRST, grant),)


def test_a_grant_that_the_server_did_not_send_is_dropped(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    grant = messages.Grant(lock="l", client=FIRST, number=7)

    assert broker.handle(Address("b/clients"), grant, T0) == (Observe("central.grant_malformed"),)


def test_a_grant_for_a_client_that_is_gone_is_given_back(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, backend.ReleaseLock(lock="l", ticket=1), T0)
    assert broker.handle(FIRST, messages.Idle(wants=1), T0) == (Retire(FIRST),)

    effects = broker.handle(SERVER, messages.Grant(lock="l", client=FIRST, number=7), T0)

    assert not_counted(effects) == [
        Send(SERVER, messages.Release(lock="l", client=FIRST, sequence=7))
    ]


def test_the_session_of_an_earlier_lifes_hold_is_asked_whether_it_holds(broker: Broker) -> None:
    """A client that holds a lock through a crashed node may still be in its critical section."""
    grant = messages.Grant(lock="l", client=Address("a/clients-aa-1"), number=7)
    assert not_counted(broker.handle(SERVER, grant, T0)) == [
        Send(SERVER, messages.Peek(lock="l", query=0))
    ]
    assert not_counted(broker.handle(SERVER, grant, at(DOUBT_MS - 1))) == []
    holder = Contender(node="a", session="s", owner="o", fence=7, since_ms=3)

    effects = broker.handle(SERVER, messages.Peeked(lock="l", query=0, holder=holder), T0)
    assert effects == (Send(PROXY, backend.HoldInDoubt(lock="l", fence=7, session="s")),)
    inside = holder._replace(session="a/ask-1")
    assert broker.handle(SERVER, messages.Peeked(lock="l", query=0, holder=inside), T0) == ()
    another = holder._replace(fence=8)
    assert broker.handle(SERVER, messages.Peeked(lock="l", query=0, holder=another), T0) == ()


def test_a_surrender_is_sent_to_the_server_and_its_outcome_to_the_proxy(broker: Broker) -> None:
    effects = broker.handle(PROXY, backend.ReleaseHold(lock="l", fence=7, session="s"), T0)
    assert effects == (Send(SERVER, messages.Free(lock="l", number=7, session="s")),)
    reply = messages.FreeReply(
        lock="l", number=7, session="s", outcome=backend.ReleaseOutcome.FREED, holder=None
    )

    given = backend.HoldReleased(
        lock="l", fence=7, session="s", outcome=backend.ReleaseOutcome.FREED
    )
    assert broker.handle(SERVER, reply, T0) == (Send(PROXY, given),)
    assert not_counted(broker.handle(Address("b/x"), reply, T0)) == []


def test_a_session_ends_at_the_server_and_its_waits_here(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    effects = broker.handle(PROXY, backend.EndHolds(session="s"), T0)
    assert effects == (Send(SERVER, messages.EndSession(session="s")),)

    give, full, ended = broker.handle(SERVER, messages.SessionEnded(session="s"), T0)

    assert give == Send(FIRST, backend.ReleaseLock(lock="l", ticket=1))
    assert isinstance(full, Send)
    assert isinstance(full.message, backend.QueueFull)
    assert ended == Send(PROXY, backend.HoldsEnded(session="s"))


def test_a_revoke_is_passed_to_its_client_and_confirmed_for_one_that_is_gone(
    broker: Broker,
) -> None:
    broker.handle(PROXY, want(1), T0)
    revoke = messages.Revoke(lock="l", client=FIRST, number=7)
    assert broker.handle(SERVER, revoke, T0) == (Send(FIRST, revoke),)
    done_by_client = messages.Revoked(lock="l", client=FIRST, number=7)
    assert broker.handle(FIRST, done_by_client, T0) == (Send(SERVER, done_by_client),)

    gone = Address("a/clients-aa-1")
    effects = broker.handle(SERVER, replace(revoke, client=gone), T0)
    assert effects == (Send(SERVER, replace(done_by_client, client=gone)),)


def test_a_client_is_not_retired_while_a_want_is_on_its_way_to_it(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, backend.ReleaseLock(lock="l", ticket=1), T0)
    broker.handle(PROXY, want(2), T0)

    assert broker.handle(FIRST, messages.Idle(wants=1), T0) == ()
    assert broker.handle(PROXY, want(3), T0) == (Send(FIRST, want(3)),)


def test_an_address_is_never_used_again(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, backend.ReleaseLock(lock="l", ticket=1), T0)
    broker.handle(FIRST, messages.Idle(wants=1), T0)
    assert broker.handle(FIRST, messages.Idle(wants=1), T0) == ()

    spawn, _ = broker.handle(PROXY, want(2), T0)

    assert isinstance(spawn, Spawn)
    assert spawn.address == Address("a/clients-ab-2")


def test_got_and_full_go_to_the_proxy_unless_the_ticket_is_given_back(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, want(2), T0)
    got, full = (
        backend.LockGranted(lock="l", ticket=1, fence=7),
        backend.QueueFull(lock="l", ticket=2, detail="no"),
    )

    assert broker.handle(FIRST, got, T0) == (Send(PROXY, got),)
    assert broker.handle(FIRST, full, T0) == (Send(PROXY, full),)
    give = backend.ReleaseLock(lock="l", ticket=1)
    assert broker.handle(PROXY, give, T0) == (Send(FIRST, give),)
    assert broker.handle(FIRST, got, T0) == ()
    assert broker.handle(FIRST, full, T0) == ()
    assert broker.handle(PROXY, give, T0) == ()
    assert broker.tickets == {}
    assert broker.tickets_of == {}


def test_a_look_is_completed_by_the_watch(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, want(2), at(1))
    broker.handle(FIRST, backend.LockGranted(lock="l", ticket=1, fence=7), at(2))

    effects = broker.handle(PROXY, backend.QueryLock(lock="l", query=3), at(5))

    holder = Contender(node="a", session="s", owner="o1", fence=7, since_ms=3)
    waiter = Contender(node="a", session="s", owner="o2", fence=None, since_ms=4)
    glance = messages.LocalView(lock="l", query=3, holder=holder, waiters=(waiter,))
    assert effects == (Send(WATCH, glance),)


def test_a_look_shows_a_bounded_number_of_waiters() -> None:
    broker = Broker(BROKER_A, HOST, proxy=PROXY, server=SERVER, boot=1, random=Random(1))
    for ticket in range(WAITERS_SHOWN_MAX + 10):
        broker.handle(PROXY, want(ticket), T0)

    (send,) = broker.handle(PROXY, backend.QueryLock(lock="l", query=3), T0)

    assert isinstance(send, Send)
    assert isinstance(send.message, messages.LocalView)
    assert len(send.message.waiters) == WAITERS_SHOWN_MAX
