"""Tables that go from the leaders of one epoch to those of a later one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.actors.bakery.config import COPY_MS, exports_needed, later, leader_of
from holdfast.actors.bakery.message import Export, Lead, Table
from holdfast.actors.bakery.table import Entry, Key, Phase
from holdfast.actors.bakery.table import Table as Tickets
from holdfast.actors.bakery.ticket import Record, fits
from holdfast.actors.effect import Effect, Send
from holdfast.actors.message import Address, Instant, ms_between

PART = 200
"""Tickets in one part: some 400 KiB with the longest names."""

PARTS_MAX = 2_000
"""More parts than any table has: what claims to have more is dropped."""


@dataclass(slots=True)
class Arrival:
    """The parts of one former leader's table that have come."""

    parts: int
    records: dict[int, tuple[Record, ...]] = field(default_factory=dict[int, tuple[Record, ...]])

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return len(self.records) == self.parts


@dataclass(slots=True)
class Import:
    """What a proposed leader waits for.

    Attributes:
        lead: what it was asked for.
        coordinator: who is told when it is ready.
        own: whether its own table counts: it led in the former epoch, in this life.

    """

    lead: Lead
    coordinator: Address
    own: bool
    arrivals: dict[str, Arrival] = field(default_factory=dict[str, Arrival])

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
        sound = 0 <= table.part < table.parts <= PARTS_MAX and len(table.records) <= PART
        if lives.get(node) != table.life or not sound:
            return False  # A leader that lives anew has forgotten what it agreed.
        arrival = self.arrivals.setdefault(node, Arrival(table.parts))
        if arrival.parts != table.parts:
            arrival = self.arrivals[node] = Arrival(table.parts)
        arrival.records[table.part] = table.records
        return True

    def merge(self, tickets: Tickets, now: Instant) -> None:
        """Bring what came into ``tickets``; of a ticket that holds anywhere, the hold."""
        for arrival in self.arrivals.values():
            if arrival.whole:
                for records in arrival.records.values():
                    for record in records:
                        _merge(tickets, record, now)
        _keep_the_highest(tickets, now)


def _merge(tickets: Tickets, record: Record, now: Instant) -> None:
    ticket = record.ticket
    if not fits(ticket) or not ticket.turn.number or record.left_ms < 0 or record.fence < 0:
        return
    entry = tickets.get(ticket.lock, Key(ticket.who, ticket.request))
    until = later(now, record.left_ms if record.fence else COPY_MS)
    if entry is None:
        entry = tickets.put(ticket, record.owner, now, until, record.fence)
    if entry is None or not record.fence:
        return
    if entry.phase is not Phase.HOLDING:
        tickets.vote(entry, record.fence, now)
        entry.until = until
    elif entry.fence == record.fence:
        entry.until = max(entry.until or until, until)
    else:
        entry.until = max(entry.until or until, until)
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
    """Return all that waits or holds in ``tickets``, in parts."""
    records = [_record(e, now) for e in tickets.entries() if e.phase is not Phase.ENTERING]
    starts = range(0, max(1, len(records)), PART)
    return [
        Table(
            epoch=epoch,
            life=life,
            part=part,
            parts=len(starts),
            records=tuple(records[start : start + PART]),
        )
        for part, start in enumerate(starts)
    ]


def _record(entry: Entry, now: Instant) -> Record:
    holds = entry.phase is Phase.HOLDING and entry.until is not None
    left_ms = ms_between(now, entry.until) if holds and entry.until is not None else 0
    # Rounded up: the lease may not end earlier at whoever takes it over.
    return Record(
        entry.ticket, entry.owner, entry.fence if holds else 0, left_ms + 1 if holds else 0
    )
