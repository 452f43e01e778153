"""The base class of the parts of a client that make objects."""

from __future__ import annotations

from fencelock.cluster.client.connection import Connection


class Factory:
    """The part of a client that makes the objects of one kind; it sends nothing.

    A client has one such part for each kind, as a base class.
    """

    _given: Connection

    def _begin(self) -> Connection:
        """Return the connection for a new object."""
        return self._given
