"""Lines that a role wants in the log of its node."""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.message import Local, local


class Level(IntEnum):
    """How serious a `Notice` is."""

    INFO = 20
    """What an operator wants to know, and need not act on."""
    WARNING = 30
    """Something is wrong that does not stop this node."""
    ERROR = 40
    """Somebody has to act."""
    CRITICAL = 50
    """This node stops doing its work."""


@local
class Notice(Local):
    """To the host, at ``node/node``: write ``text`` into the log. The simulator counts it."""

    level: Level
    text: str
