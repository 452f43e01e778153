"""The destination of log lines. A library stays silent until its program asks for them.

A client's lines also go to the standard library's logger ``fencelock``, as ``logging`` expects.

``silence`` is called when the package is imported; ``fencelock serve`` calls `set_up`. A program
that embeds a node and wants its lines calls ``loguru.logger.enable("fencelock")`` and keeps
its own sinks, as loguru advises.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, TextIO

from loguru import logger

from fencelock.actors.role_message import RoleNotice

if TYPE_CHECKING:
    from loguru import Record

PACKAGE = "fencelock"

standard = logging.getLogger(PACKAGE)
standard.addHandler(logging.NullHandler())  # Without one, ``logging`` writes to standard error.


def silence() -> None:
    """Drop the log lines of this package, until `set_up` or ``logger.enable("fencelock")``."""
    logger.disable(PACKAGE)


def set_up(level: str = "INFO", *, serialize: bool = False, stream: TextIO | None = None) -> None:
    """Write the log lines of this process to one place, and nowhere else.

    Args:
        level: the least level to write, like ``INFO``.
        serialize: write one JSON object a line instead of text.
        stream: where to write, standard error if None.

    """
    logger.remove()
    logger.enable(PACKAGE)
    # No ``diagnose``: it prints the values of variables, and a lock's name may be a secret.
    logger.add(
        sys.stderr if stream is None else stream,
        level=level,
        format=_line,
        serialize=serialize,
        backtrace=False,
        diagnose=False,
    )


def report(level: str, text: str, error: BaseException | None = None) -> None:
    """Write a line of a client to both logs. Call it where handlers of a program may block."""
    logger.opt(exception=error).log(level, "{}", text)
    standard.log(logging.getLevelNamesMapping()[level], "%s", text, exc_info=error)


def warn(text: str) -> None:
    """Write a warning of a client; see `report`."""
    report("WARNING", text)


def inform(text: str) -> None:
    """Write a line that needs no action; see `report`."""
    report("INFO", text)


def write(node: str, notice: RoleNotice) -> None:
    """Write a role's notice to the log of ``node``."""
    logger.bind(node=node).log(notice.level.name, "{}", notice.text)


def _line(record: Record) -> str:
    """Return the format of one line: time, level, fields bound to the logger, message."""
    fields = "".join(f" {name}={{extra[{name}]}}" for name in record["extra"])
    return (
        "<green>{time:YYYY-MM-DDTHH:mm:ss.SSSZ}</green> <level>{level: <8}</level>"
        f"<cyan>{fields}</cyan> {{message}}\n{{exception}}"
    )
