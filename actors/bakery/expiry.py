"""Entries grouped by their end, so that only those that end are looked at. Pure."""

from __future__ import annotations

import heapq

from fencelock.actors.bakery.entry import Entry
from fencelock.actors.message import NS_PER_MS, Instant

SHELF_NS = 1_000 * NS_PER_MS
"""Width of a shelf (ns): entries that end within the same second share one."""

SHELVES_MIN = 1_000
"""Minimum number of shelves at which empty ones are removed."""


class Expiry:
    """Shelves of entries, one for each second in which any of them ends.

    An entry is taken off its shelf when it is removed, and does not stay until the end of a long
    lease that was released early. Empty shelves are removed when there are twice as many shelves
    as after the last time.
    """

    def __init__(self) -> None:
        self.shelves: dict[int, dict[Entry, None]] = {}
        self._order: list[int] = []
        """The numbers of all shelves, as a heap."""
        self._clear_at = SHELVES_MIN

    def put(self, entry: Entry) -> None:
        """Put ``entry`` on the shelf of its end, or on none if it has no end."""
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
        """Return the entries that have ended; only shelves whose second has begun are read."""
        found: list[Entry] = []
        last = now // SHELF_NS
        while self._order and self._order[0] < last:
            found += self.shelves[self._order[0]]
            for entry in self.shelves.pop(heapq.heappop(self._order)):
                entry.shelf = None
        begun = self.shelves.get(last, ())
        return [*found, *(entry for entry in begun if entry.is_over(now))]
