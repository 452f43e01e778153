"""The memory that a node needs for held locks without any other work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from fencelock import aio
from fencelock.cluster.client.client import Client
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.load import CONNECT_S
from fencelock.verification.bench.machine import resident_bytes
from fencelock.verification.bench.members import NodeProcesses
from fencelock.verification.bench.report import NotedFigure
from fencelock.verification.bench.workers import started

PROCESSES = 2
"""A session may hold 100,000 locks, and one client acquires them at half the speed of two."""

TASKS = 128
"""Acquires in flight in each process."""

PARTS = 10
"""Progress is reported after each of so many parts of the locks."""

SETTLE_S = 2.0
"""Time for nodes to finish background writes (s); a snapshot takes memory for a moment."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The cost of held locks.

    Attributes:
        locks: the number of held locks.
        seconds: the time to acquire them.
        before: resident memory of each node before the first (bytes), by node.
        after: the same with all of them held.

    """

    locks: int
    seconds: float
    before: dict[str, int]
    after: dict[str, int]

    @property
    def bytes_a_lock(self) -> dict[str, float]:
        """The growth for each lock, by node. It includes memory that does not depend on locks."""
        return {node: (self.after[node] - size) / self.locks for node, size in self.before.items()}

    def in_words(self) -> str:
        node = max(self.bytes_a_lock, key=lambda one: self.bytes_a_lock[one])
        before, after = (f"{size[node] / 1e6:.0f}" for size in (self.before, self.after))
        return f"{self.locks:,} held; the largest, {node}, from {before} to {after} MB resident"


def held_reading(
    folder: Path, locks: int, nodes: int, durable: bool, say: Callable[[str], None]
) -> NotedFigure:
    """Start nodes in ``folder``, have ``locks`` locks held, and return the bytes of one."""
    say(f"starting {nodes} nodes")
    with NodeProcesses(folder, "paxos", nodes, durable=durable) as members:
        found = held(members, locks, say)
    each = tuple(round(size, 1) for size in found.bytes_a_lock.values())
    key, what = "held_bytes_per_lock", "memory of a held lock"
    return NotedFigure(key, what, max(each), "bytes", found.in_words(), each)


def held(members: NodeProcesses, locks: int, say: Callable[[str], None]) -> HeldMemory:
    """Let clients acquire and keep ``locks`` locks; return the cost at each node.

    Args:
        members: fresh nodes, without other clients.
        locks: their number, `PROCESSES` x `PARTS` or more; rounded to whole parts.
        say: called with the progress.

    """
    with members.ready_client() as watcher:
        return _held(members, locks, say, watcher)


def _held(
    members: NodeProcesses, locks: int, say: Callable[[str], None], watcher: Client
) -> HeldMemory:
    most = -(-locks // (PROCESSES * PARTS))
    job = Job(
        kind=JobKind.HOLD,
        address=members.connect,
        cluster=members.cluster,
        at_once=TASKS,
        locks=most,
        seconds=CONNECT_S,
    )
    with ExitStack() as stack:
        workers = [
            started(stack, replace(job, lock=f"held-{n}"), members.folder, f"hold-{n}")
            for n in range(PROCESSES)
        ]
        for worker in workers:
            worker.wait_until_ready()
        before = {node: resident_bytes(members.processes[node].pid) for node in members.names}
        began, total = time.monotonic(), 0
        for _ in range(PARTS):
            say(f"measuring held locks, {total:,} of {most * PROCESSES * PARTS:,}")
            for worker in workers:
                worker.tell()
            total += sum(worker.result()["times"] for worker in workers)
        seconds = time.monotonic() - began
        time.sleep(SETTLE_S)
        members.wait_until_ready(watcher)
        after = {node: resident_bytes(members.processes[node].pid) for node in members.names}
    return HeldMemory(total, seconds, before, after)


async def hold(
    job: Job, say: Callable[[object], None], read_line: Callable[[], str]
) -> dict[str, int]:
    """Acquire ``job.locks`` more locks for each line that is read, and keep them all.

    Args:
        job: see there; ``at_once`` tasks.
        say: called when all is ready, and with ``times`` after each line but the last.
        read_line: returns the next line, empty at the end.

    Returns:
        ``times``: the number of locks held at the end.

    """
    fresh = count()
    async with aio.connect(job.address, cluster=job.cluster, connect_timeout=CONNECT_S) as client:

        async def work(numbers: list[int]) -> None:
            for number in numbers:
                await client.lock(f"{job.lock}-{number}", owner="bench").acquire()

        say({})
        while await asyncio.to_thread(read_line):
            numbers = [next(fresh) for _ in range(job.locks)]
            async with asyncio.TaskGroup() as group:
                for first in range(job.at_once):
                    group.create_task(work(numbers[first :: job.at_once]))
            say({"times": len(numbers)})
    return {"times": next(fresh)}
