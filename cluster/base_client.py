"""What a blocking client and one of a loop have in common: nothing in it waits."""

from __future__ import annotations

from fencelock.actors.client.message import ClusterState
from fencelock.cluster.cluster_watch import ClusterCallback
from fencelock.cluster.connection import Connection
from fencelock.cluster.local_hold import Callback


class BaseClient:
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

        Callbacks run one after the other: those of `fencelock.Client` on a thread of their
        own, so they may block or use the client, those of `fencelock.aio.Client` on the loop.
        What they raise is logged, counted by `callbacks_failed`, and harms nobody.
        """
        self._connection.hold_registry.listeners.lost.append(callback)

    def on_unlocking(self, callback: Callback) -> None:
        """Have ``callback`` called when the duration of any hold is over; see `on_lost`."""
        self._connection.hold_registry.listeners.unlocking.append(callback)

    def on_suspect(self, callback: Callback) -> None:
        """Have ``callback`` called when any lock of this client is in doubt; see `on_lost`."""
        self._connection.hold_registry.listeners.suspect.append(callback)

    @property
    def cluster(self) -> ClusterState:
        """How the cluster is, as was said last; `on_cluster` says what that means.

        To look is to watch: a client that was never asked for it learns of it from then on, and
        keeps its session alive until it is closed. Until a node has spoken, it is not up.

        Raises:
            UnsupportedError: the protocol's nodes do not tell of it (`bakery` does).
            ClosedError: the client is closed, or this process was forked from its own.

        """
        return self._connection.watching().last()

    def on_cluster(self, callback: ClusterCallback) -> None:
        """Have ``callback`` called when the cluster goes up or down, and when it is ready or not.

        It is given a `ClusterState`, as the node has it that the client uses: first the present
        one, then each that differs; what changed back meanwhile, or changed again while the
        client was slow, is left out. When the client loses its node, and no other one has
        spoken for a second, it is told that nobody knows: not up, not ready. A broken
        connection is noticed at once, a silent node within some six seconds, sooner with a
        shorter ``ttl``. Where callbacks run, and what becomes of what they raise: see `on_lost`.

        Raises:
            UnsupportedError: as for `cluster`.
            ClosedError: as for `cluster`.

        """
        self._connection.watching().add(callback)

    @property
    def callbacks_failed(self) -> int:
        """How many callbacks raised something; each time it was logged."""
        return self._connection.executor.failed
