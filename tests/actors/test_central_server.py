"""The lock server of `central`: its rules, and a server that no node can reach."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NoReturn

import pytest
from msgspec.structs import replace
from support.central_scene import (
    BROKER_A,
    FIRST,
    PROXY,
    SERVER,
    WATCH,
    A,
    B,
    granted,
    release,
    request,
    want,
)
from support.counting import count_contenders
from support.expect import checked, present
from support.role_harness import HOST, T0, at, counted, not_counted, only_sent, sent

from fencelock.actors.api.lock_message import Absence, Acquire, Contender
from fencelock.actors.api.session_message import Evict
from fencelock.actors.central import broker as broker_module
from fencelock.actors.central import server as server_module
from fencelock.actors.central import wire as messages
from fencelock.actors.central.broker import DOUBT_MS, Broker
from fencelock.actors.central.lock_client import LockClient
from fencelock.actors.central.server import HOLDS_ENDED_MAX, HOLDS_ENDED_MS, Holding, LockServer
from fencelock.actors.central.server_watch import (
    PEEKS_MAX,
    SERVER_QUERIES_MAX,
    SILENT_SERVER_MS,
    ServerWatch,
)
from fencelock.actors.effect import Effect, Effects, Observe, Persist, Retire, Send, Spawn, Wake
from fencelock.actors.message import NS_PER_MS, Address, address_of
from fencelock.actors.proxy import event as backend
from fencelock.actors.proxy.event import WAITERS_SHOWN_MAX, LockDescription, Ready, ReleaseOutcome
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.cluster.node.topology import ProtocolSettings, central
from fencelock.verification.simulation.judge import LockJudge, judge_progress
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import (
    ClientPlan,
    ContenderPhase,
    Finish,
    LockUser,
    client_session,
)
from fencelock.verification.simulation.world import World


@pytest.fixture
def server() -> LockServer:
    return LockServer(SERVER, HOST)


def acked(client: Address, sequence: int) -> Send:
    return Send(client, messages.ReleaseAck(lock="l", sequence=sequence))


def test_a_free_lock_is_granted_under_the_next_number(server: LockServer) -> None:
    assert server.handle(A, request(A), T0) == (granted(A, 1),)
    assert server.handle(A, request(A, "other"), T0) == (granted(A, 2, "other"),)


def test_a_holder_that_asks_again_gets_the_same_number(server: LockServer) -> None:
    server.handle(A, request(A), T0)

    effects = server.handle(A, request(A), T0)

    assert not_counted(effects) == [granted(A, 1)]
    assert server.granted == 1


def test_a_request_for_a_held_lock_waits_and_the_holder_is_reminded(
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
        (A, release(A, messages.CENTRAL_NUMBER_MAX + 1), "central.release_malformed"),
        (A, messages.Peek(lock="", query=1), "central.peek_malformed"),
    ],
)
def test_messages_that_no_honest_peer_sends_are_counted_and_dropped(
    server: LockServer,
    sender: Address,
    event: messages.Request | messages.Release | messages.Peek,
    mark: str,
) -> None:
    before = dict(server.state())

    assert server.handle(sender, event, T0) == (Observe(mark),)
    assert dict(server.state()) == before


def test_a_full_table_crowds_out_and_reminds_the_holders_in_turn(
    server: LockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HELD_LOCKS_MAX", 2)
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

    effects = server.handle(Address("b/watch"), messages.Peek(lock="l", query=7), at(5))

    holder = Contender(node="a", session="s", owner="o", fence=1, since_ms=5)
    assert effects == (Send(Address("b/watch"), messages.Peeked(lock="l", query=7, holder=holder)),)


def test_a_peek_at_a_free_lock_names_no_holder(server: LockServer) -> None:
    assert server.handle(BROKER_A, messages.Peek(lock="l", query=7), T0) == (
        Send(BROKER_A, messages.Peeked(lock="l", query=7, holder=None)),
    )


def test_a_probe_is_answered(server: LockServer) -> None:
    assert server.handle(BROKER_A, messages.Probe(), T0) == (Send(BROKER_A, messages.Probed()),)


def test_every_change_is_durable_before_it_is_sent_if_there_is_a_journal() -> None:
    server = LockServer(SERVER, HOST, journal=True)
    held = messages.Held(lock="l", client=A, number=1, session="s", owner="o")

    assert server.handle(A, request(A), T0) == (Persist(held), granted(A, 1))
    assert server.handle(A, release(A, 1), T0) == (
        Persist(messages.Freed(lock="l", number=1)),
        acked(A, 1),
    )


def test_a_command_that_changes_nothing_is_not_written() -> None:
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


def test_a_new_server_sends_nothing(server: LockServer) -> None:
    assert server.begin(T0) == ()


# A hold of `central` belongs to a session: how it ends without its lock client


BROKER_C = Address("c/clients")
REVOKE = messages.Revoke(lock="l", client=A, number=1)


def free(number: int, session: str = "s") -> messages.Free:
    return messages.Free(lock="l", number=number, session=session)


def replied(outcome: ReleaseOutcome, session: str = "s", holder: Contender | None = None) -> Send:
    reply = messages.FreeReply(lock="l", number=1, session=session, outcome=outcome, holder=holder)
    return Send(BROKER_C, reply)


def test_a_session_frees_its_hold_through_any_node_and_a_repetition_is_confirmed_again(
    server: LockServer,
) -> None:
    server.handle(A, request(A), T0)

    effects = not_counted(server.handle(BROKER_C, free(1), T0))
    assert effects == [Send(BROKER_A, REVOKE), replied(ReleaseOutcome.FREED)]
    assert server.held == {}
    assert not_counted(server.handle(BROKER_C, free(1), T0)) == [replied(ReleaseOutcome.FREED)]


@pytest.mark.parametrize("asked", [free(1, "t"), free(2)], ids=["session", "number"])
def test_a_hold_under_another_session_or_number_is_not_freed(
    server: LockServer, asked: messages.Free
) -> None:
    server.handle(A, request(A), T0)

    reply = only_sent(server.handle(BROKER_C, asked, T0), messages.FreeReply)
    assert reply.outcome is ReleaseOutcome.NOT_HELD
    assert "l" in server.held


def test_an_operator_frees_whatever_is_held_and_its_session_is_notified(server: LockServer) -> None:
    server.handle(A, request(A), T0)
    holder = Contender(node="a", session="s", owner="o", fence=1, since_ms=0)

    revoke, notice, reply = not_counted(server.handle(BROKER_C, free(1, ""), T0))
    assert revoke == Send(BROKER_A, REVOKE)
    assert only_sent([notice], RoleNotice).level is Level.WARNING
    assert reply == replied(ReleaseOutcome.FREED, "", holder)
    assert not_counted(server.handle(BROKER_C, free(1, ""), T0)) == [reply]
    assert not_counted(server.handle(BROKER_C, free(1), T0)) == [replied(ReleaseOutcome.TAKEN)]


def test_nothing_is_granted_through_a_node_unaware_of_a_revoke(server: LockServer) -> None:
    server.handle(A, request(A), T0)
    server.handle(BROKER_C, free(1), T0)
    other = Address("a/clients-1-2")

    assert not_counted(server.handle(other, request(other), T0)) == [Send(BROKER_A, REVOKE)]
    server.handle(BROKER_C, messages.Revoked(lock="l", client=A, number=1), T0)
    assert not_counted(server.handle(other, request(other), T0)) == [Send(BROKER_A, REVOKE)]
    server.handle(BROKER_A, messages.Revoked(lock="l", client=A, number=1), T0)
    assert not_counted(server.handle(other, request(other), T0)) == [granted(other, 2)]


def test_an_ended_session_holds_nothing_and_is_granted_nothing(server: LockServer) -> None:
    server.handle(A, request(A), T0)
    server.handle(B, request(B, "m"), T0)
    ended = Send(BROKER_C, messages.SessionEnded(session="s"))

    effects = not_counted(server.handle(BROKER_C, messages.EndSession(session="s"), T0))

    assert effects[-1] == ended
    assert server.held == {}
    assert not_counted(server.handle(BROKER_C, messages.EndSession(session="s"), T0)) == [ended]
    late = not_counted(server.handle(A, request(A), T0))
    assert late == [Send(BROKER_A, messages.SessionEnded(session="s"))]


def session_with_holds(server: LockServer, holds: int) -> list[str]:
    """Let session ``s`` hold so many locks; return their names."""
    locks = [f"l{n}" for n in range(holds)]
    for lock in locks:
        server.handle(A, request(A, lock), T0)
    return locks


END_S = messages.EndSession(session="s")
ENDED_S = messages.SessionEnded(session="s")


def freed_in(effects: Effects) -> list[str]:
    """Return the locks whose holds ended, in order."""
    return [revoke.lock for revoke in sent(effects, messages.Revoke)]


def test_a_session_with_many_holds_ends_some_at_a_time_and_is_then_confirmed(
    server: LockServer,
) -> None:
    locks = session_with_holds(server, 2 * HOLDS_ENDED_MAX + 1)
    due = Wake(HOLDS_ENDED_MS, messages.EndsDue())

    first = server.handle(BROKER_C, END_S, T0)
    again = server.handle(BROKER_C, END_S, T0)
    assert freed_in(first) == locks[:HOLDS_ENDED_MAX]
    assert due in first
    assert not_counted(again) == []
    late = not_counted(server.handle(A, request(A, "new"), T0))
    assert late == [Send(BROKER_A, ENDED_S)]

    second = server.handle(SERVER, messages.EndsDue(), T0)
    assert freed_in(second) == locks[HOLDS_ENDED_MAX : 2 * HOLDS_ENDED_MAX]
    assert sent([*first, *second], messages.SessionEnded) == []
    third = server.handle(SERVER, messages.EndsDue(), T0)
    assert freed_in(third) == locks[2 * HOLDS_ENDED_MAX :]
    assert sent(third, messages.SessionEnded, BROKER_C) == [ENDED_S]
    assert (server.held, server.held_by, server.ending) == ({}, {}, {})
    assert server.handle(SERVER, messages.EndsDue(), T0) == []


def test_the_end_of_a_session_looks_at_its_own_holds_only(server: LockServer) -> None:
    class Counted(dict[str, Holding]):
        looks = 0

        def __getitem__(self, lock: str) -> Holding:
            Counted.looks += 1
            return super().__getitem__(lock)

        def items(self) -> NoReturn:
            raise AssertionError("all holds are looked at")

    for n in range(10):
        server.handle(B, messages.Request(lock=f"b{n}", client=B, session="t", owner="o"), T0)
    session_with_holds(server, 3)
    server.held = Counted(server.held)

    assert len(freed_in(server.handle(BROKER_C, END_S, T0))) == 3
    assert Counted.looks == 3


def test_a_restarted_server_goes_on_to_end_the_holds_of_a_session() -> None:
    server = LockServer(SERVER, HOST, journal=True)
    effects: list[Effect] = []
    locks = [f"l{n}" for n in range(HOLDS_ENDED_MAX + 5)]
    for lock in locks:
        effects += server.handle(A, request(A, lock), T0)
    effects += server.handle(BROKER_C, END_S, T0)
    records = tuple(effect.record for effect in effects if isinstance(effect, Persist))

    again = LockServer(SERVER, HOST, journal=True, records=records)

    assert Wake(HOLDS_ENDED_MS, messages.EndsDue()) in again.begin(T0)
    rest = again.handle(SERVER, messages.EndsDue(), T0)
    assert freed_in(rest) == locks[HOLDS_ENDED_MAX:]
    assert sent(rest, messages.SessionEnded) == []  # Nobody waits for it any more.
    assert (again.held, again.held_by) == ({}, {})


def test_a_journal_brings_back_what_has_ended(server: LockServer) -> None:
    server.journal = True
    effects = [
        *server.handle(A, request(A), T0),
        *server.handle(BROKER_C, free(1), T0),
        *server.handle(BROKER_C, messages.EndSession(session="s"), T0),
    ]
    records = tuple(effect.record for effect in effects if isinstance(effect, Persist))

    again = LockServer(SERVER, HOST, journal=True, records=records)

    assert (again.held, again.freed) == (server.held, server.freed)
    assert (again.revoked, again.ended) == (server.revoked, server.ended)


# The watch of the server


@pytest.fixture
def watch() -> ServerWatch:
    watch = ServerWatch(WATCH, HOST, proxy=PROXY, server=SERVER)
    watch.begin(T0)
    return watch


GLANCE = LockDescription(lock="l", query=3, holder=None, waiters=(), waits_for=())
HOLDER = Contender(node="b", session="t", owner="x", fence=7, since_ms=3)


def peeked(holder: Contender | None, query: int = 3) -> messages.Peeked:
    """Return the server's answer."""
    return messages.Peeked(lock="l", query=query, holder=holder)


UNANSWERED = "node s, which runs the lock server, did not answer"


def answered(holder: Contender | None, silent: tuple[Absence, ...] = (), unknown: str = "") -> Send:
    return Send(PROXY, replace(GLANCE, holder=holder, waits_for=silent, unknown=unknown))


def test_the_node_is_not_ready_before_the_server_has_answered(watch: ServerWatch) -> None:
    effects = not_counted(ServerWatch(WATCH, HOST, proxy=PROXY, server=SERVER).begin(T0))
    detail = "node s, which runs the lock server, has not answered yet"
    assert effects[:2] == [
        Send(PROXY, Ready(ready=False, detail=detail)),
        Send(SERVER, messages.Probe()),
    ]
    assert isinstance(effects[2], Wake)

    assert not_counted(watch.handle(SERVER, messages.Probed(), at(1))) == [
        Send(PROXY, Ready(ready=True, detail="ready"))
    ]
    assert not_counted(watch.handle(SERVER, messages.Probed(), at(2))) == []


def test_a_silent_server_is_looked_for_and_makes_the_node_unready(watch: ServerWatch) -> None:
    watch.handle(SERVER, messages.Probed(), T0)

    probe, again = not_counted(watch.handle(WATCH, messages.ProbeServer(), at(SILENT_SERVER_MS)))
    assert (probe, type(again)) == (Send(SERVER, messages.Probe()), Wake)
    unready, *_ = not_counted(watch.handle(WATCH, messages.ProbeServer(), at(SILENT_SERVER_MS + 1)))
    detail = "node s, which runs the lock server, is silent for 5001 ms"
    assert unready == Send(PROXY, Ready(ready=False, detail=detail))
    assert not_counted(watch.handle(SERVER, messages.Probed(), at(SILENT_SERVER_MS + 2))) == [
        Send(PROXY, Ready(ready=True, detail="ready"))
    ]


def test_a_look_is_answered_with_the_servers_reply(watch: ServerWatch) -> None:
    watch.handle(SERVER, messages.Probed(), T0)
    peek, retry = watch.handle(BROKER_A, GLANCE, T0)
    assert peek == Send(SERVER, messages.Peek(lock="l", query=3))
    assert isinstance(retry, Wake)

    assert not_counted(watch.handle(SERVER, peeked(HOLDER), T0)) == [answered(HOLDER)]
    assert not_counted(watch.handle(SERVER, peeked(HOLDER), T0)) == []
    assert not_counted(watch.handle(WATCH, messages.PeekRetry(query=3), T0)) == []


def test_a_look_in_vain_names_the_server_and_how_long_it_is_silent(watch: ServerWatch) -> None:
    watch.handle(SERVER, messages.Probed(), at(100))
    watch.handle(BROKER_A, GLANCE, at(200))
    for _ in range(PEEKS_MAX - 1):
        peek, _ = not_counted(watch.handle(WATCH, messages.PeekRetry(query=3), at(300)))
        assert peek == Send(SERVER, messages.Peek(lock="l", query=3))

    effects = watch.handle(WATCH, messages.PeekRetry(query=3), at(700))

    assert not_counted(effects) == [answered(None, (Absence("s", 600),), UNANSWERED)]
    assert watch.queries == {}


def test_a_look_in_vain_does_not_accuse_a_server_that_answered(watch: ServerWatch) -> None:
    watch.handle(BROKER_A, GLANCE, at(200))
    watch.handle(SERVER, messages.Probed(), at(250))

    answers = [watch.handle(WATCH, messages.PeekRetry(query=3), at(700)) for _ in range(PEEKS_MAX)]

    assert not_counted(answers[-1]) == [answered(None, unknown=UNANSWERED)]


@pytest.mark.parametrize(
    ("sender", "event", "mark"),
    [
        (Address("b/x"), messages.Probed(), "central.probed_malformed"),
        (Address("b/x"), peeked(None), "central.peeked_malformed"),
        (SERVER, peeked(HOLDER._replace(owner="x" * 300)), "central.peeked_malformed"),
        (SERVER, peeked(HOLDER._replace(fence=0)), "central.peeked_malformed"),
    ],
)
def test_messages_that_no_honest_server_sends_are_counted_and_dropped(
    watch: ServerWatch, sender: Address, event: messages.Peeked | messages.Probed, mark: str
) -> None:
    watch.handle(BROKER_A, GLANCE, T0)
    before = dict(watch.state())

    assert watch.handle(sender, event, T0) == (Observe(mark),)
    assert dict(watch.state()) == before


def test_too_many_looks_are_answered_without_the_server(watch: ServerWatch) -> None:
    for query in range(10, 10 + SERVER_QUERIES_MAX):
        watch.handle(BROKER_A, replace(GLANCE, query=query), T0)

    why = f"{SERVER_QUERIES_MAX} questions wait for the lock server, the limit"
    assert not_counted(watch.handle(BROKER_A, GLANCE, T0)) == [answered(None, unknown=why)]


def test_a_reply_to_a_request_of_an_earlier_life_does_not_count() -> None:
    watch = ServerWatch(WATCH, HOST, proxy=PROXY, server=SERVER, boot=5)
    watch.begin(T0)
    watch.handle(BROKER_A, GLANCE, T0)

    assert sent(watch.handle(SERVER, peeked(None), T0), LockDescription, PROXY) == []


def test_the_server_knows_better_who_holds_than_the_node_does(watch: ServerWatch) -> None:
    ours = Contender(node="a", session="s", owner="o", fence=6, since_ms=3)
    watch.handle(SERVER, messages.Probed(), T0)
    watch.handle(BROKER_A, replace(GLANCE, holder=ours), T0)

    assert not_counted(watch.handle(SERVER, peeked(HOLDER), T0)) == [answered(HOLDER)]


# The broker


@pytest.fixture
def broker() -> Broker:
    return Broker(BROKER_A, HOST, proxy=PROXY, server=SERVER, boot=0xAB, random=Random(1))


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


def test_a_want_too_many_is_refused_with_the_limit(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "NODE_TICKETS_MAX", 4)
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

    effects = broker.handle(SERVER, peeked(holder, 0), T0)
    assert effects == (Send(PROXY, backend.HoldInDoubt(lock="l", fence=7, session="s")),)
    inside = holder._replace(session="a/ask-1")
    assert broker.handle(SERVER, peeked(inside, 0), T0) == ()
    another = holder._replace(fence=8)
    assert broker.handle(SERVER, peeked(another, 0), T0) == ()


def test_a_surrender_is_sent_to_the_server_and_its_outcome_to_the_proxy(broker: Broker) -> None:
    effects = broker.handle(PROXY, backend.ReleaseHold(lock="l", fence=7, session="s"), T0)
    assert effects == (Send(SERVER, messages.Free(lock="l", number=7, session="s")),)
    reply = messages.FreeReply(
        lock="l", number=7, session="s", outcome=ReleaseOutcome.FREED, holder=None
    )

    given = backend.HoldReleased(lock="l", fence=7, session="s", outcome=ReleaseOutcome.FREED)
    assert broker.handle(SERVER, reply, T0) == (Send(PROXY, given),)
    assert not_counted(broker.handle(Address("b/x"), reply, T0)) == []


def test_a_session_ends_at_the_server_and_its_waits_here(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    effects = broker.handle(PROXY, backend.EndHolds(session="s"), T0)
    assert effects == (Send(SERVER, messages.EndSession(session="s")),)

    give, full, ended = broker.handle(SERVER, messages.SessionEnded(session="s"), T0)

    assert give == Send(FIRST, backend.ReleaseLock(lock="l", ticket=1))
    assert only_sent([full], backend.QueueFull)
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
    assert (broker.waiting, broker.holding) == ({}, {})


def test_a_look_is_completed_by_the_watch(broker: Broker) -> None:
    broker.handle(PROXY, want(1), T0)
    broker.handle(PROXY, want(2), at(1))
    broker.handle(FIRST, backend.LockGranted(lock="l", ticket=1, fence=7), at(2))

    effects = broker.handle(PROXY, backend.QueryLock(lock="l", query=3, waiters=True), at(5))

    holder = Contender(node="a", session="s", owner="o1", fence=7, since_ms=3)
    waiter = Contender(node="a", session="s", owner="o2", fence=None, since_ms=4)
    assert effects == (Send(WATCH, replace(GLANCE, holder=holder, waiters=(waiter,))),)


def test_a_look_shows_a_bounded_number_of_waiters() -> None:
    broker = Broker(BROKER_A, HOST, proxy=PROXY, server=SERVER, boot=1, random=Random(1))
    for ticket in range(WAITERS_SHOWN_MAX + 10):
        broker.handle(PROXY, want(ticket), T0)

    effects = broker.handle(PROXY, backend.QueryLock(lock="l", query=3, waiters=True), T0)
    assert len(only_sent(effects, LockDescription).waiters) == WAITERS_SHOWN_MAX


@pytest.mark.parametrize(("waiters", "shown"), [(True, WAITERS_SHOWN_MAX), (False, 0)])
def test_a_look_builds_only_the_holder_and_the_waiters_that_it_shows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, *, waiters: bool, shown: int
) -> None:
    for ticket in range(1, 1_000):
        broker.handle(PROXY, want(ticket), T0)
    broker.handle(FIRST, backend.LockGranted(lock="l", ticket=1, fence=7), T0)
    built = count_contenders(monkeypatch, broker_module)

    effects = broker.handle(PROXY, backend.QueryLock(lock="l", query=3, waiters=waiters), T0)

    view = only_sent(effects, LockDescription)
    assert present(view.holder).owner == "o1"
    assert [waiter.owner for waiter in view.waiters] == [f"o{2 + n}" for n in range(shown)]
    assert len(built) == 1 + shown


SERVER_NODE = "n1"
MEMBERS = ("n1", "n2", "n3")
HOLDING_OWNER, WAITER = Address("c2/owner"), Address("c3/owner")
BOUND_MS = 60_000


def world_in_which_c2_holds(*, journal: bool) -> World:
    """Return a calm world at a moment when ``c2`` holds the lock, through ``n2``."""
    world = World(1)
    settings = ProtocolSettings(central_journal=journal)
    for name in MEMBERS:
        world.add(name, central, member=True, settings=settings)
    for user in (HOLDING_OWNER, WAITER):
        name = user.partition("/")[0]
        proxy = address_of(name.replace("c", "n"), "proxy")
        client = ClientPlan((proxy,), {"owner": LockUser}, ("l",), client_session)
        world.add(name, client.make_roles(), member=False)
    world.judges.append(LockJudge(MEMBERS, (HOLDING_OWNER, WAITER)))
    world.power_on_all()
    run_until(world, lambda: contender(world, HOLDING_OWNER).phase is ContenderPhase.HOLDING)
    return world


def run_until(world: World, so: Callable[[], bool]) -> None:
    while not so():
        assert world.time < 2 * BOUND_MS * NS_PER_MS
        world.run(world.time + NS_PER_MS)


def contender(world: World, user: Address) -> LockUser:
    return checked(LockUser, world.role_at(user))


def check_that_both_are_served(
    world: World, among: tuple[Address, ...] = (HOLDING_OWNER, WAITER)
) -> None:
    """Let all want the lock once more, for `BOUND_MS`; the judge of progress decides."""
    users = {user: contender(world, user) for user in among}
    for user in users:
        world.nodes[user.partition("/")[0]].tell(user, Finish())
    world.run(world.time + BOUND_MS * NS_PER_MS)
    judge_progress(users, BOUND_MS)


def test_every_client_is_served_without_a_crash() -> None:
    check_that_both_are_served(world_in_which_c2_holds(journal=False))


@pytest.mark.parametrize("journal", [False, True])
def test_a_lock_whose_client_died_stays_held_until_an_operator_releases_it(journal: bool) -> None:
    world = world_in_which_c2_holds(journal=journal)
    fence = contender(world, HOLDING_OWNER).fence
    world.crash("c2")

    with pytest.raises(ViolationError, match=r"progress: .*c3/owner waits \('l'\)"):
        check_that_both_are_served(world, (WAITER,))

    held = world.role_at(address_of(SERVER_NODE, "server")).held["l"]
    assert held.client.startswith("n2/clients-")
    operator = Evict(lock="l", fence=fence, operator="olga", session="n3", request=1)
    world.nodes["n3"].tell(address_of("n3", "proxy"), operator)
    run_until(world, lambda: contender(world, WAITER).phase is ContenderPhase.DONE)


@pytest.mark.parametrize("journal", [False, True])
def test_a_lock_whose_holders_node_restarted_is_released_by_its_client(journal: bool) -> None:
    world = world_in_which_c2_holds(journal=journal)
    world.crash("n2")
    world.power_on("n2")

    check_that_both_are_served(world)


@pytest.mark.parametrize("journal", [False, True])
def test_a_hold_that_its_client_disowns_is_given_back(journal: bool) -> None:
    """The node dies after the server granted it the lock and before its client was notified."""
    world = world_in_which_c2_holds(journal=journal)
    server = world.role_at(address_of(SERVER_NODE, "server"))
    holding = server.held["l"]
    server.held["other"] = holding._replace(number=holding.number - 1)
    server.held_by[holding.session]["other"] = None
    world.crash("n2")
    world.power_on("n2")
    request = Acquire(lock="other", session="n3", owner="o", request=1)
    world.nodes["n3"].tell(address_of("n3", "proxy"), request)

    run_until(world, lambda: "other" in server.held and "n3" in server.held["other"].client)

    assert world.marks["client.hold_disowned"] >= 1


def test_nothing_is_granted_while_the_server_is_down_and_the_nodes_name_it() -> None:
    world = world_in_which_c2_holds(journal=True)
    world.crash(SERVER_NODE)

    with pytest.raises(ViolationError, match=r"progress: .*c3/owner waits \('l'\)"):
        check_that_both_are_served(world)

    readiness = world.role_at(Address("n3/proxy")).backend.readiness
    assert not readiness.ready
    assert readiness.detail.startswith("node n1, which runs the lock server, is silent for ")


def test_a_server_with_a_journal_comes_back_and_everybody_is_served() -> None:
    world = world_in_which_c2_holds(journal=True)
    world.crash(SERVER_NODE)
    world.power_on(SERVER_NODE)

    check_that_both_are_served(world)


def test_a_server_without_a_journal_comes_back_and_forgets_who_holds() -> None:
    """Two clients then hold at once. Only the fence distinguishes them: it keeps rising."""
    world = world_in_which_c2_holds(journal=False)
    fence = contender(world, HOLDING_OWNER).fence
    world.nodes["c2"].pause()  # A holder that takes its time.
    world.crash(SERVER_NODE)
    world.power_on(SERVER_NODE)

    with pytest.raises(ViolationError, match=r"mutual exclusion: c3/owner .* while c2/owner"):
        run_until(world, lambda: False)

    assert contender(world, WAITER).fence > fence
