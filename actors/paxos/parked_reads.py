"""Reads of a replica that wait for a change of an object."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from fencelock.actors.api.changes import WATCH_MS
from fencelock.actors.message import Address, Instant, Local, ms_between
from fencelock.actors.table.report import Changed, ReadHistory

if TYPE_CHECKING:
    from fencelock.actors.paxos.reads import Read

CHECK_MS = 1_000
"""Interval at which waiting reads are checked (ms)."""

Key = tuple[Address, int]
"""A role and the number of its read."""


class ParkedReads:
    """The reads that wait, by object, in the order of arrival."""

    def __init__(self) -> None:
        self.by_object: dict[str, dict[Key, Read]] = {}
        self._order: deque[Read] = deque()
        """All reads as they arrived, in that order, also those that were answered."""

    def __bool__(self) -> bool:
        return bool(self.by_object)

    def add(self, read: Read) -> None:
        """Let a read wait."""
        self.by_object.setdefault(read.watched, {})[read.client, read.number] = read
        self._order.append(read)

    def of(self, changed: Iterable[str] | None) -> list[Read]:
        """Return the reads of the objects that have ``changed``, or of all objects."""
        names = self.by_object if changed is None else changed
        return [read for name in names for read in self.by_object.get(name, {}).values()]

    def go_on(self, read: Read, seen: Local) -> None:
        """Let a read go on waiting, for what comes after the answer ``seen``."""
        question = read.question
        if not isinstance(question, ReadHistory) or not isinstance(seen, Changed):
            return
        if question.after != seen.version:
            question = replace(question, after=seen.version)
            key = read.client, read.number
            self.by_object[read.watched][key] = replace(read, question=question)

    def end(self, read: Read) -> None:
        """Remove a read that is answered."""
        waiting = self.by_object[read.watched]
        del waiting[read.client, read.number]
        if not waiting:
            del self.by_object[read.watched]

    def late(self, now: Instant) -> list[Read]:
        """Return the reads that have waited for `WATCH_MS`."""
        late: list[Read] = []
        order = self._order
        while order:
            read = self._waiting(order[0])
            if read is not None and ms_between(read.at, now) < WATCH_MS:
                break
            order.popleft()
            if read is not None:
                late.append(read)
        return late

    def _waiting(self, read: Read) -> Read | None:
        """Return ``read`` as it is now, or None if it is over."""
        return self.by_object.get(read.watched, {}).get((read.client, read.number))
