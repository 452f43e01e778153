"""A queue of items by the times at which they are due. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from fencelock.actors.message import Instant

T = TypeVar("T")

STALE_MAX = 1_000
"""Stale items in the heap, beyond twice the live ones, at which it is cleaned up. Holds may last
for days, and most are released long before."""


QUEUE_ENDS_MAX = 200
"""Items of a queue that one tick takes: thousands may be due at once, and each takes some 20 us."""


class DeadlineQueue(Generic[T]):
    """Items, each at most once, the soonest first; ties are in the order in which they were set."""

    def __init__(self) -> None:
        self.at: dict[T, Instant] = {}
        self.heap: list[tuple[Instant, int, T]] = []
        """Items and their times; some were dropped, or are due at another time."""
        self._count = 0

    def set(self, item: T, at: Instant | None) -> None:
        """Let ``item`` be due at that time instead of an earlier one, or never."""
        if at is None:
            self.at.pop(item, None)
        elif self.at.get(item) != at:
            self.at[item] = at
            self._count += 1
            heapq.heappush(self.heap, (at, self._count, item))
            if len(self.heap) > 2 * len(self.at) + STALE_MAX:
                self.heap = [one for one in self.heap if self.at.get(one[2]) == one[0]]
                heapq.heapify(self.heap)

    def is_due(self, now: Instant) -> bool:
        """Return whether an item may be due."""
        return bool(self.heap) and self.heap[0][0] <= now

    def next_at(self) -> Instant | None:
        while self.heap and self.at.get(self.heap[0][2]) != self.heap[0][0]:
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else None

    def take_due(self, now: Instant) -> T | None:
        while self.is_due(now):
            at, _, item = heapq.heappop(self.heap)
            if self.at.get(item) == at:
                del self.at[item]
                return item
        return None

    def each_due(self, now: Instant, most: int | None = None) -> Iterator[T]:
        """Remove and yield the items that are due, at most ``most``."""
        return islice(iter(partial(self.take_due, now), None), most)
