"""What a replica hears: its door and others', its commander, leader and monitor, its timers."""

from __future__ import annotations

from holdfast.actors.paxos.bundle import Bundle
from holdfast.actors.paxos.event import (
    Decided,
    Deposed,
    Follow,
    Gather,
    Learned,
    Leased,
    Reign,
    Restore,
)
from holdfast.actors.paxos.handover_event import Yield
from holdfast.actors.paxos.message import Propose
from holdfast.actors.paxos.reading import ReadHears
from holdfast.actors.paxos.state import PastHears
from holdfast.actors.paxos.timer import GapCheck, Linger, Tick

ReplicaHears = (
    ReadHears
    | PastHears
    | Bundle
    | Propose
    | Gather
    | Decided
    | Learned
    | Reign
    | Deposed
    | Follow
    | Leased
    | Yield
    | Restore
    | Tick
    | Linger
    | GapCheck
)
"""What a replica handles."""
