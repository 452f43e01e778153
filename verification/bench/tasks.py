"""Pairs of acquire and release from many asyncio tasks of one process, measured."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
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
