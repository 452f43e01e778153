"""The log lines of nodes, in the standard library's logger ``fencelock.node``.

They are silent where a program has not set ``logging`` up. The lines of clients, in the logger
``fencelock``, are not: ``cluster/log.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from traceback import extract_tb

from fencelock.actors.api.name import without_secret
from fencelock.actors.repeated import Repetitions, times_text

DOING_CHARS_MAX = 500
"""Maximum length of the text that says what was being done: it may contain a request."""

TRACE = 5
"""The level of lines about single messages, below `logging.DEBUG`."""

logging.addLevelName(TRACE, "TRACE")
LEVELS = logging.getLevelNamesMapping()

logger = logging.getLogger("fencelock.node")
logger.addHandler(logging.NullHandler())


def note(
    node: str, level: str, text: str, error: BaseException | None = None, /, **fields: object
) -> None:
    """Write ``text`` to the log of ``node``, with ``fields`` for programs that read it."""
    about = {"node": node} | fields
    logger.log(LEVELS[level], "%s", text, exc_info=error, extra={"fields": about})


class FaultLog:
    """Counts exceptions of ours that cost one request, effect or frame, and not the node.

    Each place that raises is logged: at once, then once an interval.
    """

    def __init__(
        self, node: str, clock: Callable[[], int], count: Callable[[str, int], None]
    ) -> None:
        self._node = node
        self._clock = clock
        self._count = count
        self._places = Repetitions()

    def note(self, doing: str, error: Exception) -> None:
        """Count ``error``, and log it with its traceback if a line is due."""
        self._count("host.fault", 1)
        frames = extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        times = self._places.add(f"{type(error).__name__} {place}", self._clock())
        if not times:
            return
        mask(error)
        text = (
            f"a bug in fencelock: {error!r} at {without_secret(doing)[:DOING_CHARS_MAX]}; the node "
            f"goes on without it{times_text(times)}. Please report this"
        )
        note(self._node, "ERROR", text, error, event="fault", count=times)


def mask(error: BaseException | None) -> None:
    """Remove the secrets of sessions from the texts of ``error`` and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.args = tuple(
            one if isinstance(one, int | None) else without_secret(str(one)) for one in error.args
        )
        error = error.__cause__ or error.__context__
