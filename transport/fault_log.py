"""The log lines about exceptions of ours that cost one request, effect or frame, not the node."""

from __future__ import annotations

from collections.abc import Callable
from traceback import extract_tb

from loguru import logger

from fencelock.actors.api.name import without_secret
from fencelock.actors.repeated import Repetitions, times_text

DOING_CHARS_MAX = 500
"""Maximum length of the text that says what was being done: it may contain a request."""


class FaultLog:
    """Counts such exceptions, and logs each place that raises: at once, then once an interval.

    Args:
        node: whose log it is.
        clock: reads a clock (ns).
        count: adds to a counter of the node.

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
        log = logger.bind(node=self._node, event="fault", count=times)
        log.opt(exception=error).error(
            "a bug in fencelock: {!r} at {}; the node goes on without it{}. Please report this",
            error,
            without_secret(doing)[:DOING_CHARS_MAX],
            times_text(times),
        )


def mask(error: BaseException | None) -> None:
    """Remove the secrets of sessions from the texts of ``error`` and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.args = tuple(
            one if isinstance(one, int | None) else without_secret(str(one)) for one in error.args
        )
        error = error.__cause__ or error.__context__
