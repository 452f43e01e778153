"""The asyncio client: cancellation at every await point, a busy loop, a thousand tasks."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from support.expect import PATIENCE_S
from support.faces import FACES, Cables
from support.paths import EXAMPLES
from support.programs import run_to_end
from support.real_nodes import until
from support.samples import fence_of

from fencelock import aio
from fencelock.actors.error import (
    AcquireCancelledError,
    ConfigError,
    LockOwnershipLostError,
    NotHeldError,
    UnavailableError,
)
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.callback_executor import Notice
from fencelock.cluster.testing.ports import free_ports


def connect(paxos_addresses: str, ttl: float = 15.0) -> aio.Connecting:
    return aio.connect(paxos_addresses, cluster=FACES, connect_timeout=PATIENCE_S, ttl=ttl)


async def test_a_client_may_be_entered_or_awaited(paxos_addresses: str) -> None:
    async with connect(paxos_addresses) as one, await connect(paxos_addresses) as two:
        assert one.protocol == two.protocol == "paxos"
        assert one.session != two.session
        async with one.lock("entered") as lock:
            assert lock.fence
            assert (await two.status("entered")).holder is not None
            assert "under fence" in repr(lock)
        assert len(await one.describe()) == 3


async def test_a_hold_of_one_task_is_not_another_tasks(paxos_addresses: str) -> None:
    async def other(lock: aio.RLock) -> tuple[bool, aio.Hold | None]:
        return lock.held, await lock.acquire(blocking=False)

    async with connect(paxos_addresses) as client:
        lock = client.rlock("tasks")
        async with lock:
            assert await asyncio.create_task(other(lock)) == (False, None)
            with pytest.raises(NotHeldError, match=r"held by Task-\d+ of this client"):
                await asyncio.create_task(lock.release())
            assert lock.held


async def test_a_thousand_tasks_wait_for_one_lock_on_no_thread_of_their_own(
    paxos_addresses: str,
) -> None:
    fences: list[int] = []
    async with connect(paxos_addresses) as client:
        before = threading.active_count()
        lock = client.lock("crowd")

        async def work() -> None:
            async with lock as hold:
                fences.append(hold.fence)

        async with lock:
            tasks = [asyncio.create_task(work()) for _ in range(1_000)]
            while len((await client.status("crowd")).waiters) < 1_000:
                pass
            assert threading.active_count() == before
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    assert len(fences) == 1_000
    assert fences == sorted(set(fences))


async def test_a_busy_loop_does_not_cost_the_session(paxos_addresses: str) -> None:
    """A thread of its own keeps it, though no task runs for several of its TTLs."""

    async with connect(paxos_addresses, ttl=1.5) as client:
        notices: list[Notice] = []
        client.on_lost(notices.append)
        async with client.lock("busy") as lock:
            end = time.monotonic() + 4
            while time.monotonic() < end:
                pass
            assert lock.held
            await asyncio.sleep(0)
        assert notices == []


async def test_callbacks_are_called_on_the_loop_and_the_handle_acquires_again(
    paxos_addresses: str,
) -> None:
    async with connect(paxos_addresses) as client, connect(paxos_addresses) as operator:
        lost: asyncio.Future[tuple[Notice, int]] = asyncio.get_running_loop().create_future()
        lock = client.lock("evicted", owner="job")
        lock.on_lost(lambda notice: lost.set_result((notice, threading.get_ident())))
        fence = fence_of(await lock.acquire())
        await operator.evict("evicted", fence, "root@ops")
        notice, thread = await asyncio.wait_for(lost, PATIENCE_S)
        assert (notice.lock, notice.fence, notice.state) == ("evicted", fence, HoldState.LOST)
        assert thread == threading.get_ident()
        assert lock.lost
        with pytest.raises(LockOwnershipLostError):
            await lock.release()
        assert fence_of(await lock.acquire()) > fence


def test_a_loss_for_which_no_loop_can_call_a_callback_is_logged(
    paxos_addresses: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def held() -> tuple[aio.Client, aio.Hold]:
        client = await connect(paxos_addresses)
        hold = await client.lock("loop that ends").acquire()
        hold.on_lost(print)
        return client, hold

    async def taken(hold: aio.Hold) -> None:
        async with connect(paxos_addresses) as other:
            await other.evict(hold.name, hold.fence)

    client, hold = asyncio.run(held())
    asyncio.run(taken(hold))
    until(lambda: "(lost) was not called: the event loop in which its client" in caplog.text)
    until(lambda: "lost: lock 'loop that ends'" in caplog.text)
    asyncio.run(client.close())


async def test_an_error_of_a_callback_goes_to_the_loops_handler(paxos_addresses: str) -> None:
    async with connect(paxos_addresses) as client:
        loop = asyncio.get_running_loop()
        reported: asyncio.Future[dict[str, Any]] = loop.create_future()
        loop.set_exception_handler(lambda _, context: reported.set_result(context))
        lock = client.lock("raises", owner="job")
        lock.on_lost(lambda _: 1 // 0)
        fence = fence_of(await lock.acquire())
        await client.evict("raises", fence, "root@ops")
        context = await asyncio.wait_for(reported, PATIENCE_S)
        assert isinstance(context["exception"], ZeroDivisionError)
        assert "a callback for lock 'raises' (lost) failed" in context["message"]
        assert client.callbacks_failed == 1


def test_closing_ends_what_waits_and_leaves_no_thread(paxos_addresses: str) -> None:
    before = threading.active_count()

    async def run() -> None:
        holder = await connect(paxos_addresses)
        client = await connect(paxos_addresses)
        _held = await holder.lock("closed").acquire()
        waiting = asyncio.create_task(client.lock("closed").acquire())
        while not (await holder.status("closed")).waiters:
            pass
        await asyncio.gather(client.close(), client.close())
        with pytest.raises(AcquireCancelledError):
            await waiting
        await holder.close()

    asyncio.run(run())
    assert threading.active_count() == before


def test_impossible_arguments_are_refused_before_anything_runs() -> None:
    before = threading.active_count()
    with pytest.raises(ConfigError):
        aio.connect("nowhere")
    (port,) = free_ports(1)

    async def nobody() -> None:
        async with aio.connect(f"tcp://127.0.0.1:{port}", connect_timeout=0.3):
            raise AssertionError

    with pytest.raises(UnavailableError, match="Are the nodes running"):
        asyncio.run(nobody())
    for thread in threading.enumerate():
        if thread.name == "fencelock-look":
            thread.join(60.0)  # It has replied, and is about to end.
    assert threading.active_count() == before


async def test_an_unused_lock_is_forgotten(paxos_addresses: str) -> None:
    async with connect(paxos_addresses) as client:
        lock = client.lock("garbage")
        lock.on_lost(print)
        async with lock:
            pass
        kept = weakref.ref(lock)
        del lock
        gc.collect()
        assert kept() is None


def test_the_example_for_tasks_works_as_documented(paxos_addresses: str) -> None:
    example = EXAMPLES / "aio.py"
    ended = run_to_end([sys.executable, str(example), paxos_addresses, FACES])
    assert ended.returncode == 0, ended.stderr
    assert "5 tasks held the lock, one after the other" in ended.stdout


# Cancellation at every await point: nothing stays held, and the next one gets the lock


Work = Callable[[aio.Client, str], Awaitable[None]]


@asynccontextmanager
async def two_clients(paxos_addresses: str) -> AsyncGenerator[tuple[aio.Client, aio.Client], None]:
    one, other = connect(paxos_addresses), connect(paxos_addresses)
    async with asyncio.timeout(PATIENCE_S), one as client, other as another:
        yield client, another


PASSES_MIN = 3
"""A request takes at least so many passes of the loop: mostly fifty, and on a busy machine, where
other threads run between two passes, ten were seen."""


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
    """Show that nothing is held or waited for: another gets the lock, and leaves it."""
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
async def test_a_task_cancelled_anywhere_leaves_nothing_held(
    paxos_addresses: str, work: Work
) -> None:
    async with two_clients(paxos_addresses) as (client, other):
        for count, steps in enumerate(every_step()):
            name = f"{work.__name__}-{steps}"
            hit = await cancelled_after(steps, work(client, name))
            await assert_free(other, name)
            if not hit:  # It had ended: every point before that was tried.
                assert count > PASSES_MIN
                break


@pytest.mark.parametrize("work", [acquire_and_release, inside_with])
async def test_a_cancellation_that_races_with_the_grant_leaves_nothing_held(
    paxos_addresses: str, work: Work
) -> None:
    async with two_clients(paxos_addresses) as (client, other):
        for count, steps in enumerate(every_step()):
            name = f"race-{work.__name__}-{steps}"
            held = other.lock(name)
            await held.acquire()
            task = asyncio.ensure_future(work(client, name))
            while not (await held.status()).waiters:
                pass
            releasing = asyncio.ensure_future(held.release())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await releasing
            await assert_free(client, name)
            if not task.cancelled():
                assert count > PASSES_MIN
                break


async def test_an_acquire_that_is_cancelled_while_no_endpoint_replies_leaves_nothing_held(
    paxos_addresses: str, cables: Cables
) -> None:
    far = cables.addresses
    async with two_clients(far) as (client, _), two_clients(paxos_addresses) as (_, other):
        lock = client.lock("cut", owner="job")
        assert await lock.acquire()
        cables.cut()
        assert await cancelled_after(5, lock.release())
        assert await cancelled_after(5, acquire_and_release(client, "cut too"))
        cables.mend()
        await assert_free(other, "cut")
        await assert_free(other, "cut too")


async def test_a_cancelled_release_happens_all_the_same_and_the_owner_may_acquire_again(
    paxos_addresses: str,
) -> None:
    async with two_clients(paxos_addresses) as (client, other):
        for steps in range(1, 12):  # Without a single pass the release has not begun.
            lock = client.lock(f"release-{steps}", owner="job")
            fence = fence_of(await lock.acquire())
            assert await cancelled_after(steps, lock.release()) or not lock.held
            assert fence_of(await lock.acquire()) > fence
            await lock.release()
            await assert_free(other, lock.name)


async def test_a_body_that_is_cancelled_while_it_leaves_has_left(paxos_addresses: str) -> None:
    """The second cancellation hits the release of the first."""

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
            client = await connect(paxos_addresses)
            await client.lock("close", owner="job").acquire(timeout=PATIENCE_S)
            await cancelled_after(steps, client.close())
            if not steps:
                await client.close()

    asyncio.run(run())
    assert threading.active_count() == before
