"""Read/write locks as users meet them: threads, tasks and asks, on a `paxos` cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.real_nodes import ask, running_nodes
from support.shared_holds import amounts, hold_to_read, hold_to_write, until_queued

import fencelock
import fencelock.aio
from fencelock.actors.api.message import Cancel, Granted, Inspect, Release, Released
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS, AcquireReadWrite, Downgrade
from fencelock.cluster.node.node import Node

PATIENCE_S = 60
WRITES = RWLOCK_PERMITS

Connect = Callable[[], fencelock.Client]


def test_readers_share_it_and_a_writer_waits_for_them_and_is_alone(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = connect().rwlock(name), connect().rwlock(name)
    first, second = one.read().acquire(), two.read().acquire()
    assert first
    assert second
    assert first.fence < second.fence
    writer = pool.submit(hold_to_write, one)
    until_queued(one, WRITES)
    reader = pool.submit(hold_to_read, two)
    until_queued(one, WRITES, 1)
    assert amounts(one.status()) == ([1, 1], [WRITES, 1])
    first.release()
    second.release()
    assert second.fence < writer.result(PATIENCE_S) < reader.result(PATIENCE_S)
    assert one.status().holder is None


def test_a_reader_holds_it_several_times_and_a_writer_reads(connect: Connect, name: str) -> None:
    one, two = connect().rwlock(name), connect().rwlock(name)
    with one.read() as first, one.read() as second:
        assert first.fence == second.fence
        assert amounts(two.status()) == ([2], [])
    with one.write(), one.read():
        assert amounts(two.status()) == ([WRITES], [])
        assert two.read().acquire(blocking=False) is None
    assert two.status().holder is None


@pytest.mark.parametrize("blocking", [True, False])
def test_an_upgrade_is_refused_and_the_hold_stays(
    connect: Connect, name: str, blocking: bool
) -> None:
    rw = connect().rwlock(name)
    with rw.read() as hold:
        with pytest.raises(
            fencelock.AlreadyHeldError, match="release it before you acquire it for writing"
        ):
            rw.write().acquire(blocking=blocking)
        assert hold.held
    with rw.write() as hold:
        assert hold.held


def test_the_write_side_is_held_only_by_an_owner_that_writes(connect: Connect, name: str) -> None:
    client = connect()
    rw, same, entries = client.rwlock(name), client.rwlock(name), client.map(name)
    with rw.read():
        assert (rw.read().held, rw.write().held, rw.write().fence) == (True, False, None)
        with pytest.raises(fencelock.NotHeldError):
            entries.put("k", b"by a reader", fence=rw.write())
    with rw.write() as hold:
        assert (rw.write().held, rw.read().held, same.write().held) == (True, True, True)
        entries.put("k", b"by a writer", fence=rw.write())
        with rw.read():
            assert rw.write().fence == rw.read().fence == hold.fence
        rw.write().downgrade()
        assert (rw.write().held, rw.read().held, hold.held) == (False, True, True)
        with pytest.raises(
            fencelock.NotHeldError, match="MainThread holds it to read, not to write"
        ):
            rw.write().raise_if_lost()
    assert not rw.read().held


def test_a_downgrade_lets_readers_in_under_the_same_fence(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = connect().rwlock(name), connect().rwlock(name)
    with one.write() as hold:
        reader = pool.submit(hold_to_read, two)
        until_queued(one, 1)
        one.write().downgrade()
        assert reader.result(PATIENCE_S) > hold.fence
        assert hold.held
        assert two.write().acquire(blocking=False) is None
        with pytest.raises(fencelock.InvalidRequestError, match="nothing to downgrade"):
            one.read().downgrade()
        assert hold.held
    assert one.status().holder is None
    with pytest.raises(fencelock.NotHeldError):
        one.write().downgrade()


def test_a_downgrade_that_was_interrupted_may_have_taken_effect(
    connect: Connect, name: str
) -> None:
    rw = connect().rwlock(name)
    with rw.write() as hold:
        downgrading = rw.write()._downgrading()  # pyright: ignore[reportPrivateUsage]
        next(downgrading)
        downgrading.close()
        assert (rw.write().held, rw.read().held, hold.held) == (False, True, True)


def test_a_thread_does_not_release_what_another_holds(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    rw = connect().rwlock(name)
    with rw.read(), pytest.raises(fencelock.NotHeldError):
        pool.submit(rw.read().release).result(PATIENCE_S)
    shared = connect().rwlock(name, owner="job 7")
    shared.write().acquire()
    pool.submit(shared.write().release).result(PATIENCE_S)
    assert rw.status().holder is None


def test_a_wait_that_times_out_lets_the_next_one_in(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = connect().rwlock(name), connect().rwlock(name, timeout=0.5)
    with one.read():
        writer = pool.submit(hold_to_write, two)
        until_queued(one, WRITES)
        assert pool.submit(hold_to_read, connect().rwlock(name)).result(PATIENCE_S)
        with pytest.raises(fencelock.LockTimeoutError, match="1 owners read"):
            writer.result(PATIENCE_S)


def test_a_client_that_closes_gives_it_back(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    gone, stays = connect(), connect().rwlock(name)
    gone.rwlock(name).write().acquire()
    reader = pool.submit(hold_to_read, stays)
    until_queued(stays, 1)
    gone.close()
    assert reader.result(PATIENCE_S)


def test_an_operator_takes_one_hold(connect: Connect, name: str) -> None:
    one, two = connect().rwlock(name), connect().rwlock(name)
    kept, taken = one.read().acquire(), two.read().acquire()
    assert kept
    assert taken
    assert one.evict(taken.fence, "root").times == 1
    while not taken.lost:
        pass
    assert kept.held
    with pytest.raises(fencelock.LockOwnershipLostError, match="root"):
        two.read().release()
    assert amounts(one.status()) == ([1], [])


def test_a_lock_and_a_semaphore_of_the_same_name_are_other_objects(
    connect: Connect, name: str
) -> None:
    client = connect()
    with (
        client.rwlock(name, timeout=0).write(),
        client.lock(name, timeout=0),
        client.semaphore(name, 1, timeout=0),
    ):
        assert client.status(name).permits == 1


def test_tasks_read_and_write(paxos_nodes: list[Node], name: str) -> None:
    async def scene() -> None:
        addresses = ",".join(node.address for node in paxos_nodes)
        async with fencelock.aio.connect(addresses, cluster="faces") as client:
            rw = client.rwlock(name)

            async def read() -> int:
                async with rw.read() as hold:
                    return hold.fence

            async with rw.write() as hold:
                reader = asyncio.create_task(read())
                while amounts(await rw.status())[1] != [1]:
                    pass
                await rw.write().downgrade()
                assert await reader > hold.fence
                with pytest.raises(fencelock.AlreadyHeldError):
                    await rw.write().acquire()
            held = await rw.read().acquire()
            assert held is not None
            await rw.evict(held.fence, "root")
            with pytest.raises(fencelock.LockOwnershipLostError):
                await rw.read().release()
            assert (await rw.status()).holder is None

    asyncio.run(scene())


def test_an_ask_reads_writes_and_downgrades(paxos_nodes: list[Node], name: str) -> None:
    node, lock = paxos_nodes[0], object_name(RWLOCK, name)
    one = ask(node, AcquireReadWrite(rwlock=name, write=True))
    assert isinstance(one, Granted)
    assert (one.lock, one.count) == (lock, 1)
    left = ask(node, Downgrade(rwlock=name, fence=one.fence))
    assert isinstance(left, Released)
    assert left.count == 1
    two = ask(node, AcquireReadWrite(rwlock=name))
    assert two.fence > one.fence
    assert amounts(ask(node, Inspect(lock=lock))) == ([1, 1], [])
    for fence in (one.fence, two.fence):
        assert ask(node, Release(lock=lock, fence=fence)).count == 0
    named = AcquireReadWrite(rwlock=name, write=True, owner="me", request=7)
    assert ask(node, named).count == 1
    ask(node, Cancel(lock=lock, session="", owner="me", request=7))
    while ask(node, Inspect(lock=lock)).holder is not None:
        pass


@pytest.mark.parametrize("protocol", ["central", "lamport"])
def test_a_protocol_without_read_write_locks_names_the_one_that_has_them(
    tmp_path: Path, protocol: str
) -> None:
    with running_nodes(tmp_path, protocol) as nodes:
        with pytest.raises(fencelock.UnsupportedError, match="paxos"):
            ask(nodes["n1"], AcquireReadWrite(rwlock="a"))
        addresses = ",".join(node.address for node in nodes.values())
        with (
            fencelock.connect(addresses) as client,
            pytest.raises(
                fencelock.UnsupportedError,
                match=r"rwlocks .any number of owners.*bakery and paxos have it",
            ),
        ):
            client.rwlock("a")


def test_a_read_write_lock_of_paxos_has_no_duration(connect: Connect, name: str) -> None:
    rw = connect().rwlock(name, duration=30)
    with pytest.raises(fencelock.UnsupportedError, match=r"no duration and no grace; bakery has"):
        rw.read().acquire()
    assert rw.status().holder is None
