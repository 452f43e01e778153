"""A leader: while it is chosen it agrees with the others on tickets; else it only waits to be."""

from __future__ import annotations

from holdfast.actors.bakery.config import (
    COPY_MS,
    RESEND_MS,
    Terms,
    door_of,
    election_of,
    later,
    leader_of,
    status_of,
)
from holdfast.actors.bakery.course import Courses, Step, locked
from holdfast.actors.bakery.door_message import (
    Lock,
    NotLeading,
    Peek,
    Prolong,
    Prolonged,
    Unlock,
    UnlockAll,
    Unlocked,
)
from holdfast.actors.bakery.ending import Endings
from holdfast.actors.bakery.event import Raise, Seen, Serve, Serving, StepDue, Trust
from holdfast.actors.bakery.handover import Import, parts_of
from holdfast.actors.bakery.message import Export, Lead, Merged, Table
from holdfast.actors.bakery.office import Office
from holdfast.actors.bakery.reception import problem_of
from holdfast.actors.bakery.step_message import (
    AddTicket,
    Collected,
    DropTicket,
    Ended,
    Entering,
    Extend,
    Extended,
    MaxTicket,
    Owned,
    TicketDropped,
    Yield,
)
from holdfast.actors.bakery.table import Entry, Key, Phase
from holdfast.actors.bakery.table import Table as Tickets
from holdfast.actors.bakery.voting import Voting
from holdfast.actors.bakery.wording import peeked
from holdfast.actors.effect import Effect, Effects, Observe, Send, Wake
from holdfast.actors.message import Address, Instant, ms_between, node_of
from holdfast.actors.role import Host, Role

TICK_MS = 25
"""How exactly deadlines are kept (ms)."""

SWEEP_MS = 5_000
"""How often everything that is over is looked for (ms); what matters is looked at before."""

FromDoor = Lock | Unlock | UnlockAll | Prolong | Peek
FromLeader = (
    Entering
    | MaxTicket
    | AddTicket
    | Collected
    | Yield
    | DropTicket
    | TicketDropped
    | Ended
    | Owned
    | Extend
    | Extended
)
Heard = (
    Lock
    | Unlock
    | UnlockAll
    | Prolong
    | Peek
    | Entering
    | MaxTicket
    | AddTicket
    | Collected
    | Yield
    | DropTicket
    | TicketDropped
    | Ended
    | Owned
    | Extend
    | Extended
    | Lead
    | Export
    | Table
    | Serve
    | Trust
    | Seen
    | StepDue
)


class Leader(Role[Heard]):
    """Tickets, votes and leases of one leader, and the hand-over of its table.

    Invariants: B3 to B10; see the README of this folder.

    Args:
        node: this node.
        life: of this node.
        members: all that are configured, sorted.
        terms: which durations are allowed.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        life: int,
        members: tuple[str, ...],
        terms: Terms,
    ) -> None:
        super().__init__(address, host)
        self.members = frozenset(members)
        self.terms = terms
        self.office = Office(node, life)
        self.tickets = Tickets()
        self.courses = Courses(self.office, self.tickets)
        self.voting = Voting(self.office, self.tickets, self.courses)
        self.endings = Endings(self.office)
        self.arriving: Import | None = None
        self.merged = 0
        """The epoch for which the table was completed last."""
        self.connected: frozenset[str] = frozenset()
        self.ticking = False
        self.swept_at = Instant(0)

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
        """Take one step."""
        if isinstance(event, FromLeader):
            effects = self._on_leader(sender, event, now)
        elif isinstance(event, FromDoor):
            effects = self._on_door(sender, event, now)
        else:
            effects = self._on_other(sender, event, now)
        return [*effects, *self._tick(now)]

    def _on_leader(self, sender: Address, event: FromLeader, now: Instant) -> list[Effect]:
        leader = node_of(sender)
        if sender != leader_of(leader) or not self.office.heeds(sender, event.epoch):
            return [Observe("bakery.step_of_another_epoch")]
        match event:
            case Entering() | AddTicket() | Yield() | DropTicket() | Extend():
                return self.voting.on_step(leader, event, now)
            case MaxTicket():
                return self.courses.on_max(leader, event, now)
            case Collected():
                return self.courses.on_collected(leader, event, now)
            case Ended() | Owned():
                return self.voting.on_told(leader, event, now)
            case TicketDropped():
                return self.endings.on_dropped(leader, event, now)
            case Extended():
                return self.endings.on_extended(leader, event, now)

    def _on_door(self, sender: Address, event: FromDoor, now: Instant) -> list[Effect]:
        node = node_of(sender)
        if node not in self.members or sender != door_of(node):
            return [Observe("bakery.stranger_asks")]
        if isinstance(event, Peek):
            return [Send(sender, peeked(self.tickets, event, now))]
        if isinstance(event, UnlockAll):
            return self._on_unlock_all(sender, event, now) if self.office.serving else []
        if not self.office.serving:
            return [Send(sender, NotLeading(lock=event.lock, who=event.who, owner=""))]
        problem = problem_of(sender, event, self.tickets, self.terms, now)
        if problem is not None:
            return [problem, Observe("bakery.refused")]
        match event:
            case Lock():
                return self._on_lock(sender, event, now)
            case Unlock():
                return self._on_unlock(sender, event, now)
            case Prolong():
                return self._on_prolong(sender, event, now)

    def _on_lock(self, door: Address, asked: Lock, now: Instant) -> list[Effect]:
        lease_ms = asked.hold_ms + asked.grace_ms
        if lease_ms > self.office.bound_ms:  # The door asks again, when enough members know.
            return [Send(election_of(self.office.node), Raise(bound_ms=lease_ms))]
        course = self.courses.find(asked.lock, asked.who, asked.request)
        if course is not None:
            course.heard_at = now
            entry = course.entry
            entry.ticket = entry.ticket._replace(door=door)
            if course.step is Step.HELD:
                return [locked(entry), Observe("bakery.answered_again")]
            return []
        known = self.tickets.get(asked.lock, Key(asked.who, asked.request))
        owner = known.owner if known is not None else ""
        if owner in self.office.others and owner in self.connected:
            return [Send(door, NotLeading(lock=asked.lock, who=asked.who, owner=owner))]
        return self.courses.open(door, asked, now)

    def _on_unlock(self, door: Address, asked: Unlock, now: Instant) -> list[Effect]:
        if self.endings.known(door, asked.number):
            return []
        if asked.waiting:
            course = self.courses.find(asked.lock, asked.who, asked.request)
            waits = course is not None and course.step is not Step.HELD
            dropped = self.courses.drop(course, now) if course is not None and waits else []
            return [*dropped, Send(door, Unlocked(number=asked.number, found=waits))]
        for entry in self.tickets.of(asked.lock, asked.who):
            by_fence = asked.fence and entry.fence == asked.fence
            if by_fence or (asked.request and entry.ticket.request <= asked.request):
                self.courses.forget(entry)
        found = self.tickets.drop(asked.lock, asked.who, asked.request, asked.fence)
        dropped = self.endings.drop(door, asked, now, found=found)
        return [*dropped, *self.courses.advance(asked.lock, now)]

    def _on_unlock_all(self, door: Address, asked: UnlockAll, now: Instant) -> list[Effect]:
        """Have everything of a session forgotten that is known here; others are asked, too."""
        effects: list[Effect] = [Send(door, Unlocked(number=asked.number, found=True))]
        for entry in self.tickets.entries():
            ticket = entry.ticket
            if ticket.who.session != asked.session:
                continue
            self.courses.forget(entry)
            self.tickets.drop(ticket.lock, ticket.who, ticket.request, 0)
            word = DropTicket(
                epoch=self.office.epoch,
                lock=ticket.lock,
                who=ticket.who,
                request=ticket.request,
                fence=0,
                number=0,
                mine=False,
            )
            effects += [*self.office.tell(word), *self.courses.advance(ticket.lock, now)]
        return effects

    def _on_prolong(self, door: Address, asked: Prolong, now: Instant) -> list[Effect]:
        if self.endings.known(door, asked.number):
            return []
        held = [e for e in self.tickets.of(asked.lock, asked.who) if e.fence == asked.fence]
        if not held or held[0].is_over(now):
            gone = Prolonged(number=asked.number, fence=0, hold_ms=0, grace_ms=0)
            return [Send(door, gone)]
        entry = held[0]
        if entry.owner in self.office.others and entry.owner in self.connected:
            word = NotLeading(lock=asked.lock, who=asked.who, owner=entry.owner)
            return [Send(door, word)]
        hold_ms = asked.hold_ms or entry.ticket.hold_ms
        ticket = entry.ticket._replace(hold_ms=hold_ms)
        if ticket.lease_ms > self.office.bound_ms:
            return [Send(election_of(self.office.node), Raise(bound_ms=ticket.lease_ms))]
        entry.ticket = ticket
        # Never shorter: a late copy of an earlier renewal must not end what a later one gave.
        until = later(now, ticket.lease_ms)
        entry.until = max(entry.until or until, until)
        return self.endings.extend(door, asked, entry, now)

    def _on_other(
        self,
        sender: Address,
        event: Lead | Export | Table | Serve | Trust | Seen | StepDue,
        now: Instant,
    ) -> list[Effect]:
        match event:
            case Trust():
                if event.epoch == self.office.epoch:
                    self.office.trusted_at = event.at
            case Seen():
                self.connected = frozenset(member.node for member in event.members)
            case Serve():
                return self._on_serve(event, now)
            case Lead():
                return self._on_lead(sender, event, now)
            case Export():
                return self._on_export(sender, event, now)
            case Table():
                return self._on_table(sender, event, now)
            case StepDue():
                self.ticking = False
                return self._on_due(now)
        return []

    def _on_lead(self, sender: Address, lead: Lead, now: Instant) -> list[Effect]:
        """Make the table complete for a new epoch, with those of the leaders before (B3)."""
        node = node_of(sender)
        if node not in self.members or sender != election_of(node):
            return [Observe("bakery.stranger_elects")]
        if self.office.me not in lead.leaders or lead.epoch < self.office.barred:
            return [Observe("bakery.lead_ignored")]
        if self.merged == lead.epoch:
            return [self._merged(sender, lead.epoch, now)]
        own = self.office.me in lead.former.leaders
        left = self._leave(lead.epoch)
        if self.arriving is None or self.arriving.lead.epoch != lead.epoch:
            self.arriving = Import(lead, sender, own)
        self.arriving.coordinator = sender
        if lead.empty:
            self.arriving.lead = lead
        return [*left, *self.arriving.ask(self.office.node), *self._merge(now)]

    def _merge(self, now: Instant) -> list[Effect]:
        arriving = self.arriving
        if arriving is None or not arriving.complete:
            return []
        lead = arriving.lead
        if lead.epoch < self.office.barred:  # A higher epoch has come meanwhile.
            self.arriving = None
            return []
        if lead.empty or not arriving.own:
            self._clear()
        if not lead.empty:
            arriving.merge(self.tickets, now)
        self.arriving, self.merged = None, lead.epoch
        self.office.take(lead.epoch, lead.leaders)
        return [self._merged(arriving.coordinator, lead.epoch, now)]

    def _merged(self, coordinator: Address, epoch: int, now: Instant) -> Send:
        left = [
            ms_between(now, entry.until)
            for entry in self.tickets.entries()
            if entry.phase is Phase.HOLDING and entry.until is not None
        ]
        return Send(coordinator, Merged(epoch=epoch, left_ms=max(left, default=0) + 1))

    def _on_export(self, sender: Address, export: Export, now: Instant) -> list[Effect]:
        """Heed nobody of an earlier epoch any more, then tell what was agreed (B4)."""
        node = node_of(sender)
        if node not in self.members or sender != leader_of(node):
            return [Observe("bakery.stranger_elects")]
        if export.epoch < self.office.barred:
            return [Observe("bakery.export_ignored")]
        left = self._leave(export.epoch)
        self.tickets.forget_old(now)
        parts = parts_of(self.tickets, export.epoch, self.office.life, now)
        return [*left, *(Send(sender, part) for part in parts)]

    def _on_table(self, sender: Address, table: Table, now: Instant) -> list[Effect]:
        node = node_of(sender)
        arriving = self.arriving
        if arriving is None or sender != leader_of(node) or table.epoch != arriving.lead.epoch:
            return [Observe("bakery.table_ignored")]
        if not arriving.on_table(node, table):
            return [Observe("bakery.table_malformed")]
        return self._merge(now)

    def _leave(self, epoch: int) -> list[Effect]:
        """Stop taking part in epochs below ``epoch``; give up the rounds under way."""
        served = self.office.serving
        self.office.leave(epoch)
        if self.office.epoch:
            return []
        for course in self.courses.by_key.values():
            if course.step is Step.ASKING and not course.held:
                course.step = Step.WAITING
                if course.entry.phase is Phase.HOLDING:
                    self.tickets.unvote(course.entry, None)
        self.endings.clear()
        if not served:
            return []
        return [Send(status_of(self.office.node), Serving(epoch=0))]

    def _clear(self) -> None:
        """Forget every ticket: they are of an epoch in which this leader had no part."""
        for entry in self.tickets.entries():
            self.courses.forget(entry)
            self.tickets.remove(entry)

    def _on_serve(self, serve: Serve, now: Instant) -> list[Effect]:
        """Begin to serve: a majority of the members knows that this epoch is led so."""
        office = self.office
        if serve.epoch < office.barred:
            return []
        if serve.epoch == office.epoch and office.serving:
            office.bound_ms = max(office.bound_ms, serve.bound_ms)
            return []
        if office.me not in serve.leaders:
            left = self._leave(serve.epoch)
            self._clear()
            self.arriving = None
            return left
        if serve.epoch != office.epoch:  # A quorum is ready without it: any two know all.
            self._leave(serve.epoch)
            self.arriving, self.merged = None, serve.epoch
            office.take(serve.epoch, serve.leaders)
        office.serving, office.bound_ms = True, serve.bound_ms
        effects: list[Effect] = [Send(status_of(office.node), Serving(epoch=office.epoch))]
        for entry in self.tickets.entries():
            effects += self._inherit(entry, now)
        return effects

    def _inherit(self, entry: Entry, now: Instant) -> list[Effect]:
        """Go on with a ticket of this leader's own, or of one that leads no more."""
        office = self.office
        if entry.owner not in {leader.node for leader in office.leaders}:
            if entry.phase is Phase.ENTERING:
                self.tickets.remove(entry)
                return []
            entry.owner = office.leaders[0].node
        if entry.owner != office.node:
            return []
        course = self.courses.of(entry)
        if course is not None:
            return self.courses.resume(course, now)
        if entry.phase is Phase.ENTERING:
            self.tickets.remove(entry)
            return []
        return self.courses.adopt(entry, now)

    def _on_due(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        if ms_between(self.swept_at, now) >= SWEEP_MS:
            self.swept_at = now
            gone = self.tickets.forget_old(now)
            if gone:
                effects.append(Observe("bakery.copies_forgotten", gone))
        if self.office.serving:
            effects += self.courses.tick(now)
            effects += self.endings.tick(now)
        if self.arriving is not None:
            effects += self.arriving.ask(self.office.node)
        return effects

    def _tick(self, now: Instant) -> list[Effect]:
        """Wake when something is due, if anything is."""
        if self.ticking:
            return []
        busy = self.tickets.size or self.endings.by_number or self.arriving is not None
        if not busy:
            return []
        self.ticking = True
        return [Wake(RESEND_MS if not self.courses.by_key else TICK_MS, StepDue())]
