"""What another thread collects, logs or watches, for a test that waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from loguru import logger

from fencelock.cluster import log
from fencelock.cluster.host.pending_asks import AskReply
from support.real_nodes import LONG_S

if TYPE_CHECKING:
    from loguru import Message

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
            result = self._more.wait_for(lambda: found(self.values), LONG_S)
        assert result is not None, self.values
        return result


Line = tuple[str, str, str]
"""The level, the node and the text of a line."""


class Lines(Collected[Line]):
    """The lines that were logged, and a wait for one."""

    def log(self, message: Message) -> None:
        record = message.record
        self.add((record["level"].name, str(record["extra"].get("node")), record["message"]))

    def until(self, found: Callable[[Line], bool]) -> Line:
        """Return the first line for which ``found`` holds, once it is there."""
        return self.wait_for(lambda lines: next(filter(found, lines), None))


def logged_lines() -> Iterator[Lines]:
    """Yield the lines of this process, and silence the log afterwards."""
    lines = Lines()
    logger.remove()
    logger.enable(log.PACKAGE)
    logger.add(lines.log, level="DEBUG")
    yield lines
    logger.remove()
    log.silence()


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
