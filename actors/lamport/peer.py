"""What a courier remembers of each other node."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.lamport.message import Content
from fencelock.actors.lamport.stream import Incoming, Outgoing
from fencelock.actors.message import Address

RESEND_MS = 200
"""When to send again at first (ms): many round trips of a local network, few of a wide one."""

RESEND_MS_MAX = 1_600
"""When to send again at last (ms): a peer that comes back is served this soon."""


@dataclass(slots=True)
class Peer:
    """What the courier knows of one other node."""

    node: str
    address: Address
    boot: int | None = None
    """The life it is in, once it said so."""
    outgoing: Outgoing[Content] = field(default_factory=Outgoing[Content])
    incoming: Incoming[Content] = field(default_factory=Incoming[Content])
    congested: bool = False
    nonce: int | None = None
    """The question it has not answered, None if there is none."""
    ask_ms: int = RESEND_MS
    ask_armed: bool = False
    resend_ms: int = RESEND_MS
    resend_armed: bool = False
    resend_first: int = 0
    """The oldest unconfirmed number when the resend timer was set: tells progress."""
    owed: int = 0
    """Parcels that arrived since we last confirmed."""
    confirm_armed: bool = False

    def meet(self, boot: int) -> None:
        """Begin anew, with nothing sent and nothing heard, with the life ``boot``."""
        self.boot = boot
        self.outgoing = Outgoing()
        self.incoming = Incoming()
        self.owed = 0
        self.resend_ms = RESEND_MS
