"""A client's knowledge of its cluster as a whole, and the callbacks to notify of changes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fencelock.actors.session.message import ClusterState
from fencelock.actors.session.session_state import unknown
from fencelock.cluster.callback_executor import CallbackExecutor

ClusterCallback = Callable[[ClusterState], object]


class ClusterWatch:
    """The last `ClusterState` that a session sent its client. For any thread.

    Args:
        executor: calls callbacks.
        begin: makes the session subscribe; calling it twice does no harm.

    """

    def __init__(self, executor: CallbackExecutor, begin: Callable[[], None]) -> None:
        self._herald = executor
        self._begin = begin
        self._guard = threading.Lock()
        self._callbacks: list[ClusterCallback] = []
        self._state: ClusterState | None = None

    def hear(self, state: ClusterState) -> None:
        """Handle a state from the session; on the dispatcher's thread."""
        with self._guard:
            self._state = state
            for callback in self._callbacks:
                self._herald.call(callback, state)

    def last(self) -> ClusterState:
        """Return the last state received, or an unknown one if there is none."""
        self._watch()
        return self._state or unknown("no node has said yet how it is")

    def add(self, callback: ClusterCallback) -> None:
        """Call ``callback`` with the known state, if there is one, and with later ones."""
        with self._guard:
            self._callbacks.append(callback)
            if self._state is not None:
                self._herald.call(callback, self._state)
        self._watch()

    def _watch(self) -> None:
        if self._state is None:
            self._begin()
