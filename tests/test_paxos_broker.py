from __future__ import annotations

from typing import Any, TypeVar

import pytest

from holdfast.actors.effect import Effects, Send
from holdfast.actors.lock.backend import Full, Give, Got, Look, Ready, Seen, Taken, Want
from holdfast.actors.lock.command import (
    AcquireLock,
    CancelWait,
    CloseReason,
    CloseSession,
    Command,
    KeepSession,
    OpenSession,
    ReleaseLock,
)
from holdfast.actors.lock.outcome import (
    Denial,
    Denied,
    Freed,
    Held,
    Outcome,
    Queued,
    SessionClosed,
    SessionOpened,
    WaitCancelled,
)
from holdfast.actors.message import NS_PER_MS, Address, Instant
from holdfast.actors.paxos.broker import KEEP_MS, SILENCE_MS, TTL_MS, Broker
from holdfast.actors.paxos.broker_event import Round
from holdfast.actors.paxos.errand import ASK_AGAIN_MS, LOOK_AGAIN_MS
from holdfast.actors.paxos.event import Happened
from holdfast.actors.paxos.message import Propose
from holdfast.transport.wire import decode, encode

BROKER, PROXY, REPLICA = (Address(f"n1/{role}") for role in ("broker", "proxy", "replica"))
T0 = Instant(0)
MINE = "n1/b2#7"
WANT = Want(lock="a", ticket=1, session="ann", owner="o")
K = TypeVar("K")


class NoHost:
    def now(self) -> Instant:
        return T0

    def perform(self, source: Address, effects: Effects) -> None:
        raise AssertionError((source, effects))

    def adopt(self, role: Any) -> None:
        raise AssertionError(role)


def at(ms: int) -> Instant:
    return Instant(ms * NS_PER_MS)


def new() -> Broker:
    return Broker(
        BROKER,
        NoHost(),
        name="n1/b2",
        members=("n1", "n2", "n3"),
        proxy=PROXY,
        replica=REPLICA,
        encode=encode,
    )


@pytest.fixture
def broker() -> Broker:
    broker = new()
    broker.begin(T0)
    happens(broker, SessionOpened(session="n1/b2", assigned=MINE, ttl_ms=TTL_MS, version=1))
    return broker


def happens(broker: Broker, *outcomes: Outcome, now: Instant = T0) -> Effects:
    return broker.handle(REPLICA, Happened(slot=1, time_ms=1, outcomes=outcomes), now)


def proposed(effects: Effects) -> list[Command]:
    sent = [e.message for e in effects if isinstance(e, Send)]
    commands: list[Any] = [decode(m.command) for m in sent if isinstance(m, Propose)]
    return commands


def told(effects: Effects, kind: type[K]) -> list[K]:
    sent = [e.message for e in effects if isinstance(e, Send) and e.to == PROXY]
    return [message for message in sent if isinstance(message, kind)]


def held(fence: int = 5, session: str = MINE, owner: str = "1") -> Held:
    return Held(session=session, owner=owner, request=1, lock="a", fence=fence, count=1)


def test_a_node_opens_a_session_and_asks_again_until_it_is_open() -> None:
    broker = new()
    opening = OpenSession(session="n1/b2", ttl_ms=TTL_MS, label="n1")
    assert proposed(broker.begin(T0)) == [opening]
    assert proposed(broker.handle(BROKER, Round(), at(KEEP_MS - 1))) == []
    assert proposed(broker.handle(BROKER, Round(), at(KEEP_MS))) == [opening]


def test_what_is_wanted_before_the_session_is_open_is_asked_for_then() -> None:
    broker = new()
    broker.begin(T0)
    assert proposed(broker.handle(PROXY, WANT, T0)) == []
    opened = SessionOpened(session="n1/b2", assigned=MINE, ttl_ms=TTL_MS, version=1)
    effects = happens(broker, opened)
    (command,) = proposed(effects)
    assert isinstance(command, AcquireLock)
    assert (command.session, command.owner, command.lock, command.limit) == (MINE, "1", "a", 1)
    assert told(effects, Ready) == [Ready(ready=True, detail="ready")]


def test_a_ticket_is_told_once_however_often_its_grant_is_heard(broker: Broker) -> None:
    broker.handle(PROXY, WANT, T0)
    assert told(broker.handle(Address("n2/replica"), held(), T0), Got) == [
        Got(lock="a", ticket=1, fence=5)
    ]
    assert told(happens(broker, held()), Got) == []


def test_a_grant_counts_only_from_a_member_and_in_the_session_in_force(broker: Broker) -> None:
    broker.handle(PROXY, WANT, T0)
    assert told(broker.handle(Address("mallory/replica"), held(), T0), Got) == []
    assert told(happens(broker, held(session="n1/b2#6")), Got) == []


def test_a_command_without_an_outcome_is_proposed_again_under_its_number(broker: Broker) -> None:
    first = proposed(broker.handle(PROXY, WANT, T0))
    soon = proposed(broker.handle(BROKER, Round(), at(ASK_AGAIN_MS - 1)))
    assert [type(command) for command in soon] == [KeepSession]
    again = proposed(broker.handle(BROKER, Round(), at(ASK_AGAIN_MS)))
    assert [command for command in again if isinstance(command, AcquireLock)] == first


def test_a_wait_that_the_log_knows_is_looked_after_seldom(broker: Broker) -> None:
    broker.handle(PROXY, WANT, T0)
    happens(broker, Queued(session=MINE, owner="1", request=1, lock="a"))
    soon = proposed(broker.handle(BROKER, Round(), at(LOOK_AGAIN_MS - 1)))
    assert [type(command) for command in soon] == [KeepSession]
    late = proposed(broker.handle(BROKER, Round(), at(LOOK_AGAIN_MS)))
    assert AcquireLock in [type(command) for command in late]


def test_a_hold_is_released_until_the_log_says_so(broker: Broker) -> None:
    broker.handle(PROXY, WANT, T0)
    happens(broker, held())
    (command,) = proposed(broker.handle(PROXY, Give(lock="a", ticket=1), T0))
    assert isinstance(command, ReleaseLock)
    assert command.fence == 5
    again = proposed(broker.handle(BROKER, Round(), at(ASK_AGAIN_MS)))
    assert command in again
    request = command.request
    happens(broker, Freed(session=MINE, owner="1", request=request, lock="a", count=0))
    assert broker.errands.by_ticket == {}
    assert broker.holders.locks == {}
    assert broker.holders.by_session == {}


def test_a_wait_that_is_given_up_is_never_granted(broker: Broker) -> None:
    broker.handle(PROXY, WANT, T0)
    (command,) = proposed(broker.handle(PROXY, Give(lock="a", ticket=1), T0))
    assert isinstance(command, CancelWait)
    assert told(happens(broker, held()), Got) == []
    happens(broker, WaitCancelled(session=MINE, owner="1", request=1, lock="a"))
    assert broker.errands.by_ticket == {}


def test_a_session_that_ended_takes_holds_and_asks_for_waits_anew(broker: Broker) -> None:
    broker.handle(PROXY, WANT, T0)
    happens(broker, held())
    broker.handle(PROXY, Want(lock="b", ticket=2, session="bob", owner="o"), T0)
    effects = happens(broker, SessionClosed(session=MINE, reason=CloseReason.EXPIRED))
    assert told(effects, Taken) == [Taken(lock="a", ticket=1)]
    (opening,) = proposed(broker.handle(BROKER, Round(), at(1)))
    assert isinstance(opening, OpenSession)
    opened = SessionOpened(session="n1/b2", assigned="n1/b2#9", ttl_ms=TTL_MS, version=1)
    (command,) = proposed(happens(broker, opened))
    assert isinstance(command, AcquireLock)
    assert (command.session, command.lock) == ("n1/b2#9", "b")


def test_an_expired_session_is_noticed_by_a_refusal_too(broker: Broker) -> None:
    broker.handle(PROXY, WANT, T0)
    happens(broker, held())
    expired = Denied(session=MINE, owner="", request=0, lock="", reason=Denial.SESSION_EXPIRED)
    assert told(happens(broker, expired), Taken) == [Taken(lock="a", ticket=1)]


def test_what_the_table_will_not_do_is_told(broker: Broker) -> None:
    broker.handle(PROXY, WANT, T0)
    full = Denied(
        session=MINE, owner="1", request=1, lock="a", reason=Denial.OVERLOADED, detail="9 locks"
    )
    assert told(happens(broker, full), Full) == [Full(lock="a", ticket=1, detail="9 locks")]


def test_the_sessions_of_former_lives_are_closed_until_they_are(broker: Broker) -> None:
    happens(broker, SessionOpened(session="n1/b1", assigned="n1/b1#3", ttl_ms=1, version=1))
    closing = CloseSession(session="n1/b1#3", reason=CloseReason.GRACEFUL)
    assert closing in proposed(broker.handle(BROKER, Round(), at(KEEP_MS)))
    happens(broker, SessionClosed(session="n1/b1#3", reason=CloseReason.GRACEFUL))
    assert closing not in proposed(broker.handle(BROKER, Round(), at(2 * KEEP_MS)))


def test_a_look_shows_all_nodes_and_names_the_majority_that_is_silent(broker: Broker) -> None:
    happens(broker, held(session="n2/b5#4", owner="8", fence=9))
    broker.handle(PROXY, WANT, T0)
    happens(broker, Queued(session=MINE, owner="1", request=1, lock="a"))
    (seen,) = told(broker.handle(PROXY, Look(lock="a", query=3), at(SILENCE_MS)), Seen)
    assert seen.holder is not None
    assert (seen.holder.node, seen.holder.fence) == ("n2", 9)
    assert [(w.node, w.session, w.owner) for w in seen.waiters] == [("n1", "ann", "o")]
    assert [absent.node for absent in seen.waits_for] == ["a majority of n1, n2, n3"]
