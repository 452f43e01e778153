"""The steps of the tickets that one leader owns, from a door's word to its answer. Pure."""

from __future__ import annotations

from fencelock.actors.bakery.agenda import Agenda, Course, Step, failed, locked, warn_at
from fencelock.actors.bakery.config import COPY_MS, REFRESH_MS, RESEND_MS, election_of, later
from fencelock.actors.bakery.door_message import Error, Lock
from fencelock.actors.bakery.entry import Entry, Phase
from fencelock.actors.bakery.event import Raise
from fencelock.actors.bakery.office import Office
from fencelock.actors.bakery.step_message import (
    AddTicket,
    Collected,
    DropTicket,
    Entering,
    MaxTicket,
    Yield,
)
from fencelock.actors.bakery.table import Table
from fencelock.actors.bakery.ticket import (
    COUNTER_MAX,
    Ticket,
    Turn,
    counter_of,
    epoch_of,
    pack_fence,
)
from fencelock.actors.bakery.wording import ended_before, in_the_way
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, ms_between


class Courses:
    """All of them. Invariants: B6, B7; see the README of this folder.

    Args:
        office: this leader's place.
        table: of this leader.

    """

    def __init__(self, office: Office, table: Table) -> None:
        self.office = office
        self.table = table
        self.agenda = Agenda()
        self.serial = 0

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
            return [failed(ticket, Error.FAILED, ended_before(asked.lock))]
        wait_until = None if asked.wait_ms is None else later(now, asked.wait_ms)
        course = Course(entry, wait_until, asked.wait_ms == 0, now)
        if course.eager:
            course.wait_until = later(now, REFRESH_MS)
        self.agenda.add(course)
        if entry.phase is Phase.HOLDING:
            return self._take_over(course, entry.fence, now)
        return self.enter(course, now)

    def adopt(self, entry: Entry, now: Instant) -> list[Effect]:
        """Take the steps of a ticket whose owner leads no more."""
        entry.owner = self.office.node
        course = Course(entry, None, eager=False, heard_at=now)
        self.agenda.add(course)
        if entry.phase is Phase.HOLDING:
            return self._take_over(course, entry.fence, now)
        self.table.set_until(entry, None)
        return self.enter(course, now)  # It may hold already: a quorum knows.

    def resume(self, course: Course, now: Instant) -> list[Effect]:
        """Go on in a new epoch, with whoever leads there."""
        match course.step:
            case Step.ENTERING:
                return self.enter(course, now)
            case Step.HELD:
                self.agenda.look_again(course, now, now)
                return []
            case _:
                return self.ask(course, now) if course.held else self.enter(course, now)

    def enter(self, course: Course, now: Instant) -> list[Effect]:
        """Say that the ticket is about to draw a number."""
        entry, office = course.entry, self.office
        course.step, course.answered = Step.ENTERING, {}
        course.highest = self.table.counters_of(entry.ticket.lock).highest
        if office.quorum == 1:
            return self._draw(course, now)
        self.agenda.look_again(course, now, later(now, RESEND_MS))
        return [*self.say_entering(course)]

    def say_entering(self, course: Course) -> list[Send | Observe]:
        """Say to whom has not answered that the ticket enters; it keeps a number that it has."""
        ticket = course.entry.ticket
        entering = ticket._replace(turn=ticket.turn._replace(number=0))
        word = Entering(epoch=self.office.epoch, ticket=entering)
        return self.office.tell(word, frozenset(course.answered))

    def on_max(self, leader: str, said: MaxTicket, now: Instant) -> list[Effect]:
        """Count who knows that the ticket enters."""
        course = self.agenda.find(said.lock, said.who, said.request)
        if course is None or course.step is not Step.ENTERING or epoch_of(said.held) > said.epoch:
            return []
        course.answered[leader] = None
        course.highest = max(course.highest, said.highest)
        course.entry.round = max(course.entry.round, said.known)
        course.held = max(course.held, said.held)
        if 1 + len(course.answered) < self.office.quorum:
            return []
        return self._draw(course, now)

    def _draw(self, course: Course, now: Instant) -> list[Effect]:
        """Draw a number above all that a quorum knows, unless it has one."""
        entry = course.entry
        number = entry.ticket.turn.number or course.highest + 1
        if number >= COUNTER_MAX:
            text = f"lock {entry.ticket.lock!r}: ticket numbers reached their limit {COUNTER_MAX}"
            return self.fail(course, Error.OVERFLOW, text, now)
        turn = entry.ticket.turn._replace(number=number)
        ticket = entry.ticket._replace(turn=turn)
        if self.table.put(ticket, self.office.node, now, None, course.held) is None:
            return self.fail(course, Error.FAILED, ended_before(ticket.lock), now)
        asked = self._take_over(course, course.held, now) if course.held else self.ask(course, now)
        # It enters no more: that may have been all that kept another of this leader's waiting.
        return [*asked, *self.advance(entry.ticket.lock, now)]

    def _take_over(self, course: Course, fence: int, now: Instant) -> list[Effect]:
        course.held = fence
        return self.ask(course, now)

    def ask(self, course: Course, now: Instant) -> list[Effect]:
        """Begin a round: say the ticket, and ask for votes if nothing is in its way here."""
        entry, office, table = course.entry, self.office, self.table
        if table.get(entry.ticket.lock, entry.key) is not entry:
            text = f"lock {entry.ticket.lock!r}: no quorum within a lease, or dropped elsewhere"
            return self.fail(course, Error.FAILED, text, now)
        entry.owner = office.node  # Another may have had it; of one round only one is heeded.
        entry.round = max(entry.round, course.known) + 1
        course.answered, course.votes = {}, {}
        if entry.phase is Phase.HOLDING and not course.held:
            if epoch_of(entry.fence) < office.epoch:
                course.held = entry.fence  # Perhaps it was granted.
            else:
                table.unvote(entry, None)
        # What may be held already is never in anybody's line: it is only said again.
        ahead = None if course.held else table.ahead(entry, now)
        if ahead is None and not course.held and entry.ticket.lease_ms > office.bound_ms:
            course.step = Step.WAITING  # Since an earlier epoch, which knew of longer leases.
            self.agenda.look_again(course, now, later(now, RESEND_MS))
            return [Send(election_of(office.node), Raise(bound_ms=entry.ticket.lease_ms))]
        if ahead is not None:
            course.step = Step.WAITING
            if course.eager:
                return self.give_up(course, ahead, now)
            fence, pause_ms = 0, REFRESH_MS
        else:
            fence, pause_ms = course.held or self._next_fence(entry), RESEND_MS
            if counter_of(fence) >= COUNTER_MAX or epoch_of(fence) > office.epoch:
                text = f"lock {entry.ticket.lock!r}: its fences reached their limit in this epoch"
                return self.fail(course, Error.OVERFLOW, text, now)
            if entry.phase is not Phase.HOLDING:
                table.vote(entry, fence, now)
            course.step, course.votes = Step.ASKING, {office.node: None}
        self.agenda.look_again(course, now, later(now, pause_ms))
        add = AddTicket(
            epoch=office.epoch,
            ticket=entry.ticket,
            round=entry.round,
            fence=fence,
            taken=bool(course.held),
        )
        return [*office.tell(add), *self.win(course, now)]

    def _next_fence(self, entry: Entry) -> int:
        """Return a fence above all that were given for the lock, as far as is known here (B8)."""
        last = self.table.counters_of(entry.ticket.lock).fence
        mine = pack_fence(self.office.epoch, entry.ticket.turn.number)
        return max(mine, last + 1)

    def on_collected(self, leader: str, said: Collected, now: Instant) -> list[Effect]:
        """Count a vote, or a refusal, of the round under way."""
        course = self.agenda.find(said.lock, said.who, said.request)
        if course is None or said.round != course.entry.round:
            return [Observe("bakery.late_answer")]
        highest = min(said.highest, COUNTER_MAX)
        self.table.note(said.lock, highest)
        if said.known > said.round:  # Another owner's round: the next one is above it.
            course.known = max(course.known, said.known)
        if course.step is not Step.ASKING:
            return []
        if said.voted:
            course.votes[leader] = None
            return self.win(course, now)
        course.answered[leader] = None
        if said.ahead is None and said.known <= said.round and not course.held:
            self.table.note(said.lock, 0, pack_fence(self.office.epoch, highest))  # Given there.
        if self.office.can_win(len(course.answered)):
            return []
        return self.lose(course, now)

    def win(self, course: Course, now: Instant) -> list[Effect]:
        """Let the client in, if a quorum voted in this round and this leader is trusted (B7)."""
        entry = course.entry
        if course.step is not Step.ASKING or len(course.votes) < self.office.quorum:
            return []
        voted = entry.phase is Phase.HOLDING
        if not voted or self.table.get(entry.ticket.lock, entry.key) is not entry:
            return []  # Its own vote ended with its lease; it is told when it is due.
        if entry.is_over(now):
            return self.lose(course, now)
        if course.held and self.table.is_outdone(entry.ticket.lock, course.held):
            return [Observe("bakery.takeover_refused")]
        if not self.office.trusted(now):
            return [Observe("bakery.untrusted")]
        course.step = Step.HELD
        self.agenda.look_again(course, now, warn_at(course.entry))
        return [locked(course.entry), Observe("bakery.granted")]

    def lose(self, course: Course, now: Instant) -> list[Effect]:
        """Give the votes of the round back: somebody else is ahead."""
        entry, office = course.entry, self.office
        self.agenda.look_again(course, now, later(now, RESEND_MS))
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
            effects += self.give_up(course, None, now)
        return effects

    def cede(self, course: Course, leader: str, now: Instant) -> list[Effect]:
        """Leave a request to another leader, to which its door went, too."""
        entry = course.entry
        effects: list[Effect] = []
        if course.step is Step.ASKING and not course.held:
            course.eager = False
            effects += self.lose(course, now)
        self.agenda.forget(entry)
        entry.owner = leader
        if entry.phase is not Phase.HOLDING:
            self.table.set_until(entry, later(now, COPY_MS))
        return [*effects, Observe("bakery.ceded")]

    def advance(self, lock: str, now: Instant) -> list[Effect]:
        """Something of ``lock`` ended: ask for votes for the first, if that is this leader's."""
        first = self.table.first(lock)
        if first is None or not self.office.serving:
            return []
        course = self.agenda.of(first)
        if course is None or course.step is not Step.WAITING:
            return []
        if self.table.ahead(first, now) is not None:
            return []
        return self.ask(course, now)

    def give_up(self, course: Course, ahead: Turn | None, now: Instant) -> list[Effect]:
        """End a wait: its time is over, or it will not wait."""
        entry = course.entry
        waited_ms = ms_between(entry.since, now)
        text = in_the_way(self.table, entry, ahead, waited_ms, now)
        return self.fail(course, Error.TIMED_OUT, text, now)

    def fail(self, course: Course, error: Error, detail: str, now: Instant) -> list[Effect]:
        """Drop the ticket and say why."""
        dropped = self.drop(course, now)
        return [*dropped, failed(course.entry.ticket, error, detail)]

    def drop(self, course: Course, now: Instant) -> list[Effect]:
        """Forget the ticket, here and at the others, but no vote that another may have won with."""
        entry, office = course.entry, self.office
        lock, who, request = entry.ticket.lock, entry.ticket.who, entry.ticket.request
        self.agenda.forget(entry)
        if course.held and entry.phase is Phase.HOLDING:
            return self.advance(lock, now)  # Perhaps it was granted: its lease ends by itself.
        if self.table.get(lock, entry.key) is entry:
            self.table.remove(entry)
        word = DropTicket(
            epoch=office.epoch, lock=lock, who=who, request=request, fence=0, number=0, mine=True
        )
        return [*office.tell(word), *self.advance(lock, now)]
