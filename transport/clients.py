"""The connections over which a node replies to clients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from fencelock.transport.connections import borrow, peer_of

CLIENTS_MAX = 10_000
"""Maximum number of clients that a node remembers. A forgotten one is known again once it sends."""


class ClientConnection(NamedTuple):
    """A connection of a client."""

    identity: bytes
    """Its routing id."""
    descriptor: int
    peer: Any


class Clients:
    """The connection last used by each client."""

    def __init__(self, most: int = CLIENTS_MAX) -> None:
        self._most = most
        self._connections: OrderedDict[str, ClientConnection] = OrderedDict()
        self.known: Collection[str] = self._connections
        self.connection: Callable[[str], ClientConnection | None] = self._connections.get
        """Returns the connection of a client, or None for an unknown client."""
        self.used: Callable[[str], None] = self._connections.move_to_end
        """Records that a known client used its connection again."""
        self._over: dict[int, str] = {}
        """The client that was last heard over each open descriptor."""
        self.descriptors: Collection[int] = self._over

    def heard(self, client: str, identity: bytes, descriptor: int) -> bool:
        """Record a message of ``client``; return whether another client was forgotten for it."""
        known = self._connections.get(client)
        if known is None or known.descriptor != descriptor or known.identity != identity:
            peer = borrow(descriptor, peer_of)
            self.reused(descriptor)
            self._connections[client] = ClientConnection(identity, descriptor, peer)
            if peer is not None:
                self._over[descriptor] = client
        self._connections.move_to_end(client)
        if len(self._connections) <= self._most:
            return False
        self._connections.popitem(last=False)
        return True

    def reused(self, descriptor: int) -> None:
        """Forget the client of a former connection that had the same ``descriptor``.

        Its last frames may have been read after it was closed, when the descriptor already belonged
        to the present connection. Its client then seems to use the present connection.
        """
        client = self._over.pop(descriptor, "")
        known = self._connections.get(client)
        if known is not None and known.descriptor == descriptor:
            del self._connections[client]

    def is_taken(self, client: str, identity: bytes, descriptor: int) -> bool:
        """Return whether another process uses the id of ``client`` over an open connection.

        The routing ids of one process differ after the first dot of their boot part only. One
        descriptor never belongs to two open connections.
        """
        known = self._connections.get(client)
        if known is None or known.identity == identity or known.descriptor == descriptor:
            return False
        if known.identity.partition(b".")[0] == identity.partition(b".")[0]:
            return False
        return known.peer is not None and borrow(known.descriptor, peer_of) == known.peer

    def gone(self, client: str) -> None:
        """Forget ``client``: its connection is closed."""
        self._connections.pop(client, None)

    def __len__(self) -> int:
        return len(self._connections)
