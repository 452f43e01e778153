"""One leader's table: tickets that enter, wait and hold, its votes, and ended requests. Pure.

A table remembers two kinds of ended requests. A request that its client dropped has ended for good.
A hold that expired has ended by the clock of this leader only, which may have missed a renewal:
other leaders may still have the hold, under the same fence or under that of a later round.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from fencelock.actors.api.name import account_of
from fencelock.actors.bakery.ticket import (
    TICKET_NUMBER_MAX,
    EndedRequests,
    RequestKey,
    Ticket,
    Turn,
    Who,
    counter_of,
    epoch_of,
)
from fencelock.actors.deadline_queue import DeadlineQueue
from fencelock.actors.message import Instant, later, ms_between


class TicketPhase(Enum):
    """State of a ticket in one leader's table."""

    ENTERING = "enters"
    WAITING = "waits"
    HOLDING = "holds"
    """This leader voted for it, which is the grant record: it votes for no other."""


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

    """

    ticket: Ticket
    owner: str
    phase: TicketPhase
    since: Instant
    until: Instant | None
    round: int = 0
    fence: int = 0
    key: RequestKey = field(init=False)
    """The key of its ticket, made once: searches in a line compare many."""

    def __post_init__(self) -> None:
        self.key = self.ticket.key

    @property
    def shared(self) -> bool:
        return self.ticket.shared

    @property
    def holds(self) -> bool:
        return self.phase is TicketPhase.HOLDING

    def is_over(self, now: Instant) -> bool:
        return self.until is not None and self.until <= now

    def lease_left_ms(self, now: Instant) -> int:
        """Return how long its lease lasts if it has a vote, or gets one now (ms)."""
        if not self.holds or self.until is None:
            return self.ticket.lease_ms
        return ms_between(now, self.until)


COUNTED_MAX = 100_000
"""Maximum locks whose counters are kept; the oldest are dropped first."""


def _place(entry: TicketEntry) -> tuple[Turn, RequestKey]:
    return entry.ticket.turn, entry.key


@dataclass(slots=True, eq=False)
class ModeQueue:
    """The exclusive tickets of one lock, or its shared ones."""

    entering: dict[TicketEntry, None] = field(default_factory=dict[TicketEntry, None])
    line: list[TicketEntry] = field(default_factory=list[TicketEntry])
    """Waiting tickets, in the order of their turns."""
    holding: dict[TicketEntry, None] = field(default_factory=dict[TicketEntry, None])
    """Tickets that hold. Usually one exclusive ticket holds at most; after a hand-over there may be
    more, of which only one was granted."""


@dataclass(slots=True, eq=False)
class TicketQueue:
    """All tickets of one lock."""

    of: dict[Who, list[TicketEntry]] = field(default_factory=dict[Who, list[TicketEntry]])
    """Tickets by owner: usually one."""
    exclusive: ModeQueue = field(default_factory=ModeQueue)
    shared: ModeQueue = field(default_factory=ModeQueue)
    by_fence: list[TicketEntry] | None = None
    """All that hold, in the order of their fences; None after a change, until it is needed again.
    It is not kept in order meanwhile, since thousands may end between two queries."""

    def against(self, *, shared: bool) -> tuple[ModeQueue, ...]:
        """Return the queues whose tickets conflict with a ticket of that mode."""
        return (self.exclusive,) if shared else (self.exclusive, self.shared)

    @property
    def entering(self) -> int:
        return len(self.exclusive.entering) + len(self.shared.entering)

    @property
    def waiting(self) -> int:
        return len(self.exclusive.line) + len(self.shared.line)

    @property
    def holding(self) -> int:
        return len(self.exclusive.holding) + len(self.shared.holding)

    @property
    def tickets(self) -> int:
        return self.entering + self.waiting + self.holding

    def holders(self) -> list[TicketEntry]:
        """Return all that hold, in the order of their fences. The caller does not change it."""
        if self.by_fence is None:
            holding = (*self.exclusive.holding, *self.shared.holding)
            self.by_fence = sorted(holding, key=attrgetter("fence"))
        return self.by_fence

    def waiters(self, most: int) -> list[TicketEntry]:
        return [*islice(heapq.merge(self.exclusive.line, self.shared.line, key=_place), most)]


NO_TICKETS = TicketQueue()


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


REMEMBERED_MAX = 100_000
"""Maximum number of owners whose ended requests are kept. The oldest are dropped first."""


class Ends(NamedTuple):
    """The ended requests of one owner at one lock."""

    dropped: int = 0
    """The last request that the client dropped. It and all earlier ones have ended."""
    held: int = 0
    """The highest fence of a hold that the client dropped, or 0 for none."""
    request: int = 0
    """The request that was granted under ``held``, or 0 if it is not known."""
    expired: int = 0
    """The last request whose hold expired here."""
    fence: int = 0
    """The fence under which `expired` held."""


NOTHING_ENDED = Ends()


class Tombstones:
    """Stores ended requests, so that a late copy of a step does not revive them.

    Invariant: dropped-stays-dropped.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[str, Who], Ends] = OrderedDict()
        self._expiries: OrderedDict[str, Instant] = OrderedDict()
        """The time at which the lease of a hold last ended, by lock."""
        self._expired_before: Instant | None = None
        """The latest of the times that `_expiries` no longer has."""

    def of(self, lock: str, who: Who) -> Ends:
        return self._ends.get((lock, who), NOTHING_ENDED)

    def is_over(self, ticket: Ticket, fence: int = 0) -> bool:
        """Return whether ``ticket``, which may hold under ``fence``, has ended.

        A hold that expired here has not ended if other leaders still have it: under the same fence,
        or under the higher fence of a later round.
        """
        ends = self._ends.get((ticket.lock, ticket.who))
        if ends is None:
            return False
        if ticket.request <= ends.dropped or (fence > 0 and fence == ends.held):
            return True
        expired = ticket.request == ends.expired and fence < ends.fence
        return expired or ticket.request < ends.expired

    def expired_under(self, ticket: Ticket, fence: int) -> bool:
        ends = self.of(ticket.lock, ticket.who)
        return (ticket.request, fence) == (ends.expired, ends.fence)

    def drop(self, lock: str, who: Who, request: int, fence: int = 0) -> None:
        """Store that a client dropped this request, or with 0 the one granted under ``fence``.

        An owner's fences rise. So a late copy of an earlier drop does not replace a later one,
        which the client may send again if its reply was lost.
        """
        ends = self.of(lock, who)
        if fence and fence == ends.fence:
            request = max(request, ends.expired)
        ends = ends._replace(dropped=max(request, ends.dropped))
        if fence and fence >= ends.held:
            known = ends.request if fence == ends.held else 0
            ends = ends._replace(held=fence, request=max(request, known))
        self._keep(lock, who, ends)

    def expire(self, lock: str, who: Who, request: int, fence: int) -> None:
        ends = self.of(lock, who)
        if (request, fence) > (ends.expired, ends.fence):
            self._keep(lock, who, ends._replace(expired=request, fence=fence))

    def note_expiry(self, lock: str, at: Instant) -> None:
        self._expiries[lock] = max(at, self._expiries.get(lock, at))
        self._expiries.move_to_end(lock)
        if len(self._expiries) > REMEMBERED_MAX:
            _, gone = self._expiries.popitem(last=False)
            self._expired_before = max(gone, self._expired_before or gone)

    def expired_at(self, lock: str) -> Instant | None:
        """Return the latest time at which the lease of a hold of ``lock`` ended, or may have."""
        return self._expiries.get(lock, self._expired_before)

    def _keep(self, lock: str, who: Who, ends: Ends) -> None:
        self._ends[lock, who] = ends
        self._ends.move_to_end((lock, who))
        if len(self._ends) > REMEMBERED_MAX:
            self._ends.popitem(last=False)

    def knows(self, lock: str, who: Who, request: int, fence: int) -> bool:
        """Return whether the target of a drop, named by fence or by request, has ended."""
        ends = self.of(lock, who)
        return ends.held == fence if fence else max(ends.dropped, ends.expired) >= request

    def request_of(self, lock: str, who: Who, fence: int) -> int:
        """Return the ended request that held under ``fence``, or 0 if it is not known."""
        ends = self.of(lock, who)
        if fence == ends.held:
            return ends.request
        return ends.expired if fence == ends.fence else 0

    def newest(self, most: int) -> list[EndedRequests]:
        found: list[EndedRequests] = []
        for (lock, who), ends in islice(reversed(self._ends.items()), most):
            highest = max(ends.held, ends.fence)
            found.append(EndedRequests(lock, who, ends.dropped, ends.held, highest, highest))
        return found


@dataclass(slots=True)
class TicketTable:
    """All queues of a leader.

    Invariants: no-conflicting-votes, fences-rise, dropped-stays-dropped.
    """

    by_key: dict[RequestKey, TicketEntry] = field(default_factory=dict[RequestKey, TicketEntry])
    queues: dict[str, TicketQueue] = field(default_factory=dict[str, TicketQueue])
    counters: OrderedDict[str, Counters] = field(default_factory=OrderedDict[str, Counters])
    floor: Counters = NOTHING_DRAWN
    """Upper bound on the counters that were dropped for any lock."""
    tombstones: Tombstones = field(default_factory=Tombstones)
    ends: DeadlineQueue[TicketEntry] = field(default_factory=DeadlineQueue[TicketEntry])
    sessions: dict[str, dict[TicketEntry, None]] = field(
        default_factory=dict[str, dict[TicketEntry, None]]
    )
    """Tickets of each session."""
    by_account: dict[str, int] = field(default_factory=dict[str, int])
    """Number of tickets that are charged to each key, by its name; see `account_of`."""

    def __len__(self) -> int:
        return len(self.by_key)

    def queue(self, lock: str) -> TicketQueue:
        """Return the tickets of ``lock``, which the caller does not change."""
        return self.queues.get(lock, NO_TICKETS)

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
            self.counters[lock] = known._replace(highest=0)
        for entry in self.by_key.values():
            self.note(entry.ticket.lock, entry.ticket.turn.number)

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
        """Return the highest fence that was voted for a ticket that conflicts with ``ticket``."""
        known = self.counters_of(ticket.lock)
        return known.exclusive if ticket.shared else known.fence

    def is_outdone(self, ticket: Ticket, fence: int) -> bool:
        """Return whether a conflicting ticket has got a vote under a higher fence (fences-rise).

        Then the grant of ``ticket`` is not sent again. Its owner may still hold the lock, and
        renew. Shared tickets do not outdo each other.
        """
        return self.last_against(ticket) > fence

    def get(self, key: RequestKey) -> TicketEntry | None:
        return self.by_key.get(key)

    def has(self, entry: TicketEntry) -> bool:
        return self.by_key.get(entry.key) is entry

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
        entry = self.get(ticket.key)
        if entry is None:
            entry = TicketEntry(ticket, owner, TicketPhase.ENTERING, now, until)
            self._add(entry)
        elif entry.shared != ticket.shared:
            return None  # The mode is part of a request, so this is another request.
        elif entry.holds or _is_late(entry, ticket, owner):
            return entry
        else:
            self._unfile(entry)
        entry.ticket, entry.owner = ticket, owner
        phase = TicketPhase.WAITING if ticket.turn.number else TicketPhase.ENTERING
        self._file(entry, phase, 0, until)
        self.note(ticket.lock, ticket.turn.number)
        return entry

    def _add(self, entry: TicketEntry) -> None:
        who = entry.ticket.who
        self.by_key[entry.key] = entry
        queue = self.queues.setdefault(entry.ticket.lock, TicketQueue())
        queue.of.setdefault(who, []).append(entry)
        self.sessions.setdefault(who.session, {})[entry] = None
        self._charge(who.session, 1)

    def _charge(self, session: str, tickets: int) -> None:
        account = account_of(session)
        has = self.by_account.get(account, 0) + tickets
        if has:
            self.by_account[account] = has
        else:
            del self.by_account[account]

    def _is_outdated(self, ticket: Ticket) -> bool:
        """Remove earlier waits of the same owner; return whether it has a later one."""
        for entry in self.of(ticket.lock, ticket.who):
            if entry.ticket.request > ticket.request:
                return True
            if entry.ticket.request < ticket.request and not entry.holds:
                self.remove(entry)
        return False

    def of(self, lock: str, who: Who) -> list[TicketEntry]:
        return [*self.queue(lock).of.get(who, ())]

    def named(self, lock: str, who: Who, request: int, fence: int) -> list[TicketEntry]:
        """Return the entries that a drop of ``request``, or ``fence``, means (each may be 0)."""
        return [
            entry
            for entry in self.of(lock, who)
            if entry.ticket.request <= request or (fence > 0 and entry.fence == fence)
        ]

    def of_session(self, session: str, most: int) -> list[TicketEntry]:
        return [*islice(self.sessions.get(session, ()), most)]

    def set_until(self, entry: TicketEntry, until: Instant | None) -> None:
        """Set the end of ``entry`` (None: never); do nothing if it is not in the table."""
        if self.has(entry):
            entry.until = until
            self.ends.set(entry, until)

    def extend_until(self, entry: TicketEntry, until: Instant) -> None:
        if entry.until is None or entry.until < until:
            self.set_until(entry, until)

    def vote(self, entry: TicketEntry, fence: int, now: Instant) -> None:
        """Let ``entry`` hold its lock, from now for its lease."""
        self._unfile(entry)
        self._file(entry, TicketPhase.HOLDING, fence, later(now, entry.ticket.lease_ms))
        self.note(entry.ticket.lock, 0, fence, shared=entry.shared)

    def raise_fence(self, entry: TicketEntry, fence: int) -> None:
        """Let ``entry``, which holds, do so under ``fence`` if that is higher than its own."""
        entry.fence = max(entry.fence, fence)
        self.queues[entry.ticket.lock].by_fence = None

    def unvote(self, entry: TicketEntry, until: Instant | None) -> None:
        """Take back the vote for ``entry``; do nothing if it is not in the table."""
        if self.has(entry):
            self._unfile(entry)
            self._file(entry, TicketPhase.WAITING, 0, until)

    def ahead(self, entry: TicketEntry, now: Instant) -> Turn | None:
        """Return the first ticket ahead of ``entry``: one that holds, enters, or is earlier.

        Shared tickets are not ahead of each other. An entering shared ticket is not ahead of an
        exclusive one either: it draws a higher number, and readers that come and go would otherwise
        keep a writer waiting forever.
        """
        queue = self.queues[entry.ticket.lock]
        against = queue.against(shared=entry.shared)
        for others in (*(one.holding for one in against), queue.exclusive.entering):
            while (other := next((one for one in others if one is not entry), None)) is not None:
                if not self.forget(other, now):
                    return other.ticket.turn
        for mode in against:
            while mode.line and mode.line[0].ticket.turn < entry.ticket.turn:
                other = mode.line[0]
                if not self.forget(other, now):
                    return other.ticket.turn
        return None

    def holds_against(self, entry: TicketEntry, now: Instant) -> list[TicketEntry]:
        against = self.queues[entry.ticket.lock].against(shared=entry.shared)
        holds = (one for mode in against for one in mode.holding)
        return [one for one in holds if one is not entry and not one.is_over(now)]

    def head(self, lock: str) -> list[TicketEntry]:
        """Return the first waiting entry, or all shared ones before the first exclusive one."""
        queue = self.queue(lock)
        first, shared = queue.exclusive.line[:1], queue.shared.line
        end = bisect_left(shared, _place(first[0]), key=_place) if first else len(shared)
        return shared[: min(end, HEAD_MAX)] or first

    def remove(self, entry: TicketEntry) -> None:
        lock, who = entry.ticket.lock, entry.ticket.who
        queue = self.queues[lock]
        self._unfile(entry)
        del self.by_key[entry.key]
        queue.of[who].remove(entry)
        if not queue.of[who]:
            del queue.of[who]
        del self.sessions[who.session][entry]
        if not self.sessions[who.session]:
            del self.sessions[who.session]
        self._charge(who.session, -1)
        self.ends.set(entry, None)
        if not queue.of:
            del self.queues[lock]

    def expire(self, entry: TicketEntry) -> None:
        """Remove an entry whose hold has ended by the clocks of leaders, not by its client."""
        ticket = entry.ticket
        self.remove(entry)
        self.tombstones.expire(ticket.lock, ticket.who, ticket.request, entry.fence)

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
        """Yield all entries; meanwhile any may be removed."""
        return filter(self.has, list(self.by_key.values()))

    def longest_ms(self, now: Instant) -> int:
        """Return a time within which all leases in the table end (ms)."""
        return ms_between(now, max(self.ends.at.values(), default=now)) + 1

    def forget_old(self, now: Instant, most: int | None = None) -> int:
        """Remove entries that have ended, and return their number; look at ``most`` of them."""
        return sum(self.forget(entry, now) for entry in self.ends.each_due(now, most))

    def forget(self, entry: TicketEntry, now: Instant) -> bool:
        """Remove ``entry`` if it has ended; return whether it had."""
        if not entry.is_over(now) or not self.has(entry):
            return False
        if entry.holds and entry.until is not None:
            self.expire(entry)
            self.tombstones.note_expiry(entry.ticket.lock, entry.until)
        else:
            self.remove(entry)
        return True

    def expired_at(self, lock: str, now: Instant) -> Instant | None:
        """Return when a vote for ``lock`` last ended with its lease, or None if none ever did."""
        # If nothing is due, all that ended has been removed, and the tombstones have it.
        holds = self.queue(lock).holders() if self.ends.is_due(now) else []
        ends = [e.until for e in holds if e.until is not None and e.is_over(now)]
        before = self.tombstones.expired_at(lock)
        return max(ends if before is None else [before, *ends], default=None)

    def _file(
        self, entry: TicketEntry, phase: TicketPhase, fence: int, until: Instant | None
    ) -> None:
        entry.phase, entry.fence, entry.until = phase, fence, until
        self.ends.set(entry, until)
        queue = self.queues[entry.ticket.lock]
        mode = queue.shared if entry.shared else queue.exclusive
        match phase:
            case TicketPhase.ENTERING:
                mode.entering[entry] = None
            case TicketPhase.WAITING:
                insort(mode.line, entry, key=_place)
            case TicketPhase.HOLDING:
                mode.holding[entry] = None
                queue.by_fence = None

    def _unfile(self, entry: TicketEntry) -> None:
        queue = self.queues[entry.ticket.lock]
        mode = queue.shared if entry.shared else queue.exclusive
        match entry.phase:
            case TicketPhase.ENTERING:
                del mode.entering[entry]
            case TicketPhase.WAITING:
                del mode.line[bisect_left(mode.line, _place(entry), key=_place)]
            case TicketPhase.HOLDING:
                del mode.holding[entry]
                queue.by_fence = None


def _is_late(entry: TicketEntry, ticket: Ticket, owner: str) -> bool:
    """Return whether ``ticket`` is an old copy, from before it got the number it waits with."""
    same = (entry.owner, entry.ticket.turn.serial) == (owner, ticket.turn.serial)
    return same and entry.phase is TicketPhase.WAITING and not ticket.turn.number
