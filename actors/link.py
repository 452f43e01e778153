"""Events by which a host notifies the roles of its node about links to other nodes."""

from __future__ import annotations

from fencelock.actors.message import Local, local


@local
class LinkUp(Local):
    """The link to ``node`` is connected."""

    node: str


@local
class LinkDown(Local):
    """The link to ``node`` broke, or was refused; messages sent may be lost."""

    node: str


@local
class LinkRefused(Local):
    """The process at the address of ``node`` belongs to another cluster or version."""

    node: str
    detail: str
