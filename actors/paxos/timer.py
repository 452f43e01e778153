"""What the roles of the log tell themselves, later."""

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
    """Tell followers what is decided, and those who were not asked what was proposed."""


@timer
class Beat(Timer):
    """It is time for a heartbeat of ``ballot``."""

    ballot: Ballot


@timer
class Watch(Timer):
    """Look whether the master has been silent for too long."""

    deadline: Instant


@timer
class Tick(Timer):
    """Something in the machine may be due at log time ``due_ms``, while ``ballot`` leads."""

    ballot: Ballot
    due_ms: int


@timer
class BatchDelay(Timer):
    """Patient commands have waited for others to share a slot with for long enough."""


@timer
class GapCheck(Timer):
    """Look whether slot ``slot`` is still missing."""

    slot: int


@timer
class FetchRetry(Timer):
    """Look whether question ``attempt`` was answered."""

    attempt: int


@timer
class WriteChunk(Timer):
    """Write down the next part of the photograph of the state that is under way."""


@timer
class ExpireSnapshot(Timer):
    """Let the last photograph go, unless a part of it was asked for since ``use``."""

    use: int


@timer
class ReadAgain(Timer):
    """Ask again what reads wait for, and give up those that waited too long."""


@timer
class AgeCheck(Timer):
    """A local read has waited for long enough: answer what can be shown by now."""


@timer
class HandOverLate(Timer):
    """The hand-over of ``ballot`` must not wait for slots under way any longer."""

    ballot: Ballot


@timer
class ResignedLate(Timer):
    """Whoever asked the reign of ``ballot`` to end must not wait any longer for the next."""

    ballot: Ballot
