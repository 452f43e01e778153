"""Messages that tell a client within moments whether a node can serve it. Tags 0x7b and 0x7c.

A request may wait for long although all is well. The node replies to a probe alone and at once,
so silence means that the node is dead, or cut off.
"""

from fencelock.actors.api.request import Query, Reply
from fencelock.actors.message import Int64


class Probe(Query, tag=0x7B):
    """Report whether you can serve requests now. Answered by `ProbeReply`, at once."""

    session: str
    request: Int64 = 0


class ProbeReply(Reply, tag=0x7C):
    """Whether a request sent to ``node`` now can reach a leader, as far as is known there.

    When that changes, it is also sent under ``request`` 0 to clients that wait for a reply.
    """

    session: str
    node: str
    serving: bool
    leader: str = ""
    """The node that leads, where there is one and it is known."""
    request: Int64 = 0
