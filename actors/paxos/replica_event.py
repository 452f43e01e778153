"""What a replica hears: its door and others', its commander, leader and monitor, its timers."""

from __future__ import annotations

from fencelock.actors.paxos.bundle import Bundle
from fencelock.actors.paxos.event import (
    Decided,
    Deposed,
    Follow,
    Gather,
    Learned,
    Leased,
    Reign,
    Restore,
)
from fencelock.actors.paxos.handover_event import Yield
from fencelock.actors.paxos.message import Propose
from fencelock.actors.paxos.reading import ReadHears
from fencelock.actors.paxos.state import PastHears
from fencelock.actors.paxos.timer import GapCheck, Linger, Tick

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
