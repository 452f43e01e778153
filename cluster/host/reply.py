"""The future of one question to a role: one value or exception, for any number of threads."""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any

import pykka

from holdfast.actors.message import Address


class Reply(pykka.Future[Any]):
    """A Pykka future on one lock, where Pykka's own takes a condition and three.

    The lock is held until there is an answer; whoever gets it passes it on, so that
    any number of threads may wait and get the answer any number of times.

    Attributes:
        address: from which the role is asked, once the dispatcher has taken the question.
        role: who is asked.

    """

    def __init__(self) -> None:
        super().__init__()
        self.address: Address | None = None
        self.role: Address | None = None
        self._answered = threading.Lock()
        self._answered.acquire()
        self._is_set = False
        self._value: Any = None
        self._error: BaseException | None = None

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
        limit = -1.0 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        if not self._answered.acquire(timeout=limit):
            raise pykka.Timeout(f"{timeout} seconds")
        self._answered.release()

    def set(self, value: Any = None) -> None:
        """Give the answer.

        Raises:
            queue.Full: there is one.

        """
        self._finish(value, None)

    def set_exception(self, exc_info: Any = None) -> None:
        """Give an exception as the answer; None for the one that is being handled.

        Raises:
            queue.Full: there is an answer.

        """
        _, error, _ = sys.exc_info() if exc_info is None else exc_info
        self._finish(None, error)

    def fail(self, error: BaseException) -> None:
        """Give ``error`` as the answer."""
        self._finish(None, error)

    def set_get_hook(self, func: Any) -> None:
        """Have ``func(timeout)`` make the answer when it is asked for (Pykka).

        Raises:
            queue.Full: there is an answer.

        """
        if self._is_set:
            raise queue.Full
        super().set_get_hook(func)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        if self._is_set or self._get_hook is not None:
            raise queue.Full
        self._value = value
        self._error = error
        self._is_set = True
        self._answered.release()
