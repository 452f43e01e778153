"""Messages between a role and its node about links, the disk and the log. None crosses the wire."""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.effect import Send
from fencelock.actors.message import Instant, Local, address_of

SYNC_REPORT_MS = 250
"""Least interval between two `DiskSynced` (ms): some heartbeats, and many syncs of a good disk."""


class LinkUp(Local):
    """The link to ``node`` is connected."""

    node: str


class LinkDown(Local):
    """The link to ``node`` broke, or was refused; messages sent may be lost."""

    node: str


class DiskSynced(Local):
    """The node's disk took ``mean_us`` for a sync of the journal, on average since the last report.

    The host sends it after a sync, at intervals of at least `SYNC_REPORT_MS`.
    """

    mean_us: int
    since: Instant
    """The time at which the first of these syncs began."""


class LinkRefused(Local):
    """The process at the address of ``node`` does not accept this one; ``detail`` says why.

    It belongs to another cluster or version, or knows another process under this one's id. Or, if
    ``by_key``, one side does not accept the key of the other.
    """

    node: str
    detail: str
    by_key: bool = False
    cluster: str = ""
    """The cluster to which it belongs, if that is another one."""


class Level(IntEnum):
    """Severity of a `RoleNotice`."""

    DEBUG = 10
    """Information for somebody who looks for a fault."""
    INFO = 20
    """Information for an operator that requires no action."""
    WARNING = 30
    """A fault that does not stop this node."""
    ERROR = 40
    """A fault that requires action."""
    CRITICAL = 50
    """This node stops doing its work."""


class RoleNotice(Local):
    """To the host, at ``node/node``: write ``text`` into the log. The simulator counts it.

    ``fields`` have names and values, for programs that read the log.
    """

    level: Level
    text: str
    fields: tuple[tuple[str, str], ...] = ()


def notice(node: str, level: Level, text: str, fields: tuple[tuple[str, str], ...] = ()) -> Send:
    """Return the effect that has the host of ``node`` write ``text`` into its log."""
    return Send(address_of(node, "node"), RoleNotice(level=level, text=text, fields=fields))
