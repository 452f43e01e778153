"""What a node says of itself: what it counted, and who leads it."""

from __future__ import annotations

from typing import NamedTuple


class Counted(NamedTuple):
    """One counter of a node: an `Observe` name and how often it happened since boot."""

    name: str
    times: int


class MemberSeen(NamedTuple):
    """A member that was configured, as the answering node sees it."""

    node: str
    connected: bool
    priority: int
    """As a leader, 1 to 14, the smaller the likelier; 15 for off, 0 where it is not known."""


class Elected(NamedTuple):
    """Who was elected, and who may be."""

    epoch: int
    """The highest known; 0 before the first."""
    leaders: tuple[str, ...]
    """Of that epoch, in order of rank."""
    members: tuple[MemberSeen, ...]
    """All that are configured, by name."""
