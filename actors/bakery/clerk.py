"""What a leader does for doors: locks, releases, renewals, looks. Pure."""

from __future__ import annotations

from dataclasses import replace

from holdfast.actors.bakery.agenda import Step, locked
from holdfast.actors.bakery.config import Terms, election_of, later
from holdfast.actors.bakery.course import Courses
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
from holdfast.actors.bakery.event import Raise
from holdfast.actors.bakery.reception import problem_of
from holdfast.actors.bakery.step_message import DropTicket
from holdfast.actors.bakery.table import Key, is_named
from holdfast.actors.bakery.wording import peeked
from holdfast.actors.effect import Effect, Observe, Send
from holdfast.actors.message import Address, Instant

FromDoor = Lock | Unlock | UnlockAll | Prolong | Peek


class Clerk:
    """Serves doors while this leader serves at all; else says that it does not.

    Args:
        courses: this leader's own tickets, with its office and its table.
        endings: releases and renewals under way.
        terms: which durations are allowed.

    """

    def __init__(self, courses: Courses, endings: Endings, terms: Terms) -> None:
        self.office = courses.office
        self.tickets = courses.table
        self.courses = courses
        self.endings = endings
        self.terms = terms
        self.connected: frozenset[str] = frozenset()
        """The members that this node is connected with."""

    def serve(self, door: Address, asked: FromDoor, now: Instant) -> list[Effect]:
        """Do what a door asks for."""
        if isinstance(asked, Peek):
            return [Send(door, peeked(self.tickets, asked, now))]
        if isinstance(asked, UnlockAll):
            return self._on_unlock_all(door, asked, now) if self.office.serving else []
        if not self.office.serving:
            return [Send(door, NotLeading(lock=asked.lock, who=asked.who, owner=""))]
        problem = problem_of(door, asked, self.tickets, self.terms, now)
        if problem is not None:
            return [problem, Observe("bakery.refused")]
        match asked:
            case Lock():
                return self._on_lock(door, asked, now)
            case Unlock():
                return self._on_unlock(door, asked, now)
            case Prolong():
                return self._on_prolong(door, asked, now)

    def _on_lock(self, door: Address, asked: Lock, now: Instant) -> list[Effect]:
        lease_ms = asked.hold_ms + asked.grace_ms
        if lease_ms > self.office.bound_ms:  # The door asks again, when enough members know.
            return [Send(election_of(self.office.node), Raise(bound_ms=lease_ms))]
        course = self.courses.agenda.find(asked.lock, asked.who, asked.request)
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
            course = self.courses.agenda.find(asked.lock, asked.who, asked.request)
            waits = course is not None and course.step is not Step.HELD
            dropped = self.courses.drop(course, now) if course is not None and waits else []
            return [*dropped, Send(door, Unlocked(number=asked.number, found=waits))]
        known = self.tickets.of(asked.lock, asked.who)
        fence = asked.fence
        held = next((entry for entry in known if fence and entry.fence == fence), None)
        if held is not None:
            # Others have only a copy that waits, perhaps: they know it by its request.
            asked = replace(asked, request=held.ticket.request)
        elif fence:
            for entry in known:  # Its owner knows under which number it holds.
                if entry.owner in self.office.others and entry.owner in self.connected:
                    word = NotLeading(lock=asked.lock, who=asked.who, owner=entry.owner)
                    return [Send(door, word)]
        for entry in known:
            if is_named(entry, asked.request, asked.fence):
                self.courses.agenda.forget(entry)
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
            self.courses.agenda.forget(entry)
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
