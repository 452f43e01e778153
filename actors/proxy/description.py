"""The description of a node that clients wait for. Requests that come meanwhile share it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.lock_message import LockStatus
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address, node_of
from fencelock.actors.proxy.access import AccessControl
from fencelock.actors.proxy.backend import Status
from fencelock.actors.proxy.event import Reported

DESCRIBES_MAX = 16
"""Clients' requests that one description answers: it takes two milliseconds to send each."""

DESCRIBES_OF_CLIENT_MAX = 2
"""The same limit for one client."""

DESCRIBES_WITHIN_MAX = 10_000
"""Requests from anywhere, including callers inside the process."""


class Description:
    """The requests for a description, and the host's part of it."""

    def __init__(self, node: str, protocol: str, access: AccessControl | None = None) -> None:
        self.node = node
        self.protocol = protocol
        self._access = access
        self.requests: list[tuple[Address, Describe]] = []
        self.wants_roles = False
        """Whether any of them is also for the roles, and may have them."""
        self.reported: Reported | None = None

    @property
    def is_reported(self) -> bool:
        """Whether the host has reported all that is wanted."""
        reported = self.reported
        return reported is not None and (bool(reported.roles) or not self.wants_roles)

    def add(self, sender: Address, describe: Describe) -> bool:
        if not has_room(self.node, self.requests, sender):
            return False
        self.requests.append((sender, describe))
        if describe.roles and not self.wants_roles:
            self.wants_roles = self._sees_all(sender)
        return True

    def clear(self) -> None:
        self.requests, self.wants_roles, self.reported = [], False, None

    def replies(self, members: tuple[str, ...], status: Status) -> Effects:
        reported, requests = self.reported, self.requests
        assert reported is not None
        self.clear()
        return [
            Send(
                sender,
                NodeStatus(
                    node=self.node,
                    protocol=self.protocol,
                    nodes=members,
                    ready=status.ready,
                    detail=status.detail,
                    uptime_ms=reported.uptime_ms,
                    counters=reported.counters,
                    locks=self._visible(sender, status.locks),
                    session=describe.session,
                    request=describe.request,
                    leader=status.leader,
                    elected=status.elected,
                    roles=reported.roles if describe.roles and self._sees_all(sender) else (),
                ),
            )
            for sender, describe in requests
        ]

    def _visible(self, sender: Address, locks: tuple[LockStatus, ...]) -> tuple[LockStatus, ...]:
        return locks if self._access is None else self._access.visible(node_of(sender), locks)

    def _sees_all(self, sender: Address) -> bool:
        """Return whether ``sender`` may know of the roles, which may have the names of locks."""
        return self._access is None or not self._access.is_limited(node_of(sender))


def has_room(node: str, requests: Sequence[tuple[Address, object]], sender: Address) -> bool:
    """Return whether ``sender`` may join ``requests``, which wait for ``node``'s description."""
    client = node_of(sender)
    if client == node:
        return len(requests) < DESCRIBES_WITHIN_MAX
    if len(requests) >= DESCRIBES_MAX:
        return False
    return sum(node_of(other) == client for other, _ in requests) < DESCRIBES_OF_CLIENT_MAX
