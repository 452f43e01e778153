"""What a leader answers to the steps of the others: its part in every quorum. Pure."""

from __future__ import annotations

from holdfast.actors.bakery.config import COPY_MS, later, leader_of
from holdfast.actors.bakery.course import Courses
from holdfast.actors.bakery.office import Office
from holdfast.actors.bakery.step_message import (
    AddTicket,
    Collected,
    DropTicket,
    Entering,
    Extend,
    Extended,
    MaxTicket,
    TicketDropped,
    Yield,
)
from holdfast.actors.bakery.table import Entry, Key, Phase, Table
from holdfast.actors.bakery.ticket import fits
from holdfast.actors.effect import Effect, Observe, Send
from holdfast.actors.message import Instant, Message

Asking = Entering | AddTicket | Yield | DropTicket | Extend


class Voting:
    """Keeps copies of the others' tickets, and votes. Invariants: B5, B10.

    Args:
        office: this leader's place.
        table: of this leader.
        courses: its own tickets, which a step of another may let go on, or end.

    """

    def __init__(self, office: Office, table: Table, courses: Courses) -> None:
        self.office = office
        self.table = table
        self.courses = courses

    def on_step(self, leader: str, step: Asking, now: Instant) -> list[Effect]:
        """Take in a step of ``leader``, which leads in the same epoch."""
        match step:
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

    def _on_entering(self, leader: str, step: Entering, now: Instant) -> list[Effect]:
        ticket = step.ticket
        if not fits(ticket) or ticket.turn.number:
            return [Observe("bakery.step_malformed")]
        key = Key(ticket.who, ticket.request)
        before = self.table.get(ticket.lock, key)
        if before is not None and before.owner != leader:
            self.courses.forget(before)  # Its door went elsewhere, since it could not reach us.
        until = later(now, COPY_MS)
        entry = self.table.put(ticket, leader, now, until)
        if entry is None:
            return self._it_ended(leader, step)
        word = MaxTicket(
            epoch=step.epoch,
            lock=ticket.lock,
            who=ticket.who,
            request=ticket.request,
            highest=self.table.counters_of(ticket.lock).highest,
            held=entry.fence,
        )
        return self._answer(leader, word)

    def _it_ended(self, leader: str, step: Entering | AddTicket) -> list[Effect]:
        """Tell the owner of a ticket that it is over: it was dropped through another leader."""
        ticket = step.ticket
        word = DropTicket(
            epoch=step.epoch,
            lock=ticket.lock,
            who=ticket.who,
            request=ticket.request,
            fence=0,
            number=0,
        )
        return [*self._answer(leader, word), Observe("bakery.ended_before")]

    def _on_add(self, leader: str, step: AddTicket, now: Instant) -> list[Effect]:
        ticket = step.ticket
        if not fits(ticket) or not ticket.turn.number or step.fence < 0:
            return [Observe("bakery.step_malformed")]
        entry = self.table.get(ticket.lock, Key(ticket.who, ticket.request))
        if entry is not None and (entry.owner != leader or step.round < entry.round):
            return [Observe("bakery.late_step")]
        until = later(now, COPY_MS)
        if entry is not None and entry.phase is Phase.HOLDING:
            if entry.fence != step.fence:
                self.table.unvote(entry, until)  # Another round: that vote was given back.
        else:
            entry = self.table.put(ticket, leader, now, until)
        if entry is None:
            return self._it_ended(leader, step)
        entry.round = step.round
        voted = entry.phase is Phase.HOLDING
        ahead = None if voted else self.table.ahead(entry, now)
        last = self.table.counters_of(ticket.lock).fence
        if step.fence > last and not voted and ahead is None:
            self.table.vote(entry, step.fence, now)
            voted = True
        word = Collected(
            epoch=step.epoch,
            lock=ticket.lock,
            who=ticket.who,
            request=ticket.request,
            round=step.round,
            voted=voted,
            ahead=ahead,
            highest=self.table.counters_of(ticket.lock).highest,
        )
        return [*self._answer(leader, word), *self.courses.advance(ticket.lock, now)]

    def _on_yield(self, leader: str, step: Yield, now: Instant) -> list[Effect]:
        entry = self.table.get(step.lock, Key(step.who, step.request))
        if entry is None or entry.owner != leader or step.round <= entry.round:
            return [Observe("bakery.late_step")]
        entry.round = step.round
        if entry.phase is Phase.HOLDING:
            self.table.unvote(entry, later(now, COPY_MS))
        return self.courses.advance(step.lock, now)

    def _on_drop(self, leader: str, step: DropTicket, now: Instant) -> list[Effect]:
        for entry in self.table.of(step.lock, step.who):
            if _is_named(entry, step):
                self.courses.forget(entry)
        found = self.table.drop(step.lock, step.who, step.request, step.fence)
        word = TicketDropped(epoch=step.epoch, number=step.number, found=found)
        answer = self._answer(leader, word) if step.number else []
        return [*answer, *self.courses.advance(step.lock, now)]

    def _on_extend(self, leader: str, step: Extend, now: Instant) -> list[Effect]:
        ticket = step.ticket
        if not fits(ticket) or not ticket.turn.number or step.fence <= 0:
            return [Observe("bakery.step_malformed")]
        entry = self.table.get(ticket.lock, Key(ticket.who, ticket.request))
        kept = entry is not None and entry.fence == step.fence and not entry.is_over(now)
        if entry is None or entry.phase is not Phase.HOLDING:
            entry = self.table.put(ticket, leader, now, later(now, COPY_MS))
            holding = self.table.queues[ticket.lock].holding if entry is not None else {}
            others = [key for key in holding if entry is not None and key != entry.key]
            last = self.table.counters_of(ticket.lock).fence
            kept = entry is not None and not others and step.fence >= last
        if kept and entry is not None:
            entry.ticket, entry.owner = ticket, leader
            if entry.phase is not Phase.HOLDING:
                self.table.vote(entry, step.fence, now)
            until = later(now, ticket.lease_ms)
            entry.until = max(entry.until or until, until)
        word = Extended(epoch=step.epoch, number=step.number, kept=kept)
        return self._answer(leader, word)

    @staticmethod
    def _answer(leader: str, message: Message) -> list[Effect]:
        name = f"bakery.{type(message).__name__}".lower()
        return [Send(leader_of(leader), message), Observe(name)]


def _is_named(entry: Entry, step: DropTicket) -> bool:
    """Return whether ``step`` means ``entry``."""
    if step.fence and entry.fence == step.fence:
        return True
    return bool(step.request) and entry.ticket.request <= step.request
