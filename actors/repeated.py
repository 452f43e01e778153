"""Events that may happen often, of which only some are worth a line in the log. Pure."""

from __future__ import annotations

from collections import OrderedDict

INTERVAL_NS = 10_000_000_000
"""Least time between two lines about events of one kind (ns, 10 s)."""

KINDS_MAX = 256
"""Limit of kinds that are remembered: strangers choose some of them."""


class Repetitions:
    """Counts events by kind: the first one is worth a line, then one an interval."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """By kind: the events since its last line, and when the next line is due (ns)."""

    def add(self, kind: str, now: int) -> int:
        """Count an event; return how many a line that is due stands for, 0 if none is due."""
        count, due = self._kinds.pop(kind, (0, now))
        count += 1
        is_due = now >= due
        self._kinds[kind] = (0, now + INTERVAL_NS) if is_due else (count, due)
        if len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)
        return count if is_due else 0


def times_text(count: int) -> str:
    """Return the end of a line that stands for ``count`` events."""
    return "" if count == 1 else f" ({count} times since the last such line)"
