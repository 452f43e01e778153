"""The last connection of each client; bounded, the client that is silent longest goes first."""

from __future__ import annotations

from collections import OrderedDict

CLIENTS_MAX = 10_000
"""Limit of clients that a node remembers. A forgotten one is known again when it sends."""


class Clients:
    """The routing id last seen for each client id."""

    def __init__(self, most: int = CLIENTS_MAX) -> None:
        self._most = most
        self._identities: OrderedDict[str, bytes] = OrderedDict()

    def heard(self, client: str, identity: bytes) -> bool:
        """Record a message of ``client``; return whether another client was forgotten for it."""
        self._identities[client] = identity
        self._identities.move_to_end(client)
        if len(self._identities) <= self._most:
            return False
        self._identities.popitem(last=False)
        return True

    def identity(self, client: str) -> bytes | None:
        """Return the routing id of ``client``, None for one that is not known."""
        return self._identities.get(client)

    def gone(self, client: str) -> None:
        """Forget ``client``: its connection is closed."""
        self._identities.pop(client, None)

    def __len__(self) -> int:
        return len(self._identities)
