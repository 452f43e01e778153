"""What the broker of a node hears: its proxy, its replica, the master, and its own timer."""

from __future__ import annotations

from holdfast.actors.lock.backend import Give, Look, Want
from holdfast.actors.lock.outcome import (
    Denied,
    Freed,
    Held,
    Lost,
    Queued,
    SessionClosed,
    SessionKept,
    SessionOpened,
    WaitCancelled,
)
from holdfast.actors.message import Timer, timer
from holdfast.actors.paxos.event import Happened
from holdfast.actors.paxos.message import Declined, Proposed


@timer
class Round(Timer):
    """Propose again what the log may not have heard, and keep the session."""


OfALock = Held | Freed | Queued | Denied | WaitCancelled | Lost
"""Outcomes that say what became of an owner at a lock."""

Told = (
    SessionOpened
    | SessionKept
    | SessionClosed
    | Held
    | Freed
    | Queued
    | Denied
    | WaitCancelled
    | Lost
)
"""Outcomes that the master also sends straight to whoever proposed, ahead of the log."""

Heard = (
    Want
    | Give
    | Look
    | Happened
    | Proposed
    | Declined
    | Round
    | SessionOpened
    | SessionKept
    | SessionClosed
    | Held
    | Freed
    | Queued
    | Denied
    | WaitCancelled
    | Lost
)
