"""Counts of durations by size, cheap enough for the path of every request. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from fencelock.actors.message import NS_PER_MS

BOUNDS_MS = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Upper bounds of the classes (ms): from a good disk to a caller that timed out."""

_BOUNDS_NS = tuple(round(bound * NS_PER_MS) for bound in BOUNDS_MS)


class Histogram:
    """Counts durations in the classes of `BOUNDS_MS`, and those above.

    Attributes:
        counts: the number of durations in each class, the last one without an upper bound. It has
            what was added before the last `fold`.
        sum_ns: the sum of these durations (ns).

    """

    __slots__ = ("_added", "add", "counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ns = 0
        self._added: list[int] = []
        self.add: Callable[[int], None] = self._added.append
        """Adds a duration (ns). `fold` must be called now and then: it keeps them all until then.
        """

    def fold(self) -> None:
        """Count the durations that were added."""
        for ns in self._added:
            self.counts[bisect_left(_BOUNDS_NS, ns)] += 1
        self.sum_ns += sum(self._added)
        self._added.clear()
