"""How a client learns within moments whether a node can serve it. Tags 0x7b and 0x7c.

A request may wait for long although all is well. A probe is answered by the node alone and at
once, so silence means that the node is dead, or cut off.
"""

from __future__ import annotations

from fencelock.actors.message import Message, message


@message(0x7B)
class Probe(Message):
    """Say whether you can serve requests now. Answered by `ProbeReply`, at once."""

    session: str
    request: int = 0


@message(0x7C)
class ProbeReply(Message):
    """Whether a request that is made at ``node`` now can reach a leader, as far as is known there.

    Also sent unasked, under ``request`` 0, to clients that wait for something when this changes.
    """

    session: str
    node: str
    serving: bool
    leader: str = ""
    """The node that leads, where one does and it is known."""
    request: int = 0
