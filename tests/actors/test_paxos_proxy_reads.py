"""Reads at the proxy of the log: about one lock, about all, about the node itself."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.log_proxy_scene import ANN, PROXY, REPLICA, led_by_n2, log_proxy, read_request
from support.role_harness import T0, at, sent
from support.table_scene import status_of

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.session_message import (
    ListedEviction,
    ListedLock,
    ListedSession,
    ListLocks,
    ListRecords,
    LockList,
    Open,
    RecordList,
    Records,
)
from fencelock.actors.bootstrap_message import VotingStatus
from fencelock.actors.effect import Effects, Observe
from fencelock.actors.message import Address
from fencelock.actors.paxos.event import LeaderChanged, MachineRead, ReadMachine
from fencelock.actors.paxos.queries import DESCRIBE_MS, LOOK_AGE_MS, READY_AGE_MS
from fencelock.actors.proxy.event import Report, Reported
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.proxy.queries import QUERY_MS
from fencelock.actors.table.report import (
    TABLE_LOCKS_SHOWN_MAX,
    DescribeLocks,
    LocksDescribed,
    describe_locks,
    list_locks,
)
from fencelock.actors.table.table import LockTable
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.codec import encode

NODE, ASK = Address("n1/node"), Address("n1/ask-1")

BOB = api.Contender("bob", "bob~2.9", "p", 7, 40, "host:2", 2)
INSIDE_N2 = api.Contender("n2", "n2/b5.3", "ask-4", None, 20)
STATUS = api.LockStatus(lock="a", holder=BOB, waiters=(INSIDE_N2,), waits_for=(), left_ms=100)
"""The reply of the replica, which does not know who asks."""
INSPECT = api.Inspect(lock="a", session="ann", request=3)
REPORTED = Reported(uptime_ms=5, counters=())


@pytest.fixture
def proxy() -> Proxy:
    return led_by_n2(log_proxy(Proxy))


def machine_read(proxy: Proxy, answer: Any, age_ms: int = 0) -> Effects:
    """Let the replica answer the first query."""
    event = MachineRead(number=1, reply=answer, slot=12, age_ms=age_ms)
    return proxy.handle(REPLICA, event, T0)


def test_queries_sent_before_the_replica_runs_are_sent_again_when_it_begins() -> None:
    proxy = log_proxy(Proxy)
    asked = proxy.handle(ANN, INSPECT, T0)
    began = LeaderChanged(leader="")
    assert sent(proxy.handle(REPLICA, began, at(1)), ReadMachine, REPLICA) == [read_request(asked)]
    proxy.handle(REPLICA, LeaderChanged(leader="n2"), at(2))
    assert not sent(
        proxy.handle(REPLICA, began, at(3)), ReadMachine, REPLICA
    )  # It keeps its reads.


def test_a_lock_is_looked_up_in_the_replica_and_shown_in_the_order_of_service(proxy: Proxy) -> None:
    asked = read_request(proxy.handle(ANN, INSPECT, T0))
    assert asked == ReadMachine(number=1, query=api.Inspect(lock="a"), age_ms=None)
    assert sent(machine_read(proxy, STATUS), api.LockStatus, ANN) == [
        api.LockStatus(
            lock="a",
            holder=BOB,
            waiters=(INSIDE_N2,),
            waits_for=(),
            session="ann",
            request=3,
            slot=12,
            age_ms=0,
            left_ms=100,
        )
    ]
    assert machine_read(proxy, STATUS) == ()


def test_a_free_lock_has_no_holder(proxy: Proxy) -> None:
    proxy.handle(ANN, INSPECT, T0)
    free = api.LockStatus(lock="a", holder=None, waiters=(), waits_for=())
    (status,) = sent(machine_read(proxy, free), api.LockStatus, ANN)
    assert (status.holder, status.waiters) == (None, ())


def test_durations_go_on_while_nothing_is_applied(proxy: Proxy) -> None:
    shown: list[tuple[int, int, int | None]] = []
    for number, quiet_ms in enumerate((0, 900, 900, 13_000), 1):
        proxy.handle(ANN, api.Inspect(lock="a", session="ann", request=number), T0)
        event = MachineRead(number=number, reply=STATUS, slot=12, age_ms=0, quiet_ms=quiet_ms)
        (status,) = sent(proxy.handle(REPLICA, event, T0), api.LockStatus, ANN)
        assert status.holder is not None
        shown.append((status.holder.since_ms, status.waiters[0].since_ms, status.left_ms))
    assert shown == [(40, 20, 100), (940, 920, 0), (940, 920, 0), (13_040, 13_020, 0)]


def test_a_question_that_is_sent_again_is_asked_once(proxy: Proxy) -> None:
    proxy.handle(ANN, INSPECT, T0)
    assert list(proxy.handle(ANN, INSPECT, at(5))) == []
    assert len(sent(machine_read(proxy, STATUS), api.LockStatus, ANN)) == 1
    assert read_request(proxy.handle(ANN, INSPECT, at(6))).number == 2


@pytest.mark.parametrize(("age_ms", "words"), [(900, "900 ms old"), (-1, "not known")])
def test_a_local_read_that_is_too_old_is_refused(proxy: Proxy, age_ms: int, words: str) -> None:
    local = api.Inspect(lock="a", session="ann", request=3, age_ms=500)
    assert read_request(proxy.handle(ANN, local, T0)).age_ms == 500
    (refused,) = sent(machine_read(proxy, None, age_ms), api.Refused, ANN)
    assert (refused.reason, refused.lock, refused.request) == (api.Reason.STALE, "a", 3)
    assert words in refused.detail
    assert "500 ms were allowed" in refused.detail


def test_a_local_read_reports_its_age(proxy: Proxy) -> None:
    proxy.handle(ANN, api.Inspect(lock="a", session="ann", age_ms=500), T0)
    (status,) = sent(machine_read(proxy, STATUS, 120), api.LockStatus, ANN)
    assert status.age_ms == 120


def test_a_caller_inside_is_notified_without_a_majority_and_a_client_is_not(proxy: Proxy) -> None:
    proxy.handle(ANN, INSPECT, T0)
    proxy.handle(ASK, api.Inspect(lock="a"), T0)
    assert sent(proxy.handle(PROXY, Tick(), at(QUERY_MS - 1)), api.Refused, ASK) == []
    effects = proxy.handle(PROXY, Tick(), at(QUERY_MS))
    (refused,) = sent(effects, api.Refused, ASK)
    assert refused.reason is api.Reason.UNAVAILABLE
    assert f"a majority of n1, n2, n3 has not answered for {QUERY_MS} ms" in refused.detail
    assert sent(effects, api.Refused, ANN) == []
    assert not proxy.backend.is_busy()
    assert read_request(proxy.handle(ANN, INSPECT, at(QUERY_MS))).query == api.Inspect(lock="a")


def test_questions_have_a_limit(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelock.actors.proxy.queries.NODE_QUERIES_MAX", 2)
    for request in (1, 2):
        proxy.handle(ANN, api.Inspect(lock="a", session="ann", request=request), T0)
    effects = proxy.handle(ANN, api.Inspect(lock="a", session="ann", request=3), T0)
    (refused,) = sent(effects, api.Refused, ANN)
    assert (refused.reason, refused.request) == (api.Reason.OVERLOADED, 3)


def test_locks_are_listed_page_by_page(proxy: Proxy) -> None:
    query = ListLocks(prefix="a", after="a1", most=2, session="ann", request=4, age_ms=9)
    asked = read_request(proxy.handle(ANN, query, T0))
    wanted = ListLocks(prefix="a", after="a1", most=2)
    assert asked == ReadMachine(number=1, query=wanted, age_ms=9)
    lines = (ListedLock("a2", BOB, 3), ListedLock("a3", BOB, 0))
    listed = LockList(lines=lines, more=True)
    assert sent(machine_read(proxy, listed, 4), LockList, ANN) == [
        replace(listed, session="ann", request=4, slot=12, age_ms=4)
    ]


def test_answers_fit_a_frame_however_long_the_names() -> None:
    long, table = "é" * 128, LockTable()
    table.apply(0, Open(session=long, ttl_ms=9_000, label=long))
    for number in range(1, 1_001):
        name = f"{number:04}{long[2:]}"
        acquire = api.Acquire(
            lock=long, session=f"{long}.1", owner=name, request=number, label=long
        )
        table.apply(0, acquire)
        table.apply(0, replace(acquire, lock=name))
    status = status_of(table, long)
    assert 100 < len(status.waiters) < 999
    assert len(encode(status)) < FRAME_BYTES_MAX
    listed = list_locks(table, ListLocks(most=1_000))
    assert 30 < len(listed.lines) < 1_000
    assert listed.more
    assert len(encode(listed)) < FRAME_BYTES_MAX
    described = describe_locks(table, DescribeLocks()).locks
    assert 50 < len(described) <= TABLE_LOCKS_SHOWN_MAX
    assert sum(len(encode(one)) for one in described) < FRAME_BYTES_MAX


def test_a_node_describes_itself_and_the_locks_with_their_waiters(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, api.Describe(session="ann", request=4), T0)
    assert sent(effects, Report, NODE) == [Report()]
    assert read_request(effects) == ReadMachine(number=1, query=DescribeLocks(), age_ms=LOOK_AGE_MS)
    assert list(proxy.handle(NODE, REPORTED, T0)) == []
    locks = (STATUS, replace(STATUS, lock="b", waiters=()))
    effects = machine_read(proxy, LocksDescribed(locks=locks), 30)
    (status,) = sent(effects, api.NodeStatus, ANN)
    assert (status.ready, status.detail) == (True, "ready, follows n2")
    assert (status.protocol, status.leader, status.nodes) == ("paxos", "n2", ("n1", "n2", "n3"))
    assert (status.session, status.request, status.uptime_ms) == ("ann", 4, 5)
    assert [(lock.lock, lock.holder, lock.waiters) for lock in status.locks] == [
        ("a", BOB, (INSIDE_N2,)),
        ("b", BOB, ()),
    ]


@pytest.mark.parametrize(
    ("leader", "detail"),
    [("n2", "ready, follows n2; n1 is an observer"), ("", "n1 is an observer; no leader is known")],
    ids=["serves", "does not serve"],
)
def test_a_node_that_does_not_vote_says_first_whether_it_serves(
    proxy: Proxy, leader: str, detail: str
) -> None:
    """`fencelock status` has one "ready" of it: a node that does not vote may serve."""
    proxy.handle(Address("n1/bootstrap"), VotingStatus(votes=False, why="n1 is an observer"), T0)
    proxy.handle(REPLICA, LeaderChanged(leader=leader), T0)
    proxy.handle(ANN, api.Describe(session="ann", request=4), T0)
    proxy.handle(NODE, REPORTED, T0)
    (status,) = sent(machine_read(proxy, LocksDescribed(locks=()), 5), api.NodeStatus, ANN)
    assert status.ready is bool(leader)
    assert status.detail.startswith(detail)


def test_descriptions_asked_for_at_once_share_one_look(proxy: Proxy) -> None:
    proxy.handle(ANN, api.Describe(session="ann", request=4), T0)
    assert sent(proxy.handle(ASK, api.Describe(), T0), ReadMachine, REPLICA) == []
    proxy.handle(NODE, REPORTED, T0)
    effects = machine_read(proxy, LocksDescribed(locks=()))
    assert [len(sent(effects, api.NodeStatus, asker)) for asker in (ANN, ASK)] == [1, 1]
    read_request(proxy.handle(ANN, api.Describe(session="ann"), at(9)))


@pytest.mark.parametrize(
    ("answer", "age_ms", "leader", "words"),
    [
        (None, -1, "n2", "not known how old"),
        (None, LOOK_AGE_MS + 1, "n2", f"{LOOK_AGE_MS + 1} ms old"),
        (LocksDescribed(locks=()), READY_AGE_MS + 1, "n2", "does not answer"),
        (LocksDescribed(locks=()), 5, "", "no leader is known"),
    ],
    ids=["nothing known", "too old to show", "old", "no leader"],
)
def test_a_node_that_cannot_serve_reports_what_is_missing(
    proxy: Proxy, answer: Any, age_ms: int, leader: str, words: str
) -> None:
    proxy.handle(REPLICA, LeaderChanged(leader=leader), T0)
    proxy.handle(ANN, api.Describe(session="ann", request=4), T0)
    proxy.handle(NODE, REPORTED, T0)
    (status,) = sent(machine_read(proxy, answer, age_ms), api.NodeStatus, ANN)
    assert not status.ready
    assert words in status.detail
    assert status.locks == ()


def test_a_description_does_not_wait_for_a_replica_for_long(proxy: Proxy) -> None:
    proxy.handle(ANN, api.Describe(session="ann", request=4), T0)
    proxy.handle(NODE, REPORTED, T0)
    assert sent(proxy.handle(PROXY, Tick(), at(DESCRIBE_MS - 1)), api.NodeStatus, ANN) == []
    (status,) = sent(proxy.handle(PROXY, Tick(), at(DESCRIBE_MS)), api.NodeStatus, ANN)
    assert not status.ready
    assert "a majority of n1, n2, n3" in status.detail
    assert machine_read(proxy, LocksDescribed(locks=())) == ()


def test_a_session_without_end_describes_nothing(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, api.Describe(session="x" * 999), T0)
    assert effects == [Observe("proxy.session_malformed")]


def test_sessions_and_evictions_are_listed_page_by_page(proxy: Proxy) -> None:
    query = ListRecords(kind=Records.EVICTIONS, skip=3, most=2, session="ann", request=4)
    asked = read_request(proxy.handle(ANN, query, T0))
    assert asked.query == ListRecords(kind=Records.EVICTIONS, skip=3, most=2)
    evicted = ListedEviction("a", 7, BOB, "alice", 100)
    session = ListedSession("bob~2.9", "host:2", 15_000, 9_000, 1)
    read = RecordList(sessions=(session,), evictions=(evicted,), more=True)
    event = MachineRead(number=1, reply=read, slot=12, age_ms=0, quiet_ms=500)
    (listed,) = sent(proxy.handle(REPLICA, event, T0), RecordList, ANN)
    assert listed.sessions == (session._replace(left_ms=8_500),)
    assert listed.evictions == (evicted._replace(ago_ms=600),)
    assert (listed.more, listed.request) == (True, 4)


@pytest.mark.parametrize(("skip", "most"), [(-1, 1), (0, 0), (0, 1_001)])
def test_a_page_of_records_out_of_its_limits_is_refused(proxy: Proxy, skip: int, most: int) -> None:
    query = ListRecords(skip=skip, most=most, session="ann", request=4)
    (no,) = sent(proxy.handle(ANN, query, T0), api.Refused, ANN)
    assert no.reason is api.Reason.INVALID
