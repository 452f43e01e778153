"""What a blocking client and one of a loop have in common: nothing in it waits."""

from __future__ import annotations

from holdfast.cluster.connection import Connection
from holdfast.cluster.hold import Callback


class Face:
    """A client as its user sees it, less what takes time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def session(self) -> str:
        """The id of this client; `Lock.status` may show it with the number of its session."""
        return self._connection.session

    @property
    def protocol(self) -> str:
        """Which protocol the cluster runs."""
        return self._connection.protocol

    def on_lost(self, callback: Callback) -> None:
        """Have ``callback`` called when any lock of this client is lost.

        Callbacks run one after the other: those of `holdfast.Client` on a thread of their
        own, so they may block or use the client, those of `holdfast.aio.Client` on the loop.
        What they raise is logged.
        """
        self._connection.grips.listeners.lost.append(callback)

    def on_unlocking(self, callback: Callback) -> None:
        """Have ``callback`` called when the duration of any hold is over; see `on_lost`."""
        self._connection.grips.listeners.unlocking.append(callback)

    def on_suspect(self, callback: Callback) -> None:
        """Have ``callback`` called when any lock of this client is in doubt; see `on_lost`."""
        self._connection.grips.listeners.suspect.append(callback)
