"""Entries by when they are over: what is looked at is what ends, not all that there is. Pure."""

from __future__ import annotations

import heapq

from fencelock.actors.bakery.entry import Entry
from fencelock.actors.message import NS_PER_MS, Instant

SHELF_NS = 1_000 * NS_PER_MS
"""What is over within the same second is on one shelf (ns)."""

SHELVES_MIN = 1_000
"""With fewer shelves than these, empty ones are not cleared away."""


class Expiry:
    """Shelves of entries, one for each second in which any is over.

    An entry is taken off its shelf when it is removed: nothing stays behind until a long lease
    that was released would have been over. Shelves that it leaves empty are cleared away when
    there are twice as many as after the last time.
    """

    def __init__(self) -> None:
        self.shelves: dict[int, dict[Entry, None]] = {}
        self._order: list[int] = []
        """The numbers of all shelves, as a heap."""
        self._clear_at = SHELVES_MIN

    def put(self, entry: Entry) -> None:
        """Put ``entry`` where its time says, or nowhere if it has none."""
        shelf = None if entry.until is None else entry.until // SHELF_NS
        if shelf == entry.shelf:
            return
        self.take(entry)
        entry.shelf = shelf
        if shelf is None:
            return
        if shelf not in self.shelves:
            if len(self.shelves) >= self._clear_at:
                self._clear()
            self.shelves[shelf] = {}
            heapq.heappush(self._order, shelf)
        self.shelves[shelf][entry] = None

    def _clear(self) -> None:
        self.shelves = {number: shelf for number, shelf in self.shelves.items() if shelf}
        self._order = sorted(self.shelves)
        self._clear_at = max(SHELVES_MIN, 2 * len(self.shelves))

    def take(self, entry: Entry) -> None:
        """Take ``entry`` off its shelf, if it is on one."""
        if entry.shelf is not None:
            del self.shelves[entry.shelf][entry]
            entry.shelf = None

    def over(self, now: Instant) -> list[Entry]:
        """Return what is over; only shelves whose second has begun are looked at."""
        found: list[Entry] = []
        last = now // SHELF_NS
        while self._order and self._order[0] < last:
            found += self.shelves[self._order[0]]
            for entry in self.shelves.pop(heapq.heappop(self._order)):
                entry.shelf = None
        begun = self.shelves.get(last, ())
        return [*found, *(entry for entry in begun if entry.is_over(now))]
