"""Counters and pools as users meet them: threads, tasks and asks, on a `paxos` cluster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.expect import PATIENCE_S, checked
from support.faces import FACES, Connect
from support.real_nodes import ask, until

import fencelock
import fencelock.aio
from fencelock.actors.api.counter import COUNTER, VALUE_MAX, AddToCounter, CounterChanged
from fencelock.actors.api.name import object_name
from fencelock.actors.api.pool import POOL, GivePermits, PermitsGiven, PermitsTaken, TakePermits
from fencelock.cluster.node.node import Node

CALLS = 90


@pytest.fixture
def counter(connect: Connect, name: str) -> fencelock.Counter:
    return connect().counter(name)


def test_all_clients_see_one_value(connect: Connect, counter: fencelock.Counter) -> None:
    other = connect().counter(counter.name)
    assert (counter.get(), other.get()) == (0, 0)
    assert counter.add() == 1
    assert other.add(5) == 6
    assert counter.get_and_add(-2) == 6
    assert other.set(10) == 4
    assert (counter.get(), other.get()) == (10, 10)
    assert counter.get(read="local", max_age=60) in {0, 1, 4, 6, 10}


def test_a_value_is_set_only_from_the_expected_one(counter: fencelock.Counter) -> None:
    assert counter.compare_and_set(0, 7) is True
    assert counter.compare_and_set(0, 9) is False
    assert counter.get() == 7
    assert counter.compare_and_set(7, 0) is True
    assert counter.compare_and_set(expected=0, value=-1) is True


def test_threads_count_each_once(connect: Connect, pool: ThreadPoolExecutor, name: str) -> None:
    clients = [connect() for _ in range(3)]
    counters = itertools.cycle(client.counter(name) for client in clients)
    values = pool.map(fencelock.Counter.add, itertools.islice(counters, CALLS))
    assert sorted(values) == list(range(1, CALLS + 1))


def test_a_change_is_refused_unless_its_lock_is_held(
    connect: Connect, counter: fencelock.Counter, name: str
) -> None:
    client = connect()
    lock = client.lock(name)
    with lock as hold:
        assert counter.add(fence=hold) == 1
        assert counter.get_and_add(fence=lock) == 1
        assert counter.set(5, fence=hold) == 2
        assert counter.compare_and_set(5, 6, fence=hold)
    changes: tuple[Callable[[], object], ...] = (
        lambda: counter.add(fence=hold),
        lambda: counter.get_and_add(fence=hold),
        lambda: counter.set(0, fence=hold),
        lambda: counter.compare_and_set(6, 7, fence=hold),
    )
    for change in changes:
        with pytest.raises(
            fencelock.NotHeldError, match=f"counter '{name}': nothing was changed: lock '{name}' is"
        ):
            change()
    with pytest.raises(fencelock.NotHeldError, match="is not held by this object"):
        counter.add(fence=lock)
    assert counter.get() == 6


def test_requests_beyond_the_limits_are_refused_and_change_nothing(
    connect: Connect, counter: fencelock.Counter, name: str
) -> None:
    counter.set(VALUE_MAX)
    with pytest.raises(
        fencelock.InvalidRequestError,
        match=f"counter '{name}' is {VALUE_MAX}, and 1 more is beyond the limits of -{VALUE_MAX}",
    ):
        counter.add()
    assert counter.get() == VALUE_MAX
    for made in (
        lambda: counter.add(VALUE_MAX + 1),
        lambda: counter.set(-VALUE_MAX - 1),
        lambda: counter.compare_and_set(VALUE_MAX + 1, 0),
        lambda: connect().counter(""),
        lambda: connect().counter("x" * 257),
    ):
        with pytest.raises(ValueError, match=r"must be|allowed"):
            made()
    wrong: Any = "3"
    with pytest.raises(TypeError, match="n is '3', and must be an int from -9223372036854775807"):
        counter.add(wrong)
    with pytest.raises(TypeError, match="value is '3', and must be an int"):
        counter.set(wrong)
    with pytest.raises(TypeError, match="expected is '3', and must be an int"):
        counter.compare_and_set(wrong, 1)
    with pytest.raises(TypeError, match="fence is '3', and must be a lock or a hold"):
        counter.add(fence=wrong)
    assert counter.get() == VALUE_MAX


def test_lists_show_counters_which_clash_with_no_map_or_lock(
    connect: Connect, counter: fencelock.Counter, name: str
) -> None:
    client = connect()
    client.map(name).put(name, b"x")
    with client.lock(name):
        counter.add(3)
        (listed,) = client.objects(f"{COUNTER}\x1f{name}")
        assert listed == (object_name(COUNTER, name), 0, 3, 0)
    counter.set(0)
    assert client.objects(f"{COUNTER}\x1f{name}") == ()
    assert client.map(name).get(name) is not None
    assert repr(counter) == f"<Counter '{name}'>"


async def test_tasks_count(paxos_addresses: str, name: str) -> None:
    async with fencelock.aio.connect(paxos_addresses, cluster=FACES) as client:
        counter = client.counter(name)
        values = await asyncio.gather(*(counter.add() for _ in range(CALLS)))
        assert sorted(values) == list(range(1, CALLS + 1))
        assert await counter.get_and_add(-CALLS) == CALLS
        assert await counter.get() == 0
        assert await counter.compare_and_set(0, 4)
        async with client.lock(name) as hold:
            assert await counter.set(8, fence=hold) == 4
        with pytest.raises(fencelock.NotHeldError):
            await counter.add(fence=hold)


def test_callers_inside_a_node_count(connect: Connect, paxos_nodes: list[Node], name: str) -> None:
    changed = checked(CounterChanged, ask(paxos_nodes[0], AddToCounter(counter=name, amount=2)))
    assert (changed.before, changed.after) == (0, 2)
    assert connect().counter(name).add() == 3


def made(client: fencelock.Client, name: str, permits: int = 3) -> fencelock.Pool:
    return client.semaphore(name, permits, session_aware=False)


def until_awaited(pool: fencelock.Pool) -> None:
    until(lambda: pool.status().waiters)


def test_a_permit_stays_taken_when_its_client_is_closed(connect: Connect, name: str) -> None:
    gone, stays = connect(), connect()
    assert made(gone, name).acquire(2)
    gone.close()
    pool = made(stays, name)
    assert pool.available() == 1
    assert pool.acquire(2, blocking=False) is False
    assert pool.acquire(2, timeout=0.01) is False
    pool.release(2)
    assert pool.available() == 3
    with pytest.raises(ValueError, match=f"pool '{name}': 1 permits were released, 0 are taken"):
        pool.release()


def test_a_caller_waits_until_another_client_releases(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    one, two = made(connect(), name), made(connect(), name)
    assert one.drain() == 3
    assert (one.drain(), two.available()) == (0, 0)
    waits = pool.submit(two.acquire, timeout=PATIENCE_S)
    until_awaited(one)
    one.release()
    assert waits.result(PATIENCE_S) is True
    assert one.resize(5) == one.available() == 2
    assert (one.permits, two.permits) == (5, 3)
    with pytest.raises(fencelock.InvalidRequestError, match=f"pool '{name}' has 5 permits; this"):
        two.acquire()
    with one:
        assert one.available() == 1
    two.release(3)
    assert made(connect(), name, 1).acquire()


def test_it_is_another_object_than_the_semaphore_of_that_name(connect: Connect, name: str) -> None:
    client = connect()
    pool = made(client, name, 2)
    with client.semaphore(name, 3):
        assert pool.acquire()
        (listed,) = client.objects(f"{POOL}\x1f{name}")
        assert listed == (object_name(POOL, name), 0, 1, 2)
    pool.release()
    assert client.objects(f"{POOL}\x1f{name}") == ()
    assert repr(pool) == f"<Pool '{name}' of 2>"


def test_values_out_of_their_limits_are_refused(connect: Connect, name: str) -> None:
    client = connect()
    pool = made(client, name)
    for call in (
        lambda: made(client, name, 0),
        lambda: made(client, "", 1),
        lambda: pool.acquire(4),
        lambda: pool.acquire(0),
        lambda: pool.acquire(blocking=False, timeout=1),
        lambda: pool.acquire(timeout=-5),
        lambda: pool.release(0),
        lambda: pool.resize(0),
    ):
        with pytest.raises(ValueError, match=r"must be|allowed|bytes|non-blocking"):
            call()
    wrong: Any = "3"
    with pytest.raises(TypeError, match="n is '3', and must be an int from 1 to 3"):
        pool.acquire(wrong)
    with pytest.raises(TypeError, match="permits is '3', and must be an int"):
        made(client, name, wrong)
    assert pool.drain() == 3
    with pytest.raises(fencelock.LockTimeoutError, match="0 of 3 permits are free"):
        client.semaphore(name, 3, timeout=0, session_aware=False).__enter__()
    pool.release(3)


async def test_tasks_take_and_give(paxos_addresses: str, name: str) -> None:
    async with fencelock.aio.connect(paxos_addresses, cluster=FACES) as client:
        pool = client.semaphore(name, 3, session_aware=False)
        async with pool:
            assert await pool.drain() == 2
            waits = asyncio.create_task(pool.acquire())
            while not (await pool.status()).waiters:
                pass
            await pool.release()
            assert await waits is True
            assert await pool.acquire(blocking=False) is False
            await pool.release(2)
            assert await pool.resize(4) == 3
        assert await pool.available() == 4


def test_callers_inside_a_node_take_and_give(
    connect: Connect, paxos_nodes: list[Node], name: str
) -> None:
    checked(PermitsTaken, ask(paxos_nodes[0], TakePermits(pool=name, size=3, amount=2)))
    assert made(connect(), name).available() == 1
    given = checked(PermitsGiven, ask(paxos_nodes[1], GivePermits(pool=name, amount=2)))
    assert (given.changed, given.taken) == (True, 0)
