"""Events of the log's proxy: from clients, its replica, the master's replica, and its timer."""

from __future__ import annotations

from fencelock.actors.api.message import (
    Acquire,
    Cancel,
    Describe,
    Inspect,
    KeepAlive,
    Release,
)
from fencelock.actors.api.probe_message import Probe
from fencelock.actors.api.session_message import End, Evict, ListLocks, Open
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
from fencelock.actors.table.outcome import (
    Denied,
    Forced,
    Freed,
    Held,
    Lost,
    Queued,
    SessionClosed,
    SessionKept,
    SessionOpened,
    WaitCancelled,
)


@timer
class Round(Timer):
    """Propose again what the log may not have received, and end what has lasted too long."""


Rarely = Open | End | KeepAlive | Cancel | Evict
"""Requests that become commands in the log, except the most frequent ones."""

Asked = Acquire | Release | Rarely
"""Requests that become commands in the log."""

Question = Inspect | ListLocks
"""Requests that read the table."""

FromClient = Asked | Question | Describe

Ending = (
    SessionOpened | SessionKept | SessionClosed | Held | Freed | Denied | WaitCancelled | Forced
)
"""Outcomes that are the last of their command."""

Rest = SessionOpened | SessionKept | SessionClosed | Denied | WaitCancelled | Forced | Queued | Lost
"""Outcomes, except the most frequent ones."""

Told = Held | Freed | Rest
"""Outcomes; the master's replica also sends them directly to the proposer, ahead of the log."""

FromLog = LeaderChanged | Isolated | Skipped | VotingStatus | Divergence | Declined
"""Rare events."""

Rarer = Told | FromClient | FromLog | Probe | Reported | Round
"""Events that are tested for last."""

Heard = (
    Open
    | End
    | KeepAlive
    | Acquire
    | Release
    | Cancel
    | Inspect
    | ListLocks
    | Evict
    | Describe
    | Probe
    | SlotOutcomes
    | LeaderChanged
    | Isolated
    | Skipped
    | VotingStatus
    | Divergence
    | Consulted
    | Proposed
    | Declined
    | SessionOpened
    | SessionKept
    | SessionClosed
    | Held
    | Freed
    | Denied
    | WaitCancelled
    | Forced
    | Queued
    | Lost
    | Reported
    | Gather
    | Round
)
"""All events, one by one, as `Role` reads them."""
