"""The log of this package: the standard library's logger ``fencelock``, and files of ``serve``.

Clients log to ``fencelock``, nodes to ``fencelock.node`` (``transport/log.py``). `report` says what
a program sees that has not set ``logging`` up. ``fencelock serve`` and ``dev`` call `set_up`, which
sends all lines of the process to loguru, for files that are renamed and for lines of JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from traceback import format_exception
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from fencelock.actors.error import ConfigError
from fencelock.actors.repeated import INTERVAL_NS, Repetitions, times_text
from fencelock.transport.log import LEVELS, note

if TYPE_CHECKING:
    from pathlib import Path

    from loguru import Record

FIRST = ("node", "role")
"""Fields that are printed before the message; others follow it."""

standard = logging.getLogger("fencelock")


class LogFile(NamedTuple):
    """A file for log lines. Full files are renamed, and old ones deleted."""

    path: Path
    bytes_max: int
    """Size of a file from which on a new one is begun."""
    kept: int
    """The number of full files that are kept."""


class _ToLoguru(logging.Handler):
    """Hands lines to the sinks of `set_up`."""

    def emit(self, record: logging.LogRecord) -> None:
        from loguru import logger  # noqa: PLC0415 (asyncio: clients need neither)

        log = logger.bind(**getattr(record, "fields", {})).opt(exception=record.exc_info)
        log.log(record.levelname, "{}", record.getMessage())


_to_loguru = _ToLoguru()


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
    from loguru import logger  # noqa: PLC0415 (as above)

    set_level(level)
    logger.remove()
    standard.addHandler(_to_loguru)
    # No ``diagnose``: it prints the values of variables, and a lock's name may be a secret.
    form: dict[str, Any] = {
        "level": 0,
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
    standard.setLevel(level)


def silence() -> None:
    """Write nothing any more, until `set_up`."""
    from loguru import logger  # noqa: PLC0415 (as above)

    logger.remove()
    standard.removeHandler(_to_loguru)
    standard.setLevel(logging.NOTSET)


def report(level: str, text: str, error: BaseException | None = None) -> None:
    """Write a line of a client. Call it where handlers of a program may block.

    In a program that has not set ``logging`` up, Python writes warnings to standard error. A person
    at a terminal then also sees what a client waits for.
    """
    number = LEVELS[level]
    if not standard.hasHandlers() and sys.stderr is not None and sys.stderr.isatty():
        number = max(number, logging.WARNING)
    standard.log(number, "%s", printable(text), exc_info=error)


warn, inform = partial(report, "WARNING"), partial(report, "INFO")
"""Write a warning of a client, or a line that needs no action; see `report`."""


def json_object(text: str, **fields: object) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": "INFO", "message": text} | fields)


class Repeated:
    """Writes a line about something slow that may happen often: at once, then once an interval."""

    INTERVAL_NS = INTERVAL_NS

    def __init__(self, node: str, clock: Callable[[], int]) -> None:
        self._node = node
        self._clock = clock
        self._repetitions = Repetitions()
        self._worst_ms = 0

    def add(self, took_ms: int, text: str, **fields: object) -> None:
        """Count an event that took so long; ``text`` is formatted with ``worst`` and ``times``."""
        self._worst_ms = max(self._worst_ms, took_ms)
        count = self._repetitions.add("", self._clock())
        if count:
            written = text.format(worst=self._worst_ms, times=times_text(count))
            worst = {"worst_ms": self._worst_ms}
            note(self._node, "WARNING", written, **fields, **worst, count=count)
            self._worst_ms = 0


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
