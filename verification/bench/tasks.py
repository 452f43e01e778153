"""Asyncio tasks of one process, measured: pairs of acquire and release, and watchers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from fencelock import aio
from fencelock.verification.bench.job import Job
from fencelock.verification.bench.load import CONNECT_S


async def tasks(job: Job, begin: Callable[[], None]) -> dict[str, float]:
    """Take and give back locks from many tasks.

    Returns:
        The number of pairs, the time (s), and the median of a pair (us).

    """
    async with aio.connect(job.address, cluster=job.cluster, connect_timeout=CONNECT_S) as client:
        begin()
        times = [0] * job.at_once
        took: list[float] = []

        async def work(number: int) -> None:
            lock = client.lock(
                job.lock_of(number),
                confirm_release=job.confirm,
                retain=job.retain,
                cohort=job.cohort,
            )
            while True:
                began = time.perf_counter()
                await lock.acquire()
                await lock.release()
                took.append(time.perf_counter() - began)
                times[number] += 1

        found = await counted(job, times, work)
        last = took[len(took) - int(found["times"]) :]  # Without those that warmed up.
        return {**found, "p50_us": 1e6 * statistics.median(last) if last else 0.0}


async def counted(
    job: Job, times: list[int], work: Callable[[int], Coroutine[Any, Any, None]]
) -> dict[str, float]:
    """Run tasks, which count in ``times``; return how often they did it, and the time (s)."""
    async with asyncio.TaskGroup() as group:
        crowd = [group.create_task(work(number)) for number in range(len(times))]
        await asyncio.sleep(job.warm_s)
        before, began = sum(times), time.perf_counter()
        await asyncio.sleep(job.seconds)
        done, took = sum(times) - before, time.perf_counter() - began
        for task in crowd:
            task.cancel()
    return {"times": done, "seconds": took}


WATCHES = 1_000
"""Number of watches of one client, the most that a node allows."""

FIRST_READS = 100
"""Number of watches that begin at a time. A node allows 256 unanswered queries of a client."""


async def follow(job: Job, begin: Callable[[], None]) -> dict[str, float]:
    """Watch one election with many tasks; return the number of changes and the time (s).

    Args:
        job: see there; ``at_once`` watchers of the election ``lock``, and ``locks`` of others,
            which do not change.
        begin: reports that all is ready, and returns when the measurement begins; may block.

    """
    async with AsyncExitStack() as stack:
        names = [job.lock] * job.at_once + [f"{job.lock}-{n}" for n in range(job.locks)]
        watches: list[aio.ElectionWatch] = []
        for first in range(0, len(names), WATCHES):
            client = await stack.enter_async_context(
                aio.connect(job.address, cluster=job.cluster, connect_timeout=CONNECT_S)
            )
            watches += [client.election(name).watch() for name in names[first : first + WATCHES]]
        times = [0] * len(watches)
        for first in range(0, len(watches), FIRST_READS):  # Each watch reads the present leader.
            some = watches[first : first + FIRST_READS]
            await asyncio.gather(*(watch.get() for watch in some))
        begin()

        async def work(number: int) -> None:
            async for _ in watches[number]:
                times[number] += 1

        return await counted(job, times, work)
