"""Callbacks of a user: where they are called, on which changes of holds and of the cluster."""

from __future__ import annotations

import inspect
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field

from fencelock.actors.api.name import titled
from fencelock.actors.error import FencelockError
from fencelock.actors.session.event import ClusterState
from fencelock.actors.session.holds import HoldState
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


Callback = Callable[[Notice], object]


class CallbackExecutor(Protocol):
    """Runs callbacks, on a thread or a loop of its choice; `call` is thread-safe.

    `stop` starts no further callback, and waits for a running one (s), unless called from it.
    """

    failed: int
    """The number of callbacks that raised an exception."""

    def call(self, callback: Callable[[T], object], argument: T) -> None: ...
    def stop(self, timeout: float) -> None: ...


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


class LoopExecutor:
    """Calls callbacks on the loop that runs when it is made, where no code may block.

    If that loop was closed before the client, none can be called. The log says so.
    """

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 (see operation.py)

        self.failed = 0
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def call(self, callback: Callable[[T], object], argument: T) -> None:
        try:
            self._loop.call_soon_threadsafe(self._call, callback, argument)
        except RuntimeError:  # The loop was closed.
            if not self._stopped:  # A program's log may block, and use the client.
                begin = threading.Thread(
                    target=_log_instead, args=(callback, argument), daemon=True
                )
                begin.start()

    def stop(self, timeout: float) -> None:
        self._stopped = True

    def _call(self, callback: Callable[[T], object], argument: T) -> None:
        if self._stopped:
            return
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001  # The user's code, for which no caller waits.
            self.failed += 1
            context = {"message": log_failure(argument, error), "exception": error}
            self._loop.call_exception_handler(context)


def _log_instead(callback: Callable[[T], object], argument: T) -> None:
    """Write ``argument`` if it is a line of the log; else log that its callback was not called."""
    if isinstance(argument, str):
        callback(argument)
    else:
        text = (
            f"a callback for {_about(argument)} was not called: the event loop in which its client "
            "connected is closed. Connect in each loop, or once with connect(lazy=True)"
        )
        report("ERROR", text)


def log_failure(argument: object, error: BaseException) -> str:
    """Log the exception of a callback that was called with ``argument``; return the text."""
    text = f"a callback for {_about(argument)} failed: {error!r}"
    report("ERROR", text, error)
    return text


def _about(argument: object) -> str:
    if isinstance(argument, Notice):
        return f"{titled(argument.lock)} ({argument.state.value})"
    return "the cluster"


def _call_hook(error: BaseException) -> None:
    """Report ``error`` like an exception that ends this thread."""
    thread = threading.current_thread()
    try:
        hooked = threading.ExceptHookArgs((type(error), error, error.__traceback__, thread))
        threading.excepthook(hooked)
    except Exception as failure:  # noqa: BLE001  # The program's hook failed: Python's own rule.
        sys.excepthook(type(failure), failure, failure.__traceback__)


def check_callback(callback: object, argument: str = "Notice") -> None:
    """Refuse a ``callback`` that cannot be called, or would only create a coroutine."""
    if not callable(callback):
        raise TypeError(
            f"callback is {callback!r}, and must be callable with one argument, a {argument}"
        )
    if is_coroutine_function(callback):
        raise TypeError(
            f"callback is {callback!r}, a coroutine function, which nobody would await: "
            "pass a plain function. In fencelock.aio it may create a task"
        )


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether a call of ``function``, which may be an object, only makes a coroutine."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  # Of an object with this method.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Listeners(Struct, eq=False):
    """The callbacks of one hold, of one lock object, or of a client for all its locks."""

    callbacks: dict[HoldState, list[Callback]] = field(
        default_factory=dict[HoldState, list[Callback]]
    )
    """Those for LOST, UNLOCKING and SUSPECT, if there are any."""
    unreported: list[FencelockError] = field(default_factory=list[FencelockError])
    """The errors of releases for which no caller waited, until the next call raises them."""
    detached: set[object] = field(default_factory=set[object])
    """The threads or tasks that detached the lock inside a ``with``, whose end releases nothing."""

    def add(self, state: HoldState, callback: Callback) -> None:
        check_callback(callback)
        self.callbacks.setdefault(state, []).append(callback)

    def of(self, state: HoldState) -> list[Callback]:
        return self.callbacks.get(state, [])


class Notifying:
    """A hold, an object that is held, or a client: its callbacks are called when a hold changes."""

    def on_lost(self, callback: Callback) -> None:
        """Call ``callback`` with a `Notice` when a hold is lost.

        A client calls it for all its holds, a lock or another object for those that it acquired,
        and a hold for itself: at once, if it is lost already.

        Callbacks run one after the other: those of `fencelock.Client` on a thread of their
        own, so they may block or use the client; those of `fencelock.aio.Client` on the loop.

        An exception from a callback is logged and counted by `Client.callbacks_failed`, and the
        next callback is called. It is also reported as Python reports an exception that nobody
        catches: `fencelock.Client` calls `threading.excepthook`, and `fencelock.aio.Client` the
        exception handler of the loop. Both write a traceback by default.

        Raises:
            TypeError: ``callback`` is not callable, or is a coroutine function.
            ClosedError: it is a hold of the process that this one was forked from, where no thread
                would call anything.

        """
        self._listen(HoldState.LOST, callback)

    def on_suspect(self, callback: Callback) -> None:
        """Call ``callback`` with a `Notice` when a hold becomes suspect; see `on_lost`."""
        self._listen(HoldState.SUSPECT, callback)

    def on_unlocking(self, callback: Callback) -> None:
        """Call ``callback`` with a `Notice` when the duration of a hold ends; see `on_lost`.

        The lock stays held until the grace has ended as well. Until then the holder chooses
        ``release`` or ``renew``.
        """
        self._listen(HoldState.UNLOCKING, callback)

    def _listen(self, state: HoldState, callback: Callback) -> None:
        raise NotImplementedError


ClusterCallback = Callable[[ClusterState], object]


class ClusterWatch:
    """The last `ClusterState` that a session sent its client. For any thread.

    ``begin`` makes the session subscribe; calling it twice does no harm.
    """

    def __init__(self, executor: CallbackExecutor, begin: Callable[[], None]) -> None:
        self._executor = executor
        self._begin = begin
        self._guard = threading.Lock()
        self._callbacks: list[ClusterCallback] = []
        self._state: ClusterState | None = None

    def on_event(self, state: ClusterState) -> None:
        """Handle a state from the session; on the dispatcher's thread."""
        with self._guard:
            self._state = state
            for callback in self._callbacks:
                self._executor.call(callback, state)

    def last(self) -> ClusterState:
        """Return the last state received, or an unknown one if there is none."""
        self._watch()
        return self._state or unknown("no node has reported its state yet")

    def add(self, callback: ClusterCallback) -> None:
        """Call ``callback`` with the known state, if there is one, and with later ones."""
        with self._guard:
            self._callbacks.append(callback)
            if self._state is not None:
                self._executor.call(callback, self._state)
        self._watch()

    def _watch(self) -> None:
        if self._state is None:
            self._begin()
