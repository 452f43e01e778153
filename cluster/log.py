"""The destination of log lines. A library stays silent until its program asks for them.

A client's lines also go to the standard library's logger ``fencelock``, as ``logging`` expects.

``silence`` is called when the package is imported; ``fencelock serve`` calls `set_up`. A program
that embeds a node and wants its lines calls ``loguru.logger.enable("fencelock")`` and keeps
its own sinks, as loguru advises.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from loguru import logger

from fencelock.actors.error import ConfigError
from fencelock.actors.role_message import RoleNotice

if TYPE_CHECKING:
    from loguru import Record

PACKAGE = "fencelock"

FIRST = ("node", "role")
"""Fields that are printed before the message; others follow it."""
standard = logging.getLogger(PACKAGE)
standard.addHandler(logging.NullHandler())  # Without one, ``logging`` writes to standard error.


def silence() -> None:
    """Drop the log lines of this package, until `set_up` or ``logger.enable("fencelock")``."""
    logger.disable(PACKAGE)


class LogFile(NamedTuple):
    """A file for log lines. Full files are renamed, and old ones deleted."""

    path: Path
    bytes_max: int
    """Size of a file from which on a new one is begun."""
    kept: int
    """The number of full files that are kept."""


class _Threshold:
    """The least level that is written; it may change while sinks are in use."""

    def __init__(self) -> None:
        self._least = 0

    def set(self, level: str) -> None:
        self._least = logger.level(level).no

    def __call__(self, record: Record) -> bool:
        return record["level"].no >= self._least


_threshold = _Threshold()


def set_up(
    level: str = "INFO",
    *,
    as_json: bool = False,
    stream: TextIO | None = None,
    file: LogFile | None = None,
) -> None:
    """Write the log lines of this process to a stream, and perhaps to a file, and nowhere else.

    Args:
        level: the least level to write, like ``INFO``.
        as_json: write one JSON object a line instead of text.
        stream: where to write, standard error if None.
        file: where to write as well.

    Raises:
        ConfigError: the file cannot be written.

    """
    set_level(level)
    logger.remove()
    logger.enable(PACKAGE)
    # No ``diagnose``: it prints the values of variables, and a lock's name may be a secret.
    form: dict[str, Any] = {
        "level": 0,
        "filter": _threshold,
        "format": _json_line if as_json else _line,
        "backtrace": False,
        "diagnose": False,
    }
    logger.add(sys.stderr if stream is None else stream, **form)
    if file is None:
        return
    limits: dict[str, Any] = {"rotation": file.bytes_max, "retention": file.kept}
    try:
        logger.add(file.path, colorize=False, encoding="utf-8", **limits, **form)
    except OSError as error:
        raise ConfigError(f"log.folder: {error.filename}: {error.strerror}") from error


def set_level(level: str) -> None:
    """Change the least level of the lines that `set_up` lets this process write."""
    _threshold.set(level)


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
    logger.bind(node=node, **dict(notice.fields)).log(notice.level.name, "{}", notice.text)


def note(node: str, level: str, text: str, **fields: object) -> None:
    """Write ``text`` to the log of ``node``, with ``fields`` for programs that read it."""
    logger.bind(node=node, **fields).log(level, "{}", text)


def json_object(text: str, **fields: object) -> str:
    """Return a line like those of ``--log-json``."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": "INFO", "message": text} | fields)


class Repeated:
    """Writes a line about something that may happen often: at once, then once an interval.

    Args:
        node: whose log it is.
        clock: reads a clock (ns).

    """

    INTERVAL_NS = 10_000_000_000
    """Least time between two lines (ns, 10 s)."""

    def __init__(self, node: str, clock: Callable[[], int]) -> None:
        self.node = node
        self.clock = clock
        self.count = 0
        self.worst_ms = 0
        self.silent_until = 0

    def add(self, took_ms: int, text: str, **fields: object) -> None:
        """Count an event that took so long; ``text`` is formatted with ``worst`` and ``times``."""
        self.count += 1
        self.worst_ms = max(self.worst_ms, took_ms)
        now = self.clock()
        if now < self.silent_until:
            return
        self.silent_until = now + self.INTERVAL_NS
        times = "" if self.count == 1 else f" ({self.count} times since the last such line)"
        written = text.format(worst=self.worst_ms, times=times)
        worst = {"worst_ms": self.worst_ms} if self.worst_ms else {}
        note(self.node, "WARNING", written, **fields, **worst, count=self.count)
        self.count = self.worst_ms = 0


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
    """Return the format of one line: time, level, whose it is, message, other fields."""
    first: list[str] = []
    last: list[str] = []
    for name, value in record["extra"].items():
        (first if name in FIRST else last).append(f" {name}={_value(value)}")
    record["message"] = printable(record["message"])
    return (
        "<green>{time:YYYY-MM-DDTHH:mm:ss.SSSZ}</green> <level>{level: <8}</level>"
        f"<cyan>{''.join(first)}</cyan> {{message}}<dim>{''.join(last)}</dim>\n{{exception}}"
    )


def _value(value: object) -> str:
    """Return the value of a field, harmless in a line and in the format of one."""
    text = printable(str(value))
    if not text or " " in text:
        text = f'"{text}"'
    return text.replace("{", "{{").replace("}", "}}").replace("<", r"\<")


def _json_line(record: Record) -> str:
    """Return the format of one line of JSON, with the time, the level, the message, the fields."""
    found = record["exception"]
    line: dict[str, object] = {
        "time": record["time"].isoformat(timespec="milliseconds"),
        "level": record["level"].name,
        "message": record["message"],
        **{name: value for name, value in record["extra"].items() if name != "message"},
    }
    if found is not None:
        line["exception"] = "".join(format_exception(found.type, found.value, found.traceback))
    record["message"] = json.dumps(line, default=str)
    return "{message}\n"
