"""What another thread collects, logs or watches, for a test that waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from fencelock.cluster.host.pending_asks import AskReply
from support.expect import PATIENCE_S

T = TypeVar("T")
R = TypeVar("R")


class Collected(Generic[T]):
    """Values in the order in which they were added."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._more = threading.Condition()

    def add(self, value: T) -> None:
        """Add ``value``, and wake those that wait."""
        with self._more:
            self.values.append(value)
            self._more.notify_all()

    def wait_for(self, found: Callable[[Sequence[T]], R | None]) -> R:
        """Return what ``found`` returns for the values, once that is not None."""
        with self._more:
            result = self._more.wait_for(lambda: found(self.values), PATIENCE_S)
        assert result is not None, self.values
        return result

    def wait_for_more(self, count: int) -> None:
        """Return when ``count`` more values have been added."""
        wanted = len(self.values) + count
        self.wait_for(lambda values: len(values) >= wanted or None)


Line = tuple[str, str, str]
"""The level, the node and the text of a line."""


class Lines(Collected[Line]):
    """The lines that were logged, and a wait for one."""

    def log(self, record: logging.LogRecord) -> None:
        node = str(fields_of(record).get("node"))
        self.add((record.levelname, node, record.getMessage()))

    def until(self, found: Callable[[Line], bool]) -> Line:
        """Return the first line for which ``found`` holds, once it is there."""
        return self.wait_for(lambda lines: next(filter(found, lines), None))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a line, for programs that read it."""
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


@contextmanager
def logged_to(take: Callable[[logging.LogRecord], object], level: str) -> Generator[None]:
    """Hand each record of this package from ``level`` on to ``take``."""
    handler, log = logging.Handler(), logging.getLogger("fencelock")
    handler.emit = take  # type: ignore[assignment, method-assign]
    former = log.level
    log.setLevel(level)
    log.addHandler(handler)
    yield
    log.removeHandler(handler)
    log.setLevel(former)


class WatchedChannel:
    """A channel that shows requests to a test before it sends them.

    Args:
        channel: sends the requests.
        takes: called with each request and its reply; returns whether it has taken the request,
            which is then not sent.

    """

    def __init__(self, channel: Any, takes: Callable[[Any, AskReply], bool]) -> None:
        self._channel = channel
        self._takes = takes

    def submit(self, message: Any, reply: AskReply) -> None:
        """Send a request that the test does not take."""
        if not self._takes(message, reply):
            self._channel.submit(message, reply)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)
