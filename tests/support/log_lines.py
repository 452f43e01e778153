"""The lines of the log, for tests that wait for some."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from loguru import logger

from fencelock.cluster import log
from support.real_nodes import LONG_S

if TYPE_CHECKING:
    from loguru import Message

Line = tuple[str, str, str]
"""The level, the node and the text of a line."""


class Lines:
    """The lines that were logged, and a wait for one."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._more = threading.Condition()

    def add(self, message: Message) -> None:
        record = message.record
        with self._more:
            self.lines.append(
                (record["level"].name, str(record["extra"].get("node")), record["message"])
            )
            self._more.notify_all()

    def until(self, found: Callable[[Line], bool]) -> Line:
        """Return the first line for which ``found`` holds, once it is there."""
        with self._more:
            there = self._more.wait_for(lambda: any(map(found, self.lines)), LONG_S)
            assert there, self.lines
            return next(filter(found, self.lines))


def logged_lines() -> Iterator[Lines]:
    """Yield the lines of this process, and silence the log afterwards."""
    lines = Lines()
    logger.remove()
    logger.enable(log.PACKAGE)
    logger.add(lines.add, level="DEBUG")
    yield lines
    logger.remove()
    log.silence()
