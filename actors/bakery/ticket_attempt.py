"""The tickets that one leader owns: their steps, deadlines, and answers to proxies. Pure.

A request of a client becomes a *ticket* at the leader that its proxy chose, the *owner*. Tickets of
a lock are served in the order of their *turns* (number, leader, serial), as in a bakery; but a lock
is granted by votes, and the numbers only say who asks for votes first. Every leader has a table of
all tickets that it knows (`table.py`), and two of three leaders (a *quorum*) decide each step.

What moves
----------

::

    step      waits for                       left for
    ENTERING  a quorum that knows that the    VOTING, or WAITING if another ticket is ahead here
              ticket enters (MaxTicket)
    WAITING   its turn; tried again when a    VOTING
              ticket ahead ends, every
              REFRESH_MS while one is ahead
              here, and resend_ms after a
              lost round
    VOTING    a quorum of votes (Collected)   HELD, once a quorum voted in this round
                                              WAITING, if too many refused for it to win (Yield)
    HELD      its release (DropTicket)        gone; at the end of its duration the holder is warned,
                                              after its grace the lease ends and the hold with it

Every step but HELD ends when the wait times out, when its proxy has not repeated the request for
`UNREPEATED_MS` (the proxy or the client is dead), or when the client drops it. In a new epoch the
same steps go on with the new leaders (`resume`), and tickets whose owner leads no more are adopted
(`adopt`). One that is still ENTERING is dropped instead, and its proxy sends the request again
(`StateTransfer._inherit`).

::

    here                         the essay's step                  messages
    draw a number above all      LOCKENTERING, GETMAXTICKET        Entering -> MaxTicket
    that a quorum knows
    ask for votes in a round     ADDTICKET, LOCKEXITING, ACTIVATE  AddTicket -> Collected
    grant, to the proxy          LOCKED                            Locked
    drop                         DROPTICKET, UNLOCKED              DropTicket -> TicketDropped

Each step costs one round trip: a free lock takes two, a release one. Adding and exiting are one
message, so a leader that knows a ticket sees it entering or waiting, never neither. Two requests
that enter at once may draw their numbers in either order: votes keep them apart, not numbers.

Votes and rounds
----------------

A leader votes for a ticket if, in its table, no other ticket enters, none with a smaller turn
waits, and none holds, as far as they conflict. The vote is a record with a fence and a lease; while
it counts, the leader votes for no ticket that conflicts (no-conflicting-votes). Two quorums share a
leader, so two conflicting tickets are never granted at the same time.

A *round* is one request for votes. Its number is in every message, so an answer to an earlier round
counts for nothing (answers-count-once). If a round cannot win any more, the owner takes its votes
back (`Yield`). Without that, three tickets with one vote each would wait forever. It tries again
after `BakeryTiming.resend_ms`: what refused it may be unknown at this leader, where nothing is
ahead. A ticket whose lease needs a higher bound (`max_lease.py`), or that takes a hold over beside
a ticket that conflicts, is tried again as soon.

The fence is drawn with the vote, above every fence that a quorum knows for the lock (fences-rise):
a later holder has talked to a quorum, which shares a leader with the former one. A leader that is
not *trusted*, since no majority of the members answered its beats in time, grants nothing, even
with a quorum of votes (quorum-before-grant): a new epoch may have begun without it.

A hold that is taken over
-------------------------

After a change of leaders, or when a proxy chose another leader, a ticket may have been granted
already, under a fence that its new owner learns from a quorum (``held``). Then nothing may be
decided anew: the owner only collects votes for that fence, waits in no queue, and never gives a
vote back, since the client may rely on it. It asks for votes only while it has given none to a
ticket that conflicts; it first gives back its own votes in rounds that it has not won. While a
ticket of another leader has its vote, it tries again. Otherwise it could renew the hold with one of
the other leaders, and win a round for another ticket with the third, at which the lease of the hold
has ended.

Two owners
----------

Two leaders may own the same request, if its proxy could not reach the first. A leader that receives
the other's `Entering` or `AddTicket` decides which one keeps it: the one that granted the request,
then the one that takes a hold over, then the one that ranks first. The other one cedes it (`Owned`,
`cede`). A vote stands until the leader that got it gives it back; another owner may take it over,
under the same fence.

Source: the essay *snaplock*, its steps of a ticket. Rounds, votes with leases, fences and epochs
are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fencelock.actors.api.name import titled
from fencelock.actors.bakery.config import COPY_AFTER_MS, COPY_MS, LEADERS_MAX, REFRESH_MS
from fencelock.actors.bakery.epochs import EpochState
from fencelock.actors.bakery.table import TicketEntry, TicketTable
from fencelock.actors.bakery.ticket import (
    FENCE_COUNTER_MAX,
    TICKET_NUMBER_MAX,
    TICKET_ROUND_MAX,
    RequestKey,
    Ticket,
    Turn,
    counter_of,
    epoch_of,
    pack_fence,
)
from fencelock.actors.bakery.wire import (
    AddTicket,
    Collected,
    DropTicket,
    Entering,
    Error,
    Expired,
    Lock,
    Locked,
    LockFailed,
    MaxTicket,
    Owned,
    TicketEnded,
    Unlocking,
    Yield,
    request_of,
)
from fencelock.actors.deadline_queue import QUEUE_ENDS_MAX, DeadlineQueue
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, later, ms_between, node_of

UNREPEATED_MS = 10_000
"""A waiting request that its proxy did not repeat for this long is dropped (ms)."""

WARN_AGAIN_MS = 500
"""Interval at which a holder is warned again that its duration is over (ms)."""


class TicketStep(Enum):
    """The event that a ticket waits for."""

    ENTERING = "a quorum that knows that it enters"
    WAITING = "its turn"
    VOTING = "a quorum of votes"
    HELD = "its release"


@dataclass(slots=True, eq=False)
class TicketAttempt:
    """A ticket of this leader's own.

    Attributes:
        wait_until: the time at which it gives up, or None for never.
        eager: whether it does not wait at all.
        requested_at: the time of its proxy's last message.
        answered: keepers that answered the step, or refused; ``votes``: those that voted, or keep
            a copy. Both belong to the present round (answers-count-once).
        copied: whether the hold was sent to the copies, in the present round.
        held: the fence of a former owner, under which the same request may hold already.
            It is taken over, and never given back.
        known: the highest round of this request that others know.

    """

    entry: TicketEntry
    wait_until: Instant | None
    eager: bool
    requested_at: Instant
    step: TicketStep = TicketStep.ENTERING
    answered: dict[str, None] = field(default_factory=dict[str, None])
    votes: dict[str, None] = field(default_factory=dict[str, None])
    copied: bool = False
    held: int = 0
    known: int = 0

    @property
    def is_held(self) -> bool:
        return self.step is TicketStep.HELD

    @property
    def is_voting(self) -> bool:
        return self.step is TicketStep.VOTING


def warn_at(entry: TicketEntry) -> Instant:
    """Return when the duration of a hold is over, and its grace begins."""
    assert entry.until is not None
    return later(entry.until, -entry.ticket.grace_ms)


def locked(entry: TicketEntry) -> Send:
    ticket, key = entry.ticket, entry.key._asdict()
    hold_ms, grace_ms = ticket.hold_ms, ticket.grace_ms
    return Send(ticket.proxy, Locked(**key, fence=entry.fence, hold_ms=hold_ms, grace_ms=grace_ms))


def failed(proxy: Address, request: Ticket | Lock, error: Error, detail: str) -> Send:
    return Send(proxy, LockFailed(**request.key._asdict(), error=error, detail=detail))


class TicketAttempts:
    """All tickets of a leader's own.

    Invariants: answers-count-once, quorum-before-grant.
    """

    def __init__(self, epoch_state: EpochState, table: TicketTable) -> None:
        self.epoch_state = epoch_state
        self.table = table
        self.own: dict[RequestKey, TicketAttempt] = {}
        self.due: DeadlineQueue[TicketAttempt] = DeadlineQueue()
        """The times at which they are processed again."""
        self.ending: dict[str, dict[tuple[Address, int], None]] = {}
        """Sessions whose end has begun, which get nothing more; and the proxies and numbers of the
        requests that are answered once none of their tickets is left here."""
        self.serial = 0

    def forget(self, entry: TicketEntry) -> None:
        """Take no more steps for ``entry``, which is dropped or another leader's."""
        attempt = self.own.pop(entry.key, None)
        if attempt is not None:
            self.due.set(attempt, None)

    def schedule(self, attempt: TicketAttempt, now: Instant, at: Instant | None = None) -> None:
        """Process it again at that time, or when an unanswered step is sent again.

        But not after the timeout of its wait, and not at once.
        """
        if at is None:
            at = later(now, self.epoch_state.timing.resend_ms)
        if attempt.wait_until is not None and not attempt.is_held:
            at = min(at, attempt.wait_until)
        self.due.set(attempt, max(at, later(now, 1)))

    def open(self, proxy: Address, request: Lock, now: Instant) -> list[Effect]:
        self.serial += 1
        turn = Turn(0, self.epoch_state.node, -self.serial if request.shared else self.serial)
        ticket = Ticket(
            request.lock,
            request.who,
            request.request,
            turn,
            proxy,
            request.hold_ms,
            request.grace_ms,
            request.label,
        )
        entry = self.table.put(ticket, self.epoch_state.node, now, None)
        if entry is None:
            return [failed(proxy, ticket, Error.FAILED, ended_before(request.lock))]
        wait_until = None if request.wait_ms is None else later(now, request.wait_ms)
        attempt = TicketAttempt(entry, wait_until, request.wait_ms == 0, now)
        if attempt.eager:
            attempt.wait_until = later(now, REFRESH_MS)
        return self._begin(attempt, now)

    def adopt(self, entry: TicketEntry, now: Instant) -> list[Effect]:
        """Take over the steps of a ticket whose owner leads no more."""
        entry.owner = self.epoch_state.node
        attempt = TicketAttempt(entry, None, eager=False, requested_at=now)
        if not entry.holds:
            self.table.set_until(entry, None)
        return self._begin(attempt, now)

    def _begin(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        self.own[attempt.entry.key] = attempt
        if attempt.entry.holds:
            attempt.held = attempt.entry.fence
            return self.begin_round(attempt, now)
        return self.enter(attempt, now)  # It may hold already: a quorum knows that.

    def resume(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Go on in a new epoch, with its leaders."""
        match attempt.step:
            case TicketStep.ENTERING:
                return self.enter(attempt, now)
            case TicketStep.HELD:
                self.schedule(attempt, now, now)
                return []
            case _:
                return self.begin_round(attempt, now) if attempt.held else self.enter(attempt, now)

    def enter(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        attempt.step, attempt.answered = TicketStep.ENTERING, {}
        if self.epoch_state.quorum == 1:
            return self._draw(attempt, now)
        self.schedule(attempt, now)
        return [*self._send_entering(attempt)]

    def _send_entering(self, attempt: TicketAttempt) -> list[Send | Observe]:
        """Send the announcement to leaders that have not answered; the ticket keeps its number."""
        ticket = attempt.entry.ticket
        entering = ticket._replace(turn=ticket.turn._replace(number=0))
        message = Entering(epoch=self.epoch_state.epoch, ticket=entering)
        return self.epoch_state.send(message, frozenset(attempt.answered))

    def on_max(self, leader: str, reply: MaxTicket, now: Instant) -> list[Effect]:
        attempt = self.own.get(reply.key)
        if attempt is None or attempt.step is not TicketStep.ENTERING:
            return []
        attempt.answered[leader] = None
        self.table.note(reply.lock, reply.highest)
        attempt.entry.round = max(attempt.entry.round, reply.known)
        attempt.held = max(attempt.held, reply.held)
        if 1 + len(attempt.answered) < self.epoch_state.quorum:
            return []
        return self._draw(attempt, now)

    def _draw(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Draw a number above all that a quorum knows, unless the ticket has one."""
        ticket, epoch_state = attempt.entry.ticket, self.epoch_state
        highest = self.table.highest(ticket.lock, epoch_state.epoch)
        number = ticket.turn.number or min(highest + 1, TICKET_NUMBER_MAX)
        ticket = ticket._replace(turn=ticket.turn._replace(number=number))
        if self.table.put(ticket, epoch_state.node, now, None, attempt.held) is None:
            return self.fail(attempt, Error.FAILED, ended_before(ticket.lock), now)
        begun = self.begin_round(attempt, now)
        # It enters no more: that may have been all that kept another of this leader's waiting.
        return [*begun, *self.advance(ticket.lock, now)]

    def begin_round(  # noqa: PLR0912  (each step of it may end it)
        self, attempt: TicketAttempt, now: Instant
    ) -> list[Effect]:
        """Begin a round: send the ticket, and request votes if nothing is in its way here."""
        entry, epoch_state, table = attempt.entry, self.epoch_state, self.table
        if not table.has(entry):
            text = f"{titled(entry.ticket.lock)}: no quorum within a lease, or dropped elsewhere"
            return self.fail(attempt, Error.FAILED, text, now)
        last = max(entry.round, attempt.known)
        if last + 1 >= TICKET_ROUND_MAX:  # A forger claimed it; losing a round takes one more.
            return self._overflow(attempt, "rounds", now)
        entry.owner = epoch_state.node  # Another may have owned it; only one counts per round.
        entry.round = last + 1
        attempt.answered, attempt.votes, attempt.copied = {}, {}, False
        if entry.holds and not attempt.held:
            if epoch_of(entry.fence) < epoch_state.epoch:
                attempt.held = entry.fence  # It may have been granted.
            else:
                table.unvote(entry, None)
        effects: list[Effect] = []
        if attempt.held and not entry.holds:
            effects += self._give_way(entry, now)
            if table.holds_against(entry, now):
                attempt.step = TicketStep.WAITING
                self.schedule(attempt, now)
                return [*effects, Observe("bakery.takeover_refused")]
        # A ticket that may hold already waits in no line: it is only sent again.
        ahead = None if attempt.held else table.ahead(entry, now)
        if ahead is None and (waits := epoch_state.wait_for_bound(entry.lease_left_ms(now))):
            attempt.step = TicketStep.WAITING
            self.schedule(attempt, now)
            return waits
        if ahead is not None:
            attempt.step = TicketStep.WAITING
            if attempt.eager:
                return self.give_up(attempt, ahead, now)
            fence = 0
            self.schedule(attempt, now, later(now, REFRESH_MS))
        else:
            fence = attempt.held or self._next_fence(entry)
            if counter_of(fence) >= FENCE_COUNTER_MAX or epoch_of(fence) > epoch_state.epoch:
                return self._overflow(attempt, "fences", now)
            if not entry.holds:
                table.vote(entry, fence, now)
            attempt.step, attempt.votes = TicketStep.VOTING, {epoch_state.node: None}
            self.schedule(attempt, now)
        add = self._add_ticket(attempt, fence)
        effects += epoch_state.send(add) if fence else epoch_state.send_to_all(add)
        return [*effects, *self.grant(attempt, now)]

    def _overflow(self, attempt: TicketAttempt, numbers: str, now: Instant) -> list[Effect]:
        text = f"{titled(attempt.entry.ticket.lock)}: its {numbers} reached their limit"
        return self.fail(attempt, Error.OVERFLOW, f"{text} in this epoch", now)

    def _give_way(self, entry: TicketEntry, now: Instant) -> list[Effect]:
        """Lose this leader's own rounds that conflict with ``entry``, which a quorum knows."""
        effects: list[Effect] = []
        for other in self.table.holds_against(entry, now):
            rival = self.own.get(other.key)
            if rival is not None and rival.is_voting and not rival.held:
                rival.eager = False  # A request without a wait ends when it is due, not here.
                effects += self.lose_round(rival, now)
        return effects

    def _add_ticket(self, attempt: TicketAttempt, fence: int) -> AddTicket:
        return AddTicket(
            epoch=self.epoch_state.epoch,
            ticket=attempt.entry.ticket,
            round=attempt.entry.round,
            fence=fence,
            taken=attempt.held > 0,
        )

    def _next_fence(self, entry: TicketEntry) -> int:
        """Return a fence above all that this leader knows for the lock (fences-rise).

        Leaders grant shared tickets at the same time without knowing of each other's grants. So the
        fence of a shared ticket modulo 3 is the rank of its leader, and no two leaders draw the
        same fence.
        """
        last, epoch_state = self.table.counters_of(entry.ticket.lock).fence, self.epoch_state
        fence = max(pack_fence(epoch_state.epoch, entry.ticket.turn.number), last + 1)
        if entry.shared:
            fence += (epoch_state.rank - fence) % LEADERS_MAX
        return fence

    def on_collected(self, leader: str, reply: Collected, now: Instant) -> list[Effect]:
        """Count a vote, or a refusal, in the present round."""
        attempt = self.own.get(reply.key)
        if attempt is None or reply.round != attempt.entry.round:
            return [Observe("bakery.late_answer")]
        self.table.note(reply.lock, reply.highest)
        if reply.known > reply.round:  # It is another owner's round: the next one is above it.
            attempt.known = max(attempt.known, reply.known)
        if not attempt.is_voting:
            return []
        if reply.voted:
            attempt.votes[leader] = None
            return self.grant(attempt, now)
        attempt.answered[leader] = None
        if reply.ahead is None and reply.known <= reply.round and not attempt.held:
            # That leader may have voted for a fence as high as this one.
            given = pack_fence(self.epoch_state.epoch, reply.highest)
            self.table.note(reply.lock, 0, given, shared=True)
        if self.epoch_state.can_win(attempt.answered):
            return self.grant(attempt, now)  # Copies may make up for the one that refused.
        return self.lose_round(attempt, now)

    def grant(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Grant the lock, if a quorum voted in this round and this leader is trusted.

        But grant nothing to a session that ends: its ticket is dropped soon.

        The hold is sent to the copies before; it counts once a quorum of the keepers has it.
        """
        entry = attempt.entry
        if not attempt.is_voting or not self.epoch_state.is_voted(attempt.votes):
            return []
        if entry.ticket.who.session in self.ending:
            return [Observe("bakery.session_ends")]
        if not entry.holds or not self.table.has(entry):
            return []  # Its own vote ended with its lease; the client is notified when that is due.
        if entry.is_over(now):
            return self.lose_round(attempt, now)
        if attempt.held and self.table.is_outdone(entry.ticket, attempt.held):
            return [Observe("bakery.takeover_refused")]
        if not self.epoch_state.trusted(now):
            return [Observe("bakery.untrusted")]
        if not self.epoch_state.is_agreed(attempt.votes):
            return self._copy(attempt, now)
        attempt.step = TicketStep.HELD
        self.schedule(attempt, now, warn_at(entry))
        return [locked(entry), Observe("bakery.granted")]

    def _copy(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Send a hold that a quorum voted for to the copies, unless another vote may come soon."""
        if attempt.copied:
            return []
        if self.epoch_state.needs_copies(attempt.answered):
            attempt.copied = True
            add = self._add_ticket(attempt, attempt.entry.fence)
            return [*self.epoch_state.copy(add)]
        self.schedule(attempt, now, later(now, COPY_AFTER_MS))
        return []

    def lose_round(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Make the leaders give back the votes of the round: another ticket is ahead."""
        entry, epoch_state = attempt.entry, self.epoch_state
        self.schedule(attempt, now)
        if attempt.held:
            return [Observe("bakery.takeover_refused")]
        entry.round = min(entry.round + 1, TICKET_ROUND_MAX)
        if entry.holds:
            self.table.unvote(entry, None)
        attempt.step, attempt.votes, attempt.answered = TicketStep.WAITING, {}, {}
        back = Yield(**request_of(epoch_state.epoch, entry.ticket), round=entry.round)
        sent = epoch_state.send_to_all(back) if attempt.copied else epoch_state.send(back)
        effects: list[Effect] = [*sent, Observe("bakery.round_lost")]
        if attempt.eager:
            effects += self.give_up(attempt, None, now)
        return effects

    def cede(self, attempt: TicketAttempt, leader: str, now: Instant) -> list[Effect]:
        """Leave a request to another leader, which also received it from its proxy."""
        entry = attempt.entry
        effects: list[Effect] = []
        if attempt.is_voting and not attempt.held:
            attempt.eager = False
            effects += self.lose_round(attempt, now)
        self.forget(entry)
        entry.owner = leader
        if not entry.holds:
            self.table.set_until(entry, later(now, COPY_MS))
        return [*effects, Observe("bakery.ceded")]

    def on_lost(self, leader: str, notice: TicketEnded | Owned, now: Instant) -> list[Effect]:
        """Leave a request that has ended, or that another leader keeps."""
        attempt = self.own.get(notice.key)
        if attempt is None or attempt.is_held:
            return [Observe("bakery.late_answer")]
        if isinstance(notice, Owned):
            return self.cede(attempt, leader, now)
        return self.fail(attempt, Error.FAILED, ended_before(notice.lock), now)

    def advance(self, lock: str, now: Instant) -> list[Effect]:
        """Request votes for the tickets at the head of the line that this leader owns.

        The caller has ended a ticket of ``lock``.
        """
        effects: list[Effect] = []
        for first in self.table.head(lock) if self.epoch_state.serving else ():
            attempt = self.own.get(first.key)
            if attempt is None or attempt.step is not TicketStep.WAITING:
                continue
            if self.table.ahead(first, now) is not None:
                break
            effects += self.begin_round(attempt, now)
        return effects

    def give_up(self, attempt: TicketAttempt, ahead: Turn | None, now: Instant) -> list[Effect]:
        entry = attempt.entry
        waited_ms = ms_between(entry.since, now)
        text = in_the_way(self.table, entry, ahead, waited_ms, now)
        return self.fail(attempt, Error.TIMED_OUT, text, now)

    def fail(self, attempt: TicketAttempt, error: Error, detail: str, now: Instant) -> list[Effect]:
        dropped = self.drop(attempt, now)
        ticket = attempt.entry.ticket
        return [*dropped, failed(ticket.proxy, ticket, error, detail)]

    def drop(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Drop the ticket here and at the others, except a vote that another may have won with."""
        entry, epoch_state = attempt.entry, self.epoch_state
        lock = entry.ticket.lock
        self.forget(entry)
        if attempt.held and entry.holds:
            return self.advance(lock, now)  # It may have been granted: its lease ends by itself.
        if self.table.has(entry):
            self.table.remove(entry)
        back = DropTicket(**request_of(epoch_state.epoch, entry.ticket), mine=True)
        return [*epoch_state.send_to_all(back), *self.advance(lock, now)]

    def tick(self, now: Instant) -> list[Effect]:
        """Go on with attempts that are due, `QUEUE_ENDS_MAX` at most; later ticks take the rest."""
        effects: list[Effect] = []
        for attempt in self.due.each_due(now, QUEUE_ENDS_MAX):
            effects += self._on_due(attempt, now)
        return effects

    def _on_due(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        if attempt.is_held:
            return self._on_hold_due(attempt, now)
        entry = attempt.entry
        if not self.table.has(entry):
            return self.begin_round(attempt, now)
        if ms_between(attempt.requested_at, now) >= UNREPEATED_MS and entry.ticket.proxy:
            return [*self.drop(attempt, now), Observe("bakery.proxy_silent")]
        if attempt.wait_until is not None and attempt.wait_until <= now:
            return self.give_up(attempt, self.table.ahead(entry, now), now)
        if attempt.step is TicketStep.ENTERING:
            self.schedule(attempt, now)
            return [*self._send_entering(attempt)]
        if not attempt.is_voting or not entry.holds:
            return self.begin_round(attempt, now)
        voted = self.epoch_state.is_voted(attempt.votes)
        if attempt.answered and not attempt.held and not voted:
            return self.lose_round(attempt, now)
        self.schedule(attempt, now)
        add = self._add_ticket(attempt, entry.fence)
        answered = attempt.votes | attempt.answered
        attempt.copied = attempt.copied or voted
        won = self.grant(attempt, now)
        if not attempt.votes:  # The lease was over: the round's votes are given back.
            return won
        if attempt.copied and attempt.is_voting:
            return [*won, *self.epoch_state.send_to_all(add, answered)]
        return [*won, *self.epoch_state.send(add, answered)]

    def _on_hold_due(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Warn the holder when its duration is over, and end the hold when its grace is."""
        entry = attempt.entry
        ticket, until = entry.ticket, entry.until
        assert until is not None
        if until <= now:
            # The other leaders judge by their own clocks: it may have been renewed through one of
            # them.
            expired = Expired(**ticket.key._asdict(), fence=entry.fence)
            self.forget(entry)
            self.table.forget(entry, now)
            return [
                *self.advance(ticket.lock, now),
                Send(ticket.proxy, expired),
                Observe("bakery.lease_over"),
            ]
        if now < warn_at(entry):
            self.schedule(attempt, now, warn_at(entry))
            return []
        self.schedule(attempt, now, min(until, later(now, WARN_AGAIN_MS)))
        grace_ms = ms_between(now, until)
        warning = Unlocking(**ticket.key._asdict(), fence=entry.fence, grace_ms=grace_ms)
        return [Send(ticket.proxy, warning), Observe("bakery.unlocking")]


def ended_before(lock: str) -> str:
    return f"{titled(lock)}: this request, or a later one, ended before"


def in_the_way(
    table: TicketTable, entry: TicketEntry, ahead: Turn | None, waited_ms: int, now: Instant
) -> str:
    lock = entry.ticket.lock
    text = f"{titled(lock)}: waited {waited_ms} ms"
    against = table.queue(lock).against(shared=entry.shared)
    others = (one for mode in against for one in mode.holding if one is not entry)
    if (holder := next(others, None)) is not None:
        mine = any(entry in mode.holding for mode in against)
        count = sum(len(mode.holding) for mode in against) - mine - 1
        ticket, held_ms = holder.ticket, ms_between(holder.since, now)
        rest = f", and by {count} other{'' if count == 1 else 's'}" if count else ""
        return (
            f"{text}; it is held by {ticket.who.owner or ticket.who.session} through "
            f"{node_of(ticket.proxy)} under fence {holder.fence}, for {held_ms} ms{rest}"
        )
    if ahead is not None:
        return f"{text}; another request is ahead (ticket {ahead.number} of {ahead.leader})"
    return f"{text}, and it was about to be granted, or a quorum of the leaders did not answer"
