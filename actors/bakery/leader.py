"""The leader role, and its answers to the steps of the other leaders: its part in a quorum."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.api.role_request import ReadLeaders
from fencelock.actors.bakery.bounds import (
    FromLeader,
    impossible_records,
    is_possible_lead,
    is_possible_request,
    is_possible_step,
    is_possible_table,
)
from fencelock.actors.bakery.config import (
    BAKERY_TIMING,
    COPY_MS,
    BakeryTiming,
    Terms,
    later,
    leader_of,
    proxy_of,
)
from fencelock.actors.bakery.copies import Copies, obeys_step
from fencelock.actors.bakery.epochs import EpochLimit, EpochState, Refusals, answer
from fencelock.actors.bakery.event import (
    BoundKnown,
    Connected,
    Known,
    ListTickets,
    Serve,
    StepDue,
    Tally,
    Trust,
)
from fencelock.actors.bakery.leader_requests import LeaderRequests, PendingReleases, tickets_of
from fencelock.actors.bakery.leader_selection import leadership, names_of
from fencelock.actors.bakery.message import (
    AddTicket,
    Collected,
    DropTicket,
    Entering,
    Export,
    Extend,
    Extended,
    Lead,
    MaxTicket,
    Owned,
    Table,
    TicketDropped,
    TicketEnded,
    Yield,
    request_of,
)
from fencelock.actors.bakery.proxy_message import Error, ToLeader
from fencelock.actors.bakery.state_transfer import StateTransfer
from fencelock.actors.bakery.table import RequestKey, TicketEntry, TicketPhase, TicketTable
from fencelock.actors.bakery.ticket import Ticket, Turn, epoch_of
from fencelock.actors.bakery.ticket_attempt import (
    TicketAttempt,
    TicketAttempts,
    TicketStep,
    ended_before,
)
from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.fault import reading
from fencelock.actors.message import Address, Instant, ms_between, node_of
from fencelock.actors.role import Facts, Host, Role, Summary

TICK_MS = 25
"""Resolution of deadlines (ms)."""

SWEEP_MS = 5_000
"""Interval at which everything that has ended is removed (ms); urgent entries are seen sooner."""

FromNode = (
    Lead
    | Export
    | Table
    | Serve
    | BoundKnown
    | Trust
    | Connected
    | Known
    | ListTickets
    | StepDue
    | ReadLeaders
)
"""Messages about epochs, and events of this node."""

Received = FromLeader | ToLeader | FromNode


class Leader(Role[Received]):
    """TicketTable, votes and leases of one leader, and the hand-over of its table.

    Invariants: from no-conflicting-votes on in `INVARIANTS`, without one-reply.

    Args:
        node: this node.
        life: id of this node's life.
        members: all configured members, sorted.
        terms: the allowed durations.
        limit: the epochs that are plausible.
        timing: the times of this member.

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
        limit: EpochLimit | None = None,
        timing: BakeryTiming = BAKERY_TIMING,
    ) -> None:
        super().__init__(address, host)
        self.members = set(members)
        """The nodes that may take part in elections, at any time of this life."""
        self.refusals = Refusals(node, limit or EpochLimit())
        self.epoch_state = EpochState(node, life, timing)
        self.epoch_state.bound.default_ms = terms.lease_ms
        self.tickets = TicketTable()
        self.attempts = TicketAttempts(self.epoch_state, self.tickets)
        copies = Copies(self.epoch_state, self.tickets)
        self.voting = Voting(self.epoch_state, self.tickets, self.attempts, copies)
        self.releases = PendingReleases(self.epoch_state)
        self.requests = LeaderRequests(self.attempts, self.releases, terms)
        self.transfer = StateTransfer(self.attempts, self.releases)
        self.ticking = False
        self.swept_at = Instant(0)

    def handle(self, sender: Address, event: Received, now: Instant) -> Effects:
        if isinstance(event, FromLeader):
            effects = self._on_leader(sender, event, now)
        elif isinstance(event, ToLeader):
            effects = self._on_proxy(sender, event, now)
        else:
            effects = self._on_other(sender, event, now)
        return [*effects, *self._tick(now)]

    def _on_leader(self, sender: Address, event: FromLeader, now: Instant) -> list[Effect]:
        leader = node_of(sender)
        if sender != leader_of(leader) or not self.epoch_state.obeys(sender, event):
            return [Observe("bakery.step_of_another_epoch")]
        if not is_possible_step(event):
            return self.refusals.malformed(sender, "bakery.step_malformed", event, now)
        match event:
            case Entering() | AddTicket() | Extend() if refused := self.refusals.lease(
                sender, now, event.ticket.lease_ms
            ):
                return refused
            case Entering() | AddTicket() | Yield() | DropTicket() | Extend():
                return self.voting.on_step(leader, event, now)
            case MaxTicket():
                return self.attempts.on_max(leader, event, now)
            case Collected():
                return self.attempts.on_collected(leader, event, now)
            case TicketEnded() | Owned():
                return self.voting.on_notice(leader, event, now)
            case TicketDropped():
                return self.requests.on_dropped(leader, event, now)
            case Extended():
                return self.releases.on_extended(leader, event, now)

    def _on_proxy(self, sender: Address, event: ToLeader, now: Instant) -> list[Effect]:
        node = node_of(sender)
        known = node in self.members or node in self.epoch_state.connected
        if not known or sender != proxy_of(node):
            return [Observe("bakery.stranger_asks")]
        if not is_possible_request(event):
            return self.refusals.malformed(sender, "bakery.request_malformed", event, now)
        return self.requests.serve(sender, event, now)

    def _read(
        self, sender: Address, event: ListTickets | ReadLeaders, now: Instant
    ) -> list[Effect]:
        """Report the leaders, or the locks if this leader serves."""
        state = self.epoch_state
        if isinstance(event, ReadLeaders):
            return [Send(sender, leadership(state.node, state.epoch, state.leaders))]
        locks = reading("tickets", lambda: tickets_of(self.tickets, now)) if state.serving else ()
        if isinstance(locks, Fault):
            return [locks, Send(sender, Tally(serving=state.serving, locks=()))]
        return [Send(sender, Tally(serving=state.serving, locks=locks))]

    def _on_other(  # noqa: PLR0912  (a case for each message)
        self, sender: Address, event: FromNode, now: Instant
    ) -> list[Effect]:
        match event:
            case Trust():
                if event.epoch == self.epoch_state.epoch:
                    self.epoch_state.trusted_at = event.at
            case Connected():
                lives = {member.node: member.life for member in event.members}
                self.epoch_state.connected = lives
            case Known():
                self.members.update(event.nodes)
            case ListTickets() | ReadLeaders():
                return self._read(sender, event, now)
            case Serve():
                return self.transfer.on_serve(event, now)
            case BoundKnown():
                self.epoch_state.bound.on_known(event)
            case Lead() | Export() if node_of(sender) not in self.members:
                return [Observe("bakery.stranger_elects")]
            case Lead() | Export() if refused := self.refusals.epoch(sender, event.epoch, now):
                return refused
            case Lead():
                return self._on_lead(sender, event, now)
            case Export() if event.epoch == 0:
                return self.refusals.malformed(sender, "bakery.export_malformed", event, now)
            case Export():
                return self.transfer.on_export(sender, event, now)
            case Table():
                return self._on_table(sender, event, now)
            case StepDue():
                self.ticking = False
                return self._on_due(now)
        return []

    def _on_lead(self, sender: Address, lead: Lead, now: Instant) -> list[Effect]:
        """Refuse leaders that cannot be, and bounds of leases that are too long."""
        if not is_possible_lead(lead):
            return self.refusals.malformed(sender, "bakery.lead_malformed", lead, now)
        bounds_ms = lead.seating.bound_ms, lead.former.bound_ms
        refused = self.refusals.lease(sender, now, *bounds_ms)
        return refused or self.transfer.on_lead(sender, lead, now)

    def _on_table(self, sender: Address, table: Table, now: Instant) -> list[Effect]:
        """Refuse a table with a lease that is too long: without it, another could be granted."""
        if not is_possible_table(table):
            return self.refusals.malformed(sender, "bakery.table_malformed", table, now)
        leases_ms = (max(one.left_ms, one.ticket.lease_ms) for one in table.records)
        if refused := self.refusals.lease(sender, now, *leases_ms):
            return refused
        wrong, reported = impossible_records(table, table.epoch - 1), list[Effect]()
        if wrong:
            text = f"{wrong} records of a table that no honest member can have"
            reported = self.refusals.report(sender, "bakery.record_malformed", text, now)
        return [*reported, *self.transfer.on_table(sender, table, now)]

    def summary(self) -> Summary:
        return (
            ("epoch", self.epoch_state.epoch),
            ("leaders", names_of(self.epoch_state.leaders) or "not known"),
            ("serving", self.epoch_state.serving),
            ("tickets", self.tickets.size),
        )

    def facts(self, now: Instant) -> Facts:
        """Return the tickets for each lock: the holders with their fences, and those that wait."""
        yield from self.summary()
        for status in tickets_of(self.tickets, now):
            holders = status.holders or ((status.holder,) if status.holder else ())
            held = (f"{one.label or one.node} under fence {one.fence}" for one in holders)
            yield f"held {status.lock}", ", ".join(held) or "by nobody"
            if status.waiters:
                waiters = ", ".join(one.label or one.node for one in status.waiters)
                yield f"waits for {status.lock}", waiters

    def _on_due(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        if ms_between(self.swept_at, now) >= SWEEP_MS:
            self.swept_at = now
            gone = self.tickets.forget_old(now)
            if gone:
                effects.append(Observe("bakery.copies_forgotten", gone))
            if self.epoch_state.serving:
                effects += self.epoch_state.bound.lower(self.tickets.longest_ms(now), now)
        if self.epoch_state.serving:
            effects += self.attempts.tick(now)
            effects += self.releases.tick(now)
        return [*effects, *self.transfer.request_again()]

    def _tick(self, now: Instant) -> list[Effect]:
        if self.ticking:
            return []
        own = self.attempts.timers.by_key  # The table may have forgotten some of these.
        busy = own or self.tickets.size or self.releases.by_number or self.transfer.arriving
        if not busy and not self.epoch_state.bound.is_raised:
            return []
        self.ticking = True
        return [
            Wake(
                self.epoch_state.timing.resend_ms if not self.attempts.timers.by_key else TICK_MS,
                StepDue(),
            )
        ]


StepRequest = Entering | AddTicket | Yield | DropTicket | Extend


@dataclass(eq=False)
class Voting:
    """Keeps copies of the others' tickets, and votes.

    Invariants: no-conflicting-votes, dropped-stays-dropped.

    Attributes:
        epoch_state: this leader's state in its epoch.
        table: this leader's table.
        attempts: its own tickets, which another leader's step may advance, or end.
        copies: what it keeps while it does not lead.

    """

    epoch_state: EpochState
    table: TicketTable
    attempts: TicketAttempts
    copies: Copies

    def on_step(self, leader: str, step: StepRequest, now: Instant) -> list[Effect]:
        """Process a step of ``leader``, which leads in the same epoch.

        The mode is part of a request: a step that names a known one in the other mode is dropped.
        """
        match step:
            case Entering() | AddTicket() | Extend() if self._is_of_other_mode(step.ticket):
                return [Observe("bakery.step_malformed")]
            case AddTicket() if not self.epoch_state.leads:
                return self.copies.on_add(leader, step, now)
            case Extend() if not self.epoch_state.leads:
                return self.copies.on_extend(leader, step, now)
            case Entering():
                return self._on_entering(leader, step, now)
            case AddTicket():
                return self._on_add(leader, step, now)
            case Yield():
                return self._on_yield(leader, step, now)
            case DropTicket():
                return self._on_drop(leader, step, now)
            case Extend():
                return self._on_extend(leader, step, now)

    def _is_of_other_mode(self, ticket: Ticket) -> bool:
        attempt = self.attempts.timers.find(ticket.lock, ticket.who, ticket.request)
        entry = self.table.get(ticket.lock, RequestKey(ticket.who, ticket.request))
        known = entry if attempt is None else attempt.entry
        return known is not None and known.shared != ticket.shared

    def _on_entering(self, leader: str, step: Entering, now: Instant) -> list[Effect]:
        ticket = step.ticket
        attempt = self.attempts.timers.find(ticket.lock, ticket.who, ticket.request)
        ceded: list[Effect] = []
        if attempt is not None and attempt.step is not TicketStep.HELD:
            if self.epoch_state.ranks_before(leader):
                return answer(leader, Owned(**request_of(step.epoch, ticket)))
            ceded = self.attempts.cede(attempt, leader, now)
        entry = self.table.put(ticket, leader, now, later(now, COPY_MS))
        if entry is None:
            return [*ceded, *self._it_ended(leader, step)]
        ceded += self.epoch_state.wait_for_bound(ticket.lease_ms)
        message = MaxTicket(
            **request_of(step.epoch, ticket),
            highest=self.table.highest(ticket.lock, step.epoch),
            held=entry.fence,
            known=entry.round,
        )
        return [*ceded, *answer(leader, message)]

    def _it_ended(self, leader: str, step: Entering | AddTicket) -> list[Effect]:
        message = TicketEnded(**request_of(step.epoch, step.ticket))
        return [*answer(leader, message), Observe("bakery.ended_before")]

    def _on_add(self, leader: str, step: AddTicket, now: Instant) -> list[Effect]:
        ticket = step.ticket
        entry = self.table.get(ticket.lock, RequestKey(ticket.who, ticket.request))
        ceded: list[Effect] = []
        attempt = self.attempts.timers.find(ticket.lock, ticket.who, ticket.request)
        whose = self._whose(attempt, leader, step) if attempt is not None else ""
        if attempt is not None and whose == self.epoch_state.node:
            return answer(leader, Owned(**request_of(step.epoch, ticket)))
        if attempt is not None and whose == leader:
            ceded = self.attempts.cede(attempt, leader, now)
        return [*ceded, *self._take_in(leader, step, entry, now)]

    def _whose(self, attempt: TicketAttempt, leader: str, step: AddTicket) -> str:
        """Return which of two owners of a request continues with it, or "" if votes must decide.

        The order is: the one that granted it, the one that takes a hold over, the one that ranks
        first. But a hold that only the other one takes over is not left to it: its votes may be
        too few.
        """
        held = attempt.step is TicketStep.HELD
        if (held or attempt.held) and not step.taken:
            return self.epoch_state.node
        if held or (step.fence if step.taken else 0) != attempt.held:
            return ""
        return self.epoch_state.node if self.epoch_state.ranks_before(leader) else leader

    def _take_in(
        self, leader: str, step: AddTicket, entry: TicketEntry | None, now: Instant
    ) -> list[Effect]:
        """Store a ticket with its number; vote for it, if requested and nothing is ahead."""
        ticket = step.ticket
        if entry is not None and self.table.forget(entry, now):
            entry = None  # A vote whose lease is over does not count, swept or not.
        if entry is not None and not obeys_step(entry, leader, step):
            return self._collected(leader, step, entry, None)
        until = later(now, COPY_MS)
        if entry is not None and entry.phase is TicketPhase.HOLDING:
            if entry.fence != step.fence:
                self.table.unvote(entry, until)  # It is another round: that vote was given back.
        else:
            held = step.fence if step.taken else 0
            entry = self.table.put(ticket, leader, now, until, held)
        if entry is None:
            return self._it_ended(leader, step)
        entry.round, entry.owner = step.round, leader
        if step.fence:
            waits = self.epoch_state.wait_for_bound(entry.lease_left_ms(now))
            if waits:  # Its owner sends the step again.
                return waits
        ahead = None if entry.phase is TicketPhase.HOLDING else self.table.ahead(entry, now)
        if entry.phase is not TicketPhase.HOLDING and ahead is None and self._is_highest(step):
            self.table.vote(entry, step.fence, now)
        if entry.phase is TicketPhase.HOLDING:
            self._leave_to(entry)
        answered = self._collected(leader, step, entry, ahead)
        return [*answered, *self.attempts.advance(ticket.lock, now)]

    def _is_highest(self, step: AddTicket) -> bool:
        """Return whether the fence is above those of all votes for tickets that conflict.

        A hold that expired here and is taken over may return under the same fence.
        """
        last = self.table.last_against(step.ticket)
        again = step.taken and self.table.tombstones.expired_under(step.ticket, step.fence)
        return step.fence > last or (again and step.fence == last > 0)

    def _leave_to(self, entry: TicketEntry) -> None:
        """Take no more steps for a request that this leader has voted for as another's.

        A new round here would take that vote back, and the other may have won with it.
        """
        attempt = self.attempts.timers.of(entry)
        if attempt is not None and attempt.step is not TicketStep.HELD:
            self.attempts.timers.forget(entry)

    def _collected(
        self, leader: str, step: AddTicket, entry: TicketEntry, ahead: Turn | None
    ) -> list[Effect]:
        voted = entry.phase is TicketPhase.HOLDING and entry.fence == step.fence
        if step.taken and self.table.is_outdone(step.ticket, step.fence):
            voted = False
        message = Collected(
            **request_of(step.epoch, step.ticket),
            round=step.round,
            voted=voted and (entry.owner, entry.round) == (leader, step.round),
            ahead=ahead,
            highest=self.table.highest(step.ticket.lock, step.epoch),
            known=entry.round,
        )
        return answer(leader, message)

    def _on_yield(self, leader: str, step: Yield, now: Instant) -> list[Effect]:
        entry = self.table.get(step.lock, RequestKey(step.who, step.request))
        if entry is None or entry.owner != leader or step.round <= entry.round:
            return [Observe("bakery.late_step")]
        entry.round = step.round
        if entry.phase is TicketPhase.HOLDING and epoch_of(entry.fence) == step.epoch:
            self.table.unvote(entry, later(now, COPY_MS))
        return self.attempts.advance(step.lock, now)

    def _on_drop(self, leader: str, step: DropTicket, now: Instant) -> list[Effect]:
        if step.mine:
            for entry in self.table.of(step.lock, step.who):
                if entry.ticket.request == step.request and entry.owner == leader:
                    self._gave_up(entry)
            return self.attempts.advance(step.lock, now)
        request = step.request
        for entry in self.table.named(step.lock, step.who, step.request, step.fence):
            request = max(request, entry.ticket.request)
            self.attempts.timers.forget(entry)
        found = self.table.drop(step.lock, step.who, step.request, step.fence)
        request = request or self.table.tombstones.request_of(step.lock, step.who, step.fence)
        message = TicketDropped(epoch=step.epoch, number=step.number, found=found, request=request)
        answered = answer(leader, message) if step.number else []
        return [*answered, *self.attempts.advance(step.lock, now)]

    def _gave_up(self, entry: TicketEntry) -> None:
        """Drop a ticket that its owner abandoned, unless this leader has the same request."""
        if self.attempts.timers.of(entry) is None:
            self.table.remove(entry)
            return
        entry.owner = self.epoch_state.node
        if entry.phase is not TicketPhase.HOLDING:
            self.table.set_until(entry, None)

    def _on_extend(self, leader: str, step: Extend, now: Instant) -> list[Effect]:
        ticket = step.ticket
        entry = self.table.get(ticket.lock, RequestKey(ticket.who, ticket.request))
        waits = self.epoch_state.wait_for_bound(ticket.lease_ms)
        if waits:  # Its sender sends it again.
            return waits
        kept = entry is not None and entry.fence == step.fence and not entry.is_over(now)
        if entry is None or entry.phase is not TicketPhase.HOLDING:
            queue = self.table.queues.get(ticket.lock)
            free = queue is None or not any(
                one.holding for one in queue.against(shared=ticket.shared)
            )
            if free and not self.table.is_outdone(ticket, step.fence):
                entry = self.table.put(ticket, leader, now, later(now, COPY_MS), step.fence)
                kept = entry is not None
        if kept and entry is not None:
            entry.ticket, entry.owner = ticket, leader
            if entry.phase is not TicketPhase.HOLDING:
                self.table.vote(entry, step.fence, now)
            self.table.extend_until(entry, later(now, ticket.lease_ms))
            self._leave_to(entry)
        message = Extended(epoch=step.epoch, number=step.number, kept=kept)
        return answer(leader, message)

    def on_notice(self, leader: str, notice: TicketEnded | Owned, now: Instant) -> list[Effect]:
        """Note that a ticket of this leader's own is over, or another's."""
        attempt = self.attempts.timers.find(notice.lock, notice.who, notice.request)
        if attempt is None or attempt.step is TicketStep.HELD:
            return [Observe("bakery.late_answer")]
        if isinstance(notice, Owned):
            return self.attempts.cede(attempt, leader, now)
        return self.attempts.fail(attempt, Error.FAILED, ended_before(notice.lock), now)
