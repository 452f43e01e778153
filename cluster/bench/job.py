"""What a client process of a measurement is told to do, as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What to measure."""

    PAIR = "pair"
    """One thread takes and gives back one lock; how long each pair took."""
    PROFILE = "profile"
    """The same, with marks of when the client did what."""
    RATE = "rate"
    """Threads take and give back locks; how many pairs in a time."""
    TASKS = "tasks"
    """The same with asyncio tasks."""
    WATCH = "watch"
    """The same with threads, until told to end; when there were grants."""
    HOLD = "hold"
    """Tasks take locks and keep them, some more each time it is told to."""
    READ = "read"
    """Threads ask for the status of locks; how many answers in a time."""
    ECHO = "echo"
    """A bare ROUTER that sends back what comes, until told to end."""
    PING = "ping"
    """A bare DEALER to such a ROUTER; how long a round trip takes, and how many in a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One measurement of one client process.

    Attributes:
        kind: what to measure.
        address: the nodes to connect to, or the echo to talk to.
        cluster: the id of the nodes' cluster.
        seconds: how long to measure, above 0; not for what is told to end.
        warm_s: how long to do the same before, unmeasured.
        at_once: threads, tasks or frames under way, 1 or more.
        lock: the name of the lock, or how the names of the locks begin.
        shared: whether all are after the one lock, not each after a lock of its own.
        age_ms: how old an answer to a read may be (ms); None for a linearizable read.
        marks: the file into which marks are written.
        locks: how many to take each time it is told to.

    """

    kind: Kind
    address: str = ""
    cluster: str = ""
    seconds: float = 1.0
    warm_s: float = 0.0
    at_once: int = 1
    lock: str = "bench"
    shared: bool = False
    age_ms: int | None = None
    marks: str = ""
    locks: int = 0

    def lock_of(self, number: int) -> str:
        """Return which lock thread or task ``number`` is after."""
        return self.lock if self.shared else f"{self.lock}-{number}"

    def line(self) -> str:
        """Return the job as a line, for `read_job`."""
        return json.dumps(asdict(self))


def read_job(line: str) -> Job:
    """Return the job in ``line``, which `Job.line` made."""
    fields: dict[str, Any] = json.loads(line)
    fields["kind"] = Kind(fields["kind"])
    return Job(**fields)
