"""The destination of log lines. A library stays silent until its program asks for them.

``silence`` is called when the package is imported; ``fencelock serve`` calls `set_up`. A program
that embeds a node and wants its lines calls ``loguru.logger.enable("fencelock")`` and keeps
its own sinks, as loguru advises.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from loguru import logger

from fencelock.actors.role_message import RoleNotice

if TYPE_CHECKING:
    from loguru import Record

PACKAGE = "fencelock"


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


def write(node: str, notice: RoleNotice) -> None:
    """Write a role's notice to the log of ``node``."""
    logger.bind(node=node).log(notice.level.name, "{}", notice.text)


def printable(text: str) -> str:
    """Return ``text`` with control and other unprintable characters escaped.

    Names and reasons may come from a peer that nobody checked: none of them may move the cursor
    of a terminal or begin a line.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def _line(record: Record) -> str:
    """Return the format of one line: time, level, fields bound to the logger, message."""
    fields = "".join(f" {name}={{extra[{name}]}}" for name in record["extra"])
    return (
        "<green>{time:YYYY-MM-DDTHH:mm:ss.SSSZ}</green> <level>{level: <8}</level>"
        f"<cyan>{fields}</cyan> {{message}}\n{{exception}}"
    )
