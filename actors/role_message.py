"""Messages between a role and its node: requests to the role, links, lines of the log.

None of them crosses the wire, except that a `RoleDescription` is part of a node's status. For
example, ``node.ref("clock").ask(ReadClock(), timeout=1).time`` is the logical time of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from fencelock.actors.api.self_report import Counted
from fencelock.actors.message import Instant, Int64, Local

A = TypeVar("A")

SUMMARY_MAX = 8
"""Facts in a description of a role."""

VALUE_CHARS_MAX = 80
"""Characters of the name, and of the value, of a fact; the rest is cut off."""

COUNTERS_MAX = 100
"""Counters in a description of a role."""

ROLES_MAX = 50
"""Roles that the status of a node describes. `central` may have thousands of lock clients."""

QUEUES_MAX = 100
"""Locks in one `Queues`."""

QUEUED_MAX = 100
"""Entries of one `LockQueue`."""


SYNC_REPORT_MS = 250
"""Least interval between two `DiskSynced` (ms): some heartbeats, and many syncs of a good disk."""


class Query(Local, Generic[A]):
    """A request to a role that is answered by an ``A``."""


class Fact(NamedTuple):
    """One attribute of a role, in words."""

    name: str
    value: str


class RoleDescription(NamedTuple):
    """The state of one role in short, as its host sees it."""

    name: str
    """Without its node, such as ``"clock"``."""
    kind: str
    """The class of the role."""
    waiting: Int64
    """Events that wait for the role's next turn."""
    summary: tuple[Fact, ...]
    """Returned by the role's `fencelock.actors.role.Role.summary`."""
    counters: tuple[Counted, ...]
    """Counted by this role since it started, by name."""


class DescribeRole(Query[RoleDescription]):
    """Describe the role. The host answers in place of the role, without waiting for its queue."""


class ClockTime(Local):
    """The logical time of a node."""

    time: int


class ReadClock(Query[ClockTime]):
    """Return the logical time. Answered by a `fencelock.actors.clock.Clock`."""


class Leaders(Local):
    """The leaders that a role knows of."""

    leaders: tuple[str, ...]
    """Nodes: one on `paxos`, up to three on `bakery`, in order of rank; none if not known."""
    number: int
    """On `paxos` the round of the highest ballot that the role has seen, on `bakery` the epoch."""
    here: bool
    """Whether the role's own node leads."""


class ReadLeaders(Query[Leaders]):
    """Return who leads. Answered by leaders and election coordinators."""


class LockQueue(NamedTuple):
    """The queue of one lock, as one role knows it."""

    lock: str
    queue: tuple[str, ...]
    """In order, at most `QUEUED_MAX`; the first one holds the lock, or is the next to."""
    length: int
    """The number of all that are in the queue."""


def queue_of(lock: str, queue: Sequence[str]) -> LockQueue:
    """Return the queue of ``lock``, cut at its limit."""
    return LockQueue(lock, tuple(queue[:QUEUED_MAX]), len(queue))


class Queues(Local):
    """The queues of a role."""

    queues: tuple[LockQueue, ...]
    """At most `QUEUES_MAX`."""
    locks: int
    """The number of all locks that have a queue."""


class ReadQueues(Query[Queues]):
    """Return the queues of locks. Answered by the roles of `lamport` and `central` that have some.

    A queue of a `LockProcess` has nodes, a queue of a `LockClient` has owners. A `LockServer` knows
    holders only.
    """


class LinkUp(Local):
    """The link to ``node`` is connected."""

    node: str


class LinkDown(Local):
    """The link to ``node`` broke, or was refused; messages sent may be lost."""

    node: str


class DiskSynced(Local):
    """The node's disk took ``mean_us`` for a sync of the journal, on average since the last report.

    The host sends it after a sync, at intervals of at least `SYNC_REPORT_MS`.
    """

    mean_us: int
    since: Instant
    """The time at which the first of these syncs began."""


class LinkRefused(Local):
    """The process at the address of ``node`` does not accept this one; ``detail`` says why.

    It belongs to another cluster or version, or knows another process under this one's id. Or, if
    ``by_key``, one side does not accept the key of the other.
    """

    node: str
    detail: str
    by_key: bool = False


class Level(IntEnum):
    """Severity of a `RoleNotice`."""

    DEBUG = 10
    """Information for somebody who looks for a fault."""
    INFO = 20
    """Information for an operator that requires no action."""
    WARNING = 30
    """A fault that does not stop this node."""
    ERROR = 40
    """A fault that requires action."""
    CRITICAL = 50
    """This node stops doing its work."""


class RoleNotice(Local):
    """To the host, at ``node/node``: write ``text`` into the log. The simulator counts it.

    ``fields`` have names and values, for programs that read the log.
    """

    level: Level
    text: str
    fields: tuple[tuple[str, str], ...] = ()
