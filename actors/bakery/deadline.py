"""What time demands of the tickets that a leader owns: repetition, giving up, taking away. Pure."""

from __future__ import annotations

from fencelock.actors.bakery.agenda import Course, Step, warn_at
from fencelock.actors.bakery.config import RESEND_MS, later
from fencelock.actors.bakery.course import Courses
from fencelock.actors.bakery.door_message import Expired, Unlocking
from fencelock.actors.bakery.entry import Phase
from fencelock.actors.bakery.step_message import AddTicket
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Instant, ms_between

DOOR_SILENT_MS = 10_000
"""A waiting request that its door did not repeat for so long is dropped: nobody waits (ms)."""

WARN_AGAIN_MS = 500
"""How often a holder is told again that its duration is over (ms)."""


class Deadlines:
    """Looks at each ticket when it is due.

    Args:
        courses: the tickets.

    """

    def __init__(self, courses: Courses) -> None:
        self.courses = courses
        self.office = courses.office
        self.table = courses.table

    def tick(self, now: Instant) -> list[Effect]:
        """Look at what is due."""
        effects: list[Effect] = []
        while (course := self.courses.agenda.take_due(now)) is not None:
            effects += self._look(course, now)
        return effects

    def _look(self, course: Course, now: Instant) -> list[Effect]:
        if course.step is Step.HELD:
            return self._look_at_hold(course, now)
        entry = course.entry
        if self.table.get(entry.ticket.lock, entry.key) is not entry:
            return self.courses.ask(course, now)
        if ms_between(course.heard_at, now) >= DOOR_SILENT_MS and entry.ticket.door:
            return [*self.courses.drop(course, now), Observe("bakery.door_silent")]
        if course.wait_until is not None and course.wait_until <= now:
            return self.courses.give_up(course, self.table.ahead(entry, now), now)
        if course.step is Step.ENTERING:
            self.courses.agenda.look_again(course, now, later(now, RESEND_MS))
            return [*self.courses.say_entering(course)]
        if course.step is not Step.ASKING or entry.phase is not Phase.HOLDING:
            return self.courses.ask(course, now)
        if course.answered and not course.held:
            return self.courses.lose(course, now)
        self.courses.agenda.look_again(course, now, later(now, RESEND_MS))
        add = AddTicket(
            epoch=self.office.epoch,
            ticket=entry.ticket,
            round=entry.round,
            fence=entry.fence,
            taken=bool(course.held),
        )
        said = frozenset(course.votes) | frozenset(course.answered)
        won = self.courses.win(course, now)
        if not course.votes:  # They were over: that round is given back.
            return won
        return [*won, *self.office.tell(add, said)]

    def _look_at_hold(self, course: Course, now: Instant) -> list[Effect]:
        """Tell the holder that its time is over, first with a grace, then for good."""
        entry = course.entry
        ticket, until = entry.ticket, entry.until
        assert until is not None
        who, request = ticket.who, ticket.request
        if until <= now:
            # The others judge by their own clocks: it may have been renewed through one of them.
            expired = Expired(lock=ticket.lock, who=who, request=request, fence=entry.fence)
            self.courses.agenda.forget(entry)
            self.table.forget(entry, now)
            return [
                *self.courses.advance(ticket.lock, now),
                Send(ticket.door, expired),
                Observe("bakery.lease_over"),
            ]
        if now < warn_at(course.entry):
            self.courses.agenda.look_again(course, now, warn_at(course.entry))
            return []
        self.courses.agenda.look_again(course, now, min(until, later(now, WARN_AGAIN_MS)))
        warning = Unlocking(
            lock=ticket.lock,
            who=who,
            request=request,
            fence=entry.fence,
            grace_ms=ms_between(now, until),
        )
        return [Send(ticket.door, warning), Observe("bakery.unlocking")]
