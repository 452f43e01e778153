"""The job of a client process of a measurement, as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from fencelock.verification.bench.mix import Operation

ELECTION = "one"
"""The election of `Use.LEAD`."""


class Use(StrEnum):
    """A use of an object, which a thread repeats."""

    LOCK = "lock"
    SEMAPHORE = "semaphore"
    READ = "read"
    """Acquire a read/write lock to read, and release it."""
    READ_ONE = "read_one"
    """Acquire the read/write lock that all threads share to read, and release it."""
    WRITE = "write"
    LOCK_ALL = "lock_all"
    """Acquire two locks in one step, and release them."""
    TWO_LOCKS = "two_locks"
    """Acquire two locks, one after the other, and release them."""
    LEAD = "lead"
    """Lead in the election that all threads share, and step down."""


class JobKind(StrEnum):
    """The kinds of measurements."""

    PAIR = "pair"
    """One thread takes and gives back one lock; measures each pair."""
    PROFILE = "profile"
    """The same, with marks of the client's steps."""
    RATE = "rate"
    """Threads take and give back locks; counts pairs in a time."""
    TURNS = "turns"
    """Threads use one kind of object after the other; the pairs of each turn are counted."""
    TASKS = "tasks"
    """The same with asyncio tasks."""
    WATCH = "watch"
    """The same with threads, until it receives the request to end; records the times of grants."""
    RETAIN = "retain"
    """Threads use locks once, and the client retains them; measures its memory for each."""
    HOLD = "hold"
    """Tasks take locks and keep them, some more for each line that is read."""
    FOLLOW = "follow"
    """Tasks watch one election; the changes that they receive are counted."""
    MIXED = "mixed"
    """Connections make operations of a mix; each interval is reported."""
    READ = "read"
    """Threads ask for the status of locks; counts answers in a time."""
    ECHO = "echo"
    """A bare ROUTER that sends back what it receives, until it receives the request to end."""
    PING = "ping"
    """A bare DEALER to such a ROUTER; measures round trips, one at a time and many at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One measurement of one client process.

    Attributes:
        kind: the kind of measurement.
        address: the nodes to connect to, or the echo.
        cluster: the id of the nodes' cluster.
        seconds: how long to measure, above 0; not for kinds that run until they are ended.
        warm_s: how long to do the same before, unmeasured.
        at_once: threads, tasks or frames in flight, 1 or more.
        lock: the name of the lock, or the prefix of the locks' names.
        shared: whether all use the one lock, not each a lock of its own.
        fresh: whether each pair uses a lock of its own.
        confirm: whether a release waits until it is confirmed.
        retain: how long the client keeps a lock after its owner released it (s); 0 for not at all.
        cohort: the number of its owners that may have the lock before another client.
        age_ms: the greatest age of an answer to a read (ms); None for a linearizable read.
        marks: the file for marks.
        locks: the number of locks to retain, or to take for each line that is read; of watchers,
            how many watch elections that do not change.
        uses: the uses that threads make in turns, each for ``seconds``.
        rounds: the number of turns of each use, or of reported intervals.
        mix: the operations of a mixed load, with their shares.
        places: addresses of nodes at which connections stay, one after the other; empty if they
            may choose.
        first: the number of the first connection.
        in_flight: the number of threads of each connection.
        names: the number of locks or entries that a connection uses.
        payload: the size of values (bytes).
        key: the file of the clients' key.

    """

    kind: JobKind
    address: str = ""
    cluster: str = ""
    seconds: float = 1.0
    warm_s: float = 0.0
    at_once: int = 1
    lock: str = "bench"
    shared: bool = False
    fresh: bool = False
    confirm: bool = True
    retain: float = 0.0
    cohort: int = 0
    age_ms: int | None = None
    marks: str = ""
    locks: int = 0
    uses: tuple[Use, ...] = ()
    rounds: int = 1
    mix: dict[Operation, int] = field(default_factory=dict[Operation, int])
    places: tuple[str, ...] = ()
    first: int = 0
    in_flight: int = 1
    names: int = 1
    payload: int = 0
    key: str = ""

    def lock_of(self, number: int) -> str:
        return self.lock if self.shared else f"{self.lock}-{number}"

    def line(self) -> str:
        return json.dumps(asdict(self))


def read_job(line: str) -> Job:
    fields: dict[str, Any] = json.loads(line)
    fields |= {"kind": JobKind(fields["kind"]), "uses": tuple(map(Use, fields["uses"]))}
    fields |= {"mix": {Operation(one): share for one, share in fields["mix"].items()}}
    fields |= {"places": tuple(fields["places"])}
    return Job(**fields)
