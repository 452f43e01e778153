"""Latches and barriers as users meet them: threads, tasks and asks, on a `paxos` cluster."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.expect import PATIENCE_S, checked
from support.faces import FACES, Connect
from support.real_nodes import ask, until

import fencelock
import fencelock.aio
from fencelock.actors.api.barrier import BARRIER, AwaitBarrier, BarrierPassed
from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.name import object_name
from fencelock.cluster.node.node import Node


def until_awaited(client: fencelock.Client, name: str, waiters: int = 1) -> None:
    until(lambda: len(client.status(object_name(LATCH, name)).waiters) >= waiters)


def test_callers_pass_once_the_count_is_0(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    one, two = connect(), connect()
    waits = [pool.submit(client.latch(name, 3).wait, PATIENCE_S) for client in (one, two, two)]
    until_awaited(one, name, 3)
    latch = one.latch(name, 3)
    assert latch.count() == 3
    assert latch.count_down() == 2
    assert two.latch(name, count=3).count() == 2
    assert not any(wait.done() for wait in waits)
    assert two.latch(name, 3).count_down(2) == 0
    assert [wait.result(PATIENCE_S) for wait in waits] == [True] * 3
    assert latch.wait(0)  # The latch is kept.
    assert latch.count_down() == latch.count() == 0


def test_a_wait_that_times_out_returns_false(connect: Connect, name: str) -> None:
    latch = connect().latch(name, 2)
    assert latch.wait(0) is False
    assert latch.wait(timeout=0.01) is False
    assert latch.count() == 2
    assert not latch.status().waiters


def test_a_latch_is_gone_after_it_was_kept(connect: Connect, name: str) -> None:
    latch = connect().latch(name, 1, keep_s=0)
    assert latch.count_down() == 0
    assert latch.count() == 1
    assert latch.wait(0) is False


def test_threads_count_each_once(connect: Connect, pool: ThreadPoolExecutor, name: str) -> None:
    clients = [connect() for _ in range(3)]
    calls = 90
    latches = itertools.cycle(client.latch(name, calls) for client in clients)
    left = pool.map(fencelock.Latch.count_down, itertools.islice(latches, calls))
    assert sorted(left) == list(range(calls))


def test_another_count_and_what_is_out_of_its_limits_are_refused(
    connect: Connect, name: str
) -> None:
    client = connect()
    latch = client.latch(name, 3)
    latch.count_down()
    with pytest.raises(fencelock.InvalidRequestError, match=f"latch '{name}' has count 3; this"):
        client.latch(name, 4).wait()
    for made in (
        lambda: client.latch(name, 0),
        lambda: client.latch(name, 1 << 31),
        lambda: client.latch("", 1),
        lambda: client.latch(name, 1, keep_s=-1),
        lambda: latch.count_down(0),
        lambda: latch.wait(-5),
    ):
        with pytest.raises(ValueError, match=r"must be|allowed|bytes"):
            made()
    wrong: Any = "3"
    with pytest.raises(TypeError, match="count is '3', and must be an int from 1 to 2147483647"):
        client.latch(name, wrong)
    with pytest.raises(TypeError, match="keep_s is '3', and must be a number of seconds"):
        client.latch(name, 1, keep_s=wrong)
    with pytest.raises(TypeError, match="n is '3', and must be an int from 1 to 2147483647"):
        latch.count_down(wrong)
    assert latch.count() == 2
    assert repr(latch) == f"<Latch '{name}' of 3>"


def test_status_and_lists_show_latches(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    client = connect()
    latch = client.latch(name, 3)
    waits = pool.submit(latch.wait, PATIENCE_S)
    until_awaited(client, name)
    latch.count_down()
    status = latch.status()
    assert (status.holder, status.left, status.permits) == (None, 2, 3)
    (listed,) = client.objects(f"{LATCH}\x1f{name}")
    assert listed == (object_name(LATCH, name), 1, 2, 3)
    assert client.locks() == ()
    seen = set[int | None]()
    while 2 not in seen:  # The state of a node may be a little older.
        statuses = (lock for node in client.describe() for lock in node.locks)
        seen |= {one.left for one in statuses if one.lock == status.lock}
    latch.count_down(2)
    assert waits.result(PATIENCE_S)


def test_a_client_that_closes_ends_its_waits(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    gone, stays = connect(), connect()
    waits = pool.submit(gone.latch(name, 1).wait, PATIENCE_S)
    until_awaited(stays, name)
    gone.close()
    with pytest.raises(fencelock.FencelockError):
        waits.result(PATIENCE_S)
    assert not stays.latch(name, 1).status().waiters


async def test_tasks_await_a_latch(paxos_addresses: str, name: str) -> None:
    async with fencelock.aio.connect(paxos_addresses, cluster=FACES) as client:
        latch = client.latch(name, count=2)
        waits = asyncio.create_task(latch.wait())
        given_up = asyncio.create_task(latch.wait())
        while len((await latch.status()).waiters) < 2:
            pass
        given_up.cancel()
        assert await latch.wait(0.01) is False
        assert (await latch.count_down(), await latch.count()) == (1, 1)
        assert await latch.count_down() == 0
        assert await waits is True
        assert [one.left for one in await client.objects() if name in one.lock] == [0]


def test_callers_inside_a_node_count_and_wait(
    connect: Connect, paxos_nodes: list[Node], name: str
) -> None:
    assert checked(CountedDown, ask(paxos_nodes[0], CountDown(latch=name, count=2))).left == 1
    assert connect().latch(name, 2).count_down() == 0
    assert isinstance(ask(paxos_nodes[1], AwaitLatch(latch=name, count=2)), LatchPassed)


ROUNDS = 5


def until_arrived(client: fencelock.Client, name: str, parties: int = 1) -> None:
    until(lambda: client.barrier(name, 9).n_waiting() >= parties)


def test_all_pass_together_each_with_its_own_index(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    barriers = [connect().barrier(name, 4) for _ in range(4)]
    assert barriers[0].parties == 4
    for _ in range(ROUNDS):
        waits = [pool.submit(barrier.wait, PATIENCE_S) for barrier in barriers]
        assert sorted(wait.result(PATIENCE_S) for wait in waits) == [0, 1, 2, 3]
    assert barriers[0].n_waiting() == 0


def test_the_index_is_the_place_in_the_order_of_arrival(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    one, two = connect(), connect()
    first = pool.submit(one.barrier(name, parties=3).wait, PATIENCE_S)
    until_arrived(two, name)
    second = pool.submit(two.barrier(name, 3).wait, PATIENCE_S)
    until_arrived(two, name, 2)
    assert two.barrier(name, 3).wait(PATIENCE_S) == 2
    assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == (0, 1)


def test_a_wait_that_times_out_breaks_the_generation_and_the_next_is_clean(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    one, two = connect(), connect()
    other = pool.submit(one.barrier(name, 3).wait, PATIENCE_S)
    until_arrived(two, name)
    with pytest.raises(fencelock.BrokenBarrierError, match="2 of 3 parties have arrived"):
        two.barrier(name, 3, timeout=0.05).wait()
    with pytest.raises(fencelock.BrokenBarrierError, match="is broken: a party"):
        other.result(PATIENCE_S)
    with pytest.raises(RuntimeError):
        one.barrier(name, 2).wait(0)
    waits = pool.submit(one.barrier(name, 2).wait, PATIENCE_S)
    assert {two.barrier(name, 2).wait(PATIENCE_S), waits.result(PATIENCE_S)} == {0, 1}


def test_a_client_that_closes_breaks_the_generation(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    gone, stays = connect(), connect()
    leaves = pool.submit(gone.barrier(name, 3).wait, PATIENCE_S)
    stays_there = pool.submit(stays.barrier(name, 3).wait, PATIENCE_S)
    until_arrived(stays, name, 2)
    gone.close()
    with pytest.raises(fencelock.BrokenBarrierError):
        stays_there.result(PATIENCE_S)
    with pytest.raises(fencelock.FencelockError):
        leaves.result(PATIENCE_S)


def test_parties_must_agree_and_arguments_have_limits(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    client = connect()
    waits = pool.submit(client.barrier(name, 2).wait, PATIENCE_S)
    until_arrived(client, name)
    with pytest.raises(
        fencelock.InvalidRequestError, match=f"barrier '{name}' has 2 parties; this"
    ):
        client.barrier(name, 3).wait()
    status = client.barrier(name, 2).status()
    assert (status.left, status.permits, len(status.waiters)) == (1, 2, 1)
    (listed,) = client.objects(f"{BARRIER}\x1f{name}")
    assert listed == (object_name(BARRIER, name), 1, 1, 2)
    assert client.barrier(name, 2).wait(PATIENCE_S) == 1
    assert waits.result(PATIENCE_S) == 0
    for made in (
        lambda: client.barrier(name, 0),
        lambda: client.barrier("", 2),
        lambda: client.barrier(name, 2, timeout=-2),
        lambda: client.barrier(name, 2).wait(-2),
    ):
        with pytest.raises(ValueError, match=r"must be|allowed|bytes"):
            made()
    wrong: Any = "3"
    with pytest.raises(TypeError, match="parties is '3', and must be an int from 1 to 10000"):
        client.barrier(name, wrong)
    assert repr(client.barrier(name, 2)) == f"<Barrier '{name}' of 2 parties>"


async def test_tasks_meet_and_a_cancelled_one_breaks_the_generation(
    paxos_addresses: str, name: str
) -> None:
    async with fencelock.aio.connect(paxos_addresses, cluster=FACES) as client:
        barrier = client.barrier(name, parties=3)
        indices = await asyncio.gather(*(barrier.wait(PATIENCE_S) for _ in range(3)))
        assert sorted(indices) == [0, 1, 2]
        waits = [asyncio.create_task(barrier.wait()) for _ in range(2)]
        while await barrier.n_waiting() < 2:
            pass
        waits[0].cancel()
        with pytest.raises(fencelock.BrokenBarrierError):
            await waits[1]
        assert not (await barrier.status()).waiters


def test_callers_inside_a_node_meet_others(
    connect: Connect, paxos_nodes: list[Node], pool: ThreadPoolExecutor, name: str
) -> None:
    waits = pool.submit(connect().barrier(name, 2).wait, PATIENCE_S)
    until_arrived(connect(), name)
    passed = checked(BarrierPassed, ask(paxos_nodes[0], AwaitBarrier(barrier=name, parties=2)))
    assert (passed.index, waits.result(PATIENCE_S)) == (1, 0)
