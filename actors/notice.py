"""Lines for the log of a node, requested by its roles."""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.message import Local, local


class Level(IntEnum):
    """Severity of a `RoleNotice`."""

    INFO = 20
    """Information for an operator that requires no action."""
    WARNING = 30
    """A fault that does not stop this node."""
    ERROR = 40
    """A fault that requires action."""
    CRITICAL = 50
    """This node stops doing its work."""


@local
class RoleNotice(Local):
    """To the host, at ``node/node``: write ``text`` into the log. The simulator counts it."""

    level: Level
    text: str
