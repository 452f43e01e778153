"""A node's description of itself, gathered from its host, its lock manager and the backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fencelock.actors.api.message import Describe, NodeStatus
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address, address_of, node_of
from fencelock.actors.proxy.lock_manager import LockManager
from fencelock.actors.proxy.lock_request import LockRequests, Phase
from fencelock.actors.proxy.message import Look, Report, Reported, Seen
from fencelock.actors.role_message import RoleDescription

DESCRIBES_MAX = 16
"""Clients' requests that one description answers: it takes two milliseconds to send each."""

DESCRIBES_OF_CLIENT_MAX = 2
"""The same limit for one client."""

DESCRIBES_WITHIN_MAX = 10_000
"""Requests from anywhere, including callers inside the process."""

LOOKS_MAX = 100
"""Maximum number of awaited locks whose holder elsewhere is requested from the backend."""


class Description:
    """The description being gathered, and its receivers; requests that come meanwhile share it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Address, Describe]] = []
        self.looking: dict[int, str] = {}
        """Locks of the `Look` requests in flight, by number."""
        self.seen: dict[str, Seen] = {}
        self.reported: Reported | None = None

    def begin(self, lock_manager: LockManager) -> Effects:
        """Ask the host, and ask the backend about locks that are awaited through this node."""
        self.seen, self.reported = {}, None
        looks: list[Look] = []
        for lock in waited_for(lock_manager.claims)[:LOOKS_MAX]:
            lock_manager.looks += 1
            self.looking[lock_manager.looks] = lock
            looks.append(Look(lock=lock, query=lock_manager.looks))
        report = Send(address_of(lock_manager.node, "node"), Report())
        return [report, *(Send(lock_manager.backend, look) for look in looks)]

    def see(self, seen: Seen) -> bool:
        """Take a reply of the backend; return False if it answers another request."""
        if self.looking.pop(seen.query, None) is None:
            return False
        self.seen[seen.lock] = seen
        return True


def has_room(node: str, asked: Sequence[tuple[Address, object]], asker: Address) -> bool:
    """Return whether ``asker`` may join those in ``asked``, who wait for ``node``'s description."""
    client = node_of(asker)
    if client == node:
        return len(asked) < DESCRIBES_WITHIN_MAX
    if len(asked) >= DESCRIBES_MAX:
        return False
    return sum(node_of(other) == client for other, _ in asked) < DESCRIBES_OF_CLIENT_MAX


def addressed(
    status: NodeStatus, describe: Describe, roles: tuple[RoleDescription, ...]
) -> NodeStatus:
    """Return ``status`` as the answer to ``describe``, with ``roles`` only if it asks for them."""
    shown = roles if describe.roles else ()
    return replace(status, session=describe.session, request=describe.request, roles=shown)


def waited_for(claims: LockRequests) -> list[str]:
    """Return the locks that are awaited through this node, the longest wait first."""
    waiting = (c.key.lock for c in claims.by_key.values() if c.phase is Phase.WAITING)
    return list(dict.fromkeys(waiting))
