"""The herald: calls a user's callbacks where they may block without harm."""

from __future__ import annotations

import queue
import threading
from typing import Protocol

from loguru import logger

from holdfast.cluster.hold import Callback, Notice


class Herald(Protocol):
    """Where callbacks run."""

    def call(self, callback: Callback, notice: Notice) -> None:
        """Have ``callback`` called with ``notice``, soon and elsewhere; from any thread."""
        ...

    def stop(self, timeout: float) -> None:
        """Call nobody any more; wait for a running callback, unless this is one (s)."""
        ...


class ThreadHerald:
    """Calls callbacks one after the other on a thread of its own, begun at the first.

    So a callback may block, or use the client; those after it wait meanwhile.
    """

    def __init__(self) -> None:
        self._news: queue.SimpleQueue[tuple[Callback, Notice] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def call(self, callback: Callback, notice: Notice) -> None:
        """Have ``callback`` called with ``notice`` (Herald)."""
        with self._guard:
            if self._stopped:
                return
            self._news.put((callback, notice))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-callbacks", daemon=True
                )
                self._thread.start()

    def stop(self, timeout: float) -> None:
        """Call nobody any more (Herald)."""
        with self._guard:
            self._stopped = True
            thread = self._thread
        self._news.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while (news := self._news.get()) is not None:
            call_guarded(*news)


def call_guarded(callback: Callback, notice: Notice) -> None:
    """Call ``callback``. What it raises is logged and goes nowhere else: nobody waits for it."""
    try:
        callback(notice)
    except Exception as error:  # noqa: BLE001  # The user's code; see above.
        logger.opt(exception=error).error(
            "a callback for lock {} ({}) failed: {!r}", notice.lock, notice.state.value, error
        )
