"""The words between a client's session and those who use it, besides the words of a lock."""

from __future__ import annotations

from holdfast.actors.lock.message import NodeStatus
from holdfast.actors.message import Local, Timer, local, timer


@local
class Close(Local):
    """Release every hold and cancel every wait. Answered by `Closed`; nothing is served after."""


@local
class Closed(Local):
    """The session ended; ``unanswered`` releases and cancels were not confirmed in time."""

    unanswered: int


@local
class Survey(Local):
    """Ask every gate to describe itself. Answered by `Surveyed`."""


@local
class Surveyed(Local):
    """What the gates said, in the order of the gates, and the names of those that did not."""

    statuses: tuple[NodeStatus, ...]
    silent: tuple[str, ...]


@timer
class Tick(Timer):
    """See what is due. Only the tick of the current ``round`` counts, earlier ones are stale."""

    round: int
