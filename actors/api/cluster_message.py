"""Messages about the state of a node and of the cluster.

Tags 0x14, 0x1d, 0x6c to 0x6e, 0x7b and 0x7c.

A client watches by asking again after each answer. A proxy owes a client one answer, the newest,
however often the state changed meanwhile, and sends nothing while nothing changes.
"""

from typing import NamedTuple

from fencelock.actors.api.lock_message import LockStatus
from fencelock.actors.api.request import Query, RepliedBy, Reply
from fencelock.actors.api.role_request import Counted, RoleDescription
from fencelock.actors.message import Int64


class Describe(Query, RepliedBy["NodeStatus"], tag=0x14):
    """Describe the node, and with ``roles`` each of its roles. Answered by `NodeStatus`."""

    roles: bool = False


class MemberSeen(NamedTuple):
    """A member that was configured, as the answering node sees it."""

    node: str
    connected: bool
    priority: Int64
    """As a leader, 1 to 14, the smaller the likelier; 15 for never, 0 where it is not known."""


class Elected(NamedTuple):
    """The elected leaders, and the members that can be elected."""

    epoch: Int64
    """The highest epoch known; 0 before the first."""
    leaders: tuple[str, ...]
    """The leaders of that epoch, in order of rank, without those that cannot be reached or have
    restarted since."""
    members: tuple[MemberSeen, ...]
    """All configured members, by name."""


class NodeStatus(Reply, tag=0x1D):
    """Description of a node, and of every lock that is held or awaited through it."""

    node: str
    protocol: str
    nodes: tuple[str, ...]
    ready: bool
    """Whether a request made now can be granted once its turn comes; ``detail`` says why not."""
    detail: str
    uptime_ms: Int64
    counters: tuple[Counted, ...]
    locks: tuple[LockStatus, ...]
    leader: str = ""
    """The node that leads, where there is one and it is known."""
    elected: Elected | None = None
    """The elected leaders, where there are several."""
    roles: tuple[RoleDescription, ...] = ()
    """The roles that started first, if they were requested; at most
    `fencelock.actors.role_message.ROLES_MAX`."""

    REPLIES_TO = (Describe,)


class Watch(Query, tag=0x6C):
    """Report the cluster's state once it is not the ``known`` one: `ClusterUp`, `ClusterDown`.

    ``known`` is the number of the last reply, or 0 before the first. A client repeats this every
    few seconds, since a reply may be lost.
    """

    known: Int64 = 0


class ClusterUp(Reply, tag=0x6D):
    """Source: CLUSTER_UP. A majority of the members is connected, as the answering node sees it."""

    number: Int64
    """Number of this state at this node, above 0; it differs after each change, and each start."""
    complete: bool
    """Source: CLUSTER_COMPLETE. All members are connected."""
    ready: bool
    """Source: LOCK_READY, NO_LOCK. Whether locks can be granted now; ``reason`` says why not."""
    reason: str
    """The missing condition of the election, in words; or ``ready``."""
    epoch: Int64
    leaders: tuple[str, ...]


class ClusterDown(Reply, tag=0x6E):
    """Source: CLUSTER_DOWN. No majority is connected: no lock can be granted; see `ClusterUp`."""

    number: Int64
    reason: str
    epoch: Int64
    leaders: tuple[str, ...]
    """The nodes that led last, as far as is known."""


class Probe(Query, tag=0x7B):
    """Report whether you can serve requests now. Answered by `ProbeReply`, alone and at once.

    A request may wait for long although all is well. But silence after a probe means that the node
    is dead, or cut off.
    """


class ProbeReply(Reply, tag=0x7C):
    """Whether a request sent to ``node`` now can reach a leader, as far as is known there.

    When that changes, it is also sent under ``request`` 0 to clients that wait for a reply.
    """

    node: str
    serving: bool
    leader: str = ""
    """The node that leads, where there is one and it is known."""
