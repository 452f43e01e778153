"""The leader role: while its node leads, it agrees with the other leaders on tickets."""

from __future__ import annotations

from fencelock.actors.bakery.config import RESEND_MS, Terms, leader_of, proxy_of
from fencelock.actors.bakery.epochs import TOO_FAR, EpochLimit, EpochState
from fencelock.actors.bakery.event import Connected, ListTickets, Serve, StepDue, Tally, Trust
from fencelock.actors.bakery.leader_requests import (
    FromProxy,
    LeaderRequests,
    PendingReleases,
    tickets_of,
)
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
)
from fencelock.actors.bakery.state_transfer import StateTransfer
from fencelock.actors.bakery.table import TicketTable
from fencelock.actors.bakery.ticket_attempt import TicketAttempts
from fencelock.actors.bakery.voting import Voting
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, ms_between, node_of
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import ReadLeaders

TICK_MS = 25
"""Resolution of deadlines (ms)."""

SWEEP_MS = 5_000
"""Interval at which everything that has ended is removed (ms); urgent entries are seen sooner."""

FromLeader = (
    Entering
    | MaxTicket
    | AddTicket
    | Collected
    | Yield
    | DropTicket
    | TicketDropped
    | TicketEnded
    | Owned
    | Extend
    | Extended
)
FromNode = Lead | Export | Table | Serve | Trust | Connected | ListTickets | StepDue | ReadLeaders
"""Messages about epochs, and events of this node."""

Received = FromLeader | FromProxy | FromNode


class Leader(Role[Received]):
    """TicketTable, votes and leases of one leader, and the hand-over of its table.

    Invariants: B3 to B10; see the README of this folder.

    Args:
        node: this node.
        life: id of this node's life.
        members: all configured members, sorted.
        terms: the allowed durations.
        limit: the epochs that are plausible.

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
    ) -> None:
        super().__init__(address, host)
        self.members = frozenset(members)
        self.limit = limit or EpochLimit()
        self.epoch_state = EpochState(node, life)
        self.tickets = TicketTable()
        self.attempts = TicketAttempts(self.epoch_state, self.tickets)
        self.voting = Voting(self.epoch_state, self.tickets, self.attempts)
        self.releases = PendingReleases(self.epoch_state)
        self.requests = LeaderRequests(self.attempts, self.releases, terms)
        self.transfer = StateTransfer(self.attempts, self.releases, self.members)
        self.ticking = False
        self.swept_at = Instant(0)

    def handle(self, sender: Address, event: Received, now: Instant) -> Effects:
        """Process one event."""
        if isinstance(event, FromLeader):
            effects = self._on_leader(sender, event, now)
        elif isinstance(event, FromProxy):
            effects = self._on_proxy(sender, event, now)
        else:
            effects = self._on_other(sender, event, now)
        return [*effects, *self._tick(now)]

    def _on_leader(self, sender: Address, event: FromLeader, now: Instant) -> list[Effect]:
        leader = node_of(sender)
        if sender != leader_of(leader) or not self.epoch_state.heeds(sender, event.epoch):
            return [Observe("bakery.step_of_another_epoch")]
        match event:
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

    def _on_proxy(self, sender: Address, event: FromProxy, now: Instant) -> list[Effect]:
        node = node_of(sender)
        if node not in self.members or sender != proxy_of(node):
            return [Observe("bakery.stranger_asks")]
        return self.requests.serve(sender, event, now)

    def _on_other(self, sender: Address, event: FromNode, now: Instant) -> list[Effect]:
        match event:
            case Trust():
                if event.epoch == self.epoch_state.epoch:
                    self.epoch_state.trusted_at = event.at
            case Connected():
                self.requests.connected = {member.node: member.life for member in event.members}
            case ListTickets():
                serving = self.epoch_state.serving
                locks = tickets_of(self.tickets, now) if serving else ()
                return [Send(sender, Tally(serving=serving, locks=locks))]
            case ReadLeaders():
                state = self.epoch_state
                return [Send(sender, leadership(state.node, state.epoch, state.leaders))]
            case Serve():
                return self.transfer.on_serve(event, now)
            case Lead() | Export() if not self.limit.allows(event.epoch, now):
                return [TOO_FAR]
            case Lead():
                return self.transfer.on_lead(sender, event, now)
            case Export():
                return self.transfer.on_export(sender, event, now)
            case Table():
                return self.transfer.on_table(sender, event, now)
            case StepDue():
                self.ticking = False
                return self._on_due(now)
        return []

    def summary(self) -> Summary:
        """Return the epoch, its leaders, and how much this leader serves."""
        return (
            ("epoch", self.epoch_state.epoch),
            ("leaders", names_of(self.epoch_state.leaders) or "not known"),
            ("serving", self.epoch_state.serving),
            ("tickets", self.tickets.size),
        )

    def _on_due(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        if ms_between(self.swept_at, now) >= SWEEP_MS:
            self.swept_at = now
            gone = self.tickets.forget_old(now)
            if gone:
                effects.append(Observe("bakery.copies_forgotten", gone))
        if self.epoch_state.serving:
            effects += self.attempts.tick(now)
            effects += self.releases.tick(now)
        return [*effects, *self.transfer.request_again()]

    def _tick(self, now: Instant) -> list[Effect]:
        """Set a timer if anything may become due."""
        if self.ticking:
            return []
        own = self.attempts.timers.by_key  # The table may have forgotten some of these.
        busy = own or self.tickets.size or self.releases.by_number or self.transfer.arriving
        if not busy:
            return []
        self.ticking = True
        return [Wake(RESEND_MS if not self.attempts.timers.by_key else TICK_MS, StepDue())]
