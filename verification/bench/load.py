"""Measured work of clients, by threads or asyncio tasks of one process."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path
from typing import Any, Protocol

import fencelock
from fencelock import aio
from fencelock.actors.error import FencelockError
from fencelock.actors.session.refusals import checked_lock_key
from fencelock.actors.session.requests import lock_key_named
from fencelock.cluster.client import connection as connecting
from fencelock.cluster.client.callback_executor import ThreadExecutor
from fencelock.cluster.client.client import Client
from fencelock.cluster.client.operation import drive
from fencelock.cluster.client.settings import Settings, Target
from fencelock.verification.bench.job import ELECTION, Job, Use
from fencelock.verification.bench.profile_marks import ProfileMarks, now_ns
from fencelock.verification.bench.report import p50_p99

CONNECT_S = 30.0
"""Timeout for connecting (s): nodes may be busy with an election."""

LOCAL_AGE_MS = 1_000
"""The greatest age of a local read (ms): the default of the client."""

WARM_PAIRS = 100
"""Pairs before the first that is measured, where pairs and not seconds are counted."""


def pair(client: Client, job: Job) -> dict[str, float]:
    """Take and give back one lock, alone; return the time of a pair (us), and their number."""
    names = (f"{job.lock}-{number}" for number in count()) if job.fresh else repeat(job.lock)
    locks = (
        client.lock(name, confirm_release=job.confirm, retain=job.retain, cohort=job.cohort)
        for name in names
    )
    for lock in islice(locks, WARM_PAIRS):
        one_pair(lock)
    took: list[float] = []
    ends = time.perf_counter() + job.seconds
    for lock in locks:
        began = time.perf_counter()
        if began >= ends and len(took) > 1:
            break
        one_pair(lock)
        took.append(time.perf_counter() - began)
    return quantiles_us(took)


def rate(client: Client, job: Job) -> dict[str, float]:
    """Take and give back locks from many threads; return the number of pairs and the time (s)."""

    def work(number: int) -> Callable[[], None]:
        lock = client.lock(job.lock_of(number), retain=job.retain, cohort=job.cohort)
        return partial(one_pair, lock)

    return _counted(work, job)


def retained_memory(client: Client, job: Job) -> dict[str, float]:
    """Use many locks once, which the client then retains; return its memory for each (bytes).

    That includes the name of the lock.
    """

    def use(number: int) -> None:
        one_pair(client.lock(f"{job.lock}/{number}", retain=job.retain))

    with ThreadPoolExecutor(job.at_once) as pool:
        list(pool.map(use, range(-job.at_once, 0)))
        tracemalloc.start()
        before = _traced()
        list(pool.map(use, range(job.locks)))
    used = _traced() - before
    tracemalloc.stop()
    return {"bytes": used / job.locks}


def turns(client: Client, job: Job) -> dict[str, list[int]]:
    """Make each of the job's uses in turns, from many threads.

    The machine's clock decides whose turn it is, so all processes make the same use at a time.

    Returns:
        For each use, the number of times that it was made in each of its turns.

    """
    first = 1 + int(time.monotonic() / job.seconds)
    last = first + len(job.uses) * job.rounds
    counts = [[0] * (last - first) for _ in range(job.at_once)]

    def work(number: int) -> Callable[[], None]:
        all_uses = [repeated(use, client, job.lock_of(number)) for use in job.uses]
        mine = counts[number]

        def once() -> None:
            turn = int(time.monotonic() / job.seconds)
            all_uses[turn % len(all_uses)]()
            if first <= turn < last:
                mine[turn - first] += 1

        return once

    crowd = _Crowd(job.at_once)
    crowd.start(work)
    crowd.wait(last * job.seconds - time.monotonic())
    crowd.stop()
    total = [sum(turn) for turn in zip(*counts, strict=True)]
    of_use = {use: (place - first) % len(job.uses) for place, use in enumerate(job.uses)}
    return {use: total[place :: len(job.uses)] for use, place in of_use.items()}


def read(client: Client, job: Job) -> dict[str, float]:
    """Read the status of locks from many threads; return the number of reads and the time (s)."""

    def work(number: int) -> Callable[[], None]:
        lock = client.lock(job.lock_of(number))
        if job.age_ms is None:
            return lambda: _use(lock.status())
        max_age = job.age_ms / 1000
        return lambda: _use(lock.status(read="local", max_age=max_age))

    return _counted(work, job)


def watch(client: Client, job: Job, until: Callable[[], object]) -> dict[str, object]:
    """Acquire and release locks until ``until`` returns.

    Returns:
        ``grants_ms``: the milliseconds of the monotonic clock in which there was a grant,
        rising; ``errors``: the number of each error. The threads continue after an error.

    """
    crowd = _Crowd(job.at_once)
    grants: list[set[int]] = [set() for _ in range(job.at_once)]
    errors: list[Counter[str]] = [Counter() for _ in range(job.at_once)]

    def work(number: int) -> Callable[[], None]:
        lock = client.lock(job.lock_of(number))
        mine, met = grants[number], errors[number]

        def once() -> None:
            try:
                lock.acquire()
                mine.add(time.monotonic_ns() // 1_000_000)
                lock.release()
            except FencelockError as error:
                met[type(error).__name__] += 1

        return once

    crowd.start(work)
    until()
    crowd.stop()
    total = sum(errors, Counter[str]())
    return {"grants_ms": sorted(set[int]().union(*grants)), "errors": dict(total)}


Once = Callable[[], object]
"""A function that makes a use once."""


class Acquirable(Protocol):
    """A lock, or another object that is acquired and released."""

    def acquire(self) -> Any: ...

    def release(self) -> None: ...


def one_pair(*objects: Acquirable) -> None:
    """Acquire each of ``objects``, then release them in reverse order."""
    for one in objects:
        one.acquire()
    for one in reversed(objects):
        one.release()


def repeated(use: Use, client: Client, name: str) -> Once:
    return _USES[use](client, name)


def _pair(object_of: Callable[[Client, str], Acquirable]) -> Callable[[Client, str], Once]:
    return lambda client, name: partial(one_pair, object_of(client, name))


_USES: dict[Use, Callable[[Client, str], Once]] = {
    Use.LOCK: _pair(lambda client, name: client.lock(name)),
    Use.SEMAPHORE: _pair(lambda client, name: client.semaphore(name, permits=1)),
    Use.READ: _pair(lambda client, name: client.rwlock(name).read()),
    Use.READ_ONE: _pair(lambda client, _: client.rwlock("one").read()),
    Use.WRITE: _pair(lambda client, name: client.rwlock(name).write()),
    Use.LOCK_ALL: _pair(lambda client, name: client.lock_all(name, f"{name}/2")),
    Use.TWO_LOCKS: lambda client, name: partial(
        one_pair, client.lock(name), client.lock(f"{name}/2")
    ),
    Use.LEAD: _pair(lambda client, name: client.election(ELECTION).lead(name)),
}


def connect(job: Job) -> Client:
    return fencelock.connect(job.address, cluster=job.cluster, connect_timeout=CONNECT_S)


def quantiles_us(took: list[float]) -> dict[str, float]:
    """Return median and 99th percentile of two or more durations (s) in microseconds."""
    p50, p99 = p50_p99(took)
    return {"p50_us": 1e6 * p50, "p99_us": 1e6 * p99, "times": len(took)}


class _Crowd:
    """Threads that repeat the same work, and the number of repetitions of each."""

    def __init__(self, size: int) -> None:
        self.times = [0] * size
        self.failure: BaseException | None = None
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[int], Callable[[], object]]) -> None:
        for number in range(len(self.times)):
            thread = threading.Thread(target=self._run, args=(number, work(number)), daemon=True)
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for so long; raise the error that ended a thread, if there was one."""
        self._over.wait(seconds)
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self, number: int, once: Callable[[], object]) -> None:
        try:
            while not self._over.is_set():
                once()
                self.times[number] += 1
        except BaseException as failure:  # noqa: BLE001 (the top of a thread: reported to the main one)
            self.failure = failure
            self._over.set()


def _counted(work: Callable[[int], Callable[[], object]], job: Job) -> dict[str, float]:
    crowd = _Crowd(job.at_once)
    crowd.start(work)
    crowd.wait(job.warm_s)
    before, began = sum(crowd.times), time.perf_counter()
    crowd.wait(job.seconds)
    times, took = sum(crowd.times) - before, time.perf_counter() - began
    crowd.stop()
    return {"times": times, "seconds": took}


def _traced() -> int:
    """Return the bytes in use, without those of bounded caches."""
    checked_lock_key.cache_clear()
    lock_key_named.cache_clear()
    gc.collect()
    traced, _ = tracemalloc.get_traced_memory()
    return traced


def _use(status: fencelock.LockStatus) -> None:
    assert status.lock


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


TTL_S = 15.0

PAIRS_MAX = 10_000
"""Limit of pairs: more are not worth the memory of their marks."""


def marked_pairs(job: Job, begin: Callable[[], None]) -> dict[str, int]:
    """Take and give back one lock, alone; write the marks, and return the number of pairs.

    The file has ``session`` (the nodes' name of the client's link), ``pairs`` (for each the times
    of the call of acquire, of the call of release, and of its return) and ``marks``. All times
    are ns of the monotonic clock.
    """
    marks = ProfileMarks()
    marks.watch_dispatchers_of(connecting)
    settings = Settings(
        Target.find(job.address, job.cluster), timeout=CONNECT_S, ttl=TTL_S, label=None
    )
    connection = connecting.Connection(settings, ThreadExecutor())
    pairs: list[tuple[int, int, int]] = []
    with Client(connection) as client:
        drive(connection.greeting())
        begin()
        lock = client.lock(job.lock)
        for _ in range(WARM_PAIRS):
            lock.acquire()
            lock.release()
        ends = now_ns() + int(job.seconds * 1e9)
        while (called := now_ns()) < ends and len(pairs) < PAIRS_MAX:
            lock.acquire()
            held = now_ns()
            lock.release()
            pairs.append((called, held, now_ns()))
        session = client.session
    seen = {"session": session, "pairs": pairs, "marks": list(marks.marks)}
    Path(job.marks).write_text(json.dumps(seen), encoding="utf-8")
    return {"times": len(pairs)}
