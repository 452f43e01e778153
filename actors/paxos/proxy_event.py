"""Events of the log's proxy: from clients, its replica, the master's replica, and its timer."""

from __future__ import annotations

from fencelock.actors.api.message import (
    Describe,
    Inspect,
)
from fencelock.actors.api.probe_message import Probe
from fencelock.actors.api.request import Command, Outcome
from fencelock.actors.api.session_message import HoldLost, ListLocks
from fencelock.actors.bootstrap_message import VotingStatus
from fencelock.actors.message import Timer, timer
from fencelock.actors.paxos.event import (
    Consulted,
    Divergence,
    Gather,
    Isolated,
    LeaderChanged,
    Skipped,
    SlotOutcomes,
)
from fencelock.actors.paxos.message import Declined, Proposed
from fencelock.actors.proxy.backend import Reported


@timer
class Round(Timer):
    """Propose again what the log may not have received, and end what has lasted too long."""


Query = Inspect | ListLocks
"""Requests that read the table."""

FromClient = Command | Query | Describe

Told = Outcome | HoldLost
"""Outcomes; the master's replica also sends them directly to the proposer, ahead of the log."""

FromLog = LeaderChanged | Isolated | Skipped | VotingStatus | Divergence | Declined
"""Rare events."""

Rarer = Told | FromClient | FromLog | Probe | Reported | Round
"""Events that are tested for last."""

Heard = Rarer | SlotOutcomes | Consulted | Gather | Proposed
"""All events."""
