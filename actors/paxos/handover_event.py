"""What the roles of a master that goes, and of the one that follows, say within their node."""

from __future__ import annotations

from fencelock.actors.message import Local, local
from fencelock.actors.paxos.message import Ballot


@local
class Nominate(Local):
    """Leader to monitor: who could lead in my place? Answered by `Nominated`."""


@local
class Nominated(Local):
    """Monitor to leader: ``node`` answers and has applied the most; empty if nobody answers."""

    node: str


@local
class Drain(Local):
    """Leader to replica: give no more slots and trust no lease. Answered by `Drained`."""

    ballot: Ballot


@local
class Drained(Local):
    """Replica to leader: all slots of ``ballot`` are applied here, and none is given any more."""

    ballot: Ballot


@local
class Succeed(Local):
    """Monitor to leader: the master, which led ``ballot``, asks you to stand."""

    ballot: Ballot
