"""The future of one request to a role: one value or exception, for any number of threads."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

import pykka

from fencelock.actors.message import Address

Then = Callable[[Any, Any, BaseException | None], None]
"""A callback for an answer; gets the reply, the value and the error, one of which is None."""


class Reply(pykka.Future[Any]):
    """A Pykka future on one lock, where Pykka's own takes a condition and three locks.

    The lock is held until there is an answer. A thread that acquires it releases it again, so
    that any number of threads may wait and get the answer any number of times.

    Args:
        then: called with this reply, the value and the error (one of them None), on the
            thread that answers, before any waiting thread wakes. It must be quick and not raise.

    Attributes:
        address: the address from which the role is asked, once the dispatcher has the request.
        role: the role that was asked.

    """

    # Every request makes a reply: rarely set fields default on the class, which is cheaper.
    address: Address | None = None
    role: Address | None = None
    _get_hook = None
    _next: Callable[[], None] | None = None
    _is_set = False
    _value: Any = None
    _error: BaseException | None = None
    _awaited = False

    def __init__(self, then: Then | None = None) -> None:
        self._then = then
        self._callbacks: list[Callable[[], None]] = []
        self._answered = answered = threading.Lock()
        answered.acquire()

    @property
    def done(self) -> bool:
        """Whether there is an answer."""
        return self._is_set

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called once there is an answer; at once if there is one.

        It must be quick and not raise. It runs on the thread that answers or wakes, or on this one.
        """
        self._callbacks.append(callback)
        if self._is_set:
            self._call_back()

    def get(self, *, timeout: float | None = None) -> Any:
        """Return the answer, or raise it if it is an exception.

        Args:
            timeout: how long to wait (s), None for without limit.

        Raises:
            pykka.Timeout: there is no answer yet.

        """
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self._is_set:
            self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._value

    def _wait(self, timeout: float | None) -> None:
        self._awaited = True
        try:
            if timeout is None:
                self._answered.acquire()
            elif not self._answered.acquire(timeout=min(max(0.0, timeout), threading.TIMEOUT_MAX)):
                raise pykka.Timeout(f"{timeout} seconds")
            try:
                self._answered.release()
            except RuntimeError:
                return  # We were woken twice: the lock is free for all.
        finally:
            # Order matters: the waker sets `_next` first, and only then reads `_awaited`.
            self._awaited = False
            if self._next is not None:
                self._next()

    def set(self, value: Any = None) -> None:
        """Set the answer.

        Raises:
            queue.Full: there is one already.

        """
        self.settle(value, None)
        self.wake()

    def set_exception(self, exc_info: Any = None) -> None:
        """Set an exception as the answer; None for the one that is being handled.

        Raises:
            queue.Full: there is an answer.

        """
        _, error, _ = sys.exc_info() if exc_info is None else exc_info
        self.settle(None, error)
        self.wake()

    def fail(self, error: BaseException) -> None:
        """Set ``error`` as the answer."""
        self.settle(None, error)
        self.wake()

    def set_get_hook(self, func: Any) -> None:
        """Have ``func(timeout)`` compute the answer when it is requested (Pykka).

        Raises:
            queue.Full: there is an answer.

        """
        if self._is_set:
            raise queue.Full
        super().__init__()  # Makes only what a hook needs.
        super().set_get_hook(func)

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Set the answer, but leave waiting threads asleep: `wake` must follow.

        Raises:
            queue.Full: there is one already.

        """
        if self._is_set or self._get_hook is not None:
            raise queue.Full
        if self._then is not None:
            self._then(self, value, error)
        if error is not None:
            self._error = error
        self._value = value
        self._is_set = True

    def wake(self, following: Callable[[], None] | None = None) -> bool:
        """Wake the threads that wait for the answer of `settle`. Calling it twice does no harm.

        Args:
            following: called by each of them once it is awake, on its own thread.

        Returns:
            Whether one of them certainly will call it.

        """
        self._next = following
        awaited = self._awaited
        try:
            self._answered.release()
        except RuntimeError:  # It was woken before, and perhaps interrupted then.
            awaited = False
        if self._callbacks:
            self._call_back()
        return awaited

    def _call_back(self) -> None:
        """Call each callback once, whether the answer or the callback came first."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # Another thread took the last.
                return
            callback()
