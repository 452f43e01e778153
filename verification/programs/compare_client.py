"""One client process of the comparison: threads that take and give back locks of one peer.

It is told what to do as one JSON object, says {"event": "ready"}, begins when it reads a
line, and ends with {"event": "done", ...}: counts, durations (ns), and when there were grants.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
from peers.peer import Handle, PeerConnection
from peers.registry import PEERS

PAUSE_S = 0.01
"""After an error, before the next try."""
MARK_BYTES = 4


@dataclass(frozen=True)
class Workload:
    """The load of client processes."""

    name: str
    processes: int
    threads: int
    one_lock: bool = False
    """Whether all threads use one lock; otherwise each has its own."""
    fresh: bool = False
    """Whether each pair is of a lock with a new name."""


@dataclass(kw_only=True)
class ClientTask:
    """The job of a client process."""

    peer: str
    spec: dict[str, Any]
    load: Workload
    client: int
    """The number of this process in the run."""
    warm_s: float
    """Load that is not counted, at the start (s)."""
    seconds: float
    """Time to count after that (s); 0: until another line is read."""
    mark: str | None = None
    """A file that each holder writes its number into, and must find there at the end."""


@dataclass
class ClientTally:
    """The results of one thread, or of all."""

    pairs: int = 0
    errors: int = 0
    handovers: int = 0
    """Counted pairs before which somebody else held the one lock."""
    overlaps: int = 0
    """Holders of the one lock who found somebody else's mark at their end."""
    durations: list[int] = field(default_factory=list[int])
    """Of each counted pair, ns."""
    granted_ms: set[int] = field(default_factory=set[int])
    """Milliseconds of the monotonic clock, which all processes share, with a grant."""
    last_error: str = ""

    def add(self, other: ClientTally) -> None:
        self.pairs += other.pairs
        self.errors += other.errors
        self.handovers += other.handovers
        self.overlaps += other.overlaps
        self.durations += other.durations
        self.granted_ms |= other.granted_ms
        self.last_error = other.last_error or self.last_error


class ClientWorker(threading.Thread):
    """One thread in a loop of acquire and release."""

    def __init__(
        self, task: ClientTask, number: int, connection: PeerConnection, begin: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self.tally = ClientTally()
        self.ready = threading.Event()
        self.until_ns = 0
        self.counted_from_ns = 0
        self._task = task
        self._name = "the-one" if task.load.one_lock else f"own-{task.client}-{number}"
        self._own = (task.client * task.load.threads + number + 1).to_bytes(MARK_BYTES)
        self._connection = connection
        self._begin = begin
        self._mark: mmap.mmap | None = None
        if task.mark is not None:
            with open(task.mark, "r+b") as file:
                self._mark = mmap.mmap(file.fileno(), MARK_BYTES)

    def run(self) -> None:
        """Prove that the lock can be had, wait for the others, and go."""
        handle = self._connection.lock(self._name)
        handle.acquire()
        handle.release()
        self.ready.set()
        self._begin.wait()
        if self._task.seconds:
            self._measure(handle)
        else:
            self._persevere(handle)

    def _measure(self, handle: Handle) -> None:
        clock, durations = time.monotonic_ns, self.tally.durations
        now = clock()
        while now < self.until_ns:
            if self._task.load.fresh:
                handle = self._connection.lock(f"{self._name}-{now}")
            began = clock()
            handle.acquire()
            taken_over = self._enter()
            self._leave()
            handle.release()
            now = clock()
            if began >= self.counted_from_ns and now <= self.until_ns:
                durations.append(now - began)
                self.tally.handovers += taken_over
        self.tally.pairs = len(durations)

    def _persevere(self, handle: Handle) -> None:
        granted, tally = self.tally.granted_ms, self.tally
        while not self.until_ns:
            try:
                handle.acquire()
                granted.add(time.monotonic_ns() // 1_000_000)
                handle.release()
                tally.pairs += 1
            except Exception as error:  # noqa: BLE001 - Each peer has its own; they are counted.
                tally.errors += 1
                tally.last_error = repr(error)[:500]
                time.sleep(PAUSE_S)

    def _enter(self) -> bool:
        """Leave the own mark; return whether the last one was another's."""
        if self._mark is None or self._mark[:] == self._own:
            return False
        self._mark[:] = self._own
        return True

    def _leave(self) -> None:
        if self._mark is not None and self._mark[:] != self._own:
            self.tally.overlaps += 1


def end_process(failure: threading.ExceptHookArgs) -> None:
    """End this process with an error: a thread failed, and others may wait for its lock."""
    traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


def run(task: ClientTask) -> ClientTally:
    threading.excepthook = end_process
    connection = PEERS[task.peer][1](task.spec)
    begin = threading.Event()
    workers = [ClientWorker(task, number, connection, begin) for number in range(task.load.threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.ready.wait()
    print(json.dumps({"event": "ready"}), flush=True)
    if not sys.stdin.readline():
        raise SystemExit("whoever started this client is gone")
    now = time.monotonic_ns()
    ends = now + int((task.warm_s + task.seconds) * 1e9)
    for worker in workers:
        worker.counted_from_ns = now + int(task.warm_s * 1e9)
        worker.until_ns = ends if task.seconds else 0
    begin.set()
    if not task.seconds:
        sys.stdin.readline()
        for worker in workers:
            worker.until_ns = 1
    total = ClientTally()
    for worker in workers:
        worker.join()
        total.add(worker.tally)
    connection.close()
    return total


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=ClientTask)
    tally = asdict(run(task))
    tally["granted_ms"] = sorted(tally["granted_ms"])
    print(json.dumps({"event": "done", **tally}), flush=True)


if __name__ == "__main__":
    main()
