"""Cancellation at every await point: nothing stays held, and the next one gets the lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import pytest
from support.holds import fence_of

from fencelock import aio
from fencelock.cluster.testing.ports import free_ports

PATIENCE_S = 60
CLUSTER = "faces"

Work = Callable[[aio.Client, str], Awaitable[None]]


@asynccontextmanager
async def two_clients(paxos_addresses: str) -> AsyncGenerator[tuple[aio.Client, aio.Client], None]:
    connecting = aio.connect(paxos_addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S)
    other = aio.connect(paxos_addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S), connecting as one, other as two:
        yield one, two


def every_step() -> Iterator[int]:
    """After how many passes of the loop to cancel: each of the first, then ever coarser."""
    steps = 0
    while True:
        yield steps
        steps += 1 + steps // 12


async def cancelled_after(steps: int, work: Awaitable[None]) -> bool:
    """Run ``work``, cancel it after ``steps`` passes of the loop; return whether that hit."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def assert_free(client: aio.Client, name: str) -> None:
    """Show that nothing is held or waited for: somebody else gets the lock, and leaves it."""
    lock = client.lock(name)
    assert await lock.acquire(timeout=PATIENCE_S)
    await lock.release()
    status = await client.status(name)
    assert (status.holder, status.waiters) == (None, ())


async def acquire_and_release(client: aio.Client, name: str) -> None:
    lock = client.lock(name)
    await lock.acquire()
    try:
        await asyncio.sleep(0)
    finally:
        await lock.release()


async def inside_with(client: aio.Client, name: str) -> None:
    async with client.lock(name) as lock:
        assert lock.held
        await asyncio.sleep(0)


async def nested(client: aio.Client, name: str) -> None:
    lock = client.rlock(name)
    async with lock:
        async with lock:
            await asyncio.sleep(0)
        assert lock.held


async def limited(client: aio.Client, name: str) -> None:
    async with client.lock(name, timeout=PATIENCE_S):
        await asyncio.sleep(0)


@pytest.mark.parametrize("work", [acquire_and_release, inside_with, nested, limited])
def test_a_task_that_is_cancelled_anywhere_leaves_nothing_held(
    paxos_addresses: str, work: Work
) -> None:
    async def run() -> int:
        async with two_clients(paxos_addresses) as (client, other):
            for count, steps in enumerate(every_step()):
                name = f"{work.__name__}-{steps}"
                hit = await cancelled_after(steps, work(client, name))
                await assert_free(other, name)
                if not hit:  # It had ended: every point before that was tried.
                    return count
        raise AssertionError

    assert asyncio.run(run()) > 10


@pytest.mark.parametrize("work", [acquire_and_release, inside_with])
def test_a_cancellation_that_races_with_the_grant_leaves_nothing_held(
    paxos_addresses: str, work: Work
) -> None:
    async def run() -> int:
        async with two_clients(paxos_addresses) as (client, other):
            for count, steps in enumerate(every_step()):
                name = f"race-{work.__name__}-{steps}"
                held = other.lock(name)
                await held.acquire()
                task = asyncio.ensure_future(work(client, name))
                while not (await held.status()).waiters:
                    pass
                letting_go = asyncio.ensure_future(other_releases(held))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                await letting_go
                await assert_free(client, name)
                if not task.cancelled():
                    return count
        raise AssertionError

    assert asyncio.run(run()) > 10


async def other_releases(lock: aio.Lock) -> None:
    await lock.release()


class Cable(Protocol):
    """A way to a node; see `conftest.py`."""

    address: str

    def cut(self) -> None: ...

    def mend(self) -> None: ...


def test_what_is_cancelled_while_nobody_can_be_heard_leaves_nothing_held(
    paxos_addresses: str, cables: list[Cable]
) -> None:
    async def run() -> None:
        far = ",".join(cable.address for cable in cables)
        async with two_clients(far) as (client, _), two_clients(paxos_addresses) as (_, other):
            lock = client.lock("cut", owner="job")
            assert await lock.acquire()
            for cable in cables:
                cable.cut()
            assert await cancelled_after(5, lock.release())
            assert await cancelled_after(5, acquire_and_release(client, "cut too"))
            for cable in cables:
                cable.mend()
            await assert_free(other, "cut")
            await assert_free(other, "cut too")

    asyncio.run(run())


def test_a_cancelled_release_happens_all_the_same_and_the_owner_may_acquire_again(
    paxos_addresses: str,
) -> None:
    async def run() -> None:
        async with two_clients(paxos_addresses) as (client, other):
            for steps in range(1, 12):  # Without a single pass the release has not begun.
                lock = client.lock(f"release-{steps}", owner="job")
                fence = fence_of(await lock.acquire())
                assert fence is not None
                assert await cancelled_after(steps, lock.release()) or not lock.held
                again = fence_of(await lock.acquire())
                assert again is not None
                assert again > fence
                await lock.release()
                await assert_free(other, lock.name)

    asyncio.run(run())


def test_a_body_that_is_cancelled_while_it_leaves_has_left(paxos_addresses: str) -> None:
    """The second cancellation hits the release of the first."""

    async def run() -> None:
        async with two_clients(paxos_addresses) as (client, other):
            for steps in range(12):
                name = f"leaving-{steps}"
                inside = asyncio.Event()

                async def work(name: str = name, inside: asyncio.Event = inside) -> None:
                    async with client.lock(name):
                        inside.set()
                        await asyncio.Event().wait()

                task = asyncio.ensure_future(work())
                await inside.wait()
                task.cancel()
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await assert_free(other, name)

    asyncio.run(run())


def test_a_cancelled_connect_leaves_nothing_running() -> None:
    before = threading.active_count()
    (port,) = free_ports(1)

    async def connect() -> None:
        await aio.connect(f"tcp://127.0.0.1:{port}", connect_timeout=PATIENCE_S)

    async def run() -> None:
        for steps in range(8):
            assert await cancelled_after(steps, connect())

    asyncio.run(run())
    assert threading.active_count() == before


def test_a_cancelled_close_leaves_nothing_running_and_nothing_held(paxos_addresses: str) -> None:
    before = threading.active_count()

    async def run() -> None:
        for steps in range(8):
            client = await aio.connect(paxos_addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S)
            await client.lock("close", owner="job").acquire(timeout=PATIENCE_S)
            await cancelled_after(steps, client.close())
            if not steps:
                await client.close()

    asyncio.run(run())
    assert threading.active_count() == before
