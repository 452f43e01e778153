"""The lines of the log, for tests that wait for some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from loguru import logger

from fencelock.cluster import log
from support.collected import Collected

if TYPE_CHECKING:
    from loguru import Message

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
