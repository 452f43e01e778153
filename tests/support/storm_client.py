"""A client process of test_paxos_real: takes locks and writes under them until it reads a line.

It prints a line for each grant, ``+ LOCK FENCE``, and at the end one object of JSON: how many
updates it made of each file, what it saw go wrong there, and what its calls ended in that
they should not have.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import fencelock
from fencelock import aio

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from checked_file import CheckedFile

OWNERS = 4
"""Threads or tasks that take locks, each for itself."""

PATIENCE_S = 45.0
"""Far above any wait there may be while a majority lives."""

WORK_S = (0.0, 0.005)
"""Range of the time spent under a lock, drawn anew each time."""

CONNECT_S = 60.0
DETAILS_MAX = 5


class StormClient:
    """The work of one process, from threads or from tasks."""

    def __init__(self, folder: Path, locks: list[str], chance: Random) -> None:
        self.locks = locks
        self.chance = chance
        self.updates: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.details: list[str] = []
        self.over = threading.Event()
        self._files = {lock: CheckedFile(folder, lock) for lock in locks}
        self._counting = threading.Lock()

    def choose(self) -> str:
        """Return the next lock to take."""
        with self._counting:
            return self.chance.choice(self.locks)

    def work(self, lock: str, fence: int) -> None:
        """Change the file of ``lock``, which is held under ``fence``."""
        with self._counting:
            work_s = self.chance.uniform(*WORK_S)
        self._files[lock].append(str(os.getpid()), fence, work_s)
        with self._counting:
            self.updates[lock] += 1
            print(f"+ {lock} {fence}", flush=True)

    def complain(self, what: str, detail: str) -> None:
        with self._counting:
            self.wrong[what] += 1
            if len(self.details) < DETAILS_MAX:
                self.details.append(f"{what}: {detail}")

    def report(self) -> str:
        """Return the last line."""
        overlaps = sum(file.findings.overlaps for file in self._files.values())
        self.wrong += Counter(overlap=overlaps)
        counts = {"updates": self.updates, "wrong": self.wrong, "details": self.details}
        return json.dumps(counts)


def with_threads(client: StormClient, connect: Callable[[], fencelock.Client]) -> None:
    with connect() as connection:
        crowd = [
            threading.Thread(target=one_thread, args=(client, connection)) for _ in range(OWNERS)
        ]
        for thread in crowd:
            thread.start()
        sys.stdin.readline()
        client.over.set()
        for thread in crowd:
            thread.join()


def one_thread(client: StormClient, connection: fencelock.Client) -> None:
    while not client.over.is_set():
        name = client.choose()
        lock = connection.lock(name)
        try:
            hold = lock.acquire(timeout=PATIENCE_S)
            if hold is None:
                client.complain("timeout", f"{name} after {PATIENCE_S} s")
                continue
            client.work(name, hold.fence)
            lock.release()
        except Exception as error:  # noqa: BLE001 (the top of a thread: whatever it is, it is reported)
            client.complain(type(error).__name__, traceback.format_exc())


async def with_tasks(client: StormClient, address: str, cluster: str) -> None:
    async with (
        aio.connect(address, cluster=cluster, connect_timeout=CONNECT_S) as connection,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(OWNERS):
            group.create_task(one_task(client, connection))
        await asyncio.to_thread(sys.stdin.readline)
        client.over.set()


async def one_task(client: StormClient, connection: aio.Client) -> None:
    while not client.over.is_set():
        name = client.choose()
        lock = connection.lock(name)
        try:
            hold = await lock.acquire(timeout=PATIENCE_S)
            if hold is None:
                client.complain("timeout", f"{name} after {PATIENCE_S} s")
                continue
            await asyncio.to_thread(client.work, name, hold.fence)
            await lock.release()
        except Exception as error:  # noqa: BLE001 (any error is reported, and the task continues)
            client.complain(type(error).__name__, traceback.format_exc())


def main(kind: str, address: str, cluster: str, folder: str, locks: str, seed: str) -> None:
    client = StormClient(Path(folder), locks.split(","), Random(seed))

    def connect() -> fencelock.Client:
        return fencelock.connect(address, cluster=cluster, connect_timeout=CONNECT_S)

    if kind == "threads":
        with_threads(client, connect)
    else:
        asyncio.run(with_tasks(client, address, cluster))
    print(client.report(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
