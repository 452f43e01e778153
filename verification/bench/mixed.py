"""The client process of a measured load: connections whose threads make operations of a mix.

Every interval it prints one line of JSON: for each operation, place and bucket of latency the
number of operations, and the errors. So a run of hours needs no memory, and one that is interrupted
still has a result.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from random import Random

import fencelock
from fencelock.verification.bench.job import (
    OPERATION_S,
    ClientTarget,
    Job,
    Operation,
    RedisTarget,
    Target,
    drawn,
)
from fencelock.verification.bench.machine import resident_bytes

AT_ONCE = 32
"""Connections that are opened or closed at a time."""

OPEN_S = 180.0
"""Timeout for a connection (s): a thousand that are opened at once share the machine."""

DRAWN = 2_000
"""Operations that a thread draws before it begins, and then repeats."""

DRAIN_S = 0.25
"""Pause between two looks at what the threads have done, or at whether the run is over (s)."""

SWITCH_S = 1.0
"""The time after which a thread that waits for the interpreter stops the running one (s). All soon
wait by themselves, and hundreds that ask every 5 ms take more time than the work does."""

CROWD = 64
"""Threads of a process above which it has a lower priority. Otherwise nodes on the same machine
hardly run: the system's scheduler treats each of the threads like the one of a node."""

CROWD_NICE = 5

PER_E = 50
"""Buckets of latency for each factor of e: they are 2 % wide."""

OURS = "tcp://"
"""The beginning of addresses of fencelock. Others are URLs of Redis."""


def bucket_of(seconds: float) -> int:
    return int(PER_E * math.log(max(1.0, 1e6 * seconds)))


def us_of(bucket: int) -> float:
    """Return the middle of a bucket (us)."""
    return math.exp((bucket + 0.5) / PER_E)


class _Load:
    """The connections and threads of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._begun, self._over = threading.Event(), threading.Event()
        self._done: deque[tuple[Operation, str, float | str]] = deque()
        """For each operation its place, and its latency (s) or the name of its error."""
        self._failure: BaseException | None = None
        self._at = 0.0
        """The end of the last interval (s)."""
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(AT_ONCE)
        numbers = range(job.first, job.first + job.at_once)
        self._targets: list[tuple[Target, str, list[str]]] = [*self._pool.map(self._open, numbers)]

    def begin(self) -> None:
        """Let all threads begin, once all are there: starting one while many work takes long."""
        for number, (target, place, names) in enumerate(self._targets, self._job.first):
            for thread in range(self._job.in_flight):
                random = Random(f"{number}/{thread}")
                loop = (target, place, names, random)
                started = threading.Thread(target=self._run, args=loop, daemon=True)
                self._threads.append(started)
        for one in self._threads:
            one.start()
        self._begun.set()
        self._at = time.monotonic()

    def interval(self, ends: float) -> dict[str, object]:
        """Wait until ``ends`` (s, of the monotonic clock); return what was done since the last."""
        took: Counter[tuple[str, str, int]] = Counter()
        errors: Counter[tuple[str, str]] = Counter()
        while not self._over.is_set():
            self._over.wait(min(DRAIN_S, max(0.0, ends - time.monotonic())))
            for _ in range(len(self._done)):
                operation, place, found = self._done.popleft()
                if isinstance(found, str):
                    errors[operation, found] += 1
                else:
                    took[operation, place, bucket_of(found)] += 1
            if time.monotonic() >= ends:
                break
        if self._failure is not None:
            raise self._failure
        began, self._at = self._at, time.monotonic()
        return {
            "seconds": self._at - began,
            "took": [[*key, times] for key, times in took.items()],
            "errors": [[*key, times] for key, times in errors.items()],
            "processor_s": time.process_time(),
            "memory": resident_bytes(os.getpid()),
        }

    def end(self) -> None:
        self._over.set()
        ends = time.monotonic() + 2 * OPERATION_S
        for one in self._threads:
            one.join(max(0.0, ends - time.monotonic()))
        for closed in [self._pool.submit(target.close) for target, _, _ in self._targets]:
            closed.result()
        self._pool.shutdown()

    def _open(self, number: int) -> tuple[Target, str, list[str]]:
        job = self._job
        place = job.places[number % len(job.places)] if job.places else ""
        target: Target
        if not job.address.startswith(OURS):
            target = RedisTarget(job.address, job.lock)
        else:
            client = fencelock.connect(
                place or job.address,
                cluster=job.cluster,
                connect_timeout=OPEN_S,
                key=job.key or None,
                stay=bool(place),
            )
            age_s = None if job.age_ms is None else job.age_ms / 1000
            target = ClientTarget(client, job.lock, job.payload, age_s)
        owner = "" if job.shared else f"{number}-"
        names = [f"{owner}{one}" for one in range(job.names)]
        if Operation.GET in job.mix:
            target.fill(names)
        return target, place, names

    def _run(self, target: Target, place: str, names: list[str], random: Random) -> None:
        uses: dict[tuple[Operation, str], Callable[[], object]] = {}
        plan = drawn(self._job.mix, names, random, DRAWN)
        for one in plan:
            if one not in uses:
                uses[one] = target.use(*one)
        done, over, clock = self._done, self._over, time.perf_counter
        period_s = self._job.period_s
        self._begun.wait()
        due = clock() + random.random() * period_s
        try:
            for one in cycle(plan):
                while (early_s := due - clock()) > 0 and not over.is_set():
                    time.sleep(min(early_s, DRAIN_S))
                if over.is_set():
                    return
                began = clock()
                if period_s:  # A wait for the operation before counts, too.
                    began = due
                    due += period_s
                try:
                    uses[one]()
                except target.failures as error:
                    done.append((one[0], place, type(error).__name__))
                    continue
                done.append((one[0], place, clock() - began))
        except BaseException as failure:  # noqa: BLE001 (the top of a thread: reported to the main one)
            self._failure = failure
            over.set()


def mixed(job: Job, begin: Callable[[], None], say: Callable[[object], None]) -> dict[str, int]:
    """Make the operations of ``job`` from all its connections; report each interval."""
    sys.setswitchinterval(SWITCH_S)
    if job.at_once * job.in_flight > CROWD and hasattr(os, "nice"):
        os.nice(CROWD_NICE)
    load = _Load(job)
    begin()
    load.begin()
    at = time.monotonic() + job.warm_s
    say(load.interval(at))
    for number in range(1, job.rounds + 1):
        say(load.interval(at + number * job.seconds))
    load.end()
    return {}
