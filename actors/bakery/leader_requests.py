"""Requests of proxies to a leader: locks, releases, renewals, queries. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import nsmallest

from fencelock.actors.api.message import Contender, LockStatus
from fencelock.actors.bakery.config import RESEND_MS, Terms, election_of, later
from fencelock.actors.bakery.epochs import EpochState
from fencelock.actors.bakery.event import Raise
from fencelock.actors.bakery.message import Chosen, DropTicket, Extend, Extended, TicketDropped
from fencelock.actors.bakery.proxy_message import (
    HoldRenewed,
    Lock,
    NotLeading,
    Query,
    QueryResult,
    RenewHold,
    Unlock,
    UnlockAll,
    Unlocked,
)
from fencelock.actors.bakery.table import Entry, Key, Phase, Queue, TicketTable
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.ticket_attempt import Step, TicketAttempts, locked
from fencelock.actors.bakery.validation import problem_of
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, ms_between, node_of

FromDoor = Lock | Unlock | UnlockAll | RenewHold | Query


class LeaderRequests:
    """Serves proxies while this leader serves at all; else replies that it does not.

    Args:
        attempts: this leader's own tickets, with its epoch state and its table.
        endings: releases and renewals in flight.
        terms: the allowed durations.

    """

    def __init__(self, attempts: TicketAttempts, endings: PendingReleases, terms: Terms) -> None:
        self.epoch_state = attempts.epoch_state
        self.tickets = attempts.table
        self.attempts = attempts
        self.endings = endings
        self.terms = terms
        self.connected: dict[str, int] = {}
        """The connected members, each with its life."""

    def serve(self, door: Address, asked: FromDoor, now: Instant) -> list[Effect]:
        """Process a request of a proxy."""
        if isinstance(asked, Query):
            return self._on_peek(door, asked, now)
        if isinstance(asked, UnlockAll):
            return self._on_unlock_all(door, asked, now) if self.epoch_state.serving else []
        if not self.epoch_state.serving:
            return [Send(door, NotLeading(lock=asked.lock, who=asked.who, owner=""))]
        problem = problem_of(door, asked, self.tickets, self.terms, now)
        if problem is not None:
            return [problem, Observe("bakery.refused")]
        match asked:
            case Lock():
                return self._on_lock(door, asked, now)
            case Unlock():
                return self._on_unlock(door, asked, now)
            case RenewHold():
                return self._on_prolong(door, asked, now)

    def _on_peek(self, door: Address, peek: Query, now: Instant) -> list[Effect]:
        """Say who holds a lock; nothing if others may have been let in without this leader."""
        if not self.epoch_state.trusted(now):
            return [Observe("bakery.peek_unanswered")]
        return [Send(door, peeked(self.tickets, peek, self.epoch_state.epoch, now))]

    def _on_lock(self, door: Address, asked: Lock, now: Instant) -> list[Effect]:
        lease_ms = asked.hold_ms + asked.grace_ms
        if lease_ms > self.epoch_state.bound_ms:  # The proxy repeats it once enough members know.
            return [Send(election_of(self.epoch_state.node), Raise(bound_ms=lease_ms))]
        attempt = self.attempts.agenda.find(asked.lock, asked.who, asked.request)
        if attempt is not None:
            attempt.heard_at = now
            entry = attempt.entry
            entry.ticket = entry.ticket._replace(door=door)
            if attempt.step is Step.HELD:
                return [locked(entry), Observe("bakery.answered_again")]
            return []
        known = self.tickets.get(asked.lock, Key(asked.who, asked.request))
        owner = known.owner if known is not None else ""
        if self._can_serve(owner):
            return [Send(door, NotLeading(lock=asked.lock, who=asked.who, owner=owner))]
        return self.attempts.open(door, asked, now)

    def _can_serve(self, owner: str) -> bool:
        """Return whether ``owner`` is another leader, connected in the life it was chosen in."""
        epoch_state = self.epoch_state
        life = self.connected.get(owner)
        return (
            life is not None
            and owner in epoch_state.others
            and Chosen(owner, life) in epoch_state.leaders
        )

    def _on_unlock(self, door: Address, asked: Unlock, now: Instant) -> list[Effect]:
        if self.endings.known(door, asked.number):
            return []
        if asked.waiting:
            attempt = self.attempts.agenda.find(asked.lock, asked.who, asked.request)
            waits = attempt is not None and attempt.step is not Step.HELD
            dropped = self.attempts.drop(attempt, now) if attempt is not None and waits else []
            return [*dropped, Send(door, Unlocked(number=asked.number, found=waits))]
        known = self.tickets.of(asked.lock, asked.who)
        fence = asked.fence
        held = next((entry for entry in known if fence and entry.fence == fence), None)
        if held is not None:
            # Others may have only a waiting copy, which they know by its request number.
            asked = replace(asked, request=held.ticket.request)
        elif fence:
            for entry in known:  # The owner knows the request number of the hold.
                if self._can_serve(entry.owner):
                    word = NotLeading(lock=asked.lock, who=asked.who, owner=entry.owner)
                    return [Send(door, word)]
        found = self._forget(asked.lock, asked.who, asked.request, asked.fence)
        dropped = self.endings.drop(door, asked, now, found=found)
        return [*dropped, *self.attempts.advance(asked.lock, now)]

    def _forget(self, lock: str, who: Who, request: int, fence: int) -> bool:
        """Drop the named entries and their attempts; return whether they were known."""
        for entry in self.tickets.named(lock, who, request, fence):
            self.attempts.agenda.forget(entry)
        return self.tickets.drop(lock, who, request, fence)

    def on_dropped(self, leader: str, said: TicketDropped, now: Instant) -> list[Effect]:
        """Count leaders that dropped a request; once its number is known, all drop it by that too.

        A client knows a hold by its fence. A leader that did not vote for it does not.
        """
        word = self.endings.named(leader, said)
        if word is None:
            return self.endings.on_dropped(leader, said, now)
        self._forget(word.lock, word.who, word.request, word.fence)
        told = self.epoch_state.tell(word, frozenset((leader,)))
        settled = self.endings.on_dropped(leader, said, now)
        return [*told, *settled, *self.attempts.advance(word.lock, now)]

    def _on_unlock_all(self, door: Address, asked: UnlockAll, now: Instant) -> list[Effect]:
        """Drop everything of a session that is known here; the proxy asks the others, too."""
        effects: list[Effect] = [Send(door, Unlocked(number=asked.number, found=True))]
        for entry in self.tickets.of_session(asked.session):
            ticket = entry.ticket
            self.attempts.agenda.forget(entry)
            self.tickets.drop(ticket.lock, ticket.who, ticket.request, 0)
            word = DropTicket(
                epoch=self.epoch_state.epoch,
                lock=ticket.lock,
                who=ticket.who,
                request=ticket.request,
                fence=0,
                number=0,
                mine=False,
            )
            effects += [*self.epoch_state.tell(word), *self.attempts.advance(ticket.lock, now)]
        return effects

    def _on_prolong(self, door: Address, asked: RenewHold, now: Instant) -> list[Effect]:
        if self.endings.known(door, asked.number):
            return []
        held = [e for e in self.tickets.of(asked.lock, asked.who) if e.fence == asked.fence]
        if not held or held[0].is_over(now):
            return [Send(door, not_held_here(asked.number))]
        entry = held[0]
        if entry.owner not in asked.missed and self._can_serve(entry.owner):
            word = NotLeading(lock=asked.lock, who=asked.who, owner=entry.owner)
            return [Send(door, word)]
        hold_ms = asked.hold_ms or entry.ticket.hold_ms
        ticket = entry.ticket._replace(hold_ms=hold_ms)
        if ticket.lease_ms > self.epoch_state.bound_ms:
            return [Send(election_of(self.epoch_state.node), Raise(bound_ms=ticket.lease_ms))]
        # Its owner cannot be reached, or thinks it is over: this leader owns it from now on.
        entry.ticket, entry.owner = ticket, self.epoch_state.node
        # Never shorter: a late copy of an earlier renewal must not undo a later one.
        self.tickets.prolong(entry, later(now, ticket.lease_ms))
        return self.endings.extend(door, asked, entry, now)


WAITERS_SHOWN_MAX = 100
"""Maximum waiters shown of one lock: 64 KiB with the longest names."""

CONTENDERS_SHOWN_MAX = 1_000
"""Maximum contenders shown of all locks: 900 KiB with the longest names; a frame has 1 MiB."""


def peeked(table: TicketTable, peek: Query, epoch: int, now: Instant) -> QueryResult:
    """Return the state of a lock in ``table``, for a leader that serves in ``epoch``."""
    queue = table.queues.get(peek.lock)
    holder, waiters = _contenders(queue, now)
    lapsed = table.lapsed_at(peek.lock, now)
    return QueryResult(
        lock=peek.lock,
        number=peek.number,
        holder=holder,
        waiters=waiters,
        waiting=len(queue.line) if queue is not None else 0,
        epoch=epoch,
        nonce=peek.nonce,
        lapsed_ms=None if lapsed is None else ms_between(lapsed, now),
    )


def _contenders(
    queue: Queue | None, now: Instant
) -> tuple[Contender | None, tuple[Contender, ...]]:
    """Return for whom this leader's vote stands, if for anybody, and who waits."""
    if queue is None:
        return None, ()
    votes = [entry for key in queue.holding if not (entry := queue.entries[key]).is_over(now)]
    holder = max(votes, key=lambda entry: entry.fence, default=None)
    shown = queue.line[:WAITERS_SHOWN_MAX]
    waiters = [_contender(queue.entries[place.key], now) for place in shown]
    return None if holder is None else _contender(holder, now), tuple(waiters)


def tickets_of(table: TicketTable, now: Instant) -> tuple[LockStatus, ...]:
    """Return the state of all locks in ``table``, as many as one answer has room for."""
    found: list[LockStatus] = []
    room = CONTENDERS_SHOWN_MAX
    for lock in nsmallest(CONTENDERS_SHOWN_MAX, table.queues):
        holder, waiters = _contenders(table.queues[lock], now)
        waiters = waiters[:room]
        room -= len(waiters) + 1
        if room < 0:
            break
        if holder is not None or waiters:
            status = LockStatus(lock=lock, holder=holder, waiters=waiters, waits_for=())
            found.append(status)
    return tuple(found)


def _contender(entry: Entry, now: Instant) -> Contender:
    ticket = entry.ticket
    return Contender(
        node=node_of(ticket.door),
        session=ticket.who.session,
        owner=ticket.who.owner,
        fence=entry.fence if entry.phase is Phase.HOLDING else None,
        since_ms=ms_between(entry.since, now),
        label=ticket.label,
    )


TRIES_MAX = 20
"""Maximum times that a drop is sent to a leader that does not answer; a lease ends by itself."""


@dataclass(slots=True, eq=False)
class PendingRelease:
    """A request that a quorum must forget, or a lease that a quorum must begin anew.

    Attributes:
        answered: other leaders that did; ``refused``: those that do not begin the lease anew.
        found: whether any of them knew the request.

    """

    door: Address
    word: DropTicket | Extend
    number: int
    """The proxy's number, for the reply."""
    due: Instant
    entry: Entry | None = None
    """The entry whose lease begins anew."""
    answered: dict[str, None] = field(default_factory=dict[str, None])
    refused: dict[str, None] = field(default_factory=dict[str, None])
    found: bool = False
    tries: int = 1
    told: bool = False


class PendingReleases:
    """All pending releases and renewals, by this leader's own numbers.

    Args:
        epoch_state: this leader's state in its epoch.

    """

    def __init__(self, epoch_state: EpochState) -> None:
        self.epoch_state = epoch_state
        self.by_number: dict[int, PendingRelease] = {}
        self.numbers: dict[tuple[Address, int], int] = {}
        self.count = 0

    def known(self, door: Address, number: int) -> bool:
        """Return whether the proxy's request of that number is in flight."""
        return (door, number) in self.numbers

    def drop(self, door: Address, unlock: Unlock, now: Instant, *, found: bool) -> list[Effect]:
        """Have the others forget what this leader has just forgotten."""
        self.count += 1
        word = DropTicket(
            epoch=self.epoch_state.epoch,
            lock=unlock.lock,
            who=unlock.who,
            request=unlock.request,
            fence=unlock.fence,
            number=self.count,
            mine=False,
        )
        ending = PendingRelease(door, word, unlock.number, later(now, RESEND_MS), found=found)
        return self._begin(ending, now)

    def extend(self, door: Address, prolong: RenewHold, entry: Entry, now: Instant) -> list[Effect]:
        """Have the others begin the lease of ``entry`` anew, as this leader has."""
        self.count += 1
        word = Extend(
            epoch=self.epoch_state.epoch, ticket=entry.ticket, fence=entry.fence, number=self.count
        )
        ending = PendingRelease(door, word, prolong.number, later(now, RESEND_MS), entry)
        return self._begin(ending, now)

    def _begin(self, ending: PendingRelease, now: Instant) -> list[Effect]:
        self.by_number[self.count] = ending
        self.numbers[ending.door, ending.number] = self.count
        return [*self.epoch_state.tell(ending.word), *self._settle(self.count, ending, now)]

    def on_dropped(self, leader: str, said: TicketDropped, now: Instant) -> list[Effect]:
        """Count a leader that has forgotten a request."""
        ending = self.by_number.get(said.number)
        if ending is None or not isinstance(ending.word, DropTicket):
            return [Observe("bakery.late_answer")]
        ending.answered[leader] = None
        ending.found = ending.found or said.found
        return self._settle(said.number, ending, now)

    def named(self, leader: str, said: TicketDropped) -> DropTicket | None:
        """Return a drop whose request number is new here; the others must receive it again."""
        ending = self.by_number.get(said.number)
        if ending is None or not isinstance(ending.word, DropTicket):
            return None
        if ending.word.request or said.request <= 0:
            return None
        word = ending.word = replace(ending.word, request=said.request)
        ending.answered = {leader: None}
        return word

    def on_extended(self, leader: str, said: Extended, now: Instant) -> list[Effect]:
        """Count a leader that has begun a lease anew, or refused to."""
        ending = self.by_number.get(said.number)
        if ending is None or not isinstance(ending.word, Extend):
            return [Observe("bakery.late_answer")]
        (ending.answered if said.kept else ending.refused)[leader] = None
        return self._settle(said.number, ending, now)

    def _settle(self, number: int, ending: PendingRelease, now: Instant) -> list[Effect]:
        """Reply to the proxy once a quorum has done it; go on until all have, or none will."""
        effects: list[Effect] = []
        epoch_state = self.epoch_state
        if not ending.told and 1 + len(ending.answered) >= epoch_state.quorum:
            effects += self._answer(ending, now)
        if not ending.told and not epoch_state.can_win(len(ending.refused)):
            ending.told = True  # Too many have ended it, or voted for another: no quorum has it.
            effects.append(Send(ending.door, not_held_here(ending.number)))
        heard = len(ending.answered) + len(ending.refused)
        if heard >= len(epoch_state.others) and (ending.told or ending.refused):
            self._forget(number)
        return effects

    def _answer(self, ending: PendingRelease, now: Instant) -> list[Effect]:
        if isinstance(ending.word, DropTicket):
            ending.told = True
            return [Send(ending.door, Unlocked(number=ending.number, found=ending.found))]
        entry = ending.entry
        assert entry is not None
        if (
            not self.epoch_state.trusted(now)
            or entry.phase is not Phase.HOLDING
            or entry.is_over(now)
        ):
            return [Observe("bakery.untrusted")]
        ending.told = True
        ticket = entry.ticket
        word = HoldRenewed(
            number=ending.number,
            fence=entry.fence,
            hold_ms=ticket.hold_ms,
            grace_ms=ticket.grace_ms,
        )
        return [Send(ending.door, word), Observe("bakery.prolonged")]

    def _forget(self, number: int) -> None:
        ending = self.by_number.pop(number)
        del self.numbers[ending.door, ending.number]

    def next_due(self) -> Instant | None:
        """Return when a message is to be sent again; the oldest is due first."""
        return next((ending.due for ending in self.by_number.values()), None)

    def tick(self, now: Instant) -> list[Effect]:
        """Send again what some leaders have not answered."""
        effects: list[Effect] = []
        while (found := next(iter(self.by_number.items()), None)) and found[1].due <= now:
            number, ending = found
            ending.tries += 1
            if ending.tries > TRIES_MAX:
                self._forget(number)
                continue
            ending.due = later(now, RESEND_MS)
            self.by_number[number] = self.by_number.pop(number)  # Keeps the order of deadlines.
            heard = frozenset(ending.answered) | frozenset(ending.refused)
            effects += self.epoch_state.tell(ending.word, heard)
            effects += self._settle(number, ending, now)
        return effects

    def clear(self) -> None:
        """Drop all: the epoch is over, and proxies repeat their requests."""
        self.by_number.clear()
        self.numbers.clear()


def not_held_here(number: int) -> HoldRenewed:
    """Return the reply for a proxy whose renewal this leader cannot perform."""
    return HoldRenewed(number=number, fence=0, hold_ms=0, grace_ms=0)
