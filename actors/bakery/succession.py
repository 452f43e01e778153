"""How a leader comes to lead an epoch, and how it leaves one: tables handed over. Pure."""

from __future__ import annotations

from fencelock.actors.bakery.agenda import Step
from fencelock.actors.bakery.config import election_of, leader_of, status_of
from fencelock.actors.bakery.course import Courses
from fencelock.actors.bakery.ending import Endings
from fencelock.actors.bakery.entry import Entry, Phase
from fencelock.actors.bakery.event import Serve, Serving
from fencelock.actors.bakery.handover import Import, parts_of
from fencelock.actors.bakery.message import Export, Lead, Merged, Table
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, ms_between, node_of


class Succession:
    """Keeps to one epoch at a time. Invariants: B3, B4; see the README of this folder.

    Args:
        courses: this leader's own tickets, with its office and its table.
        endings: releases and renewals under way.
        members: all that are configured.

    """

    def __init__(self, courses: Courses, endings: Endings, members: frozenset[str]) -> None:
        self.office = courses.office
        self.tickets = courses.table
        self.courses = courses
        self.endings = endings
        self.members = members
        self.arriving: Import | None = None
        self.merged = 0
        """The epoch for which the table was completed last."""
        self.exported: list[Table] = []
        """The table as it was handed over last: parts of two different ones would not fit."""

    def ask_again(self) -> list[Effect]:
        """Ask for the tables that have not come."""
        return self.arriving.ask(self.office.node) if self.arriving is not None else []

    def on_lead(self, sender: Address, lead: Lead, now: Instant) -> list[Effect]:
        """Make the table complete for a new epoch, with those of the leaders before (B3)."""
        node = node_of(sender)
        if node not in self.members or sender != election_of(node):
            return [Observe("bakery.stranger_elects")]
        if self.office.me not in lead.leaders or lead.epoch < self.office.barred:
            return [Observe("bakery.lead_ignored")]
        if self.office.serving and self.office.epoch == lead.epoch:
            return [Observe("bakery.lead_ignored")]  # It is installed: nobody waits for this.
        if self.merged == lead.epoch:
            return [self._merged(sender, lead.epoch, now)]
        own = self.office.me in lead.former.leaders
        left = self.leave(lead.epoch)
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
            for entry in arriving.merge(self.tickets, now):
                self.courses.agenda.forget(entry)
        self.arriving, self.merged = None, lead.epoch
        self.office.take(lead.epoch, lead.leaders)
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
        """Heed nobody of an earlier epoch any more, then tell what was agreed (B4)."""
        node = node_of(sender)
        if node not in self.members or sender != leader_of(node):
            return [Observe("bakery.stranger_elects")]
        if export.epoch < self.office.barred:
            return [Observe("bakery.export_ignored")]
        left = self.leave(export.epoch)
        if not self.exported or self.exported[0].epoch != export.epoch:
            self.tickets.forget_old(now)
            self.exported = parts_of(self.tickets, export.epoch, self.office.life, now)
        return [*left, *(Send(sender, part) for part in self.exported)]

    def on_table(self, sender: Address, table: Table, now: Instant) -> list[Effect]:
        """Take in a part of a former leader's table."""
        node = node_of(sender)
        arriving = self.arriving
        if arriving is None or sender != leader_of(node) or table.epoch != arriving.lead.epoch:
            return [Observe("bakery.table_ignored")]
        if not arriving.on_table(node, table):
            return [Observe("bakery.table_refused")]
        return self._merge(now)

    def leave(self, epoch: int) -> list[Effect]:
        """Stop taking part in epochs below ``epoch``; give up the rounds under way."""
        served = self.office.serving
        self.office.leave(epoch)
        if self.office.epoch:
            return []
        for course in self.courses.agenda.by_key.values():
            if course.step is Step.ASKING:
                course.step, course.votes, course.answered = Step.WAITING, {}, {}  # B6
                if course.entry.phase is Phase.HOLDING and not course.held:
                    self.tickets.unvote(course.entry, None)
        self.endings.clear()
        if not served:
            return []
        return [Send(status_of(self.office.node), Serving(epoch=0))]

    def _clear(self) -> None:
        """Forget every ticket: they are of an epoch in which this leader had no part."""
        for entry in self.tickets.entries():
            self.courses.agenda.forget(entry)
            self.tickets.remove(entry)

    def on_serve(self, serve: Serve, now: Instant) -> list[Effect]:
        """Begin to serve: a majority of the members knows that this epoch is led so."""
        office = self.office
        if serve.epoch < office.barred:
            return []
        if serve.epoch == office.epoch and office.serving:
            office.bound_ms = max(office.bound_ms, serve.bound_ms)
            return []
        if office.me not in serve.leaders:
            left = self.leave(serve.epoch)
            self._clear()
            self.arriving = None
            return left
        if serve.epoch != office.epoch:  # A quorum is ready without it: any two know all.
            self.leave(serve.epoch)
            if self.arriving is not None and not self.arriving.own:
                self._clear()
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
            self.courses.agenda.forget(entry)  # Whom this leader has voted for goes on with it.
            return []
        course = self.courses.agenda.of(entry)
        if course is not None:
            if course.step is not Step.HELD:
                course.held = entry.fence  # Another owner, who is gone, may have granted it.
            return self.courses.resume(course, now)
        if entry.phase is Phase.ENTERING:
            self.tickets.remove(entry)
            return []
        return self.courses.adopt(entry, now)
