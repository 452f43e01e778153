"""Entry of a leader into an epoch, and its exit: tables are handed over and merged. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from fencelock.actors.bakery.bounds import PART, is_possible_end, is_possible_record
from fencelock.actors.bakery.config import (
    COPY_MS,
    election_of,
    exports_needed,
    leader_of,
    status_of,
)
from fencelock.actors.bakery.epochs import EpochState
from fencelock.actors.bakery.event import Barred, Serve, Serving
from fencelock.actors.bakery.leader_requests import LeaderRequests
from fencelock.actors.bakery.table import TicketEntry, TicketPhase, TicketTable
from fencelock.actors.bakery.ticket import EndedRequests, Record, pack_fence
from fencelock.actors.bakery.ticket_attempt import TicketAttempts, TicketStep
from fencelock.actors.bakery.wire import Export, Lead, Merged, Seating, Table
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, later, ms_between, node_of


class StateTransfer:
    """Keeps to one epoch at a time.

    Invariants: merged-tables-complete, no-lower-epoch.
    """

    def __init__(self, attempts: TicketAttempts, requests: LeaderRequests) -> None:
        self.epoch_state = attempts.epoch_state
        self.tickets = attempts.table
        self.attempts = attempts
        self.requests = requests
        self.arriving: Import | None = None
        self.installed = 0
        """The last epoch whose seating is known to be installed, of those that it takes part in."""
        self.exported: list[Table] = []
        """The table that was handed over last. A repeated request gets the same parts, since parts
        of two tables do not fit together."""

    def request_again(self) -> list[Effect]:
        return [] if self.arriving is None else self.arriving.request_tables(self.epoch_state)

    def on_lead(self, sender: Address, lead: Lead, now: Instant) -> list[Effect]:
        """Complete the table for a new epoch with the tables of the former keepers."""
        if sender != election_of(node_of(sender)):
            return [Observe("bakery.stranger_elects")]
        if self.epoch_state.me not in lead.seating.keepers:
            return [Observe("bakery.lead_ignored")]
        if lead.epoch < self.epoch_state.barred:
            return [self._barred(), Observe("bakery.lead_ignored")]
        if self.installed == lead.epoch:
            return [Observe("bakery.lead_ignored")]  # It is installed; no coordinator waits.
        if self.epoch_state.epoch == lead.epoch:
            return [self._merged(sender, lead.epoch, now)]
        own = self.epoch_state.me in lead.former.keepers
        left = self.leave(lead.epoch)
        if self.arriving is None or self.arriving.lead.epoch != lead.epoch:
            self.arriving = Import(lead, sender, own)
        self.arriving.coordinator = sender
        if lead.empty:
            self.arriving.lead = lead
        return [*left, *self.arriving.request_tables(self.epoch_state), *self._merge(now)]

    def _merge(self, now: Instant) -> list[Effect]:
        arriving = self.arriving
        if arriving is None or not arriving.complete:
            return []
        lead = arriving.lead
        if lead.epoch < self.epoch_state.barred:  # A higher epoch has come meanwhile.
            self.arriving = None
            return []
        if lead.empty or not arriving.own:
            self._clear()
        if not lead.empty:
            held = [one.entry for one in self.attempts.own.values() if one.is_held]
            for entry in arriving.merge(self.tickets, now, held):
                self.attempts.forget(entry)
        self.arriving = None
        self._take(lead.seating)
        return [self._merged(arriving.coordinator, lead.epoch, now)]

    def _merged(self, coordinator: Address, epoch: int, now: Instant) -> Send:
        left = (one.lease_left_ms(now) for one in self.tickets.entries() if one.holds)
        return Send(coordinator, Merged(epoch=epoch, left_ms=max(left, default=0) + 1))

    def on_export(self, sender: Address, export: Export, now: Instant) -> list[Effect]:
        """Stop accepting earlier epochs, then send the agreed tickets (no-lower-epoch)."""
        if sender != leader_of(node_of(sender)):
            return [Observe("bakery.stranger_elects")]
        if export.epoch < self.epoch_state.barred:
            return [self._barred(), Observe("bakery.export_ignored")]
        left = self.leave(export.epoch)
        if not self.exported or self.exported[0].epoch != export.epoch:
            self.tickets.forget_old(now)
            self.exported = parts_of(self.tickets, export.epoch, self.epoch_state.life, now)
        return [*left, *(Send(sender, part) for part in self.exported)]

    def on_table(self, sender: Address, table: Table, now: Instant) -> list[Effect]:
        node = node_of(sender)
        arriving = self.arriving
        if arriving is None or sender != leader_of(node) or table.epoch != arriving.lead.epoch:
            return [Observe("bakery.table_ignored")]
        if not arriving.on_table(node, table):
            return [Observe("bakery.table_refused")]
        return self._merge(now)

    def leave(self, epoch: int) -> list[Effect]:
        """Stop taking part in epochs below ``epoch``; give up the rounds in flight."""
        served, barred = self.epoch_state.serving, self.epoch_state.barred
        self.epoch_state.leave(epoch)
        news: list[Effect] = [self._barred()] if epoch > barred else []
        if self.epoch_state.epoch:
            return news
        for attempt in self.attempts.own.values():
            if attempt.is_voting:
                # answers-count-once
                attempt.step, attempt.votes, attempt.answered = TicketStep.WAITING, {}, {}
                if attempt.entry.holds and not attempt.held:
                    self.tickets.unvote(attempt.entry, None)
        self.requests.clear()
        if not served:
            return news
        return [*news, Send(status_of(self.epoch_state.node), Serving(epoch=0))]

    def _barred(self) -> Send:
        """Let the coordinator of this node know which epochs this leader does not obey."""
        barred = Barred(epoch=self.epoch_state.barred)
        return Send(election_of(self.epoch_state.node), barred)

    def _take(self, seating: Seating) -> None:
        self.epoch_state.take(seating)
        self.tickets.forget_numbers()

    def _clear(self) -> None:
        """Drop every ticket: they are of an epoch in which this leader had no part."""
        for entry in self.tickets.entries():
            self.attempts.forget(entry)
            self.tickets.remove(entry)

    def on_serve(self, serve: Serve, now: Instant) -> list[Effect]:
        """Begin to serve: a majority of the members knows the leaders of this epoch."""
        epoch_state, seating = self.epoch_state, serve.seating
        epoch = seating.epoch
        if epoch < epoch_state.barred:
            return [self._barred()]
        if epoch == epoch_state.epoch and epoch_state.serving:
            return []
        if epoch_state.me not in seating.keepers:
            left = self.leave(epoch)
            self._clear()
            self.arriving = None
            return left
        if epoch != epoch_state.epoch:  # A quorum is ready without it: any two know all.
            self.leave(epoch)
            if self.arriving is not None and not self.arriving.own:
                self._clear()
            self.arriving = None
            self._take(seating)
        self.installed = epoch
        if not epoch_state.leads:
            self._leave_to_leaders(now)
            return []
        epoch_state.serving = True
        epoch_state.bound.begin(epoch, seating.bound_ms)
        effects: list[Effect] = [Send(status_of(epoch_state.node), Serving(epoch=epoch))]
        for entry in self.tickets.entries():
            effects += self._inherit(entry, now)
        return effects

    def _leave_to_leaders(self, now: Instant) -> None:
        """Keep what this node owned as a leader, for the leaders of the present epoch."""
        for entry in self.tickets.entries():
            self.attempts.forget(entry)
            if entry.phase is TicketPhase.ENTERING:
                self.tickets.remove(entry)
            elif entry.phase is TicketPhase.WAITING and entry.until is None:
                self.tickets.set_until(entry, later(now, COPY_MS))

    def _inherit(self, entry: TicketEntry, now: Instant) -> list[Effect]:
        """Go on with a ticket of this leader's own, or of a leader that leads no more."""
        epoch_state = self.epoch_state
        if entry.owner not in {leader.node for leader in epoch_state.leaders}:
            if entry.phase is TicketPhase.ENTERING:
                self.tickets.remove(entry)
                return []
            entry.owner = epoch_state.leaders[0].node
        if entry.owner != epoch_state.node:
            self.attempts.forget(entry)  # The leader with this one's vote continues with it.
            return []
        attempt = self.attempts.own.get(entry.key)
        if attempt is not None:
            if not attempt.is_held:
                attempt.held = entry.fence  # A former owner may have granted it.
            return self.attempts.resume(attempt, now)
        if entry.phase is TicketPhase.ENTERING:
            self.tickets.remove(entry)
            return []
        return self.attempts.adopt(entry, now)


ENDED_OWNERS_MAX = 5 * PART
"""Owners whose last ended requests go with a table. For those that ended earlier, another leader
may have a copy that missed the drop. Then the lock is free only when that lease is over, and the
copy is not granted again."""


@dataclass(slots=True)
class Import:
    """The tables that a proposed keeper waits for.

    Attributes:
        lead: the request that it was sent.
        coordinator: the sender, which is notified when it is ready.
        own: whether its own table counts: it kept it in the former epoch, in this life.

    """

    lead: Lead
    coordinator: Address
    own: bool
    arrivals: dict[str, dict[int, Table]] = field(default_factory=dict[str, dict[int, Table]])
    """The parts that came of each keeper's table, by their numbers."""

    @property
    def whole(self) -> dict[str, list[Table]]:
        """The tables of which all parts came, by keeper."""
        return {
            name: [parts[number] for number in sorted(parts)]
            for name, parts in self.arrivals.items()
            if all(part.parts == len(parts) for part in parts.values())
        }

    @property
    def complete(self) -> bool:
        """Whether enough tables are here for everything that a quorum of former leaders agreed."""
        return self.lead.empty or self._lacking <= 0

    @property
    def _lacking(self) -> int:
        return exports_needed(len(self.lead.former.keepers)) - self.own - len(self.whole)

    def request_tables(self, epoch_state: EpochState) -> list[Effect]:
        """Ask former keepers whose tables are missing: as many as needed, if these are connected.

        A table may be long, so that all of them would take long.
        """
        if self.complete:
            return []
        here = {*self.whole, epoch_state.node}
        missing = [one for one in self.lead.former.keepers if one.node not in here]
        connected = epoch_state.connected
        near = [one for one in missing if connected.get(one.node) == one.life]
        asked = near[: self._lacking] if len(near) >= self._lacking else missing
        message = Export(epoch=self.lead.epoch)
        return [Send(leader_of(one.node), message) for one in asked]

    def on_table(self, node: str, table: Table) -> bool:
        """Take a part; return whether it was expected."""
        lives = {one.node: one.life for one in self.lead.former.keepers}
        if lives.get(node) != table.life:
            return False  # A restarted leader has forgotten its agreements.
        parts = self.arrivals.setdefault(node, {})
        if any(part.parts != table.parts for part in parts.values()):
            parts.clear()
        parts[table.part] = table
        return True

    def merge(
        self, tickets: TicketTable, now: Instant, held: Collection[TicketEntry] = ()
    ) -> list[TicketEntry]:
        """Merge the received tables into ``tickets``; return its entries that are dropped.

        A ticket that holds in any of them holds. A request that a client dropped at any of them is
        dropped here too. The entries ``held`` were granted by this leader, as far as it knows.
        """
        tables = list(self.whole.values())
        parts = [part for table in tables for part in table]
        dropped: list[TicketEntry] = []
        before = self.lead.epoch - 1
        for part in reversed(parts):  # The newest end must be stored last.
            for end in reversed(part.ended):
                if is_possible_end(end, before):
                    dropped += _end(tickets, end)
        for part in parts:
            for record in part.records:
                if is_possible_record(record, before):
                    _merge(tickets, record, now)
        for table in tables:
            if sum(len(part.ended) for part in table) >= ENDED_OWNERS_MAX:
                _doubt(tickets, table)
        return [*dropped, *_keep_the_highest(tickets, now, held)]


def _end(tickets: TicketTable, end: EndedRequests) -> list[TicketEntry]:
    """Store the ended requests of another table; return the entries that they drop here.

    Their fences may have been granted, so no lower fence is granted after them.
    """
    if end.highest:
        tickets.note(end.lock, 0, end.highest, shared=True)
        tickets.note(end.lock, 0, end.exclusive)
    if not end.request and not end.fence:
        return []
    dropped = tickets.named(end.lock, end.who, end.request, end.fence)
    tickets.drop(end.lock, end.who, end.request, end.fence)
    return dropped


def _doubt(tickets: TicketTable, table: list[Table]) -> None:
    """Forbid to grant holds again that an end missing from a full list may outdo (fences-rise).

    That table does not have the hold. So its leader may have voted for a higher fence, which
    ended before everything that the list has room for. The holder keeps the lock, and renews.
    """
    records = (record for part in table for record in part.records)
    known = {record.ticket.key for record in records if record.fence}
    for entry in tickets.entries():
        if entry.holds and entry.key not in known:
            tickets.note(entry.ticket.lock, 0, entry.fence + 1)


def _merge(tickets: TicketTable, record: Record, now: Instant) -> None:
    ticket = record.ticket
    entry = tickets.get(ticket.key)
    until = later(now, record.left_ms if record.fence else COPY_MS)
    if entry is not None and entry.shared != ticket.shared:
        if record.fence <= entry.fence:
            return
        # A client sent one request in both modes: no quorum has voted for this entry.
        tickets.remove(entry)
        entry = None
    if entry is None or (record.fence and not entry.ticket.turn.number):  # Its proxy came too.
        entry = tickets.put(ticket, record.owner, now, until, record.fence)
    if entry is None or not record.fence:
        return
    if not entry.holds:
        tickets.vote(entry, record.fence, now)
        tickets.set_until(entry, until)
    else:
        tickets.extend_until(entry, until)
        tickets.raise_fence(entry, record.fence)
    tickets.note(ticket.lock, 0, record.fence, shared=ticket.shared)


def _keep_the_highest(
    tickets: TicketTable, now: Instant, held: Collection[TicketEntry]
) -> list[TicketEntry]:
    """Take back the votes for entries that conflict with a higher fence; return those that ended.

    Of two entries that conflict, only the one with the higher fence can have been granted: the
    quorum that voted for it knew the other fence, whose votes had been given back. The other entry
    still holds in a table that has not received this.
    """
    ended: list[TicketEntry] = []
    for queue in list(tickets.queues.values()):
        holds = queue.holders()
        highest = max((one.fence for one in holds if not one.shared), default=0)
        for entry in holds[:-1]:
            if entry.shared and entry.fence > highest:
                continue
            if entry in held:  # Its lease was over for a quorum, which granted the lock again.
                tickets.expire(entry)
                ended.append(entry)
            else:
                tickets.unvote(entry, later(now, COPY_MS))
    return ended


def parts_of(tickets: TicketTable, epoch: int, life: int, now: Instant) -> list[Table]:
    """Return the tickets that wait or hold, and the last ended requests, in parts.

    This leader may have voted in ``epoch`` already, while the receiver still waits for tables. The
    parts have no votes of that epoch, as if this leader had sent them before.
    """
    before = pack_fence(epoch, 0)
    records = [
        _record(entry, before, now)
        for entry in tickets.entries()
        if entry.phase is not TicketPhase.ENTERING
    ]
    ended = [_checked(tickets, end, before) for end in tickets.tombstones.newest(ENDED_OWNERS_MAX)]
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


def _checked(tickets: TicketTable, end: EndedRequests, before: int) -> EndedRequests:
    """Return ``end`` without a fence that was never voted for (clients can name any) or is new.

    All later grants have fences from ``before`` on, so the receiver needs no new one.
    """
    known = tickets.counters_of(end.lock)
    highest = min(end.highest, known.fence, before - 1)
    return end._replace(highest=highest, exclusive=min(highest, known.exclusive))


def _record(entry: TicketEntry, before: int, now: Instant) -> Record:
    """Return ``entry`` as a table has it: as a waiting one unless its fence is below ``before``."""
    until = entry.until if entry.holds and entry.fence < before else None
    if until is None:
        return Record(entry.ticket, entry.owner, 0, 0)
    # Rounded up: the lease must not end earlier at the leader that takes it over.
    return Record(entry.ticket, entry.owner, entry.fence, ms_between(now, until) + 1)
