"""Requests to the roles of a node, and their replies. Tags 0x100 to 0x111.

A `RoleRequest` is declared once, and used from two places: ``node.ref("clock").ask(ReadClock())``
in the node's process, and ``client.ref("n1/clock").ask(ReadClock())`` in another one. From another
process it travels inside an `AskRole`, to the proxy of that node; the reply comes back inside a
`RoleReply`. A request may change the role, so no part of fencelock repeats it: it is served once,
or not at all, or, if the reply is lost, perhaps.

A service declares requests of its own, to roles of its own, with tags from
`fencelock.actors.message.OWN_TAGS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from fencelock.actors.api.name import check_number
from fencelock.actors.api.request import Reply, Request
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import ADDRESS_PART_BYTES_MAX, Int64, Message, is_part

A = TypeVar("A")

SUMMARY_MAX = 8
"""Facts in a description of a role."""

VALUE_CHARS_MAX = 80
"""Characters of the name, and of the value, of a fact; the rest is cut off."""

ROLE_COUNTERS_MAX = 100
"""Counters in a description of a role."""

ROLES_MAX = 50
"""Roles that the status of a node describes. `central` may have thousands of lock clients."""

FACTS_MAX = 100
"""Facts in the state of a role."""

FACT_CHARS_MAX = 300
"""Characters of the name, and of the value, of one of them; the rest is cut off."""

QUEUES_MAX = 100
"""Locks in one `Queues`."""

QUEUED_MAX = 100
"""Entries of one `LockQueue`."""

ROLE_REQUEST_BYTES_MAX = 16 << 10
"""Size of a request to a role of another process (bytes, 16 KiB): a node keeps those that wait."""

REPLY_BYTES_MAX = 256 << 10
"""Size of the reply to it (bytes, 256 KiB): a fraction of what a client may leave unread."""

KEEP_MS_MAX = 60_000
"""Longest time for which a node keeps lines of its trace after somebody read them (ms)."""

ASK_MS_MAX = 60_000
"""Longest wait for that reply (ms, a minute): the node then forgets the request."""


class RoleRequest(Message, Generic[A]):
    """A request to a role that is answered by an ``A``. Only such requests cross the wire."""


class Fact(NamedTuple):
    """One attribute of a role, in words."""

    name: str
    value: str


class Counted(NamedTuple):
    """One counter of a node: an `Observe` name and its count since the start."""

    name: str
    times: Int64


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


class DescribeRole(RoleRequest[RoleDescription], tag=0x100):
    """Describe the role. The host answers in place of the role, without waiting for its queue."""


class RoleDescribed(Message, tag=0x101):
    """The reply to `DescribeRole` on the wire; callers receive what is in it."""

    role: RoleDescription


class RoleState(Message, tag=0x109):
    """The state of one role, in the words of its protocol."""

    name: str
    """Without its node, such as ``"clock"``."""
    kind: str
    """The class of the role."""
    facts: tuple[Fact, ...]
    """At most `FACTS_MAX`. Facts about a lock, a slot or a node end with its name."""
    more: bool
    """Whether there are more facts than these."""

    def __getitem__(self, name: str) -> str:
        """Return the value of the fact with that name.

        Raises:
            KeyError: there is none; the error lists those there are.

        """
        for fact in self.facts:
            if fact.name == name:
                return fact.value
        raise KeyError(f"{name}; {self.name} has {', '.join(fact.name for fact in self.facts)}")


class ReadState(RoleRequest[RoleState], tag=0x108):
    """Return the state of the role. The host answers in place of the role, as to `DescribeRole`."""


class ClockTime(Message, tag=0x103):
    """The logical time of a node."""

    time: Int64


class ReadClock(RoleRequest[ClockTime], tag=0x102):
    """Return the logical time. Answered by a `fencelock.actors.clock.Clock`."""


class Leaders(Message, tag=0x105):
    """The leaders that a role knows of."""

    leaders: tuple[str, ...]
    """Nodes: one on `paxos`, up to three on `bakery`, in order of rank; none if not known."""
    number: Int64
    """On `paxos` the round of the highest ballot that the role has seen, on `bakery` the epoch."""
    here: bool
    """Whether the role's own node leads."""


class ReadLeaders(RoleRequest[Leaders], tag=0x104):
    """Return who leads. Answered by leaders and election coordinators."""


class LockQueue(NamedTuple):
    """The queue of one lock, as one role knows it."""

    lock: str
    queue: tuple[str, ...]
    """In order, at most `QUEUED_MAX`; the first one holds the lock, or is the next to."""
    length: Int64
    """The number of all that are in the queue."""


def queue_of(lock: str, queue: Sequence[str]) -> LockQueue:
    """Return the queue of ``lock``, cut at its limit."""
    return LockQueue(lock, tuple(queue[:QUEUED_MAX]), len(queue))


class Queues(Message, tag=0x107):
    """The queues of a role."""

    queues: tuple[LockQueue, ...]
    """At most `QUEUES_MAX`."""
    locks: Int64
    """The number of all locks that have a queue."""


class ReadQueues(RoleRequest[Queues], tag=0x106):
    """Return the queues of locks. Answered by the roles of `lamport` and `central` that have some.

    A queue of a `LockProcess` has nodes, a queue of a `LockClient` has owners. A `LockServer` knows
    holders only.
    """


LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")
"""Levels of a log, from the one that writes most."""


class TraceLine(NamedTuple):
    """A message that a role received or sent."""

    number: Int64
    """Of the line, among those of its node."""
    time: Int64
    """The logical time of the node."""
    role: str
    act: str
    """``receives`` or ``sends``."""
    peer: str
    """The sender or the receiver, as ``node/role``."""
    kind: str
    """The type of the message."""
    lock: str
    """The lock that it is about; empty if none."""
    text: str
    """The message, at most `FACT_CHARS_MAX` characters."""
    state: str
    """The role's state after a message that it received: the lock's queue, or a summary."""


class TraceLines(Message, tag=0x10B):
    """The lines up to number ``last`` that a reader wants of a node's trace, in order.

    There may be none of them while there are later ones.
    """

    lines: tuple[TraceLine, ...]
    more: bool
    """Whether there are later ones."""
    last: Int64
    """The number of the last line that was looked at, after which the reader goes on."""
    lost: Int64
    """Lines that were dropped before these, since the node keeps so many only."""


class ReadTrace(RoleRequest[TraceLines], tag=0x10A):
    """Return the kept lines after number ``after``. Answered by the role ``log`` of a node.

    The node keeps lines for ``keep_ms`` from now on, so whoever reads them asks again in time. It
    keeps all messages of ``roles``; if there are none, those between nodes of every role. Of
    readers with different roles it serves `fencelock.actors.trace.READERS_MAX` at a time.
    """

    after: Int64
    keep_ms: Int64
    """0 to `KEEP_MS_MAX`."""
    roles: tuple[str, ...] = ()
    """At most `ROLES_MAX`, of `ADDRESS_PART_BYTES_MAX` bytes each."""


class LogSetting(Message, tag=0x10D):
    """The log settings of a node: the least level, and the roles to trace (empty: all)."""

    level: str
    roles: tuple[str, ...]


class SetLog(RoleRequest[LogSetting], tag=0x10C):
    """Change what a node logs, until it stops. Answered by the role ``log`` of a node.

    An empty ``level`` and None for ``roles`` change nothing. A ``level`` outside of `LOG_LEVELS` is
    refused.
    """

    level: str = ""
    roles: tuple[str, ...] | None = None
    """At most `ROLES_MAX`, of `ADDRESS_PART_BYTES_MAX` bytes each."""


class SharedConfig(Message, tag=0x111):
    """The configuration that all nodes of a cluster share, for a node that is in no file."""

    text: str
    """TOML: the cluster's name, its protocol, and the settings of that. Without nodes and paths."""
    unreached: str
    """The reason why the node that replies could not connect to the given address; empty if it
    could."""


class ReadConfig(RoleRequest[SharedConfig], tag=0x110):
    """Return what a node needs to join, once its address was tried. Answered by role ``config``."""

    endpoint: str
    """The address at which the members are to reach it, such as ``tcp://10.0.0.4:4040``."""


class AskRole(Request, tag=0x10E):
    """Pass the request in ``body`` to a role. Answered by `RoleReply`.

    The role is one of the node that reads this, or of ``node``: then that node sends the request to
    the proxy of ``node``, if it has a link there.

    ``body`` is a `RoleRequest` in CBOR, ``[tag, field, ...]``. The node waits ``wait_ms`` for the
    role's reply, then it forgets the request and sends nothing. With ``wait_ms`` 0 the sender wants
    no reply. It must not be sent twice: the role would receive it twice.
    """

    role: str
    """The name of the role, without its node."""
    body: bytes
    wait_ms: Int64
    node: str = ""
    """The node of the role; empty for the node that reads this."""

    @property
    def reach(self) -> tuple[str, ...]:
        """All names, but for the proxy, which describes only itself."""
        return ("",) if self.needs_operator() else ()

    def needs_operator(self) -> bool:
        """Return whether only operators may send it, where keys are used: not to the proxy."""
        return self.role != "proxy"

    def check(self) -> None:
        if not is_part(self.role):
            raise InvalidRequestError(
                f"role is {self.role[:ADDRESS_PART_BYTES_MAX]!a}, and must be a name like 'clock' "
                f"of 1 to {ADDRESS_PART_BYTES_MAX} bytes, without '/'"
            )
        if self.node and not is_part(self.node):
            raise InvalidRequestError(
                f"node is {self.node[:ADDRESS_PART_BYTES_MAX]!a}, and must be a name like 'n1' "
                f"of 1 to {ADDRESS_PART_BYTES_MAX} bytes, without '/'"
            )
        if not 1 <= len(self.body) <= ROLE_REQUEST_BYTES_MAX:
            raise InvalidRequestError(
                f"the request to a role has {len(self.body)} bytes, 1 to {ROLE_REQUEST_BYTES_MAX} "
                "are allowed"
            )
        check_number("wait_ms", self.wait_ms, 0, ASK_MS_MAX)


class RoleReply(Reply, tag=0x10F):
    """The reply of a role to an `AskRole`: ``body`` is a message in CBOR, ``[tag, field, ...]``."""

    body: bytes
