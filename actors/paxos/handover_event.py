"""Messages of a hand-over within a node, the old master's or the successor's."""

from __future__ import annotations

from fencelock.actors.message import Local, local
from fencelock.actors.paxos.message import Ballot


@local
class Nominate(Local):
    """Leader to failure detector: which node could lead in my place? Answered by `Nominated`."""


@local
class Nominated(Local):
    """Failure detector to leader: ``node`` answers and has applied most; empty if none answers."""

    node: str


@local
class Drain(Local):
    """Leader to replica: give no more slots and do not rely on the lease. Answered by `Drained`."""

    ballot: Ballot


@local
class Drained(Local):
    """Replica to leader: all slots of ``ballot`` are applied here, and no more are given."""

    ballot: Ballot


@local
class Succeed(Local):
    """Failure detector to leader: the master, which led ``ballot``, asks you to stand."""

    ballot: Ballot
