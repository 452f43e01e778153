"""The steps of the tickets that one leader owns, from the door's word to the door's answer. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import Enum

from holdfast.actors.bakery.config import COPY_MS, REFRESH_MS, RESEND_MS, later
from holdfast.actors.bakery.door_message import (
    Error,
    Expired,
    Lock,
    Locked,
    LockFailed,
    Unlocking,
)
from holdfast.actors.bakery.office import Office
from holdfast.actors.bakery.step_message import (
    AddTicket,
    Collected,
    DropTicket,
    Entering,
    MaxTicket,
    Yield,
)
from holdfast.actors.bakery.table import Entry, Key, Phase, Table
from holdfast.actors.bakery.ticket import COUNTER_MAX, Ticket, Turn, Who, counter_of, pack_fence
from holdfast.actors.bakery.wording import in_the_way
from holdfast.actors.effect import Effect, Observe, Send
from holdfast.actors.message import Address, Instant, ms_between

DOOR_SILENT_MS = 10_000
"""A waiting request that its door did not repeat for so long is dropped: nobody waits (ms)."""

WARN_AGAIN_MS = 500
"""How often a holder is told again that its duration is over (ms)."""


class Step(Enum):
    """What a ticket waits for."""

    ENTERING = "a quorum that knows that it enters"
    WAITING = "its turn"
    ASKING = "a quorum of votes"
    HELD = "its release"


@dataclass(slots=True, eq=False)
class Course:
    """A ticket of this leader's own.

    Attributes:
        wait_until: when it gives up, None for never.
        eager: whether it will not wait at all.
        heard_at: when its door spoke of it last.
        answered: who answered the step, or refused to vote; ``votes``: who voted. Both are of
            the round under way (B6).
        held: a fence under which the same request may hold already: another owner's, who is
            gone. It is taken over, and never given back.
        due: when to look at it again.

    """

    entry: Entry
    wait_until: Instant | None
    eager: bool
    heard_at: Instant
    step: Step = Step.ENTERING
    answered: dict[str, None] = field(default_factory=dict[str, None])
    votes: dict[str, None] = field(default_factory=dict[str, None])
    highest: int = 0
    held: int = 0
    known: int = 0
    """The highest round that others know of this request."""
    due: Instant | None = None
    """Nothing while it is not on the list of what is due."""


class Courses:
    """All of them. Invariants: B6, B7; see the README of this folder.

    Args:
        office: this leader's place.
        table: of this leader.

    """

    def __init__(self, office: Office, table: Table) -> None:
        self.office = office
        self.table = table
        self.by_key: dict[tuple[str, Key], Course] = {}
        self.serial = 0
        self._due: list[tuple[Instant, int, Course]] = []
        self._count = 0

    def of(self, entry: Entry) -> Course | None:
        """Return the course of ``entry``, if this leader owns it."""
        return self.by_key.get((entry.ticket.lock, entry.key))

    def find(self, lock: str, who: Who, request: int) -> Course | None:
        """Return the course of that request."""
        return self.by_key.get((lock, Key(who, request)))

    def next_due(self) -> Instant | None:
        """Return when something is due, None if nothing is."""
        due = self._due
        while due and due[0][2].due != due[0][0]:
            heapq.heappop(due)
        return due[0][0] if due else None

    def open(self, door: Address, asked: Lock, now: Instant) -> list[Effect]:
        """Begin with a request that nobody here knows."""
        self.serial += 1
        turn = Turn(0, self.office.node, self.serial)
        ticket = Ticket(
            asked.lock,
            asked.who,
            asked.request,
            turn,
            door,
            asked.hold_ms,
            asked.grace_ms,
            asked.label,
        )
        entry = self.table.put(ticket, self.office.node, now, None)
        if entry is None:
            text = f"lock {asked.lock!r}: this request, or a later one, ended before"
            return [failed(ticket, Error.FAILED, text)]
        wait_until = None if asked.wait_ms is None else later(now, asked.wait_ms)
        course = Course(entry, wait_until, asked.wait_ms == 0, now)
        if course.eager:
            course.wait_until = later(now, REFRESH_MS)
        self.by_key[asked.lock, entry.key] = course
        if entry.phase is Phase.HOLDING:
            return self._take_over(course, entry.fence, now)
        return self.enter(course, now)

    def adopt(self, entry: Entry, now: Instant) -> list[Effect]:
        """Take the steps of a ticket whose owner leads no more."""
        entry.owner = self.office.node
        course = Course(entry, None, eager=False, heard_at=now)
        self.by_key[entry.ticket.lock, entry.key] = course
        if entry.phase is Phase.HOLDING:
            return self._take_over(course, entry.fence, now)
        entry.until = None
        return self.ask(course, now)

    def resume(self, course: Course, now: Instant) -> list[Effect]:
        """Go on in a new epoch, with whoever leads there."""
        match course.step:
            case Step.ENTERING:
                return self.enter(course, now)
            case Step.HELD:
                self._look_again(course, now, now)
                return []
            case _:
                return self.ask(course, now)

    def forget(self, entry: Entry) -> Course | None:
        """Take no more steps for ``entry``, which is dropped or another's."""
        course = self.by_key.pop((entry.ticket.lock, entry.key), None)
        if course is not None:
            course.due = None
        return course

    def enter(self, course: Course, now: Instant) -> list[Effect]:
        """Say that the ticket is about to draw a number."""
        entry, office = course.entry, self.office
        course.step, course.answered = Step.ENTERING, {}
        course.highest = self.table.counters_of(entry.ticket.lock).highest
        if office.quorum == 1:
            return self._draw(course, now)
        self._look_again(course, now, later(now, RESEND_MS))
        return [*office.tell(Entering(epoch=office.epoch, ticket=entry.ticket))]

    def on_max(self, leader: str, said: MaxTicket, now: Instant) -> list[Effect]:
        """Count who knows that the ticket enters."""
        course = self.find(said.lock, said.who, said.request)
        if course is None or course.step is not Step.ENTERING:
            return []
        course.answered[leader] = None
        course.highest = max(course.highest, said.highest)
        course.entry.round = max(course.entry.round, said.known)
        course.held = max(course.held, said.held)
        if 1 + len(course.answered) < self.office.quorum:
            return []
        return self._draw(course, now)

    def _draw(self, course: Course, now: Instant) -> list[Effect]:
        """Draw a number above all that a quorum knows."""
        entry = course.entry
        number = course.highest + 1
        if number >= COUNTER_MAX:
            text = f"lock {entry.ticket.lock!r}: ticket numbers reached their limit {COUNTER_MAX}"
            return self.fail(course, Error.OVERFLOW, text, now)
        turn = entry.ticket.turn._replace(number=number)
        self.table.put(entry.ticket._replace(turn=turn), self.office.node, now, None)
        if course.held:
            return self._take_over(course, course.held, now)
        return self.ask(course, now)

    def _take_over(self, course: Course, fence: int, now: Instant) -> list[Effect]:
        course.held = fence
        return self.ask(course, now)

    def ask(self, course: Course, now: Instant) -> list[Effect]:
        """Begin a round: ask for votes if nothing is in the way here; say the ticket in any case."""
        entry, office, table = course.entry, self.office, self.table
        if table.get(entry.ticket.lock, entry.key) is not entry:
            text = f"lock {entry.ticket.lock!r}: no quorum within a lease, or dropped elsewhere"
            return self.fail(course, Error.FAILED, text, now)
        entry.round = max(entry.round, course.known) + 1
        course.answered, course.votes = {}, {}
        if entry.phase is Phase.HOLDING and not course.held:
            table.unvote(entry, None)
        ahead = table.ahead(entry, now)
        if ahead is not None:
            course.step = Step.WAITING
            if course.eager:
                return self._give_up(course, ahead, now)
            fence, pause_ms = 0, REFRESH_MS
        else:
            fence, pause_ms = course.held or self._next_fence(entry), RESEND_MS
            if counter_of(fence) >= COUNTER_MAX:
                text = f"lock {entry.ticket.lock!r}: its fences reached their limit in this epoch"
                return self.fail(course, Error.OVERFLOW, text, now)
            if entry.phase is not Phase.HOLDING:
                table.vote(entry, fence, now)
            course.step, course.votes = Step.ASKING, {office.node: None}
        self._look_again(course, now, later(now, pause_ms))
        add = AddTicket(
            epoch=office.epoch,
            ticket=entry.ticket,
            round=entry.round,
            fence=fence,
            taken=bool(course.held),
        )
        return [*office.tell(add), *self._win(course, now)]

    def _next_fence(self, entry: Entry) -> int:
        """Return a fence above all that were given for the lock, as far as is known here (B8)."""
        last = self.table.counters_of(entry.ticket.lock).fence
        mine = pack_fence(self.office.epoch, entry.ticket.turn.number)
        return max(mine, last + 1)

    def on_collected(self, leader: str, said: Collected, now: Instant) -> list[Effect]:
        """Count a vote, or a refusal, of the round under way."""
        course = self.find(said.lock, said.who, said.request)
        if course is None or said.round != course.entry.round:
            return [Observe("bakery.late_answer")]
        self.table.note(said.lock, min(said.highest, COUNTER_MAX))
        if said.known > said.round:  # Another owner's round: the next one is above it.
            course.known = max(course.known, said.known)
        if course.step is not Step.ASKING:
            return []
        if said.voted:
            course.votes[leader] = None
            return self._win(course, now)
        course.answered[leader] = None
        if said.ahead is None and said.known <= said.round:  # A higher fence was given there.
            self.table.note(said.lock, 0, pack_fence(self.office.epoch, said.highest))
        if self.office.can_win(len(course.answered)):
            return []
        return self._lose(course, now)

    def _win(self, course: Course, now: Instant) -> list[Effect]:
        """Let the client in, if a quorum voted in this round and this leader is trusted (B7)."""
        if course.step is not Step.ASKING or len(course.votes) < self.office.quorum:
            return []
        if not self.office.trusted(now):
            return [Observe("bakery.untrusted")]
        course.step = Step.HELD
        self._look_again(course, now, self._warn_at(course))
        return [locked(course.entry), Observe("bakery.granted")]

    def _lose(self, course: Course, now: Instant) -> list[Effect]:
        """Give the votes of the round back: somebody else is ahead."""
        entry, office = course.entry, self.office
        self._look_again(course, now, later(now, RESEND_MS))
        if course.held:
            return [Observe("bakery.takeover_refused")]
        entry.round += 1
        if entry.phase is Phase.HOLDING:
            self.table.unvote(entry, None)
        course.step, course.votes, course.answered = Step.WAITING, {}, {}
        who, request = entry.ticket.who, entry.ticket.request
        lock = entry.ticket.lock
        back = Yield(epoch=office.epoch, lock=lock, who=who, request=request, round=entry.round)
        effects: list[Effect] = [*office.tell(back), Observe("bakery.round_lost")]
        if course.eager:
            effects += self._give_up(course, None, now)
        return effects

    def cede(self, course: Course, leader: str, now: Instant) -> list[Effect]:
        """Leave a request to another leader, to which its door went, too."""
        entry = course.entry
        effects: list[Effect] = []
        if course.step is Step.ASKING and not course.held:
            course.eager = False
            effects += self._lose(course, now)
        self.forget(entry)
        entry.owner = leader
        if entry.phase is not Phase.HOLDING:
            entry.until = later(now, COPY_MS)
        return [*effects, Observe("bakery.ceded")]

    def advance(self, lock: str, now: Instant) -> list[Effect]:
        """Something of ``lock`` ended: ask for votes for the first, if that is this leader's."""
        first = self.table.first(lock)
        if first is None or not self.office.serving:
            return []
        course = self.of(first)
        if course is None or course.step is not Step.WAITING:
            return []
        if self.table.ahead(first, now) is not None:
            return []
        return self.ask(course, now)

    def tick(self, now: Instant) -> list[Effect]:
        """Look at what is due."""
        effects: list[Effect] = []
        while (due := self.next_due()) is not None and due <= now:
            _, _, course = heapq.heappop(self._due)
            course.due = None
            effects += self._look(course, now)
        return effects

    def _look(self, course: Course, now: Instant) -> list[Effect]:
        if course.step is Step.HELD:
            return self._look_at_hold(course, now)
        entry = course.entry
        if self.table.get(entry.ticket.lock, entry.key) is not entry:
            return self.ask(course, now)
        if ms_between(course.heard_at, now) >= DOOR_SILENT_MS and entry.ticket.door:
            return [*self.drop(course, now), Observe("bakery.door_silent")]
        if course.wait_until is not None and course.wait_until <= now:
            return self._give_up(course, self.table.ahead(entry, now), now)
        if course.step is Step.ENTERING:
            self._look_again(course, now, later(now, RESEND_MS))
            entering = Entering(epoch=self.office.epoch, ticket=entry.ticket)
            return [*self.office.tell(entering, frozenset(course.answered))]
        if course.step is not Step.ASKING or entry.phase is not Phase.HOLDING:
            return self.ask(course, now)
        if course.answered and not course.held:
            return self._lose(course, now)
        self._look_again(course, now, later(now, RESEND_MS))
        add = AddTicket(
            epoch=self.office.epoch,
            ticket=entry.ticket,
            round=entry.round,
            fence=entry.fence,
            taken=bool(course.held),
        )
        said = frozenset(course.votes) | frozenset(course.answered)
        return [*self._win(course, now), *self.office.tell(add, said)]

    def _look_at_hold(self, course: Course, now: Instant) -> list[Effect]:
        """Tell the holder that its time is over, first with a grace, then for good."""
        entry = course.entry
        ticket, until = entry.ticket, entry.until
        assert until is not None
        who, request = ticket.who, ticket.request
        if until <= now:
            # The others judge by their own clocks: it may have been renewed through one of them.
            expired = Expired(lock=ticket.lock, who=who, request=request, fence=entry.fence)
            self.forget(entry)
            self.table.forget_if_over(entry, now)
            return [
                *self.advance(ticket.lock, now),
                Send(ticket.door, expired),
                Observe("bakery.lease_over"),
            ]
        if now < self._warn_at(course):
            self._look_again(course, now, self._warn_at(course))
            return []
        self._look_again(course, now, min(until, later(now, WARN_AGAIN_MS)))
        warning = Unlocking(
            lock=ticket.lock,
            who=who,
            request=request,
            fence=entry.fence,
            grace_ms=ms_between(now, until),
        )
        return [Send(ticket.door, warning), Observe("bakery.unlocking")]

    def _warn_at(self, course: Course) -> Instant:
        until = course.entry.until
        assert until is not None
        return later(until, -course.entry.ticket.grace_ms)

    def _give_up(self, course: Course, ahead: Turn | None, now: Instant) -> list[Effect]:
        """The time to obtain the lock is over."""
        entry = course.entry
        waited_ms = ms_between(entry.since, now)
        text = in_the_way(self.table, entry, ahead, waited_ms, now)
        return self.fail(course, Error.TIMED_OUT, text, now)

    def fail(self, course: Course, error: Error, detail: str, now: Instant) -> list[Effect]:
        """Drop the ticket and say why."""
        dropped = self.drop(course, now)
        return [*dropped, failed(course.entry.ticket, error, detail)]

    def drop(self, course: Course, now: Instant) -> list[Effect]:
        """Forget the ticket, here and, as far as they hear it, at the others."""
        entry, office = course.entry, self.office
        lock, who, request = entry.ticket.lock, entry.ticket.who, entry.ticket.request
        self.forget(entry)
        if self.table.get(lock, entry.key) is entry:
            self.table.remove(entry)
        word = DropTicket(
            epoch=office.epoch,
            lock=lock,
            who=who,
            request=request,
            fence=0,
            number=0,
            mine=True,
        )
        return [*office.tell(word), *self.advance(lock, now)]

    def _look_again(self, course: Course, now: Instant, at: Instant) -> None:
        """Put the course on the list of what is due."""
        course.due = max(at, later(now, 1))
        self._count += 1
        heapq.heappush(self._due, (course.due, self._count, course))


def locked(entry: Entry) -> Send:
    """Return what the door of a holder is told."""
    ticket = entry.ticket
    return Send(
        ticket.door,
        Locked(
            lock=ticket.lock,
            who=ticket.who,
            request=ticket.request,
            fence=entry.fence,
            hold_ms=ticket.hold_ms,
            grace_ms=ticket.grace_ms,
        ),
    )


def failed(ticket: Ticket, error: Error, detail: str) -> Send:
    """Return what the door of a ticket that failed is told."""
    word = LockFailed(
        lock=ticket.lock, who=ticket.who, request=ticket.request, error=error, detail=detail
    )
    return Send(ticket.door, word)
