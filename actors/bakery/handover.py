"""Tables handed over from the leaders of one epoch to those of a later one. Pure."""

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
"""Maximum tickets in one part: some 400 KiB with the longest names."""

ENDED_MAX = 5 * PART
"""Owners whose last ended requests go with a table. For those that ended earlier, another leader
may have a copy that missed the drop. Then the lock is free only when that lease is over, and the
copy is not granted anew."""

PARTS_MAX = 2_000
"""Maximum parts of a table: more than any has. A table that claims more is dropped."""


@dataclass(slots=True)
class Arrival:
    """The received parts of one former leader's table."""

    parts: int
    came: dict[int, Table] = field(default_factory=dict[int, Table])

    @property
    def whole(self) -> bool:
        """Whether no part is missing."""
        return len(self.came) == self.parts

    @property
    def full(self) -> bool:
        """Whether more may have ended than the table lists."""
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
    """The tables that a proposed leader waits for.

    Attributes:
        lead: the request that it was sent.
        coordinator: the sender, which is notified when it is ready.
        own: whether its own table counts: it led in the former epoch, in this life.
        malformed: number of records that were invalid, and dropped in the merge.

    """

    lead: Lead
    coordinator: Address
    own: bool
    arrivals: dict[str, Arrival] = field(default_factory=dict[str, Arrival])
    malformed: int = 0

    @property
    def complete(self) -> bool:
        """Whether enough tables are here for everything that a quorum of former leaders agreed."""
        if self.lead.empty:
            return True
        whole = self.own + sum(arrival.whole for arrival in self.arrivals.values())
        return whole >= exports_needed(len(self.lead.former.leaders))

    def ask(self, node: str) -> list[Effect]:
        """Ask the former leaders whose tables are missing."""
        if self.complete:
            return []
        left = [one.node for one in self.lead.former.leaders if one.node != node]
        missing = [name for name in left if name not in self.arrivals or not self._whole(name)]
        return [Send(leader_of(name), Export(epoch=self.lead.epoch)) for name in missing]

    def _whole(self, name: str) -> bool:
        return self.arrivals[name].whole

    def on_table(self, node: str, table: Table) -> bool:
        """Take a part; return whether it was expected."""
        lives = {one.node: one.life for one in self.lead.former.leaders}
        sound = 0 <= table.part < table.parts <= PARTS_MAX
        sound = sound and max(len(table.records), len(table.ended)) <= PART
        if lives.get(node) != table.life or not sound:
            return False  # A restarted leader has forgotten what it agreed.
        arrival = self.arrivals.setdefault(node, Arrival(table.parts))
        if arrival.parts != table.parts:
            arrival = self.arrivals[node] = Arrival(table.parts)
        arrival.came[table.part] = table
        return True

    def merge(self, tickets: Tickets, now: Instant) -> list[Entry]:
        """Merge the received tables into ``tickets``; a ticket that holds in any of them holds.

        A request that a client dropped at any of them is dropped here too, even if another has it.

        Returns:
            The entries of ``tickets`` that are dropped.

        """
        parts = [
            part
            for arrival in self.arrivals.values()
            if arrival.whole
            for _, part in sorted(arrival.came.items())
        ]
        dropped: list[Entry] = []
        before = self.lead.epoch - 1
        for part in reversed(parts):  # The newest end must be stored last.
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
    """Return whether a peer's ``end`` is possible in an epoch up to ``before``.

    Its ``fence`` was named by a client, and is only compared with others. Its ``highest`` was
    voted for: an invented one would force every later grant of the lock above it.
    """
    sound = names(end.lock, end.who) and min(end.request, end.fence, end.highest) >= 0
    return sound and epoch_of(end.highest) <= before


def _can_be_record(record: Record, before: int) -> bool:
    """Return whether a peer's ``record`` is possible in an epoch up to ``before``."""
    ticket, fence = record.ticket, record.fence
    return (
        fits(ticket)
        and ticket.turn.number > 0
        and (fence == 0 or is_fence(fence, before))
        and 0 <= record.left_ms <= LEASE_MS_MAX + 1  # It was rounded up.
    )


def _end(tickets: Tickets, end: End) -> list[Entry]:
    """Store what ended elsewhere; return the entries that it drops here.

    Its fences may have been granted: no lower one is granted after them.
    """
    if end.highest:
        tickets.note(end.lock, 0, end.highest)
    if not end.request and not end.fence:
        return []
    dropped = tickets.named(end.lock, end.who, end.request, end.fence)
    tickets.drop(end.lock, end.who, end.request, end.fence)
    return dropped


def _doubt(tickets: Tickets, arrival: Arrival) -> None:
    """Forbid to grant holds anew that an end missing from a full list may outdo (B8).

    That table does not have the hold. So its leader may have voted for a higher fence, which
    ended before everything that the list has room for. The holder keeps the lock, and renews.
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
    if entry is None or (record.fence and not entry.ticket.turn.number):  # Its proxy came, too.
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
    """If several entries may hold one lock, let only the one with the highest fence hold it.

    Only that one can have been granted: a quorum that voted for it knew the others' fences, and
    had their votes given back. Others remain where that did not arrive; their owners undo them.
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
    """Return ``end`` without a fence that was never voted for: clients can name any."""
    return end._replace(highest=min(end.highest, tickets.counters_of(end.lock).fence))


def _record(entry: Entry, now: Instant) -> Record:
    holds = entry.phase is Phase.HOLDING and entry.until is not None
    left_ms = ms_between(now, entry.until) if holds and entry.until is not None else 0
    # Rounded up: the lease must not end earlier at the leader that takes it over.
    return Record(
        entry.ticket, entry.owner, entry.fence if holds else 0, left_ms + 1 if holds else 0
    )
