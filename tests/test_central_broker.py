from __future__ import annotations

from random import Random

import pytest

from holdfast.actors.central.broker import Broker
from holdfast.actors.central.client import LockClient
from holdfast.actors.central.message import (
    Glance,
    Grant,
    Idle,
    Peek,
    Peeked,
    PeekRetry,
    Probe,
    Probed,
    ProbeServer,
    Release,
)
from holdfast.actors.central.ticket import WAITERS_SHOWN_MAX
from holdfast.actors.central.watch import LOOKS_MAX, PEEKS_MAX, SILENT_MS, ServerWatch
from holdfast.actors.effect import Effect, Effects, Observe, Retire, Send, Spawn, Wake
from holdfast.actors.lock.backend import Full, Give, Got, Look, Ready, Seen, Want
from holdfast.actors.lock.message import Absence, Contender
from holdfast.actors.message import NS_PER_MS, Address, Instant
from holdfast.cluster.simulation.machine import HOST

ME = Address("a/clients")
PROXY = Address("a/proxy")
SERVER = Address("s/server")
WATCH = Address("a/watch")
FIRST = Address("a/clients-ab-1")
T0 = Instant(0)


def at(ms: int) -> Instant:
    return Instant(ms * NS_PER_MS)


def done(effects: Effects) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Observe)]


def want(ticket: int, lock: str = "l", session: str = "s") -> Want:
    return Want(lock=lock, ticket=ticket, session=session, owner=f"o{ticket}")


@pytest.fixture
def broker() -> Broker:
    return Broker(ME, HOST, proxy=PROXY, server=SERVER, boot=0xAB, random=Random(1), tickets_max=4)


def test_it_begins_by_setting_a_watch_on_the_server(broker: Broker) -> None:
    assert broker.begin(T0) == (Spawn(WATCH, ServerWatch, {"proxy": PROXY, "server": SERVER}),)


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

    (full,) = done(broker.handle(PROXY, want(5), T0))

    detail = "4 tickets wait or hold through this node, its limit"
    assert full == Send(PROXY, Full(lock="l", ticket=5, detail=detail))


def test_a_grant_of_a_client_is_passed_to_it(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    grant = Grant(lock="l", client=FIRST, number=7)

    assert broker.handle(SERVER, grant, T0) == (Send(FIRST, grant),)


def test_a_grant_that_the_server_did_not_send_is_dropped(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    grant = Grant(lock="l", client=FIRST, number=7)

    assert broker.handle(Address("b/clients"), grant, T0) == (Observe("central.grant_malformed"),)


def test_a_grant_for_a_client_that_is_gone_is_given_back(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, Give(lock="l", ticket=1), T0)
    assert broker.handle(FIRST, Idle(wants=1), T0) == (Retire(FIRST),)

    effects = broker.handle(SERVER, Grant(lock="l", client=FIRST, number=7), T0)

    assert done(effects) == [Send(SERVER, Release(lock="l", client=FIRST, sequence=7))]


def test_what_an_earlier_life_was_granted_is_not_touched(broker: Broker) -> None:
    """Who holds through a crashed node may be in its critical section still."""
    grant = Grant(lock="l", client=Address("a/clients-aa-1"), number=7)

    assert broker.handle(SERVER, grant, T0) == (Observe("central.granted_to_earlier_life"),)


def test_a_client_is_not_retired_while_a_want_is_on_its_way_to_it(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, Give(lock="l", ticket=1), T0)
    broker.handle(PROXY, want(2), T0)

    assert broker.handle(FIRST, Idle(wants=1), T0) == ()
    assert broker.handle(PROXY, want(3), T0) == (Send(FIRST, want(3)),)


def test_an_address_is_never_used_again(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, Give(lock="l", ticket=1), T0)
    broker.handle(FIRST, Idle(wants=1), T0)
    assert broker.handle(FIRST, Idle(wants=1), T0) == ()

    spawn, _ = broker.handle(PROXY, want(2), T0)

    assert isinstance(spawn, Spawn)
    assert spawn.address == Address("a/clients-ab-2")


def test_got_and_full_go_to_the_proxy_unless_the_ticket_is_given_back(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, want(2), T0)
    got, full = Got(lock="l", ticket=1, fence=7), Full(lock="l", ticket=2, detail="no")

    assert broker.handle(FIRST, got, T0) == (Send(PROXY, got),)
    assert broker.handle(FIRST, full, T0) == (Send(PROXY, full),)
    give = Give(lock="l", ticket=1)
    assert broker.handle(PROXY, give, T0) == (Send(FIRST, give),)
    assert broker.handle(FIRST, got, T0) == ()
    assert broker.handle(FIRST, full, T0) == ()
    assert broker.handle(PROXY, give, T0) == ()
    assert broker.tickets == {}
    assert broker.tickets_of == {}


def test_a_look_is_completed_by_the_watch(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, want(2), at(1))
    broker.handle(FIRST, Got(lock="l", ticket=1, fence=7), at(2))

    effects = broker.handle(PROXY, Look(lock="l", query=3), at(5))

    holder = Contender(node="a", session="s", owner="o1", fence=7, since_ms=3)
    waiter = Contender(node="a", session="s", owner="o2", fence=None, since_ms=4)
    glance = Glance(lock="l", query=3, holder=holder, waiters=(waiter,))
    assert effects == (Send(WATCH, glance),)


def test_a_look_shows_a_bounded_number_of_waiters() -> None:
    broker = Broker(ME, HOST, proxy=PROXY, server=SERVER, boot=1, random=Random(1))
    for ticket in range(WAITERS_SHOWN_MAX + 10):
        broker.handle(PROXY, want(ticket), T0)

    (send,) = broker.handle(PROXY, Look(lock="l", query=3), T0)

    assert isinstance(send, Send)
    assert isinstance(send.message, Glance)
    assert len(send.message.waiters) == WAITERS_SHOWN_MAX


@pytest.fixture
def watch() -> ServerWatch:
    watch = ServerWatch(WATCH, HOST, proxy=PROXY, server=SERVER)
    watch.begin(T0)
    return watch


GLANCE = Glance(lock="l", query=3, holder=None, waiters=())
HOLDER = Contender(node="b", session="t", owner="x", fence=7, since_ms=3)


def answered(holder: Contender | None, silent: tuple[Absence, ...] = ()) -> Send:
    return Send(PROXY, Seen(lock="l", query=3, holder=holder, waiters=(), waits_for=silent))


def test_the_node_is_not_ready_before_the_server_was_heard(watch: ServerWatch) -> None:
    said = done(ServerWatch(WATCH, HOST, proxy=PROXY, server=SERVER).begin(T0))
    detail = "node s, which runs the lock server, has not answered yet"
    assert said[:2] == [Send(PROXY, Ready(ready=False, detail=detail)), Send(SERVER, Probe())]
    assert isinstance(said[2], Wake)

    assert done(watch.handle(SERVER, Probed(), at(1))) == [
        Send(PROXY, Ready(ready=True, detail="ready"))
    ]
    assert done(watch.handle(SERVER, Probed(), at(2))) == []


def test_a_silent_server_is_looked_for_and_makes_the_node_unready(watch: ServerWatch) -> None:
    watch.handle(SERVER, Probed(), T0)

    probe, again = done(watch.handle(WATCH, ProbeServer(), at(SILENT_MS)))
    assert (probe, type(again)) == (Send(SERVER, Probe()), Wake)
    unready, *_ = done(watch.handle(WATCH, ProbeServer(), at(SILENT_MS + 1)))
    detail = "node s, which runs the lock server, is silent for 5001 ms"
    assert unready == Send(PROXY, Ready(ready=False, detail=detail))
    assert done(watch.handle(SERVER, Probed(), at(SILENT_MS + 2))) == [
        Send(PROXY, Ready(ready=True, detail="ready"))
    ]


def test_a_look_is_answered_with_what_the_server_says(watch: ServerWatch) -> None:
    watch.handle(SERVER, Probed(), T0)
    peek, retry = watch.handle(ME, GLANCE, T0)
    assert peek == Send(SERVER, Peek(lock="l", query=3))
    assert isinstance(retry, Wake)

    peeked = Peeked(lock="l", query=3, holder=HOLDER)
    assert done(watch.handle(SERVER, peeked, T0)) == [answered(HOLDER)]
    assert done(watch.handle(SERVER, peeked, T0)) == []
    assert done(watch.handle(WATCH, PeekRetry(query=3), T0)) == []


def test_a_look_in_vain_names_the_server_and_how_long_it_is_silent(watch: ServerWatch) -> None:
    watch.handle(SERVER, Probed(), at(100))
    watch.handle(ME, GLANCE, at(200))
    for _ in range(PEEKS_MAX - 1):
        peek, _ = done(watch.handle(WATCH, PeekRetry(query=3), at(300)))
        assert peek == Send(SERVER, Peek(lock="l", query=3))

    effects = watch.handle(WATCH, PeekRetry(query=3), at(700))

    assert done(effects) == [answered(None, (Absence("s", 600),))]
    assert watch.looks == {}


def test_a_look_in_vain_does_not_accuse_a_server_that_was_heard(watch: ServerWatch) -> None:
    watch.handle(ME, GLANCE, at(200))
    watch.handle(SERVER, Probed(), at(250))

    answers = [watch.handle(WATCH, PeekRetry(query=3), at(700)) for _ in range(PEEKS_MAX)]

    assert done(answers[-1]) == [answered(None)]


@pytest.mark.parametrize(
    ("sender", "event", "mark"),
    [
        (Address("b/x"), Probed(), "central.probed_malformed"),
        (Address("b/x"), Peeked(lock="l", query=3, holder=None), "central.peeked_malformed"),
        (
            SERVER,
            Peeked(lock="l", query=3, holder=HOLDER._replace(owner="x" * 300)),
            "central.peeked_malformed",
        ),
        (
            SERVER,
            Peeked(lock="l", query=3, holder=HOLDER._replace(fence=0)),
            "central.peeked_malformed",
        ),
    ],
)
def test_what_no_honest_server_says_is_counted_and_dropped(
    watch: ServerWatch, sender: Address, event: Peeked | Probed, mark: str
) -> None:
    watch.handle(ME, GLANCE, T0)
    before = dict(watch.state())

    assert watch.handle(sender, event, T0) == (Observe(mark),)
    assert dict(watch.state()) == before


def test_too_many_looks_are_answered_without_the_server(watch: ServerWatch) -> None:
    for query in range(10, 10 + LOOKS_MAX):
        watch.handle(ME, Glance(lock="l", query=query, holder=None, waiters=()), T0)

    assert done(watch.handle(ME, GLANCE, T0)) == [answered(None)]
