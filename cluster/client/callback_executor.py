"""The callback executor, which calls a user's callbacks where they may block; cluster watch."""

from __future__ import annotations

import inspect
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fencelock.actors.api.name import titled
from fencelock.actors.session.holds import HoldState
from fencelock.actors.session.message import ClusterState
from fencelock.actors.session.upkeep import unknown
from fencelock.cluster.log import report

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Notice:
    """A change of a hold, given to callbacks."""

    lock: str
    owner: str
    fence: int
    state: HoldState
    """SUSPECT, UNLOCKING or LOST."""
    detail: str
    """The reason, in words."""


class CallbackExecutor(Protocol):
    """Runs callbacks, on a thread or a loop of its choice."""

    failed: int
    """The number of callbacks that raised an exception."""

    def call(self, callback: Callable[[T], object], argument: T) -> None:
        """Schedule ``callback`` with ``argument`` on the thread or loop. Thread-safe."""
        ...

    def stop(self, timeout: float) -> None:
        """Start no further callback; wait for a running one (s), unless called from it."""
        ...


class ThreadExecutor:
    """Calls callbacks one after the other on its own thread, started by the first callback.

    A callback may block or use the client; the callbacks after it wait meanwhile.
    """

    def __init__(self) -> None:
        self.failed = 0
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], object], Any] | None]
        self._calls = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def call(self, callback: Callable[[T], object], argument: T) -> None:
        """Schedule ``callback`` with ``argument`` (CallbackExecutor)."""
        with self._guard:
            if self._stopped:
                return
            self._calls.put((callback, argument))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="fencelock-callbacks", daemon=True
                )
                self._thread.start()

    def stop(self, timeout: float) -> None:
        """Start no further callback (CallbackExecutor)."""
        with self._guard:
            self._stopped = True
            thread = self._thread
        self._calls.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            callback, argument = call
            try:
                callback(argument)
            except BaseException as error:  # noqa: BLE001  # The callbacks after it must still run.
                self.failed += 1
                log_failure(argument, error)
                _call_hook(error)


def log_failure(argument: object, error: BaseException) -> str:
    """Log the exception of a callback that was called with ``argument``; return the text."""
    about = "the cluster"
    if isinstance(argument, Notice):
        about = f"{titled(argument.lock)} ({argument.state.value})"
    text = f"a callback for {about} failed: {error!r}"
    report("ERROR", text, error)
    return text


def _call_hook(error: BaseException) -> None:
    """Report ``error`` like an exception that ends this thread."""
    thread = threading.current_thread()
    try:
        hooked = threading.ExceptHookArgs((type(error), error, error.__traceback__, thread))
        threading.excepthook(hooked)
    except Exception as failure:  # noqa: BLE001  # The program's hook failed: Python's own rule.
        sys.excepthook(type(failure), failure, failure.__traceback__)


def check_callback(callback: object, argument: str = "Notice") -> None:
    """Refuse a ``callback`` that cannot be called, or would only create a coroutine.

    Args:
        callback: the value of a user, which may have any type.
        argument: the class of what it will be called with, for the text of the error.

    Raises:
        TypeError: it is not callable, or it is a coroutine function.

    """
    if not callable(callback):
        raise TypeError(
            f"callback is {callback!r}, and must be callable with one argument, a {argument}"
        )
    call = getattr(type(callback), "__call__", None)  # noqa: B004  # Of an object with this method.
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(call):
        raise TypeError(
            f"callback is {callback!r}, a coroutine function, which nobody would await: "
            "pass a plain function. In fencelock.aio it may create a task"
        )


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

    def on_event(self, state: ClusterState) -> None:
        """Handle a state from the session; on the dispatcher's thread."""
        with self._guard:
            self._state = state
            for callback in self._callbacks:
                self._herald.call(callback, state)

    def last(self) -> ClusterState:
        """Return the last state received, or an unknown one if there is none."""
        self._watch()
        return self._state or unknown("no node has reported its state yet")

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
