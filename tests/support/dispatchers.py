"""Dispatchers of nodes without peers, which stop when a test ends."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.storage.journal import Journal
from fencelock.transport.hub import SocketHub

LONG_S = 60.0


class StartRoles(Protocol):
    """Starts ``roles`` on a dispatcher of the node ``n1``."""

    def __call__(self, roles: RoleSet, journal: Journal | None = None) -> Dispatcher: ...


def hub_without_peers(node: str = "n1") -> SocketHub:
    """Return sockets that reach no other node."""
    return SocketHub(
        node=node, boot=1, cluster="c", listen=None, peers={}, count=lambda name, times: None
    )


@contextmanager
def dispatchers() -> Generator[StartRoles]:
    """Yield a function that starts dispatchers, and stop them at the end."""
    running: list[Dispatcher] = []

    def start(roles: RoleSet, journal: Journal | None = None) -> Dispatcher:
        dispatcher = Dispatcher("n1", hub_without_peers(), journal=journal)
        running.append(dispatcher)
        dispatcher.start(roles)
        return dispatcher

    yield start
    for dispatcher in running:
        assert dispatcher.stop(LONG_S)
