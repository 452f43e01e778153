"""One leader's table: tickets that enter, wait and hold, its votes, and ended requests. Pure."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, islice
from typing import NamedTuple

from fencelock.actors.bakery.config import later
from fencelock.actors.bakery.ticket import (
    TICKET_NUMBER_MAX,
    Ticket,
    Turn,
    Who,
    counter_of,
    epoch_of,
)
from fencelock.actors.bakery.tombstones import Tombstones
from fencelock.actors.message import NS_PER_MS, Instant, ms_between


class TicketPhase(Enum):
    """State of a ticket in one leader's table."""

    ENTERING = "enters"
    WAITING = "waits"
    HOLDING = "holds"
    """This leader voted for it, which is the grant record: it votes for no other."""


class RequestKey(NamedTuple):
    """One request for a lock."""

    who: Who
    request: int


@dataclass(slots=True, eq=False)
class TicketEntry:
    """A ticket in the table.

    Attributes:
        owner: the leader that takes its steps.
        until: the end of the lease, for a hold. For a copy of another leader's ticket: the time at
            which it is dropped unless its owner repeats it. None for this leader's own tickets.
            Only the table sets it.
        round: the highest round in which votes were requested.
        fence: the fence under which it holds, 0 while it does not.
        shelf: its place in `Expiry`, or None for none.

    """

    ticket: Ticket
    owner: str
    phase: TicketPhase
    since: Instant
    until: Instant | None
    round: int = 0
    fence: int = 0
    shelf: int | None = None

    @property
    def shared(self) -> bool:
        return self.ticket.shared

    @property
    def key(self) -> RequestKey:
        return RequestKey(self.ticket.who, self.ticket.request)

    def is_over(self, now: Instant) -> bool:
        return self.until is not None and self.until <= now

    def lease_left_ms(self, now: Instant) -> int:
        """Return how long its lease lasts if it has a vote, or gets one now (ms)."""
        if self.phase is not TicketPhase.HOLDING or self.until is None:
            return self.ticket.lease_ms
        return ms_between(now, self.until)


def is_named(entry: TicketEntry, request: int, fence: int) -> bool:
    """Return whether ``entry`` is meant by a drop of ``request``, or ``fence`` (each may be 0)."""
    return entry.ticket.request <= request or (fence > 0 and entry.fence == fence)


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
        self.shelves: dict[int, dict[TicketEntry, None]] = {}
        self._order: list[int] = []
        """The numbers of all shelves, as a heap."""
        self._clear_at = SHELVES_MIN

    def put(self, entry: TicketEntry) -> None:
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

    def take(self, entry: TicketEntry) -> None:
        """Take ``entry`` off its shelf, if it is on one."""
        if entry.shelf is not None:
            del self.shelves[entry.shelf][entry]
            entry.shelf = None

    def last(self) -> Instant | None:
        """Return a time before which all entries with an end have ended, or None if none has."""
        last = max((number for number, shelf in self.shelves.items() if shelf), default=None)
        return None if last is None else Instant((last + 1) * SHELF_NS)

    def over(self, now: Instant) -> list[TicketEntry]:
        """Return the entries that have ended; only shelves whose second has begun are read."""
        found: list[TicketEntry] = []
        last = now // SHELF_NS
        while self._order and self._order[0] < last:
            found += self.shelves[self._order[0]]
            for entry in self.shelves.pop(heapq.heappop(self._order)):
                entry.shelf = None
        begun = self.shelves.get(last, ())
        return [*found, *(entry for entry in begun if entry.is_over(now))]


COUNTED_MAX = 100_000
"""Maximum locks whose counters are kept; the oldest are dropped first."""


class LinePlace(NamedTuple):
    """A waiting ticket in a lock's line."""

    turn: Turn
    key: RequestKey


@dataclass(slots=True, eq=False)
class ModeQueue:
    """The exclusive tickets of one lock, or its shared ones."""

    entering: dict[RequestKey, None] = field(default_factory=dict[RequestKey, None])
    line: list[LinePlace] = field(default_factory=list[LinePlace])
    """Waiting tickets, in the order of their turns."""
    holding: dict[RequestKey, None] = field(default_factory=dict[RequestKey, None])
    """Tickets that hold. Usually one exclusive ticket holds at most; after a hand-over there may be
    more, of which only one was granted."""


@dataclass(slots=True, eq=False)
class TicketQueue:
    """All tickets of one lock."""

    entries: dict[RequestKey, TicketEntry] = field(default_factory=dict[RequestKey, TicketEntry])
    of: dict[Who, list[RequestKey]] = field(default_factory=dict[Who, list[RequestKey]])
    """Requests by owner: usually one."""
    exclusive: ModeQueue = field(default_factory=ModeQueue)
    shared: ModeQueue = field(default_factory=ModeQueue)

    def against(self, *, shared: bool) -> tuple[ModeQueue, ...]:
        """Return the queues whose tickets conflict with a ticket of that mode."""
        return (self.exclusive,) if shared else (self.exclusive, self.shared)

    @property
    def entering(self) -> int:
        return len(self.exclusive.entering) + len(self.shared.entering)

    @property
    def waiting(self) -> int:
        return len(self.exclusive.line) + len(self.shared.line)

    def holders(self) -> list[TicketEntry]:
        """Return the entries that hold, in the order of their fences."""
        keys = chain(self.exclusive.holding, self.shared.holding)
        return sorted((self.entries[key] for key in keys), key=lambda entry: entry.fence)

    def waiters(self, most: int) -> list[TicketEntry]:
        """Return the first ``most`` entries that wait, in the order of their turns."""
        line = heapq.merge(self.exclusive.line, self.shared.line)
        return [self.entries[place.key] for place in islice(line, most)]


class Counters(NamedTuple):
    """Counters of a lock that outlive its queue."""

    highest: int
    """The highest number of a ticket."""
    fence: int
    """The highest fence that was voted for."""
    exclusive: int = 0
    """The highest fence that was voted for an exclusive ticket."""


NOTHING_DRAWN = Counters(0, 0)

HEAD_MAX = 100
"""Maximum number of shared tickets at the head of a line that begin a round for one event. The
others begin with the next event, or when they are due (`REFRESH_MS`)."""


@dataclass(slots=True)
class TicketTable:
    """All queues of a leader.

    Invariants: no-conflicting-votes, fences-rise, dropped-stays-dropped.
    """

    queues: dict[str, TicketQueue] = field(default_factory=dict[str, TicketQueue])
    size: int = 0
    counters: OrderedDict[str, Counters] = field(default_factory=OrderedDict[str, Counters])
    floor: Counters = NOTHING_DRAWN
    """Upper bound on the counters that were dropped for any lock."""
    tombstones: Tombstones = field(default_factory=Tombstones)
    expiry: Expiry = field(default_factory=Expiry)
    sessions: dict[str, dict[TicketEntry, None]] = field(
        default_factory=dict[str, dict[TicketEntry, None]]
    )
    """Tickets of each session."""

    def counters_of(self, lock: str) -> Counters:
        return self.counters.get(lock, self.floor)

    def highest(self, lock: str, epoch: int) -> int:
        """Return the highest number of a ticket for ``lock``, or counter of a fence in ``epoch``.

        Counters of earlier epochs do not matter, so what a rogue leader claims ends with its epoch.
        """
        known = self.counters_of(lock)
        return max(known.highest, counter_of(known.fence) if epoch_of(known.fence) == epoch else 0)

    def forget_numbers(self) -> None:
        """Forget all numbers but those of tickets in the table, at the start of an epoch."""
        self.floor = self.floor._replace(highest=0)
        for lock, known in self.counters.items():
            queue = self.queues.get(lock)
            entries = () if queue is None else queue.entries.values()
            highest = max((one.ticket.turn.number for one in entries), default=0)
            self.counters[lock] = known._replace(highest=highest)

    def note(self, lock: str, highest: int, fence: int = 0, *, shared: bool = False) -> None:
        """Store that this number, and this fence for a ticket of that mode, were drawn."""
        known = self.counters_of(lock)
        exclusive = known.exclusive if shared else max(known.exclusive, fence)
        fence = max(known.fence, fence)
        highest = max(known.highest, min(highest, TICKET_NUMBER_MAX))
        self.counters[lock] = Counters(highest, fence, exclusive)
        self.counters.move_to_end(lock)
        if len(self.counters) > COUNTED_MAX:
            _, gone = self.counters.popitem(last=False)
            self.floor = Counters(*map(max, self.floor, gone))

    def last_against(self, ticket: Ticket) -> int:
        known = self.counters_of(ticket.lock)
        return known.exclusive if ticket.shared else known.fence

    def is_outdone(self, ticket: Ticket, fence: int) -> bool:
        """Return whether a conflicting ticket has got a vote under a higher fence (fences-rise).

        Then the grant of ``ticket`` is not sent again. Its owner may still hold the lock, and
        renew. Shared tickets do not outdo each other.
        """
        return self.last_against(ticket) > fence

    def get(self, lock: str, key: RequestKey) -> TicketEntry | None:
        queue = self.queues.get(lock)
        return queue.entries.get(key) if queue is not None else None

    def put(
        self, ticket: Ticket, owner: str, now: Instant, until: Instant | None, fence: int = 0
    ) -> TicketEntry | None:
        """Add a ticket, with or without its number; return None if it cannot be added.

        That is the case if the ticket is over or outdated, or if the request is known in the other
        mode. Earlier requests of its owner that wait are removed, and outdated tickets are only
        added if they may hold (``fence``).
        """
        if self.tombstones.is_over(ticket, fence) or (self._is_outdated(ticket) and not fence):
            return None
        entry = self.get(ticket.lock, RequestKey(ticket.who, ticket.request))
        if entry is None:
            entry = TicketEntry(ticket, owner, TicketPhase.ENTERING, now, until)
            self._add(entry)
        elif entry.shared != ticket.shared:
            return None  # The mode is part of a request, so this is another request.
        elif entry.phase is TicketPhase.HOLDING or _is_late(entry, ticket, owner):
            return entry
        queue = self.queues[ticket.lock]
        self._unfile(queue, entry)
        entry.ticket, entry.owner, entry.until = ticket, owner, until
        self.expiry.put(entry)
        entry.phase = TicketPhase.WAITING if ticket.turn.number else TicketPhase.ENTERING
        self._file(queue, entry)
        self.note(ticket.lock, ticket.turn.number)
        return entry

    def _add(self, entry: TicketEntry) -> None:
        queue = self.queues.setdefault(entry.ticket.lock, TicketQueue())
        queue.entries[entry.key] = entry
        queue.of.setdefault(entry.ticket.who, []).append(entry.key)
        self.sessions.setdefault(entry.ticket.who.session, {})[entry] = None
        self.expiry.put(entry)
        self._file(queue, entry)
        self.size += 1

    def _is_outdated(self, ticket: Ticket) -> bool:
        """Remove earlier waits of the same owner; return whether it has a later one."""
        for entry in self.of(ticket.lock, ticket.who):
            if entry.ticket.request > ticket.request:
                return True
            if entry.ticket.request < ticket.request and entry.phase is not TicketPhase.HOLDING:
                self.remove(entry)
        return False

    def of(self, lock: str, who: Who) -> list[TicketEntry]:
        queue = self.queues.get(lock)
        return [queue.entries[key] for key in queue.of.get(who, ())] if queue is not None else []

    def named(self, lock: str, who: Who, request: int, fence: int) -> list[TicketEntry]:
        return [entry for entry in self.of(lock, who) if is_named(entry, request, fence)]

    def of_session(self, session: str) -> list[TicketEntry]:
        return list(self.sessions.get(session, ()))

    def set_until(self, entry: TicketEntry, until: Instant | None) -> None:
        """Set the end of ``entry`` (None: never); do nothing if it is not in the table."""
        if self.get(entry.ticket.lock, entry.key) is entry:
            entry.until = until
            self.expiry.put(entry)

    def extend_until(self, entry: TicketEntry, until: Instant) -> None:
        """Extend ``entry`` to last until then, if it ends earlier."""
        if entry.until is None or entry.until < until:
            self.set_until(entry, until)

    def vote(self, entry: TicketEntry, fence: int, now: Instant) -> None:
        """Let ``entry`` hold its lock, from now for its lease."""
        queue = self.queues[entry.ticket.lock]
        self._unfile(queue, entry)
        entry.phase, entry.fence = TicketPhase.HOLDING, fence
        entry.until = later(now, entry.ticket.lease_ms)
        self.expiry.put(entry)
        self._file(queue, entry)
        self.note(entry.ticket.lock, 0, fence, shared=entry.shared)

    def unvote(self, entry: TicketEntry, until: Instant | None) -> None:
        """Take back the vote for ``entry``; do nothing if it is not in the table."""
        if self.get(entry.ticket.lock, entry.key) is not entry:
            return
        queue = self.queues[entry.ticket.lock]
        self._unfile(queue, entry)
        entry.phase, entry.fence, entry.until = TicketPhase.WAITING, 0, until
        self.expiry.put(entry)
        self._file(queue, entry)

    def ahead(self, entry: TicketEntry, now: Instant) -> Turn | None:
        """Return the first ticket ahead of ``entry``: one that holds, enters, or is earlier.

        Shared tickets are not ahead of each other. An entering shared ticket is not ahead of an
        exclusive one either: it draws a higher number, and readers that come and go would otherwise
        keep a writer waiting forever.
        """
        lock, mine = entry.ticket.lock, entry.key
        queue = self.queues[lock]
        against = queue.against(shared=entry.shared)
        for keys in (*(others.holding for others in against), queue.exclusive.entering):
            while (key := next((key for key in keys if key != mine), None)) is not None:
                other = queue.entries[key]
                if not self.forget(other, now):
                    return other.ticket.turn
        for others in against:
            while others.line and others.line[0].turn < entry.ticket.turn:
                other = queue.entries[others.line[0].key]
                if not self.forget(other, now):
                    return other.ticket.turn
        return None

    def holds_against(self, entry: TicketEntry, now: Instant) -> list[TicketEntry]:
        """Return the entries that hold the lock of ``entry`` and conflict with it."""
        queue = self.queues[entry.ticket.lock]
        against = queue.against(shared=entry.shared)
        holds = [queue.entries[key] for others in against for key in others.holding]
        return [one for one in holds if one is not entry and not one.is_over(now)]

    def head(self, lock: str) -> list[TicketEntry]:
        """Return the first waiting entry, or all shared ones before the first exclusive one."""
        queue = self.queues.get(lock)
        if queue is None or not (queue.exclusive.line or queue.shared.line):
            return []
        first, shared = queue.exclusive.line[:1], queue.shared.line
        end = bisect_left(shared, first[0]) if first else len(shared)
        places = shared[: min(end, HEAD_MAX)] or first
        return [queue.entries[place.key] for place in places]

    def remove(self, entry: TicketEntry) -> None:
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
        found = bool(named) or self.tombstones.knows(lock, who, request, fence)
        for entry in named:
            self.remove(entry)
            self.tombstones.drop(lock, who, entry.ticket.request, entry.fence)
        self.tombstones.drop(lock, who, request, fence)
        return found

    def entries(self) -> Iterator[TicketEntry]:
        for entry in [entry for queue in self.queues.values() for entry in queue.entries.values()]:
            if self.get(entry.ticket.lock, entry.key) is entry:  # Not dropped meanwhile.
                yield entry

    def longest_ms(self, now: Instant) -> int:
        """Return a time within which all leases in the table end (ms)."""
        last = self.expiry.last()
        return 0 if last is None else max(0, ms_between(now, last) + 1)

    def forget_old(self, now: Instant) -> int:
        return sum(self.forget(entry, now) for entry in self.expiry.over(now))

    def forget(self, entry: TicketEntry, now: Instant) -> bool:
        """Remove ``entry`` if it has ended; return whether it had."""
        lock = entry.ticket.lock
        if not entry.is_over(now) or self.get(lock, entry.key) is not entry:
            return False
        self.remove(entry)
        if entry.phase is TicketPhase.HOLDING and entry.until is not None:
            self.tombstones.expire(lock, entry.ticket.who, entry.ticket.request, entry.fence)
            self.tombstones.note_expiry(lock, entry.until)
        return True

    def expired_at(self, lock: str, now: Instant) -> Instant | None:
        """Return when a vote for ``lock`` last ended with its lease, or None if none ever did."""
        queue = self.queues.get(lock)
        holds = queue.holders() if queue is not None else []
        ends = [e.until for e in holds if e.until is not None and e.is_over(now)]
        before = self.tombstones.expired_at(lock)
        return max(ends if before is None else [before, *ends], default=None)

    def _file(self, queue: TicketQueue, entry: TicketEntry) -> None:
        mode = queue.shared if entry.shared else queue.exclusive
        match entry.phase:
            case TicketPhase.ENTERING:
                mode.entering[entry.key] = None
            case TicketPhase.WAITING:
                insort(mode.line, LinePlace(entry.ticket.turn, entry.key))
            case TicketPhase.HOLDING:
                mode.holding[entry.key] = None

    def _unfile(self, queue: TicketQueue, entry: TicketEntry) -> None:
        mode = queue.shared if entry.shared else queue.exclusive
        match entry.phase:
            case TicketPhase.ENTERING:
                mode.entering.pop(entry.key, None)
            case TicketPhase.WAITING:
                at = bisect_left(mode.line, LinePlace(entry.ticket.turn, entry.key))
                if at < len(mode.line) and mode.line[at].key == entry.key:
                    del mode.line[at]
            case TicketPhase.HOLDING:
                mode.holding.pop(entry.key, None)


def _is_late(entry: TicketEntry, ticket: Ticket, owner: str) -> bool:
    """Return whether ``ticket`` is an old copy, from before it got the number it waits with."""
    same = (entry.owner, entry.ticket.turn.serial) == (owner, ticket.turn.serial)
    return same and entry.phase is TicketPhase.WAITING and not ticket.turn.number
