"""Timers of the roles of the log."""

from __future__ import annotations

from fencelock.actors.message import Instant, Timer, timer
from fencelock.actors.paxos.message import Ballot


@timer
class ScoutResend(Timer):
    """Ask again the acceptors that have not answered."""


@timer
class CommanderResend(Timer):
    """Ask again for votes that have not come."""


@timer
class SpreadNews(Timer):
    """Send followers what is decided, and the proposals that some were not asked for."""


@timer
class Beat(Timer):
    """Send a heartbeat of ``ballot``."""

    ballot: Ballot


@timer
class Watch(Timer):
    """Check whether the master has been silent for too long."""

    deadline: Instant


@timer
class Tick(Timer):
    """Let log time pass to ``due_ms``, when the machine may have work, while ``ballot`` leads."""

    ballot: Ballot
    due_ms: int


@timer
class BatchDelay(Timer):
    """Stop delaying patient commands for others to share their slot with."""


@timer
class GapCheck(Timer):
    """Check whether ``slot`` is still missing."""

    slot: int


@timer
class FetchRetry(Timer):
    """Check whether fetch ``attempt`` was answered."""

    attempt: int


@timer
class WriteChunk(Timer):
    """Make the next part of the snapshot."""


@timer
class ExpireSnapshot(Timer):
    """Drop the last snapshot, unless a part of it was requested since ``use``."""

    use: int


@timer
class ReadAgain(Timer):
    """Ask again for what reads wait for, and drop reads that waited too long."""


@timer
class AgeCheck(Timer):
    """Answer local reads that have waited long enough with what is known by now."""


@timer
class HandOverLate(Timer):
    """Stop the hand-over of ``ballot`` from waiting for slots under way."""

    ballot: Ballot


@timer
class ResignedLate(Timer):
    """Answer the roles that asked ``ballot``'s leader to resign: the next is not known in time."""

    ballot: Ballot
