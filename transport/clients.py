"""The connections over which a node replies to clients."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

CLIENTS_MAX = 10_000
"""Maximum number of clients that a node remembers. A forgotten one is known again once it sends."""

OPEN_S = 1.0
"""Time for which a connection that was found open is taken to be open (s)."""


class ClientConnection(NamedTuple):
    """A connection of a client."""

    identity: bytes
    """Its routing id."""
    descriptor: int


class Clients:
    """The connection last used by each client.

    Args:
        is_open: returns whether there is a connection with a routing id.
        most: limit of clients.

    """

    def __init__(self, is_open: Callable[[bytes], bool], most: int = CLIENTS_MAX) -> None:
        self._is_open = is_open
        self._most = most
        self._connections: OrderedDict[str, ClientConnection] = OrderedDict()
        self.known: Collection[str] = self._connections
        self.connection: Callable[[str], ClientConnection | None] = self._connections.get
        """Returns the connection of a client, or None for an unknown client."""
        self.used: Callable[[str], None] = self._connections.move_to_end
        """Records that a known client used its connection again."""
        self._open: dict[str, float] = {}
        """Of clients whose ids other processes use: the time until which they count as open (s)."""

    def heard(self, client: str, identity: bytes, descriptor: int) -> bool:
        """Record a message of ``client``; return whether another client was forgotten for it."""
        self._connections[client] = ClientConnection(identity, descriptor)
        self._connections.move_to_end(client)
        if len(self._connections) <= self._most:
            return False
        self.gone(next(iter(self._connections)))
        return True

    def is_taken(self, client: str, identity: bytes) -> bool:
        """Return whether another process uses the id of ``client`` over an open connection.

        The routing ids of one process differ after the first dot of their boot part only. Only
        libzmq knows which connections are open: a descriptor does not tell, since the last frames
        of a closed connection may be read when another one has its descriptor already.
        """
        known = self._connections.get(client)
        if known is None or known.identity == identity:
            return False
        if known.identity.partition(b".")[0] == identity.partition(b".")[0]:
            return False
        now = time.monotonic()
        if now < self._open.get(client, 0.0):
            return True
        if not self._is_open(known.identity):
            self.gone(client)
            return False
        self._open[client] = now + OPEN_S
        return True

    def gone(self, client: str) -> None:
        """Forget ``client``: its connection is closed."""
        self._connections.pop(client, None)
        self._open.pop(client, None)

    def __len__(self) -> int:
        return len(self._connections)
