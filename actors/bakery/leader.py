"""The leader role: it checks each message, and leaves it to the part that handles it."""

from __future__ import annotations

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
    BakeryTiming,
    Terms,
    election_of,
    leader_of,
    proxy_of,
)
from fencelock.actors.bakery.epochs import EpochLimit, EpochState, Refusals
from fencelock.actors.bakery.event import (
    Connected,
    Known,
    ListTickets,
    Serve,
    StepDue,
    Tally,
    Trust,
)
from fencelock.actors.bakery.leader_requests import LeaderRequests, tickets_of
from fencelock.actors.bakery.leader_selection import leadership, names_of
from fencelock.actors.bakery.state_transfer import StateTransfer
from fencelock.actors.bakery.table import TicketTable
from fencelock.actors.bakery.ticket_attempt import TicketAttempts
from fencelock.actors.bakery.voting import Voting
from fencelock.actors.bakery.wire import (
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
    ToLeader,
    Vouched,
    Yield,
)
from fencelock.actors.deadline_queue import QUEUE_ENDS_MAX
from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.fault import reading
from fencelock.actors.message import Address, Instant, ms_between, node_of
from fencelock.actors.quota import DEFAULT_QUOTAS
from fencelock.actors.role import Facts, Host, Role, Summary

LEADER_TICK_MS = 25
"""Resolution of deadlines (ms)."""

SWEEP_MS = 5_000
"""Interval at which everything that has ended is removed (ms); urgent entries are seen sooner."""

FromNode = (
    Lead
    | Export
    | Table
    | Serve
    | Vouched
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
    """Table, votes and leases of one leader, and the hand-over of its table.

    Invariants: from no-conflicting-votes on in `INVARIANTS`, without one-reply.
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
        share: int = DEFAULT_QUOTAS.tickets,
    ) -> None:
        super().__init__(address, host)
        self.members = set(members)
        """The nodes that may take part in elections, at any time of this life."""
        self.refusals = Refusals(node, limit or EpochLimit())
        self.epoch_state = EpochState(node, life, timing)
        self.epoch_state.bound.default_ms = terms.lease_ms
        self.tickets = TicketTable()
        self.attempts = TicketAttempts(self.epoch_state, self.tickets)
        self.voting = Voting(self.epoch_state, self.tickets, self.attempts)
        self.requests = LeaderRequests(self.attempts, terms, share)
        self.transfer = StateTransfer(self.attempts, self.requests)
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

    def _on_leader(  # noqa: PLR0912  (a case for each message)
        self, sender: Address, event: FromLeader, now: Instant
    ) -> list[Effect]:
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
            case Entering() | AddTicket() | Extend() if self.voting.is_of_other_mode(event.ticket):
                return [Observe("bakery.step_malformed")]
            case Entering():
                return self.voting.on_entering(leader, event, now)
            case AddTicket():
                return self.voting.on_add(leader, event, now)
            case Yield():
                return self.voting.on_yield(leader, event, now)
            case DropTicket():
                return self.voting.on_drop(leader, event, now)
            case Extend():
                return self.voting.on_extend(leader, event, now)
            case MaxTicket():
                return self.attempts.on_max(leader, event, now)
            case Collected():
                return self.attempts.on_collected(leader, event, now)
            case TicketEnded() | Owned():
                return self.attempts.on_lost(leader, event, now)
            case TicketDropped():
                return self.requests.on_dropped(leader, event, now)
            case Extended():
                return self.requests.on_extended(leader, event, now)

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
            case Vouched() if sender != election_of(self.epoch_state.node):
                return [Observe("bakery.stranger_elects")]
            case Vouched():
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
            ("tickets", len(self.tickets)),
        )

    def facts(self, now: Instant) -> Facts:
        """Return the tickets for each lock: the holders with their fences, and those that wait."""
        yield from self.summary()
        for status in tickets_of(self.tickets, now):
            holders = status.all_holders
            held = (f"{one.label or one.node} under fence {one.fence}" for one in holders)
            yield f"held {status.lock}", ", ".join(held) or "by nobody"
            if status.waiters:
                waiters = ", ".join(one.label or one.node for one in status.waiters)
                yield f"waits for {status.lock}", waiters

    def _on_due(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        if ms_between(self.swept_at, now) >= SWEEP_MS:
            gone = self.tickets.forget_old(now, QUEUE_ENDS_MAX)
            if not self.tickets.ends.is_due(now):  # Else the next tick goes on.
                self.swept_at = now
            if gone:
                effects.append(Observe("bakery.copies_forgotten", gone))
            if self.epoch_state.serving:
                effects += self.epoch_state.bound.lower(self.tickets.longest_ms(now), now)
        if self.epoch_state.serving:
            effects += self.attempts.tick(now)
            effects += self.requests.tick(now)
        return [*effects, *self.transfer.request_again()]

    def _tick(self, now: Instant) -> list[Effect]:
        if self.ticking:
            return []
        own = self.attempts.own  # The table may have forgotten some of these.
        busy = own or self.tickets or self.requests.pending or self.transfer.arriving
        ending = self.attempts.ending
        if not (busy or ending) and not self.epoch_state.bound.is_raised:
            return []
        self.ticking = True
        return [
            Wake(LEADER_TICK_MS if own or ending else self.epoch_state.timing.resend_ms, StepDue())
        ]
