"""Semaphores whose permits outlive sessions, with threads, tasks and asks, on a `paxos` cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.real_nodes import ask

import fencelock
import fencelock.aio
from fencelock.actors.api.name import object_name
from fencelock.actors.api.pool import POOL, GivePermits, PermitsGiven, PermitsTaken, TakePermits
from fencelock.cluster.node.node import Node

PATIENCE_S = 60

Connect = Callable[[], fencelock.Client]


def made(client: fencelock.Client, name: str, permits: int = 3) -> fencelock.Pool:
    return client.semaphore(name, permits, session_aware=False)


def until_awaited(pool: fencelock.Pool) -> None:
    while not pool.status().waiters:
        pass


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


def test_what_is_out_of_its_limits_is_refused(connect: Connect, name: str) -> None:
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


def test_tasks_take_and_give(paxos_nodes: list[Node], name: str) -> None:
    async def scene() -> None:
        addresses = ",".join(node.address for node in paxos_nodes)
        async with fencelock.aio.connect(addresses, cluster="faces") as client:
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

    asyncio.run(scene())


def test_callers_inside_a_node_take_and_give(
    connect: Connect, paxos_nodes: list[Node], name: str
) -> None:
    taken = ask(paxos_nodes[0], TakePermits(pool=name, size=3, amount=2))
    assert isinstance(taken, PermitsTaken)
    assert made(connect(), name).available() == 1
    given = ask(paxos_nodes[1], GivePermits(pool=name, amount=2))
    assert isinstance(given, PermitsGiven)
    assert (given.changed, given.taken) == (True, 0)
