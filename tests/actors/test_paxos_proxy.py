"""The proxy of the log, with events made by hand: its proposals and its replies."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.effects import T0
from support.log_proxy_scene import (
    ACQUIRE,
    ANN,
    CANCEL,
    FAR,
    ME,
    RELEASE,
    REPLICA,
    denied,
    happens,
    in_flight_at,
    log_proxy,
    proposed,
    told,
)
from support.unbatched_proxy import UnbatchedProxy

from fencelock.actors.api import message as api
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.retained import AcquireRetained, Recall
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import (
    CloseReason,
    End,
    Ended,
    HoldLost,
    Open,
    Opened,
    ended,
)
from fencelock.actors.effect import Observe, Send, Wake
from fencelock.actors.message import Address, Message, node_of
from fencelock.actors.paxos.backend import PaxosBackend
from fencelock.actors.paxos.event import LeaderChanged
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.role_message import RoleNotice
from fencelock.actors.table.wire import LogCommand, Queued, Result

OPEN = Open(session="ann", ttl_ms=9_000, label="host:1", request=1)
HELD = api.Granted(session=ME, owner="o", request=2, lock="a", fence=5, count=1)
RETAIN = AcquireRetained(session=ME, owner="*", request=2, lock="a", span=100)
FREED = api.Released(session=ME, owner="o", request=3, lock="a", count=0)
QUEUED = Queued(session=ME, owner="o", request=2, lock="a")


@pytest.fixture
def proxy() -> Proxy:
    proxy = log_proxy(UnbatchedProxy)
    proxy.handle(REPLICA, LeaderChanged(leader="n2"), T0)
    return proxy


@pytest.mark.parametrize(
    ("request_", "command", "outcome", "answer"),
    [
        (
            OPEN,
            Open(session="ann", ttl_ms=9_000, label="host:1", request=1),
            Opened(session="ann", assigned=ME, ttl_ms=9_000, node="", request=1),
            Opened(session="ann", assigned=ME, ttl_ms=9_000, node="n1", request=1, leader="n2"),
        ),
        (
            api.KeepAlive(session=ME, request=4),
            api.KeepAlive(session=ME, request=4),
            api.Alive(session=ME, node="", request=4),
            api.Alive(session=ME, node="n1", request=4, leader="n2"),
        ),
        (
            ACQUIRE,
            api.Acquire(session=ME, owner="o", request=2, lock="a", wait_ms=50, limit=3, label="x"),
            HELD,
            api.Granted(lock="a", fence=5, session=ME, owner="o", request=2, count=1),
        ),
        (
            RETAIN,
            RETAIN,
            replace(HELD, owner="*"),
            api.Granted(lock="a", fence=5, session=ME, owner="*", request=2, count=1),
        ),
        (
            RELEASE,
            api.Release(session=ME, owner="o", request=3, lock="a", fence=5),
            FREED,
            api.Released(lock="a", session=ME, owner="o", request=3, count=0),
        ),
        (
            CANCEL,
            api.Cancel(session=ME, owner="o", request=2, lock="a"),
            api.Cancelled(session=ME, owner="o", request=2, lock="a"),
            api.Cancelled(lock="a", session=ME, owner="o", request=2),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_request_is_put_into_the_log_and_its_outcome_is_the_answer(
    proxy: Proxy, request_: Any, command: LogCommand, outcome: Result, answer: Message
) -> None:
    effects = proxy.handle(ANN, request_, T0)
    assert proposed(effects) == [command]
    assert Wake(PaxosBackend.TICK_MS, Tick()) in effects
    assert told(happens(proxy, outcome), Message) == [answer]
    assert len(in_flight_at(proxy)) == 0
    assert told(happens(proxy, outcome), Message) == []


def test_the_end_of_a_session_is_told_to_who_asked_and_not_again_unasked(proxy: Proxy) -> None:
    (command,) = proposed(proxy.handle(ANN, End(session=ME, request=9), T0))
    assert command == End(session=ME, request=9)
    closed = ended(ME, CloseReason.GRACEFUL, 9)
    (answer,) = told(happens(proxy, closed), Ended)
    assert (answer.session, answer.request) == (ME, 9)
    assert told(happens(proxy, closed), Ended) == []


@pytest.mark.parametrize(
    ("reason", "words"), [(CloseReason.EXPIRED, "TTL"), (CloseReason.FORCED, "operator")]
)
def test_a_client_hears_unasked_that_its_session_ended(
    proxy: Proxy, reason: CloseReason, words: str
) -> None:
    proxy.handle(ANN, api.KeepAlive(session=ME, request=4), T0)
    (notice,) = told(happens(proxy, ended(ME, reason)), Ended)
    assert (notice.session, notice.request) == (ME, 0)
    assert words in notice.detail


@pytest.mark.parametrize(
    "wait", [ACQUIRE, AcquirePermits(semaphore="a", permits=3, session=ME, owner="o", request=2)]
)
def test_a_wait_for_any_object_is_cancelled_when_the_key_of_its_client_is_removed(
    proxy: Proxy, wait: api.AcquireRequest
) -> None:
    proxy.handle(ANN, wait, T0)
    proxy.backend.cancel_waits([node_of(ANN)], T0)
    (cancel,) = [command for _, command in proxy.backend.pending()]
    assert isinstance(cancel, api.Cancel)
    assert cancel.key == (ME, "o", wait.lock, -2)


def test_a_client_hears_unasked_that_an_operator_took_its_hold(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    why = Why(Cause.TAKEN, texts=("eve (n2)",))
    lost = HoldLost(session=ME, owner="o", lock="a", fence=5, detail="", why=why)
    (told_,) = told(happens(proxy, lost), HoldLost)
    assert (told_.lock, told_.fence, told_.session, told_.owner) == ("a", 5, ME, "o")
    assert told_.why is None
    assert told_.detail == "lock 'a': the hold under fence 5 was taken by 'eve (n2)'"


def test_a_client_hears_unasked_that_others_wait_for_what_it_retains(proxy: Proxy) -> None:
    proxy.handle(ANN, api.KeepAlive(session=ME, request=4), T0)
    recall = Recall(session=ME, owner="*", lock="a", fence=5, waiting=2)
    assert told(happens(proxy, recall), Recall) == [recall]
    alive = api.Alive(session=ME, node="", request=4)
    (*_, repeated) = told(happens(proxy, alive, recall), Message)
    assert repeated == recall
    assert happens(proxy, replace(recall, session="bob.3")) == []


def test_a_recall_that_the_leaders_replica_sends_waits_for_the_log(proxy: Proxy) -> None:
    """It may concern a client of this node or not; this node's own replica sends all of them."""
    recall = Recall(session=ME, owner="*", lock="a", fence=5)
    assert proxy.handle(FAR, recall, T0) == []
    assert proxy.handle(Address("mallory/replica"), recall, T0) == [
        Observe("paxos.stranger_ignored")
    ]


def test_losses_of_clients_that_are_elsewhere_are_told_by_nobody_here(proxy: Proxy) -> None:
    lost = HoldLost(session="bob.3", owner="o", lock="a", fence=5, detail="eve (n2)")
    closed = ended("bob.3", CloseReason.EXPIRED)
    (noted,) = happens(proxy, lost, closed)
    assert isinstance(noted, Send)
    assert isinstance(noted.message, RoleNotice)
    assert noted.message.text.startswith("session bob.3 expired: ")


def test_the_leaders_own_word_answers_ahead_of_the_log(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    assert len(told(proxy.handle(FAR, HELD, T0), api.Granted)) == 1
    assert told(happens(proxy, HELD), api.Granted) == []


def test_outcomes_count_only_from_members(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    effects = proxy.handle(Address("mallory/replica"), HELD, T0)
    assert effects == [Observe("paxos.stranger_ignored")]
    assert len(in_flight_at(proxy)) == 1


@pytest.mark.parametrize(
    "why",
    [
        Why(Cause.TIMED_OUT),
        Why(Cause.TIMED_OUT, (), ("a",), Obstacle("a")),
        Why(Cause.QUOTA, (1, 2, 3), ("shop", "apples")),
        Why(Cause.QUOTA, (1, 2, 3), ("shop",)),
        Why(Cause.OTHER_SIZE, (1, 2, 3)),
        Why(Cause.DELETED, (1,), ("root",)),
        Why(Cause.PURGED, (1,), ("",)),
    ],
)
def test_a_refusal_that_nobody_can_put_into_words_is_dropped(proxy: Proxy, why: Why) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    effects = proxy.handle(FAR, replace(denied(api.Reason.TIMED_OUT), why=why), T0)
    assert effects == [Observe("paxos.outcome_malformed")]
    assert len(in_flight_at(proxy)) == 1


def test_an_outcome_of_another_kind_answers_nobody(proxy: Proxy) -> None:
    proxy.handle(ANN, RELEASE, T0)
    grant = api.Granted(session=ME, owner="o", request=3, lock="a", fence=5, count=1)
    assert proxy.handle(FAR, grant, T0) == []
    assert len(in_flight_at(proxy)) == 1


def test_a_wait_is_answered_when_it_is_over_and_not_when_it_is_queued(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    assert happens(proxy, QUEUED) == []
    assert len(told(happens(proxy, HELD), api.Granted)) == 1


def test_a_cancel_takes_the_place_of_its_acquire(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    assert len(proposed(proxy.handle(ANN, CANCEL, T0))) == 1
    over = denied(api.Reason.CANCELLED)
    effects = happens(proxy, over, api.Cancelled(session=ME, owner="o", request=2, lock="a"))
    assert told(effects, api.Refused) == []
    assert len(told(effects, api.Cancelled)) == 1
    assert len(in_flight_at(proxy)) == 0
