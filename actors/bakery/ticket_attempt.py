"""The tickets that one leader owns: their steps, deadlines, and answers to proxies. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import Enum

from fencelock.actors.bakery.config import COPY_MS, REFRESH_MS, RESEND_MS, election_of, later
from fencelock.actors.bakery.epochs import EpochState
from fencelock.actors.bakery.event import Raise
from fencelock.actors.bakery.message import (
    AddTicket,
    Collected,
    DropTicket,
    Entering,
    MaxTicket,
    Yield,
)
from fencelock.actors.bakery.proxy_message import (
    Error,
    Expired,
    Lock,
    Locked,
    LockFailed,
    Unlocking,
)
from fencelock.actors.bakery.table import Entry, Key, Phase, TicketTable
from fencelock.actors.bakery.ticket import (
    COUNTER_MAX,
    Ticket,
    Turn,
    Who,
    counter_of,
    epoch_of,
    pack_fence,
)
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, ms_between, node_of

STALE_MAX = 1_000
"""Number of stale entries, beyond twice the live ones, at which the heap is cleaned up."""


class Step(Enum):
    """The event that a ticket waits for."""

    ENTERING = "a quorum that knows that it enters"
    WAITING = "its turn"
    ASKING = "a quorum of votes"
    HELD = "its release"


@dataclass(slots=True, eq=False)
class TicketAttempt:
    """A ticket of this leader's own.

    Attributes:
        wait_until: the time at which it gives up, None for never.
        eager: whether it does not wait at all.
        heard_at: the time of its proxy's last message.
        answered: leaders that answered the step, or refused to vote; ``votes``: those that
            voted. Both are of the present round (B6).
        held: a fence under which the same request may hold already: that of a former owner.
            It is taken over, and never given back.
        due: the time at which it is processed again.

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
    """The highest round of this request that others know."""
    due: Instant | None = None
    """None while it is not in the heap."""


class TimerQueue:
    """All of a leader's own tickets, by request and by the times at which they are due."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, Key], TicketAttempt] = {}
        self.due: list[tuple[Instant, int, TicketAttempt]] = []
        """The tickets to process, as a heap; some are forgotten, or due at another time."""
        self._count = 0

    def of(self, entry: Entry) -> TicketAttempt | None:
        """Return the attempt of ``entry``, if this leader owns it."""
        return self.by_key.get((entry.ticket.lock, entry.key))

    def find(self, lock: str, who: Who, request: int) -> TicketAttempt | None:
        """Return the attempt of that request."""
        return self.by_key.get((lock, Key(who, request)))

    def add(self, attempt: TicketAttempt) -> None:
        """Add a ticket that this leader owns."""
        self.by_key[attempt.entry.ticket.lock, attempt.entry.key] = attempt

    def forget(self, entry: Entry) -> None:
        """Take no more steps for ``entry``, which is dropped or another leader's."""
        attempt = self.by_key.pop((entry.ticket.lock, entry.key), None)
        if attempt is not None:
            attempt.due = None

    def look_again(self, attempt: TicketAttempt, now: Instant, at: Instant) -> None:
        """Have the attempt processed then, or when its wait times out, and not before."""
        if attempt.wait_until is not None and attempt.step is not Step.HELD:
            at = min(at, attempt.wait_until)
        attempt.due = max(at, later(now, 1))
        self._count += 1
        heapq.heappush(self.due, (attempt.due, self._count, attempt))
        if len(self.due) > 2 * len(self.by_key) + STALE_MAX:
            # Holds may last for days, and most are released long before: their entries are stale.
            self.due = [one for one in self.due if one[2].due == one[0]]
            heapq.heapify(self.due)

    def take_due(self, now: Instant) -> TicketAttempt | None:
        """Return an attempt that is due, None if none is."""
        while self.due and self.due[0][0] <= now:
            at, _, attempt = heapq.heappop(self.due)
            if attempt.due == at:
                attempt.due = None
                return attempt
        return None


def warn_at(entry: Entry) -> Instant:
    """Return when the duration of a hold is over, and its grace begins."""
    assert entry.until is not None
    return later(entry.until, -entry.ticket.grace_ms)


def locked(entry: Entry) -> Send:
    """Return the grant for the proxy of a holder."""
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
    """Return the failure for the proxy of a ticket."""
    word = LockFailed(
        lock=ticket.lock, who=ticket.who, request=ticket.request, error=error, detail=detail
    )
    return Send(ticket.door, word)


class TicketAttempts:
    """All tickets of a leader's own. Invariants: B6, B7; see the README of this folder.

    Args:
        epoch_state: this leader's state in its epoch.
        table: this leader's table.

    """

    def __init__(self, epoch_state: EpochState, table: TicketTable) -> None:
        self.epoch_state = epoch_state
        self.table = table
        self.agenda = TimerQueue()
        self.serial = 0

    def open(self, door: Address, asked: Lock, now: Instant) -> list[Effect]:
        """Begin a ticket for a request that is not known here."""
        self.serial += 1
        turn = Turn(0, self.epoch_state.node, self.serial)
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
        entry = self.table.put(ticket, self.epoch_state.node, now, None)
        if entry is None:
            return [failed(ticket, Error.FAILED, ended_before(asked.lock))]
        wait_until = None if asked.wait_ms is None else later(now, asked.wait_ms)
        attempt = TicketAttempt(entry, wait_until, asked.wait_ms == 0, now)
        if attempt.eager:
            attempt.wait_until = later(now, REFRESH_MS)
        self.agenda.add(attempt)
        if entry.phase is Phase.HOLDING:
            return self._take_over(attempt, entry.fence, now)
        return self.enter(attempt, now)

    def adopt(self, entry: Entry, now: Instant) -> list[Effect]:
        """Take over the steps of a ticket whose owner leads no more."""
        entry.owner = self.epoch_state.node
        attempt = TicketAttempt(entry, None, eager=False, heard_at=now)
        self.agenda.add(attempt)
        if entry.phase is Phase.HOLDING:
            return self._take_over(attempt, entry.fence, now)
        self.table.set_until(entry, None)
        return self.enter(attempt, now)  # It may hold already: a quorum knows that.

    def resume(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Go on in a new epoch, with its leaders."""
        match attempt.step:
            case Step.ENTERING:
                return self.enter(attempt, now)
            case Step.HELD:
                self.agenda.look_again(attempt, now, now)
                return []
            case _:
                return self.ask(attempt, now) if attempt.held else self.enter(attempt, now)

    def enter(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Announce that the ticket is about to draw a number."""
        entry, epoch_state = attempt.entry, self.epoch_state
        attempt.step, attempt.answered = Step.ENTERING, {}
        attempt.highest = self.table.counters_of(entry.ticket.lock).highest
        if epoch_state.quorum == 1:
            return self._draw(attempt, now)
        self.agenda.look_again(attempt, now, later(now, RESEND_MS))
        return [*self.say_entering(attempt)]

    def say_entering(self, attempt: TicketAttempt) -> list[Send | Observe]:
        """Send the announcement to leaders that have not answered; the ticket keeps its number."""
        ticket = attempt.entry.ticket
        entering = ticket._replace(turn=ticket.turn._replace(number=0))
        word = Entering(epoch=self.epoch_state.epoch, ticket=entering)
        return self.epoch_state.tell(word, frozenset(attempt.answered))

    def on_max(self, leader: str, said: MaxTicket, now: Instant) -> list[Effect]:
        """Count a leader that knows that the ticket enters."""
        attempt = self.agenda.find(said.lock, said.who, said.request)
        if attempt is None or attempt.step is not Step.ENTERING or epoch_of(said.held) > said.epoch:
            return []
        attempt.answered[leader] = None
        attempt.highest = max(attempt.highest, said.highest)
        attempt.entry.round = max(attempt.entry.round, said.known)
        attempt.held = max(attempt.held, said.held)
        if 1 + len(attempt.answered) < self.epoch_state.quorum:
            return []
        return self._draw(attempt, now)

    def _draw(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Draw a number above all that a quorum knows, unless the ticket has one."""
        entry = attempt.entry
        number = entry.ticket.turn.number or attempt.highest + 1
        if number >= COUNTER_MAX:
            text = f"lock {entry.ticket.lock!r}: ticket numbers reached their limit {COUNTER_MAX}"
            return self.fail(attempt, Error.OVERFLOW, text, now)
        turn = entry.ticket.turn._replace(number=number)
        ticket = entry.ticket._replace(turn=turn)
        if self.table.put(ticket, self.epoch_state.node, now, None, attempt.held) is None:
            return self.fail(attempt, Error.FAILED, ended_before(ticket.lock), now)
        asked = (
            self._take_over(attempt, attempt.held, now) if attempt.held else self.ask(attempt, now)
        )
        # It enters no more: that may have been all that kept another of this leader's waiting.
        return [*asked, *self.advance(entry.ticket.lock, now)]

    def _take_over(self, attempt: TicketAttempt, fence: int, now: Instant) -> list[Effect]:
        attempt.held = fence
        return self.ask(attempt, now)

    def ask(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Begin a round: send the ticket, and request votes if nothing is in its way here."""
        entry, epoch_state, table = attempt.entry, self.epoch_state, self.table
        if table.get(entry.ticket.lock, entry.key) is not entry:
            text = f"lock {entry.ticket.lock!r}: no quorum within a lease, or dropped elsewhere"
            return self.fail(attempt, Error.FAILED, text, now)
        entry.owner = epoch_state.node  # Another may have owned it; only one is heeded per round.
        entry.round = max(entry.round, attempt.known) + 1
        attempt.answered, attempt.votes = {}, {}
        if entry.phase is Phase.HOLDING and not attempt.held:
            if epoch_of(entry.fence) < epoch_state.epoch:
                attempt.held = entry.fence  # It may have been granted.
            else:
                table.unvote(entry, None)
        # A ticket that may hold already waits in no line: it is only sent again.
        ahead = None if attempt.held else table.ahead(entry, now)
        if ahead is None and not attempt.held and entry.ticket.lease_ms > epoch_state.bound_ms:
            attempt.step = Step.WAITING  # Since an earlier epoch, which knew of longer leases.
            self.agenda.look_again(attempt, now, later(now, RESEND_MS))
            return [Send(election_of(epoch_state.node), Raise(bound_ms=entry.ticket.lease_ms))]
        if ahead is not None:
            attempt.step = Step.WAITING
            if attempt.eager:
                return self.give_up(attempt, ahead, now)
            fence, pause_ms = 0, REFRESH_MS
        else:
            fence, pause_ms = attempt.held or self._next_fence(entry), RESEND_MS
            if counter_of(fence) >= COUNTER_MAX or epoch_of(fence) > epoch_state.epoch:
                text = f"lock {entry.ticket.lock!r}: its fences reached their limit in this epoch"
                return self.fail(attempt, Error.OVERFLOW, text, now)
            if entry.phase is not Phase.HOLDING:
                table.vote(entry, fence, now)
            attempt.step, attempt.votes = Step.ASKING, {epoch_state.node: None}
        self.agenda.look_again(attempt, now, later(now, pause_ms))
        add = AddTicket(
            epoch=epoch_state.epoch,
            ticket=entry.ticket,
            round=entry.round,
            fence=fence,
            taken=bool(attempt.held),
        )
        return [*epoch_state.tell(add), *self.win(attempt, now)]

    def _next_fence(self, entry: Entry) -> int:
        """Return a fence above all that were given for the lock, as far as is known here (B8)."""
        last = self.table.counters_of(entry.ticket.lock).fence
        mine = pack_fence(self.epoch_state.epoch, entry.ticket.turn.number)
        return max(mine, last + 1)

    def on_collected(self, leader: str, said: Collected, now: Instant) -> list[Effect]:
        """Count a vote, or a refusal, in the present round."""
        attempt = self.agenda.find(said.lock, said.who, said.request)
        if attempt is None or said.round != attempt.entry.round:
            return [Observe("bakery.late_answer")]
        highest = min(said.highest, COUNTER_MAX)
        self.table.note(said.lock, highest)
        if said.known > said.round:  # It is another owner's round: the next one is above it.
            attempt.known = max(attempt.known, said.known)
        if attempt.step is not Step.ASKING:
            return []
        if said.voted:
            attempt.votes[leader] = None
            return self.win(attempt, now)
        attempt.answered[leader] = None
        if said.ahead is None and said.known <= said.round and not attempt.held:
            self.table.note(
                said.lock, 0, pack_fence(self.epoch_state.epoch, highest)
            )  # Given there.
        if self.epoch_state.can_win(len(attempt.answered)):
            return []
        return self.lose(attempt, now)

    def win(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Grant the lock, if a quorum voted in this round and this leader is trusted (B7)."""
        entry = attempt.entry
        if attempt.step is not Step.ASKING or len(attempt.votes) < self.epoch_state.quorum:
            return []
        voted = entry.phase is Phase.HOLDING
        if not voted or self.table.get(entry.ticket.lock, entry.key) is not entry:
            return []  # Its own vote ended with its lease; the client is told when that is due.
        if entry.is_over(now):
            return self.lose(attempt, now)
        if attempt.held and self.table.is_outdone(entry.ticket.lock, attempt.held):
            return [Observe("bakery.takeover_refused")]
        if not self.epoch_state.trusted(now):
            return [Observe("bakery.untrusted")]
        attempt.step = Step.HELD
        self.agenda.look_again(attempt, now, warn_at(attempt.entry))
        return [locked(attempt.entry), Observe("bakery.granted")]

    def lose(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Have the votes of the round given back: another ticket is ahead."""
        entry, epoch_state = attempt.entry, self.epoch_state
        self.agenda.look_again(attempt, now, later(now, RESEND_MS))
        if attempt.held:
            return [Observe("bakery.takeover_refused")]
        entry.round += 1
        if entry.phase is Phase.HOLDING:
            self.table.unvote(entry, None)
        attempt.step, attempt.votes, attempt.answered = Step.WAITING, {}, {}
        who, request = entry.ticket.who, entry.ticket.request
        lock = entry.ticket.lock
        back = Yield(
            epoch=epoch_state.epoch, lock=lock, who=who, request=request, round=entry.round
        )
        effects: list[Effect] = [*epoch_state.tell(back), Observe("bakery.round_lost")]
        if attempt.eager:
            effects += self.give_up(attempt, None, now)
        return effects

    def cede(self, attempt: TicketAttempt, leader: str, now: Instant) -> list[Effect]:
        """Leave a request to another leader, which received it from its proxy, too."""
        entry = attempt.entry
        effects: list[Effect] = []
        if attempt.step is Step.ASKING and not attempt.held:
            attempt.eager = False
            effects += self.lose(attempt, now)
        self.agenda.forget(entry)
        entry.owner = leader
        if entry.phase is not Phase.HOLDING:
            self.table.set_until(entry, later(now, COPY_MS))
        return [*effects, Observe("bakery.ceded")]

    def advance(self, lock: str, now: Instant) -> list[Effect]:
        """After a ticket of ``lock`` ended, request votes for the first if this leader owns it."""
        first = self.table.first(lock)
        if first is None or not self.epoch_state.serving:
            return []
        attempt = self.agenda.of(first)
        if attempt is None or attempt.step is not Step.WAITING:
            return []
        if self.table.ahead(first, now) is not None:
            return []
        return self.ask(attempt, now)

    def give_up(self, attempt: TicketAttempt, ahead: Turn | None, now: Instant) -> list[Effect]:
        """End a wait that timed out, or a request that does not wait."""
        entry = attempt.entry
        waited_ms = ms_between(entry.since, now)
        text = in_the_way(self.table, entry, ahead, waited_ms, now)
        return self.fail(attempt, Error.TIMED_OUT, text, now)

    def fail(self, attempt: TicketAttempt, error: Error, detail: str, now: Instant) -> list[Effect]:
        """Drop the ticket and send the reason."""
        dropped = self.drop(attempt, now)
        return [*dropped, failed(attempt.entry.ticket, error, detail)]

    def drop(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Drop the ticket here and at the others, except a vote that another may have won with."""
        entry, epoch_state = attempt.entry, self.epoch_state
        lock, who, request = entry.ticket.lock, entry.ticket.who, entry.ticket.request
        self.agenda.forget(entry)
        if attempt.held and entry.phase is Phase.HOLDING:
            return self.advance(lock, now)  # It may have been granted: its lease ends by itself.
        if self.table.get(lock, entry.key) is entry:
            self.table.remove(entry)
        word = DropTicket(
            epoch=epoch_state.epoch,
            lock=lock,
            who=who,
            request=request,
            fence=0,
            number=0,
            mine=True,
        )
        return [*epoch_state.tell(word), *self.advance(lock, now)]


DOOR_SILENT_MS = 10_000
"""A waiting request that its proxy did not repeat for this long is dropped (ms)."""

WARN_AGAIN_MS = 500
"""Interval at which a holder is warned again that its duration is over (ms)."""


class Deadlines:
    """Processes each ticket when it is due.

    Args:
        attempts: the tickets.

    """

    def __init__(self, attempts: TicketAttempts) -> None:
        self.attempts = attempts
        self.epoch_state = attempts.epoch_state
        self.table = attempts.table

    def tick(self, now: Instant) -> list[Effect]:
        """Process the tickets that are due."""
        effects: list[Effect] = []
        while (attempt := self.attempts.agenda.take_due(now)) is not None:
            effects += self._look(attempt, now)
        return effects

    def _look(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        if attempt.step is Step.HELD:
            return self._look_at_hold(attempt, now)
        entry = attempt.entry
        if self.table.get(entry.ticket.lock, entry.key) is not entry:
            return self.attempts.ask(attempt, now)
        if ms_between(attempt.heard_at, now) >= DOOR_SILENT_MS and entry.ticket.door:
            return [*self.attempts.drop(attempt, now), Observe("bakery.door_silent")]
        if attempt.wait_until is not None and attempt.wait_until <= now:
            return self.attempts.give_up(attempt, self.table.ahead(entry, now), now)
        if attempt.step is Step.ENTERING:
            self.attempts.agenda.look_again(attempt, now, later(now, RESEND_MS))
            return [*self.attempts.say_entering(attempt)]
        if attempt.step is not Step.ASKING or entry.phase is not Phase.HOLDING:
            return self.attempts.ask(attempt, now)
        if attempt.answered and not attempt.held:
            return self.attempts.lose(attempt, now)
        self.attempts.agenda.look_again(attempt, now, later(now, RESEND_MS))
        add = AddTicket(
            epoch=self.epoch_state.epoch,
            ticket=entry.ticket,
            round=entry.round,
            fence=entry.fence,
            taken=bool(attempt.held),
        )
        said = frozenset(attempt.votes) | frozenset(attempt.answered)
        won = self.attempts.win(attempt, now)
        if not attempt.votes:  # The lease was over: the round's votes are given back.
            return won
        return [*won, *self.epoch_state.tell(add, said)]

    def _look_at_hold(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Warn the holder when its duration is over, and end the hold when its grace is."""
        entry = attempt.entry
        ticket, until = entry.ticket, entry.until
        assert until is not None
        who, request = ticket.who, ticket.request
        if until <= now:
            # The others judge by their own clocks: it may have been renewed through one of them.
            expired = Expired(lock=ticket.lock, who=who, request=request, fence=entry.fence)
            self.attempts.agenda.forget(entry)
            self.table.forget(entry, now)
            return [
                *self.attempts.advance(ticket.lock, now),
                Send(ticket.door, expired),
                Observe("bakery.lease_over"),
            ]
        if now < warn_at(attempt.entry):
            self.attempts.agenda.look_again(attempt, now, warn_at(attempt.entry))
            return []
        self.attempts.agenda.look_again(attempt, now, min(until, later(now, WARN_AGAIN_MS)))
        warning = Unlocking(
            lock=ticket.lock,
            who=who,
            request=request,
            fence=entry.fence,
            grace_ms=ms_between(now, until),
        )
        return [Send(ticket.door, warning), Observe("bakery.unlocking")]


def ended_before(lock: str) -> str:
    """Return why a request for ``lock`` is not accepted."""
    return f"lock {lock!r}: this request, or a later one, ended before"


def in_the_way(
    table: TicketTable, entry: Entry, ahead: Turn | None, waited_ms: int, now: Instant
) -> str:
    """Return why ``entry`` did not get its lock in time."""
    lock = entry.ticket.lock
    text = f"lock {lock!r}: waited {waited_ms} ms"
    queue = table.queues.get(lock)
    holders = [queue.entries[key] for key in queue.holding] if queue is not None else []
    for holder in holders:
        if holder is not entry:
            ticket = holder.ticket
            held_ms = ms_between(holder.since, now)
            return (
                f"{text}; it is held by {ticket.who.owner or ticket.who.session} through "
                f"{node_of(ticket.door)} under fence {holder.fence}, for {held_ms} ms"
            )
    if ahead is not None:
        return f"{text}; another request is ahead (ticket {ahead.number} of {ahead.leader})"
    return f"{text}, and it was about to be granted, or a quorum of the leaders did not answer"
