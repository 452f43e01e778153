"""The common base of the blocking and the asyncio client; nothing in it waits."""

from __future__ import annotations

from fencelock.actors.session.message import ClusterState
from fencelock.cluster.cluster_watch import ClusterCallback
from fencelock.cluster.connection import Connection
from fencelock.cluster.local_hold import Callback


class BaseClient:
    """The operations of a client that return at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def session(self) -> str:
        """The id of this client; `Lock.status` may show it with the number of its session."""
        return self._connection.session

    @property
    def protocol(self) -> str:
        """The protocol that the cluster runs."""
        return self._connection.protocol

    def on_lost(self, callback: Callback) -> None:
        """Have ``callback`` called when any lock of this client is lost.

        Callbacks run one after the other: those of `fencelock.Client` on a thread of their
        own, so they may block or use the client; those of `fencelock.aio.Client` on the loop.
        An exception from a callback is logged, counted by `callbacks_failed`, and goes no further.
        """
        self._connection.hold_registry.listeners.lost.append(callback)

    def on_unlocking(self, callback: Callback) -> None:
        """Have ``callback`` called when the duration of any hold ends; see `on_lost`."""
        self._connection.hold_registry.listeners.unlocking.append(callback)

    def on_suspect(self, callback: Callback) -> None:
        """Have ``callback`` called when any lock of this client is in doubt; see `on_lost`."""
        self._connection.hold_registry.listeners.suspect.append(callback)

    @property
    def cluster(self) -> ClusterState:
        """The last known state of the cluster; see `on_cluster` for its meaning.

        The first use subscribes: from then on the client receives changes, and it keeps its
        session alive until it is closed. Until a node has reported, the state is not up.

        Raises:
            UnsupportedError: the protocol's nodes do not report it (`bakery` does).
            ClosedError: the client is closed, or this process was forked from its own.

        """
        return self._connection.watching().last()

    def on_cluster(self, callback: ClusterCallback) -> None:
        """Have ``callback`` called when the cluster goes up or down, and when it is ready or not.

        The callback receives a `ClusterState`, as known to the node that the client uses: first
        the present one, then each that differs. States that passed while the client was slow are
        left out. When the client loses its node and no other node reports for a second, the
        callback receives an unknown state: not up, not ready. A broken connection is noticed at
        once, a silent node within some six seconds, sooner with a shorter ``ttl``. See `on_lost`
        for the thread that runs callbacks and for their exceptions.

        Raises:
            UnsupportedError: as for `cluster`.
            ClosedError: as for `cluster`.

        """
        self._connection.watching().add(callback)

    @property
    def callbacks_failed(self) -> int:
        """The number of callbacks that raised an exception; each was logged."""
        return self._connection.executor.failed
