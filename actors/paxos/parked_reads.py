"""The reads at a replica that wait for a change of an object.

Objects that can be watched (`WATCHED_KINDS` in ``api/changes.py``) have a history: the table keeps
their last changes (``table/history.py``), each under a version from one counter. A watch is a read
that waits. The proxy passes `ReadChanges` to the replica of its node as a `ReadMachine` that names
the object (``watched``). If nothing has changed, the read is parked here. After each slot,
`Machine.changed_since` names the objects that have changed, and the replica answers their parked
reads. The client sends the next request with the version of the reply. So no state of a watch is
replicated, and a change costs only its watchers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from fencelock.actors.api.changes import WATCH_MS
from fencelock.actors.message import Address, Instant, Local, ms_between
from fencelock.actors.table.report import Changed, ReadHistory

CHECK_MS = 1_000
"""Interval between two checks of the waiting reads (ms)."""

Key = tuple[Address, int]
"""A role and the number of its read."""


class Read(Struct, frozen=True):
    """A read of the machine by another role of this node."""

    client: Address
    number: int
    query: Local
    at: Instant
    """The time at which it was requested."""
    age_ms: int | None
    watched: str = ""
    """The object whose change it waits for; empty for a read that does not wait for one."""


class ParkedReads:
    """The reads that wait, by object, in the order of arrival."""

    def __init__(self) -> None:
        self.by_object: dict[str, dict[Key, Read]] = {}
        self._order: OrderedDict[Key, Read] = OrderedDict()
        """All reads, in the order of arrival."""

    def __len__(self) -> int:
        return len(self._order)

    def add(self, read: Read) -> None:
        """Add a read that has to wait."""
        self.by_object.setdefault(read.watched, {})[read.client, read.number] = read
        self._order[read.client, read.number] = read

    def of(self, changed: Iterable[str] | None) -> list[Read]:
        """Return the reads of the objects that have ``changed``, or all reads for None."""
        names = self.by_object if changed is None else changed
        return [read for name in names for read in self.by_object.get(name, {}).values()]

    def go_on(self, read: Read, seen: Local) -> None:
        """Let a read wait for changes after those that its answer ``seen`` has covered."""
        query = read.query
        if not isinstance(query, ReadHistory) or not isinstance(seen, Changed):
            return
        if query.after != seen.version:
            query = replace(query, after=seen.version)
            key = read.client, read.number
            now = self._order[key] = replace(read, query=query)
            self.by_object[read.watched][key] = now

    def end(self, read: Read) -> None:
        """Remove a read that has been answered."""
        waiting = self.by_object[read.watched]
        del waiting[read.client, read.number], self._order[read.client, read.number]
        if not waiting:
            del self.by_object[read.watched]

    def late(self, now: Instant) -> list[Read]:
        """Return the reads that have waited for `WATCH_MS`."""
        return list(takewhile(lambda read: _is_late(read, now), self._order.values()))


def _is_late(read: Read, now: Instant) -> bool:
    return ms_between(read.at, now) >= WATCH_MS
