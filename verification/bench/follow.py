"""Watchers of one election, as asyncio tasks, and the number of changes that they receive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from fencelock import aio
from fencelock.verification.bench.job import Job
from fencelock.verification.bench.load import CONNECT_S
from fencelock.verification.bench.tasks import counted

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
