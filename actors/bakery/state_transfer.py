"""Entry of a leader into an epoch, and its exit: its table is completed, or handed over. Pure."""

from __future__ import annotations

from fencelock.actors.bakery.config import election_of, leader_of, status_of
from fencelock.actors.bakery.entry import Entry, Phase
from fencelock.actors.bakery.event import Serve, Serving
from fencelock.actors.bakery.handover import Import, parts_of
from fencelock.actors.bakery.message import Export, Lead, Merged, Table
from fencelock.actors.bakery.pending_release import PendingReleases
from fencelock.actors.bakery.ticket_attempt import TicketAttempts
from fencelock.actors.bakery.timer_queue import Step
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, ms_between, node_of


class StateTransfer:
    """Keeps to one epoch at a time. Invariants: B3, B4; see the README of this folder.

    Args:
        attempts: this leader's own tickets, with its epoch state and its table.
        endings: releases and renewals in flight.
        members: all configured members.

    """

    def __init__(
        self, attempts: TicketAttempts, endings: PendingReleases, members: frozenset[str]
    ) -> None:
        self.epoch_state = attempts.epoch_state
        self.tickets = attempts.table
        self.attempts = attempts
        self.endings = endings
        self.members = members
        self.arriving: Import | None = None
        self.merged = 0
        """The epoch for which the table was completed last."""
        self.exported: list[Table] = []
        """The table as it was handed over last: parts of two different ones would not fit."""

    def ask_again(self) -> list[Effect]:
        """Ask for the tables that have not arrived."""
        return self.arriving.ask(self.epoch_state.node) if self.arriving is not None else []

    def on_lead(self, sender: Address, lead: Lead, now: Instant) -> list[Effect]:
        """Complete the table for a new epoch, with those of the former leaders (B3)."""
        node = node_of(sender)
        if node not in self.members or sender != election_of(node):
            return [Observe("bakery.stranger_elects")]
        if self.epoch_state.me not in lead.leaders or lead.epoch < self.epoch_state.barred:
            return [Observe("bakery.lead_ignored")]
        if self.epoch_state.serving and self.epoch_state.epoch == lead.epoch:
            return [Observe("bakery.lead_ignored")]  # It is installed: nobody waits for this.
        if self.merged == lead.epoch:
            return [self._merged(sender, lead.epoch, now)]
        own = self.epoch_state.me in lead.former.leaders
        left = self.leave(lead.epoch)
        if self.arriving is None or self.arriving.lead.epoch != lead.epoch:
            self.arriving = Import(lead, sender, own)
        self.arriving.coordinator = sender
        if lead.empty:
            self.arriving.lead = lead
        return [*left, *self.arriving.ask(self.epoch_state.node), *self._merge(now)]

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
            for entry in arriving.merge(self.tickets, now):
                self.attempts.agenda.forget(entry)
        self.arriving, self.merged = None, lead.epoch
        self.epoch_state.take(lead.epoch, lead.leaders)
        count = arriving.malformed
        refused = [Observe("bakery.record_malformed", count)] if count else []
        return [*refused, self._merged(arriving.coordinator, lead.epoch, now)]

    def _merged(self, coordinator: Address, epoch: int, now: Instant) -> Send:
        left = [
            ms_between(now, entry.until)
            for entry in self.tickets.entries()
            if entry.phase is Phase.HOLDING and entry.until is not None
        ]
        return Send(coordinator, Merged(epoch=epoch, left_ms=max(left, default=0) + 1))

    def on_export(self, sender: Address, export: Export, now: Instant) -> list[Effect]:
        """Stop heeding earlier epochs, then send what was agreed (B4)."""
        node = node_of(sender)
        if node not in self.members or sender != leader_of(node):
            return [Observe("bakery.stranger_elects")]
        if export.epoch < self.epoch_state.barred:
            return [Observe("bakery.export_ignored")]
        left = self.leave(export.epoch)
        if not self.exported or self.exported[0].epoch != export.epoch:
            self.tickets.forget_old(now)
            self.exported = parts_of(self.tickets, export.epoch, self.epoch_state.life, now)
        return [*left, *(Send(sender, part) for part in self.exported)]

    def on_table(self, sender: Address, table: Table, now: Instant) -> list[Effect]:
        """Take a part of a former leader's table."""
        node = node_of(sender)
        arriving = self.arriving
        if arriving is None or sender != leader_of(node) or table.epoch != arriving.lead.epoch:
            return [Observe("bakery.table_ignored")]
        if not arriving.on_table(node, table):
            return [Observe("bakery.table_refused")]
        return self._merge(now)

    def leave(self, epoch: int) -> list[Effect]:
        """Stop taking part in epochs below ``epoch``; give up the rounds in flight."""
        served = self.epoch_state.serving
        self.epoch_state.leave(epoch)
        if self.epoch_state.epoch:
            return []
        for attempt in self.attempts.agenda.by_key.values():
            if attempt.step is Step.ASKING:
                attempt.step, attempt.votes, attempt.answered = Step.WAITING, {}, {}  # B6
                if attempt.entry.phase is Phase.HOLDING and not attempt.held:
                    self.tickets.unvote(attempt.entry, None)
        self.endings.clear()
        if not served:
            return []
        return [Send(status_of(self.epoch_state.node), Serving(epoch=0))]

    def _clear(self) -> None:
        """Drop every ticket: they are of an epoch in which this leader had no part."""
        for entry in self.tickets.entries():
            self.attempts.agenda.forget(entry)
            self.tickets.remove(entry)

    def on_serve(self, serve: Serve, now: Instant) -> list[Effect]:
        """Begin to serve: a majority of the members knows the leaders of this epoch."""
        epoch_state = self.epoch_state
        if serve.epoch < epoch_state.barred:
            return []
        if serve.epoch == epoch_state.epoch and epoch_state.serving:
            epoch_state.bound_ms = max(epoch_state.bound_ms, serve.bound_ms)
            return []
        if epoch_state.me not in serve.leaders:
            left = self.leave(serve.epoch)
            self._clear()
            self.arriving = None
            return left
        if serve.epoch != epoch_state.epoch:  # A quorum is ready without it: any two know all.
            self.leave(serve.epoch)
            if self.arriving is not None and not self.arriving.own:
                self._clear()
            self.arriving, self.merged = None, serve.epoch
            epoch_state.take(serve.epoch, serve.leaders)
        epoch_state.serving, epoch_state.bound_ms = True, serve.bound_ms
        effects: list[Effect] = [
            Send(status_of(epoch_state.node), Serving(epoch=epoch_state.epoch))
        ]
        for entry in self.tickets.entries():
            effects += self._inherit(entry, now)
        return effects

    def _inherit(self, entry: Entry, now: Instant) -> list[Effect]:
        """Go on with a ticket of this leader's own, or of a leader that leads no more."""
        epoch_state = self.epoch_state
        if entry.owner not in {leader.node for leader in epoch_state.leaders}:
            if entry.phase is Phase.ENTERING:
                self.tickets.remove(entry)
                return []
            entry.owner = epoch_state.leaders[0].node
        if entry.owner != epoch_state.node:
            self.attempts.agenda.forget(entry)  # The leader with this one's vote goes on with it.
            return []
        attempt = self.attempts.agenda.of(entry)
        if attempt is not None:
            if attempt.step is not Step.HELD:
                attempt.held = entry.fence  # A former owner may have granted it.
            return self.attempts.resume(attempt, now)
        if entry.phase is Phase.ENTERING:
            self.tickets.remove(entry)
            return []
        return self.attempts.adopt(entry, now)
