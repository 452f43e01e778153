"""One leader's table: who enters, waits and holds, and for whom it has voted. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from holdfast.actors.bakery.config import later
from holdfast.actors.bakery.ticket import Ticket, Turn, Who, counter_of
from holdfast.actors.message import Instant

REMEMBERED_MAX = 100_000
"""Locks whose counters, and requests whose ends, are remembered; the oldest go first."""


class Phase(Enum):
    """Where a ticket stands in one leader's table."""

    ENTERING = "enters"
    WAITING = "waits"
    HOLDING = "holds"
    """This leader voted for it, which is the grant record: it votes for nobody else."""


class Key(NamedTuple):
    """One request for a lock."""

    who: Who
    request: int


@dataclass(slots=True, eq=False)
class Entry:
    """A ticket in the table.

    Attributes:
        owner: the leader that takes its steps.
        round: the highest round of votes that was asked for.
        fence: under which it holds, 0 while it does not.
        until: of a hold: when its lease is over. Else: when a copy is forgotten that its
            owner did not repeat; None for a ticket of this leader's own.

    """

    ticket: Ticket
    owner: str
    phase: Phase
    since: Instant
    until: Instant | None
    round: int = 0
    fence: int = 0

    @property
    def key(self) -> Key:
        """Return which request it is."""
        return Key(self.ticket.who, self.ticket.request)

    def is_over(self, now: Instant) -> bool:
        """Return whether its lease, or its time as a copy, is over."""
        return self.until is not None and self.until <= now


class Place(NamedTuple):
    """A waiting ticket in a lock's line."""

    turn: Turn
    key: Key


@dataclass(slots=True, eq=False)
class Queue:
    """Everything about one lock that somebody wants."""

    entries: dict[Key, Entry] = field(default_factory=dict[Key, Entry])
    of: dict[Who, list[Key]] = field(default_factory=dict[Who, list[Key]])
    """By owner: mostly one."""
    entering: dict[Key, None] = field(default_factory=dict[Key, None])
    line: list[Place] = field(default_factory=list[Place])
    """Who waits, in the order of their turns."""
    holding: dict[Key, None] = field(default_factory=dict[Key, None])
    """Mostly one. More only after a hand-over: of two, nobody may know which one is real."""


class Counters(NamedTuple):
    """What was drawn for a lock here, and outlives its queue."""

    highest: int
    """The highest number of a ticket, or counter of a fence."""
    fence: int
    """The highest fence that was voted for."""


NOTHING_DRAWN = Counters(0, 0)


@dataclass(slots=True)
class Table:
    """All of it. Invariants: B5, B8, B10; see the README of this folder."""

    queues: dict[str, Queue] = field(default_factory=dict[str, Queue])
    size: int = 0
    counters: OrderedDict[str, Counters] = field(default_factory=OrderedDict[str, Counters])
    floor: Counters = NOTHING_DRAWN
    """At least what was forgotten of any lock."""
    done: OrderedDict[tuple[str, Who], tuple[int, int]] = field(
        default_factory=OrderedDict[tuple[str, Who], tuple[int, int]]
    )
    """Of each owner at a lock: its last request that ended, and the fence it had (0: none)."""

    def counters_of(self, lock: str) -> Counters:
        """Return what is known to have been drawn for ``lock``."""
        return self.counters.get(lock, self.floor)

    def note(self, lock: str, highest: int, fence: int = 0) -> None:
        """Remember that these were drawn for ``lock``."""
        known = self.counters_of(lock)
        fence = max(known.fence, fence)
        self.counters[lock] = Counters(max(known.highest, highest, counter_of(fence)), fence)
        self.counters.move_to_end(lock)
        if len(self.counters) > REMEMBERED_MAX:
            _, gone = self.counters.popitem(last=False)
            floor = self.floor
            self.floor = Counters(max(floor.highest, gone.highest), max(floor.fence, gone.fence))

    def is_done(self, ticket: Ticket) -> bool:
        """Return whether ``ticket``, or a later one of its owner, ended before (B10)."""
        return self.done.get((ticket.lock, ticket.who), (0, 0))[0] >= ticket.request

    def get(self, lock: str, key: Key) -> Entry | None:
        """Return the entry of that request."""
        queue = self.queues.get(lock)
        return queue.entries.get(key) if queue is not None else None

    def put(
        self, ticket: Ticket, owner: str, now: Instant, until: Instant | None, fence: int = 0
    ) -> Entry | None:
        """Take in a ticket that enters, or has its number; None if it is over or outdated.

        What waits of its owner with an earlier request gives way; not what may hold (``fence``).
        """
        if self.is_done(ticket) or (self._is_outdated(ticket) and not fence):
            return None
        entry = self.get(ticket.lock, Key(ticket.who, ticket.request))
        if entry is None:
            entry = self._add(Entry(ticket, owner, Phase.ENTERING, now, until))
        elif entry.phase is Phase.HOLDING or _is_late(entry, ticket, owner):
            return entry
        queue = self.queues[ticket.lock]
        self._unfile(queue, entry)
        entry.ticket, entry.owner, entry.until = ticket, owner, until
        entry.phase = Phase.WAITING if ticket.turn.number else Phase.ENTERING
        self._file(queue, entry)
        self.note(ticket.lock, ticket.turn.number)
        return entry

    def _add(self, entry: Entry) -> Entry:
        queue = self.queues.setdefault(entry.ticket.lock, Queue())
        queue.entries[entry.key] = entry
        queue.of.setdefault(entry.ticket.who, []).append(entry.key)
        self._file(queue, entry)
        self.size += 1
        return entry

    def _is_outdated(self, ticket: Ticket) -> bool:
        """Let earlier waits of the same owner give way; return whether it has a later one."""
        for entry in self.of(ticket.lock, ticket.who):
            if entry.ticket.request > ticket.request:
                return True
            if entry.ticket.request < ticket.request and entry.phase is not Phase.HOLDING:
                self.remove(entry)
        return False

    def of(self, lock: str, who: Who) -> list[Entry]:
        """Return what an owner wants of a lock, or holds."""
        queue = self.queues.get(lock)
        return [queue.entries[key] for key in queue.of.get(who, ())] if queue is not None else []

    def vote(self, entry: Entry, fence: int, now: Instant) -> None:
        """Let ``entry`` hold its lock, from now for its lease."""
        queue = self.queues[entry.ticket.lock]
        self._unfile(queue, entry)
        entry.phase, entry.fence = Phase.HOLDING, fence
        entry.until = later(now, entry.ticket.lease_ms)
        self._file(queue, entry)
        self.note(entry.ticket.lock, 0, fence)

    def unvote(self, entry: Entry, until: Instant | None) -> None:
        """Let ``entry`` wait again: its vote is given back. Nothing, if it is not in the table."""
        if self.get(entry.ticket.lock, entry.key) is not entry:
            return
        queue = self.queues[entry.ticket.lock]
        self._unfile(queue, entry)
        entry.phase, entry.fence, entry.until = Phase.WAITING, 0, until
        self._file(queue, entry)

    def ahead(self, entry: Entry, now: Instant) -> Turn | None:
        """Return the first that is in the way of ``entry``: who holds, enters, or is earlier."""
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
        """Return the first that waits."""
        queue = self.queues.get(lock)
        return queue.entries[queue.line[0].key] if queue is not None and queue.line else None

    def remove(self, entry: Entry) -> None:
        """Take ``entry`` out."""
        lock = entry.ticket.lock
        queue = self.queues[lock]
        self._unfile(queue, entry)
        del queue.entries[entry.key]
        keys = queue.of[entry.ticket.who]
        keys.remove(entry.key)
        if not keys:
            del queue.of[entry.ticket.who]
        self.size -= 1
        if not queue.entries:
            del self.queues[lock]

    def finish(self, lock: str, who: Who, request: int, fence: int = 0) -> None:
        """Remember that this request, and all earlier ones of its owner, ended."""
        before, held = self.done.pop((lock, who), (0, 0))
        self.done[lock, who] = (max(request, before), fence or held)
        if len(self.done) > REMEMBERED_MAX:
            self.done.popitem(last=False)

    def drop(self, lock: str, who: Who, request: int, fence: int) -> bool:
        """End what ``request`` or ``fence`` names; return whether it was known."""
        named = [entry for entry in self.of(lock, who) if is_named(entry, request, fence)]
        ended, held = self.done.get((lock, who), (0, 0))
        for entry in named:
            self.remove(entry)
            self.finish(lock, who, entry.ticket.request, entry.fence)
        if request:
            self.finish(lock, who, request)
        return bool(named) or (held == fence if fence else ended >= request)

    def entries(self) -> Iterator[Entry]:
        """Return all entries, lock by lock."""
        for entry in [entry for queue in self.queues.values() for entry in queue.entries.values()]:
            if self.get(entry.ticket.lock, entry.key) is entry:  # Not dropped meanwhile.
                yield entry

    def forget_old(self, now: Instant) -> int:
        """Take out whatever is over; return how much."""
        return sum(self.forget(entry, now) for entry in self.entries())

    def forget(self, entry: Entry, now: Instant) -> bool:
        """Take out ``entry`` if its time is over; return whether it was."""
        if not entry.is_over(now) or self.get(entry.ticket.lock, entry.key) is not entry:
            return False
        self.remove(entry)
        if entry.phase is Phase.HOLDING:
            self.finish(entry.ticket.lock, entry.ticket.who, entry.ticket.request)
        return True

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


def is_named(entry: Entry, request: int, fence: int) -> bool:
    """Return whether a drop of ``request``, or of ``fence`` (each may be 0), means ``entry``."""
    return entry.ticket.request <= request or (fence > 0 and entry.fence == fence)


def _is_late(entry: Entry, ticket: Ticket, owner: str) -> bool:
    """Return whether ``ticket`` enters, which it did before it got the number it waits with."""
    same = (entry.owner, entry.ticket.turn.serial) == (owner, ticket.turn.serial)
    return same and entry.phase is Phase.WAITING and not ticket.turn.number
