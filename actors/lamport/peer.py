"""A channel's state for each other node."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.lamport.message import Content
from fencelock.actors.lamport.stream import Incoming, Outgoing
from fencelock.actors.message import Address

RESEND_MS = 200
"""First interval of resending (ms): many round trips of a local network, few of a wide one."""

RESEND_MS_MAX = 1_600
"""Longest interval of resending (ms): a peer that comes back is served this soon."""


@dataclass(slots=True)
class Peer:
    """A channel's state for one other node."""

    node: str
    address: Address
    boot: int | None = None
    """The life it is in, once it has answered."""
    outgoing: Outgoing[Content] = field(default_factory=Outgoing[Content])
    incoming: Incoming[Content] = field(default_factory=Incoming[Content])
    congested: bool = False
    nonce: int | None = None
    """Number of the request that it has not answered, None if there is none."""
    ask_ms: int = RESEND_MS
    ask_armed: bool = False
    resend_ms: int = RESEND_MS
    resend_armed: bool = False
    resend_first: int = 0
    """The oldest unconfirmed number when the resend timer was set: shows progress."""
    owed: int = 0
    """Parcels that arrived since the last confirmation."""
    confirm_armed: bool = False

    def meet(self, boot: int) -> None:
        """Begin anew with the life ``boot``, with nothing sent or received."""
        self.boot = boot
        self.outgoing = Outgoing()
        self.incoming = Incoming()
        self.owed = 0
        self.resend_ms = RESEND_MS
