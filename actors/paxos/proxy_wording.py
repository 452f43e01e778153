"""Replies of the log's proxy: what the table leaves to it, and refusals of its own. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from fencelock.actors.api.message import (
    Alive,
    LockReply,
    LockRequest,
    Reason,
    Refused,
    ReleaseRequest,
    refused,
)
from fencelock.actors.api.request import Command, Outcome, Request
from fencelock.actors.api.session_message import Opened
from fencelock.actors.effect import Send
from fencelock.actors.fast_construction import copier
from fencelock.actors.message import Address

_SEATED: dict[type[Outcome], Callable[..., Any]] = {
    kind: copier(kind, "node", "master") for kind in (Alive, Opened)
}
"""Makers of the replies that name the answering node and the leading one."""


def finished(reply: Outcome, request: Command, node: str, master: str) -> Outcome:
    """Return the table's ``reply`` to ``request`` as the client gets it.

    The table does not know which node answers. And it tells a request that came too late from one
    that is forgotten; to a client nothing was done, either way.
    """
    if isinstance(reply, Refused) and reply.reason in (Reason.SUPERSEDED, Reason.FORGOTTEN):
        nothing = Reason.NOT_HELD if isinstance(request, ReleaseRequest) else Reason.CANCELLED
        return replace(reply, reason=nothing)
    seated = _SEATED.get(type(reply))
    return reply if seated is None else seated(reply, node, master)


def addressed(reply: Outcome, asked: Command) -> Outcome:
    """Return ``reply`` with the session, the owner and the number that ``asked`` has."""
    changed: dict[str, Any] = {"session": asked.session, "request": asked.request}
    if isinstance(reply, LockReply):
        changed["owner"] = asked.owner if isinstance(asked, LockRequest) else ""
    return cast("Outcome", replace(cast("Any", reply), **changed))


def refuse(asker: Address, asked: Request, reason: Reason, detail: str) -> Send:
    """Return the refusal of ``asked`` as a message to ``asker``."""
    return Send(asker, refused(asked, reason, detail))
