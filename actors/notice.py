"""Lines for the log of a node. A role returns them as effects; the host writes them."""

from __future__ import annotations

from enum import Enum

from holdfast.actors.message import Address, Local, address_of, local

LOG = "log"
"""The name under which the host of a node takes notices."""


class Level(Enum):
    """How much an operator should care."""

    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@local
class Notice(Local):
    """One line for the node's log. Send it to `log_of` the node."""

    level: Level
    text: str


def log_of(node: str) -> Address:
    """Return the address at which the host of ``node`` takes a `Notice`."""
    return address_of(node, LOG)
