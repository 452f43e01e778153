"""Events about members and other nodes, between the roles of the log within a node."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.membership import Membership
from fencelock.actors.message import Address, Local, Timer
from fencelock.actors.paxos.message import Locate


class ViewChanged(Local):
    """Replica to the other roles of the log: `LogConfig` has other views than before."""


class ProposeChange(Local):
    """To the replica: let ``membership`` be the next one, if that is possible now."""

    membership: Membership
    joiner_applied: int | None = None
    """The first slot that a new member has not applied; it may lack `JOIN_SLOTS`."""


class Behind(Local):
    """Acceptor to failure detector: ``node`` knows a view that is not known here."""

    node: str


class Fetched(Local):
    """Catch-up to failure detector: about ``bytes_left`` are missing; 0 once nothing is."""

    bytes_left: int


class ReportState(Local):
    """Failure detector to replica: answer the `Locate` ``number`` of ``asker`` by `Located`."""

    asker: Address
    number: int


class DescribeNodes(Local):
    """To the failure detector: describe the other nodes. Answered by `NodesDescribed`."""


class NodeFacts(NamedTuple):
    """A leader's knowledge of another node."""

    node: str
    applied: int
    """The first slot that it has not applied, as it last reported."""
    last_message_ms: int
    """Time since then (ms)."""
    view: int
    """The newest view that it knows; -1 if its version knows none."""
    learner: Locate | None
    """Its last report as a node that is no member, or None if it sent none."""
    lag: int = 0
    """Slots that it lacked when it sent that report."""
    version: str = ""
    """The version of its software, empty if it is not known."""


class NodesDescribed(Local):
    """The leader, empty if none is known, and the other nodes that have reported to this one."""

    leader: str
    nodes: tuple[NodeFacts, ...]


class TargetDue(Timer):
    """Check whether the group has its target size, and whether its members answer."""


class LocateDue(Timer):
    """Ask other nodes which slots are decided; ``number`` is the timer's number."""

    number: int
