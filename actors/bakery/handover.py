"""Tables that go from the leaders of one epoch to those of a later one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.bakery.config import COPY_MS, exports_needed, later, leader_of
from fencelock.actors.bakery.entry import Entry, Key, Phase
from fencelock.actors.bakery.message import Export, Lead, Table
from fencelock.actors.bakery.table import Table as Tickets
from fencelock.actors.bakery.ticket import (
    LEASE_MS_MAX,
    End,
    Record,
    epoch_of,
    fits,
    is_fence,
    names,
)
from fencelock.actors.effect import Effect, Send
from fencelock.actors.message import Address, Instant, ms_between

PART = 200
"""Tickets in one part: some 400 KiB with the longest names."""

ENDED_MAX = 5 * PART
"""What ended last, of so many owners, goes with a table. Of what ended before, another leader may
have a copy that missed the drop: then the lock is free only when that lease is over, and the copy
is not granted anew."""

PARTS_MAX = 2_000
"""More parts than any table has: what claims to have more is dropped."""


@dataclass(slots=True)
class Arrival:
    """The parts of one former leader's table that have come."""

    parts: int
    came: dict[int, Table] = field(default_factory=dict[int, Table])

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return len(self.came) == self.parts

    @property
    def full(self) -> bool:
        """Whether more may have ended than it says."""
        return sum(len(part.ended) for part in self.came.values()) >= ENDED_MAX

    def holds(self) -> set[tuple[str, Key]]:
        """Return the requests that hold in this table."""
        records = [record for part in self.came.values() for record in part.records]
        return {
            (record.ticket.lock, Key(record.ticket.who, record.ticket.request))
            for record in records
            if record.fence
        }


@dataclass(slots=True)
class Import:
    """What a proposed leader waits for.

    Attributes:
        lead: what it was asked for.
        coordinator: who is told when it is ready.
        own: whether its own table counts: it led in the former epoch, in this life.
        malformed: how much of the tables that were merged could not be, and was dropped.

    """

    lead: Lead
    coordinator: Address
    own: bool
    arrivals: dict[str, Arrival] = field(default_factory=dict[str, Arrival])
    malformed: int = 0

    @property
    def complete(self) -> bool:
        """Whether enough tables are here for all that a quorum of the former leaders agreed."""
        if self.lead.empty:
            return True
        whole = self.own + sum(arrival.whole for arrival in self.arrivals.values())
        return whole >= exports_needed(len(self.lead.former.leaders))

    def ask(self, node: str) -> list[Effect]:
        """Ask the former leaders whose tables are not here."""
        if self.complete:
            return []
        left = [one.node for one in self.lead.former.leaders if one.node != node]
        missing = [name for name in left if name not in self.arrivals or not self._whole(name)]
        return [Send(leader_of(name), Export(epoch=self.lead.epoch)) for name in missing]

    def _whole(self, name: str) -> bool:
        return self.arrivals[name].whole

    def on_table(self, node: str, table: Table) -> bool:
        """Take in a part; return whether it was one that is waited for."""
        lives = {one.node: one.life for one in self.lead.former.leaders}
        sound = 0 <= table.part < table.parts <= PARTS_MAX
        sound = sound and max(len(table.records), len(table.ended)) <= PART
        if lives.get(node) != table.life or not sound:
            return False  # A leader that lives anew has forgotten what it agreed.
        arrival = self.arrivals.setdefault(node, Arrival(table.parts))
        if arrival.parts != table.parts:
            arrival = self.arrivals[node] = Arrival(table.parts)
        arrival.came[table.part] = table
        return True

    def merge(self, tickets: Tickets, now: Instant) -> list[Entry]:
        """Bring what came into ``tickets``; of a ticket that holds anywhere, the hold.

        What a client dropped at any of them is dropped here, too, and not brought by another.

        Returns:
            What was in ``tickets`` and is dropped.

        """
        parts = [
            part
            for arrival in self.arrivals.values()
            if arrival.whole
            for _, part in sorted(arrival.came.items())
        ]
        dropped: list[Entry] = []
        before = self.lead.epoch - 1
        for part in reversed(parts):  # What ended last is remembered last.
            for end in reversed(part.ended):
                if _can_be_end(end, before):
                    dropped += _end(tickets, end)
                else:
                    self.malformed += 1
        for part in parts:
            for record in part.records:
                if _can_be_record(record, before):
                    _merge(tickets, record, now)
                else:
                    self.malformed += 1
        for arrival in self.arrivals.values():
            if arrival.whole and arrival.full:
                _doubt(tickets, arrival)
        _keep_the_highest(tickets, now)
        return dropped


def _can_be_end(end: End, before: int) -> bool:
    """Return whether a peer's ``end`` can be one of an epoch up to ``before``.

    Its ``fence`` is what a client named, and is only compared with others. Its ``highest`` was
    voted for: one that is made up would have every later grant of the lock be above it.
    """
    sound = names(end.lock, end.who) and min(end.request, end.fence, end.highest) >= 0
    return sound and epoch_of(end.highest) <= before


def _can_be_record(record: Record, before: int) -> bool:
    """Return whether a peer's ``record`` can be one of an epoch up to ``before``."""
    ticket, fence = record.ticket, record.fence
    return (
        fits(ticket)
        and ticket.turn.number > 0
        and (fence == 0 or is_fence(fence, before))
        and 0 <= record.left_ms <= LEASE_MS_MAX + 1  # It is said rounded up.
    )


def _end(tickets: Tickets, end: End) -> list[Entry]:
    """Take over what ended elsewhere; return what that drops here.

    Its fences were granted, perhaps: no lower one is granted after them.
    """
    if end.highest:
        tickets.note(end.lock, 0, end.highest)
    if not end.request and not end.fence:
        return []
    dropped = tickets.named(end.lock, end.who, end.request, end.fence)
    tickets.drop(end.lock, end.who, end.request, end.fence)
    return dropped


def _doubt(tickets: Tickets, arrival: Arrival) -> None:
    """Grant no hold anew that whoever says only what ended last may have seen outdone (B8).

    It does not have it, so perhaps it voted for a higher fence, which ended before all that it
    has room for. Who was granted the lock keeps it, and renews.
    """
    known = arrival.holds()
    for lock, queue in tickets.queues.items():
        for key in queue.holding:
            if (lock, key) not in known:
                tickets.note(lock, 0, queue.entries[key].fence + 1)


def _merge(tickets: Tickets, record: Record, now: Instant) -> None:
    ticket = record.ticket
    entry = tickets.get(ticket.lock, Key(ticket.who, ticket.request))
    until = later(now, record.left_ms if record.fence else COPY_MS)
    if entry is None or (record.fence and not entry.ticket.turn.number):  # Its door came here, too.
        entry = tickets.put(ticket, record.owner, now, until, record.fence)
    if entry is None or not record.fence:
        return
    if entry.phase is not Phase.HOLDING:
        tickets.vote(entry, record.fence, now)
        tickets.set_until(entry, until)
    else:
        tickets.prolong(entry, until)
        entry.fence = max(entry.fence, record.fence)
    tickets.note(ticket.lock, 0, record.fence)


def _keep_the_highest(tickets: Tickets, now: Instant) -> None:
    """Of several that may hold one lock, let the one with the highest fence hold it.

    Only it can have been granted: who voted for it in a quorum knew of the others' fences, and
    had their votes back. Theirs stand where that was not heard; owners take their own back.
    """
    for queue in list(tickets.queues.values()):
        holds = [queue.entries[key] for key in queue.holding]
        for entry in sorted(holds, key=lambda entry: entry.fence)[:-1]:
            tickets.unvote(entry, later(now, COPY_MS))


def parts_of(tickets: Tickets, epoch: int, life: int, now: Instant) -> list[Table]:
    """Return all that waits or holds in ``tickets``, and what ended last, in parts."""
    records = [_record(e, now) for e in tickets.entries() if e.phase is not Phase.ENTERING]
    ended = [_checked(tickets, end) for end in tickets.past.newest(ENDED_MAX)]
    starts = range(0, max(1, len(records), len(ended)), PART)
    return [
        Table(
            epoch=epoch,
            life=life,
            part=part,
            parts=len(starts),
            records=tuple(records[start : start + PART]),
            ended=tuple(ended[start : start + PART]),
        )
        for part, start in enumerate(starts)
    ]


def _checked(tickets: Tickets, end: End) -> End:
    """Return ``end`` without a fence that nobody had: clients name what they want to."""
    return end._replace(highest=min(end.highest, tickets.counters_of(end.lock).fence))


def _record(entry: Entry, now: Instant) -> Record:
    holds = entry.phase is Phase.HOLDING and entry.until is not None
    left_ms = ms_between(now, entry.until) if holds and entry.until is not None else 0
    # Rounded up: the lease may not end earlier at whoever takes it over.
    return Record(
        entry.ticket, entry.owner, entry.fence if holds else 0, left_ms + 1 if holds else 0
    )
