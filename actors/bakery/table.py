"""One leader's table: tickets that enter, wait and hold, and its votes. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fencelock.actors.bakery.config import later
from fencelock.actors.bakery.entry import Entry, Key, Phase, is_named
from fencelock.actors.bakery.expiry import Expiry
from fencelock.actors.bakery.ticket import Ticket, Turn, Who, counter_of
from fencelock.actors.bakery.tombstones import Tombstones
from fencelock.actors.message import Instant

COUNTED_MAX = 100_000
"""Maximum locks whose counters are kept; the oldest are dropped first."""


class Place(NamedTuple):
    """A waiting ticket in a lock's line."""

    turn: Turn
    key: Key


@dataclass(slots=True, eq=False)
class Queue:
    """All tickets of one lock."""

    entries: dict[Key, Entry] = field(default_factory=dict[Key, Entry])
    of: dict[Who, list[Key]] = field(default_factory=dict[Who, list[Key]])
    """Requests by owner: usually one."""
    entering: dict[Key, None] = field(default_factory=dict[Key, None])
    line: list[Place] = field(default_factory=list[Place])
    """Waiting tickets, in the order of their turns."""
    holding: dict[Key, None] = field(default_factory=dict[Key, None])
    """Tickets that hold: usually one. After a hand-over there may be more, of which one is real."""


class Counters(NamedTuple):
    """Counters of a lock that outlive its queue."""

    highest: int
    """The highest number of a ticket, or counter of a fence."""
    fence: int
    """The highest fence that was voted for."""


NOTHING_DRAWN = Counters(0, 0)


@dataclass(slots=True)
class Table:
    """All queues of a leader. Invariants: B5, B8, B10; see the README of this folder."""

    queues: dict[str, Queue] = field(default_factory=dict[str, Queue])
    size: int = 0
    counters: OrderedDict[str, Counters] = field(default_factory=OrderedDict[str, Counters])
    floor: Counters = NOTHING_DRAWN
    """Upper bound on the counters that were dropped for any lock."""
    past: Tombstones = field(default_factory=Tombstones)
    expiry: Expiry = field(default_factory=Expiry)
    sessions: dict[str, dict[Entry, None]] = field(default_factory=dict[str, dict[Entry, None]])
    """Tickets of each session."""

    def counters_of(self, lock: str) -> Counters:
        """Return the highest counters known for ``lock``."""
        return self.counters.get(lock, self.floor)

    def note(self, lock: str, highest: int, fence: int = 0) -> None:
        """Store that these were drawn for ``lock``."""
        known = self.counters_of(lock)
        fence = max(known.fence, fence)
        self.counters[lock] = Counters(max(known.highest, highest, counter_of(fence)), fence)
        self.counters.move_to_end(lock)
        if len(self.counters) > COUNTED_MAX:
            _, gone = self.counters.popitem(last=False)
            floor = self.floor
            self.floor = Counters(max(floor.highest, gone.highest), max(floor.fence, gone.fence))

    def is_outdone(self, lock: str, fence: int) -> bool:
        """Return whether a higher fence was voted for, so that this one is granted no more (B8).

        Its holder may still hold the lock, and renew: only the grant is not sent again.
        """
        return self.counters_of(lock).fence > fence

    def get(self, lock: str, key: Key) -> Entry | None:
        """Return the entry of that request."""
        queue = self.queues.get(lock)
        return queue.entries.get(key) if queue is not None else None

    def put(
        self, ticket: Ticket, owner: str, now: Instant, until: Instant | None, fence: int = 0
    ) -> Entry | None:
        """Add a ticket that enters, or has its number; return None if it is over or outdated.

        Waits of its owner with earlier requests give way; not a ticket that may hold (``fence``).
        """
        if self.past.is_over(ticket, fence) or (self._is_outdated(ticket) and not fence):
            return None
        entry = self.get(ticket.lock, Key(ticket.who, ticket.request))
        if entry is None:
            entry = self._add(Entry(ticket, owner, Phase.ENTERING, now, until))
        elif entry.phase is Phase.HOLDING or _is_late(entry, ticket, owner):
            return entry
        queue = self.queues[ticket.lock]
        self._unfile(queue, entry)
        entry.ticket, entry.owner, entry.until = ticket, owner, until
        self.expiry.put(entry)
        entry.phase = Phase.WAITING if ticket.turn.number else Phase.ENTERING
        self._file(queue, entry)
        self.note(ticket.lock, ticket.turn.number)
        return entry

    def _add(self, entry: Entry) -> Entry:
        queue = self.queues.setdefault(entry.ticket.lock, Queue())
        queue.entries[entry.key] = entry
        queue.of.setdefault(entry.ticket.who, []).append(entry.key)
        self.sessions.setdefault(entry.ticket.who.session, {})[entry] = None
        self.expiry.put(entry)
        self._file(queue, entry)
        self.size += 1
        return entry

    def _is_outdated(self, ticket: Ticket) -> bool:
        """Remove earlier waits of the same owner; return whether it has a later one."""
        for entry in self.of(ticket.lock, ticket.who):
            if entry.ticket.request > ticket.request:
                return True
            if entry.ticket.request < ticket.request and entry.phase is not Phase.HOLDING:
                self.remove(entry)
        return False

    def of(self, lock: str, who: Who) -> list[Entry]:
        """Return an owner's tickets for a lock."""
        queue = self.queues.get(lock)
        return [queue.entries[key] for key in queue.of.get(who, ())] if queue is not None else []

    def named(self, lock: str, who: Who, request: int, fence: int) -> list[Entry]:
        """Return the entries that a drop of ``request``, or of ``fence`` (each may be 0), means."""
        return [entry for entry in self.of(lock, who) if is_named(entry, request, fence)]

    def of_session(self, session: str) -> list[Entry]:
        """Return the entries of all owners of a session."""
        return list(self.sessions.get(session, ()))

    def set_until(self, entry: Entry, until: Instant | None) -> None:
        """Set the end of ``entry``, None for never; do nothing if it is not in the table."""
        if self.get(entry.ticket.lock, entry.key) is entry:
            entry.until = until
            self.expiry.put(entry)

    def prolong(self, entry: Entry, until: Instant) -> None:
        """Extend ``entry`` to last until then, if it ends earlier."""
        if entry.until is None or entry.until < until:
            self.set_until(entry, until)

    def vote(self, entry: Entry, fence: int, now: Instant) -> None:
        """Let ``entry`` hold its lock, from now for its lease."""
        queue = self.queues[entry.ticket.lock]
        self._unfile(queue, entry)
        entry.phase, entry.fence = Phase.HOLDING, fence
        entry.until = later(now, entry.ticket.lease_ms)
        self.expiry.put(entry)
        self._file(queue, entry)
        self.note(entry.ticket.lock, 0, fence)

    def unvote(self, entry: Entry, until: Instant | None) -> None:
        """Take the vote for ``entry`` back; do nothing if it is not in the table."""
        if self.get(entry.ticket.lock, entry.key) is not entry:
            return
        queue = self.queues[entry.ticket.lock]
        self._unfile(queue, entry)
        entry.phase, entry.fence, entry.until = Phase.WAITING, 0, until
        self.expiry.put(entry)
        self._file(queue, entry)

    def ahead(self, entry: Entry, now: Instant) -> Turn | None:
        """Return the first ticket ahead of ``entry``: one that holds, enters, or is earlier."""
        lock, mine = entry.ticket.lock, entry.key
        queue = self.queues[lock]
        for keys in (queue.holding, queue.entering):
            for key in list(keys):
                other = queue.entries[key]
                if key != mine and not self.forget(other, now):
                    return other.ticket.turn
        while queue.line and queue.line[0].turn < entry.ticket.turn:
            other = queue.entries[queue.line[0].key]
            if not self.forget(other, now):
                return other.ticket.turn
        return None

    def first(self, lock: str) -> Entry | None:
        """Return the first waiting entry."""
        queue = self.queues.get(lock)
        return queue.entries[queue.line[0].key] if queue is not None and queue.line else None

    def remove(self, entry: Entry) -> None:
        """Remove ``entry``."""
        lock = entry.ticket.lock
        queue = self.queues[lock]
        self._unfile(queue, entry)
        del queue.entries[entry.key]
        keys = queue.of[entry.ticket.who]
        keys.remove(entry.key)
        if not keys:
            del queue.of[entry.ticket.who]
        of_session = self.sessions[entry.ticket.who.session]
        del of_session[entry]
        if not of_session:
            del self.sessions[entry.ticket.who.session]
        self.expiry.take(entry)
        self.size -= 1
        if not queue.entries:
            del self.queues[lock]

    def drop(self, lock: str, who: Who, request: int, fence: int) -> bool:
        """Drop the entries that ``request`` or ``fence`` names; return whether they were known."""
        named = self.named(lock, who, request, fence)
        found = bool(named) or self.past.knows(lock, who, request, fence)
        for entry in named:
            self.remove(entry)
            self.past.drop(lock, who, entry.ticket.request, entry.fence)
        self.past.drop(lock, who, request, fence)
        return found

    def entries(self) -> Iterator[Entry]:
        """Return all entries, lock by lock."""
        for entry in [entry for queue in self.queues.values() for entry in queue.entries.values()]:
            if self.get(entry.ticket.lock, entry.key) is entry:  # Not dropped meanwhile.
                yield entry

    def forget_old(self, now: Instant) -> int:
        """Remove all entries that have ended; return their number."""
        return sum(self.forget(entry, now) for entry in self.expiry.over(now))

    def forget(self, entry: Entry, now: Instant) -> bool:
        """Remove ``entry`` if it has ended; return whether it had."""
        lock = entry.ticket.lock
        if not entry.is_over(now) or self.get(lock, entry.key) is not entry:
            return False
        self.remove(entry)
        if entry.phase is Phase.HOLDING and entry.until is not None:
            self.past.lapse(lock, entry.ticket.who, entry.ticket.request, entry.fence)
            self.past.note_lapse(lock, entry.until)
        return True

    def lapsed_at(self, lock: str, now: Instant) -> Instant | None:
        """Return when a vote for ``lock`` ended last by its lease, None for never."""
        queue = self.queues.get(lock)
        holds = [queue.entries[key] for key in queue.holding] if queue is not None else []
        ends = [e.until for e in holds if e.until is not None and e.is_over(now)]
        before = self.past.lapsed_at(lock)
        return max(ends if before is None else [before, *ends], default=None)

    def _file(self, queue: Queue, entry: Entry) -> None:
        match entry.phase:
            case Phase.ENTERING:
                queue.entering[entry.key] = None
            case Phase.WAITING:
                insort(queue.line, Place(entry.ticket.turn, entry.key))
            case Phase.HOLDING:
                queue.holding[entry.key] = None

    def _unfile(self, queue: Queue, entry: Entry) -> None:
        match entry.phase:
            case Phase.ENTERING:
                queue.entering.pop(entry.key, None)
            case Phase.WAITING:
                at = bisect_left(queue.line, Place(entry.ticket.turn, entry.key))
                if at < len(queue.line) and queue.line[at].key == entry.key:
                    del queue.line[at]
            case Phase.HOLDING:
                queue.holding.pop(entry.key, None)


def _is_late(entry: Entry, ticket: Ticket, owner: str) -> bool:
    """Return whether ``ticket`` is an old copy, from before it got the number it waits with."""
    same = (entry.owner, entry.ticket.turn.serial) == (owner, ticket.turn.serial)
    return same and entry.phase is Phase.WAITING and not ticket.turn.number
