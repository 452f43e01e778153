"""Parts of a node's description of itself: its counters, the members and the leaders."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.message import Int64


class Counted(NamedTuple):
    """One counter of a node: an `Observe` name and its count since the start."""

    name: str
    times: Int64


class NodeAddress(NamedTuple):
    """A node, and where other nodes and clients reach it."""

    node: str
    endpoint: str


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
