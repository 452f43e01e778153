"""Reads at the proxy of the log whose replies are lists, or the same for several clients.

Others stand in `transcripts/paxos-proxy-reads.txt`.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.log_proxy_scene import ANN, REPLICA, led_by_n2, log_proxy, read_request
from support.role_harness import T0, sent
from support.table_scene import status_of

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.operator_message import (
    ListedEviction,
    ListedLock,
    ListedSession,
    ListLocks,
    ListRecords,
    LockList,
    RecordList,
    Records,
)
from fencelock.actors.api.session_message import Open
from fencelock.actors.effect import Effects
from fencelock.actors.message import Address
from fencelock.actors.paxos.event import MachineRead, ReadMachine
from fencelock.actors.paxos.queries import LOOK_AGE_MS
from fencelock.actors.proxy.event import Report, Reported
from fencelock.actors.proxy.proxy import Proxy
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

NODE = Address("n1/node")

BOB = api.Contender("bob", "bob~2.9", "p", 7, 40, "host:2", 2)
INSIDE_N2 = api.Contender("n2", "n2/b5.3", "ask-4", None, 20)
STATUS = api.LockStatus(lock="a", holder=BOB, waiters=(INSIDE_N2,), waits_for=(), left_ms=100)
"""The reply of the replica, which does not know who asks."""
REPORTED = Reported(uptime_ms=5, counters=())


@pytest.fixture
def proxy() -> Proxy:
    return led_by_n2(log_proxy(Proxy))


def machine_read(proxy: Proxy, answer: Any, age_ms: int) -> Effects:
    """Let the replica answer the first query."""
    event = MachineRead(number=1, reply=answer, slot=12, age_ms=age_ms)
    return proxy.handle(REPLICA, event, T0)


def test_durations_go_on_while_nothing_is_applied(proxy: Proxy) -> None:
    """The replica sends the same reply to all clients that ask the same."""
    shown: list[tuple[int, int, int | None]] = []
    for number, quiet_ms in enumerate((0, 900, 900, 13_000), 1):
        proxy.handle(ANN, api.Inspect(lock="a", session="ann", request=number), T0)
        event = MachineRead(number=number, reply=STATUS, slot=12, age_ms=0, quiet_ms=quiet_ms)
        (status,) = sent(proxy.handle(REPLICA, event, T0), api.LockStatus, ANN)
        assert status.holder is not None
        shown.append((status.holder.since_ms, status.waiters[0].since_ms, status.left_ms))
    assert shown == [(40, 20, 100), (940, 920, 0), (940, 920, 0), (13_040, 13_020, 0)]


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
    effects = proxy.handle(ANN, Describe(session="ann", request=4), T0)
    assert sent(effects, Report, NODE) == [Report()]
    assert read_request(effects) == ReadMachine(number=1, query=DescribeLocks(), age_ms=LOOK_AGE_MS)
    assert list(proxy.handle(NODE, REPORTED, T0)) == []
    locks = (STATUS, replace(STATUS, lock="b", waiters=()))
    effects = machine_read(proxy, LocksDescribed(locks=locks), 30)
    (status,) = sent(effects, NodeStatus, ANN)
    assert (status.ready, status.detail) == (True, "ready, follows n2")
    assert (status.protocol, status.leader, status.nodes) == ("paxos", "n2", ("n1", "n2", "n3"))
    assert (status.session, status.request, status.uptime_ms) == ("ann", 4, 5)
    assert [(lock.lock, lock.holder, lock.waiters) for lock in status.locks] == [
        ("a", BOB, (INSIDE_N2,)),
        ("b", BOB, ()),
    ]


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
