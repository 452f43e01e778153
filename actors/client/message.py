"""The words between a client's session and those who use it, besides the words of a lock."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.lock.message import NodeStatus
from fencelock.actors.message import Instant, Local, Timer, local, timer


@local
class Close(Local):
    """Release every hold and cancel every wait. Answered by `Closed`; nothing is served after."""


@local
class Closed(Local):
    """The session ended; ``unanswered`` releases and cancels were not confirmed in time."""

    unanswered: int


@local
class Survey(Local):
    """Ask every gate to describe itself, with its roles or without. Answered by `Surveyed`."""

    roles: bool = False


@local
class Surveyed(Local):
    """What the gates said, in the order of the gates, and the names of those that did not."""

    statuses: tuple[NodeStatus, ...]
    silent: tuple[str, ...]


class Loss(NamedTuple):
    """A hold that is no more, without having been released."""

    lock: str
    owner: str
    fence: int


@local
class Trusted(Local):
    """To the watcher: what is held now is held for certain until ``until`` (this node's clock).

    Said whenever the cluster has confirmed the session. From ``suspect_at`` on there is
    reason to worry: confirmations should have come.
    """

    suspect_at: Instant
    until: Instant


@local
class Leased(Local):
    """To the watcher: that hold has a deadline, and is lost at ``until`` (this node's clock).

    Said when it is granted and whenever it is renewed; its duration is over ``grace_ms`` before.
    """

    lock: str
    owner: str
    fence: int
    until: Instant
    grace_ms: int


@local
class Suspected(Local):
    """To the watcher: the session was not confirmed for ``silent_ms``; a `Trusted` may follow."""

    silent_ms: int
    left_ms: int
    """Until the holds count as lost."""


@local
class HoldsLost(Local):
    """To the watcher: these are held no more, and never were to be again; ``detail`` says why."""

    losses: tuple[Loss, ...]
    detail: str


@local
class WatchCluster(Local):
    """Tell the watcher how the cluster is, now and whenever that changes."""


@local
class ClusterState(Local):
    """How a cluster is, as the node has it that a client uses. Immutable.

    Once a client has lost its node, and while no other has spoken yet, it is neither up nor
    ready, and ``reason`` says of every node why.
    """

    up: bool
    """Whether a majority of the members is connected."""
    complete: bool
    """Whether all are."""
    ready: bool
    """Whether a lock can be had now, once its turn comes."""
    reason: str
    """Which condition is missing, in words; or ``ready``."""
    epoch: int
    """Of the highest election known; 0 before the first."""
    leaders: tuple[str, ...]
    """Who was elected in it, in order of rank."""


@timer
class Tick(Timer):
    """See what is due. Only the tick of the current ``round`` counts, earlier ones are stale."""

    round: int
