"""Events of a replica: from proxies, commander, leader and failure detector, and its timers."""

from __future__ import annotations

from fencelock.actors.paxos.event import (
    Decided,
    Gather,
    LeaderChanged,
    Leadership,
    Learned,
    Leased,
    ReportApplied,
    Restore,
    SteppedDown,
)
from fencelock.actors.paxos.handover_event import Drain
from fencelock.actors.paxos.message import Propose
from fencelock.actors.paxos.proposal_batch import ProposalBatch
from fencelock.actors.paxos.reading import ReadHears
from fencelock.actors.paxos.state import PastHears
from fencelock.actors.paxos.timer import BatchDelay, GapCheck, Tick

ReplicaHears = (
    ReadHears
    | PastHears
    | ProposalBatch
    | Propose
    | Gather
    | Decided
    | Learned
    | Leadership
    | SteppedDown
    | LeaderChanged
    | Leased
    | Drain
    | Restore
    | ReportApplied
    | Tick
    | BatchDelay
    | GapCheck
)
"""Events that a replica handles."""
