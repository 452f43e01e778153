"""What a client hears of its cluster as a whole, and how it asks. Tags 0x6c to 0x6e.

To watch is to ask again after each answer: a door owes a client one answer, the newest, however
often things changed meanwhile, and says nothing while nothing changes.
"""

from __future__ import annotations

from fencelock.actors.message import Message, message


@message(0x6C)
class Watch(Message):
    """Tell me how the cluster is, once that is not what I ``know``: `ClusterUp`, `ClusterDown`.

    ``known`` is the number of the last answer, 0 for none. Whoever waits at another node says
    this every few seconds, or is forgotten.
    """

    known: int = 0
    session: str = ""
    request: int = 0


@message(0x6D)
class ClusterUp(Message):
    """Source: CLUSTER_UP. A majority of the members is connected, as the answering node sees it."""

    number: int
    """Of this state at this node, above 0; another one after each change, and each start."""
    complete: bool
    """Source: CLUSTER_COMPLETE. All members are connected."""
    ready: bool
    """Source: LOCK_READY, NO_LOCK. Whether locks can be had now; ``reason`` says why not."""
    reason: str
    """Which condition of the election is missing, in words; or ``ready``."""
    epoch: int
    leaders: tuple[str, ...]
    session: str = ""
    request: int = 0


@message(0x6E)
class ClusterDown(Message):
    """Source: CLUSTER_DOWN. No majority is connected, so no lock can be had; see `ClusterUp`."""

    number: int
    reason: str
    epoch: int
    leaders: tuple[str, ...]
    """Who led last, as far as is known."""
    session: str = ""
    request: int = 0
