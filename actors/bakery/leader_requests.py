"""Requests of proxies to a leader: locks, releases, renewals, queries. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from msgspec.structs import replace

from fencelock.actors.api.account import NO_KEY
from fencelock.actors.api.lock_message import Contender, LockStatus
from fencelock.actors.api.name import account_of, kind_of, quoted, titled
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS
from fencelock.actors.bakery.config import HOLDERS_SHOWN_MAX, Terms
from fencelock.actors.bakery.table import TicketEntry, TicketQueue, TicketTable
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.ticket_attempt import TicketAttempts, failed, locked
from fencelock.actors.bakery.wire import (
    DropTicket,
    Error,
    Extend,
    Extended,
    HoldRenewed,
    Lock,
    NotLeading,
    Query,
    QueryResult,
    RenewHold,
    TicketDropped,
    ToLeader,
    Unlock,
    UnlockAll,
    Unlocked,
    request_of,
)
from fencelock.actors.deadline_queue import QUEUE_ENDS_MAX
from fencelock.actors.effect import Effect, Fault, Observe, Send
from fencelock.actors.fault import reading
from fencelock.actors.message import Address, Instant, later, ms_between, node_of
from fencelock.actors.proxy.event import WAITERS_SHOWN_MAX

LEADER_TICKETS_MAX = 100_000
"""Maximum tickets in one leader's table: some 100 MB."""

LOCK_TICKETS_MAX = 20_000
"""Maximum tickets of one lock: what a leader does for all of them in one turn takes milliseconds
then. `paxos` has the same limit on the waits for one lock."""

ENTERING_MAX = 1_000
"""Maximum tickets that enter one lock at a time; the source has 100."""


TRIES_MAX = 20
"""Maximum times that a drop or a renewal is sent to a leader that does not answer; a lease ends by
itself."""


@dataclass(slots=True, eq=False)
class PendingChange:
    """A request that a quorum must forget, or a lease that a quorum must restart.

    Attributes:
        number: the proxy's number, for the reply.
        entry: the entry whose lease restarts.
        found: whether any of them knew the request.
        has_copies: whether the copies have the hold that is dropped.
        answered: other keepers that did; ``refused``: those that do not restart the lease.
        copied: whether the copies received this.

    """

    proxy: Address
    number: int
    message: DropTicket | Extend
    entry: TicketEntry | None = None
    found: bool = False
    has_copies: bool = False
    answered: dict[str, None] = field(default_factory=dict[str, None])
    refused: dict[str, None] = field(default_factory=dict[str, None])
    copied: bool = False
    due: Instant = field(init=False)
    tries: int = 1
    replied: bool = False


class LeaderRequests:
    """Serves the requests of proxies.

    While this leader does not serve, it refers locks, releases and renewals to others, and ignores
    `UnlockAll`. To reply to a query it needs to be trusted only.

    Each key has a share of the table, so that one cannot fill it. A leader compares the share with
    all tickets of the key that it knows, whoever owns them, and refuses a request before any other
    leader learns of it. So leaders need not agree on a refusal. A key exceeds its share only by
    requests that several leaders take at the same time. Even without any message between them its
    tickets are at most three shares, which is less than the table by default. Only new requests
    are refused: a leader votes for every ticket of another leader, and takes over every hold.

    Args:
        share: maximum tickets of one key. Clients without a key share the whole table: an id that
            nobody has proved limits nobody.

    Attributes:
        pending: the releases and renewals in flight, by this leader's own numbers.
        asked: these numbers, by proxy and its number.

    """

    def __init__(self, attempts: TicketAttempts, terms: Terms, share: int) -> None:
        self.epoch_state = attempts.epoch_state
        self.tickets = attempts.table
        self.attempts = attempts
        self.terms = terms
        self.share = share
        self.pending: dict[int, PendingChange] = {}
        self.asked: dict[tuple[Address, int], int] = {}
        self.count = 0

    def serve(self, proxy: Address, request: ToLeader, now: Instant) -> list[Effect]:
        if isinstance(request, Query):
            return self._on_query(proxy, request, now)
        if isinstance(request, UnlockAll):
            return self._on_unlock_all(proxy, request, now) if self.epoch_state.serving else []
        if not self.epoch_state.serving:
            return self._refer(proxy, request, "")
        match request:
            case Lock():
                return self._on_lock(proxy, request, now)
            case Unlock() | RenewHold() if (proxy, request.number) in self.asked:
                return []
            case Unlock():
                return self._on_unlock(proxy, request, now)
            case RenewHold():
                return self._on_renew(proxy, request, now)

    @staticmethod
    def _refer(proxy: Address, request: Lock | Unlock | RenewHold, owner: str) -> list[Effect]:
        """Refer the proxy to the leader that owns the request, if one is known."""
        return [Send(proxy, NotLeading(lock=request.lock, who=request.who, owner=owner))]

    def _on_query(self, proxy: Address, query: Query, now: Instant) -> list[Effect]:
        """Report the holder of a lock, unless others may have acquired it without this leader."""
        if not self.epoch_state.trusted(now):
            return [Observe("bakery.query_unanswered")]
        epoch = self.epoch_state.epoch
        # Otherwise each query would pass over the ended holds again, until the next sweep.
        self.tickets.forget_old(now, QUEUE_ENDS_MAX)
        found = reading(repr(query), lambda: query_result(self.tickets, query, epoch, now))
        return [found if isinstance(found, Fault) else Send(proxy, found)]

    def _on_lock(self, proxy: Address, request: Lock, now: Instant) -> list[Effect]:
        if refused := self._why_not(request, now):
            return [failed(proxy, request, *refused), Observe("bakery.refused")]
        attempt = self.attempts.own.get(request.key)
        if attempt is not None:
            attempt.requested_at = now
            entry = attempt.entry
            entry.ticket = entry.ticket._replace(proxy=proxy)
            return [locked(entry), Observe("bakery.answered_again")] if attempt.is_held else []
        known = self.tickets.get(request.key)
        if known is not None and self.epoch_state.reaches(known.owner):
            return self._refer(proxy, request, known.owner)
        # If it must wait for the bound, the proxy repeats it.
        waits = self.epoch_state.wait_for_bound(request.hold_ms + request.grace_ms)
        return waits or self.attempts.open(proxy, request, now)

    def _why_not(self, asked: Lock, now: Instant) -> tuple[Error, str] | None:
        lock = titled(asked.lock)
        if why := self.terms.why_invalid(asked.hold_ms, asked.grace_ms):
            return Error.INVALID, f"{lock}: {why}"
        if asked.who.session in self.attempts.ending:
            return Error.FAILED, f"{lock}: session {quoted(asked.who.session)} ends"
        same = False
        known = self.tickets.of(asked.lock, asked.who)
        for entry in sorted(known, key=lambda one: -one.ticket.request):
            number = entry.ticket.request
            if entry.is_over(now):
                continue
            if number > asked.request:
                return Error.DUPLICATE, f"{lock}: a later request of the same owner is known"
            if entry.fence and number < asked.request:
                return Error.HELD, f"{lock}: this owner holds it, under fence {entry.fence}"
            if number == asked.request and entry.shared != asked.shared:
                return Error.DUPLICATE, f"{lock}: request {number} is known in the other mode"
            same = same or number == asked.request
        if same:
            return None
        key = account_of(asked.who.session)
        has = self.tickets.by_account.get(key, 0)
        if key != NO_KEY and has >= self.share:
            return Error.OVERFLOW, f"{lock}: {over_share(key, has, self.share)}"
        if len(self.tickets) >= LEADER_TICKETS_MAX:
            return Error.OVERFLOW, f"{LEADER_TICKETS_MAX} tickets are in the table, its limit"
        queue = self.tickets.queue(asked.lock)
        if queue.tickets >= LOCK_TICKETS_MAX:
            text = (
                f"{lock}: it has {queue.tickets} holds and waits, and {LOCK_TICKETS_MAX} is the "
                "limit for one lock: try again when some have ended, or spread them over more locks"
            )
            return Error.OVERFLOW, text
        if queue.entering >= ENTERING_MAX:
            text = f"{lock}: {ENTERING_MAX} requests enter at the same time, its limit"
            return Error.OVERFLOW, text
        return None

    def _on_unlock(self, proxy: Address, request: Unlock, now: Instant) -> list[Effect]:
        if request.waiting:
            attempt = self.attempts.own.get(request.key)
            waits = attempt is not None and not attempt.is_held
            dropped = self.attempts.drop(attempt, now) if attempt is not None and waits else []
            return [*dropped, Send(proxy, Unlocked(number=request.number, found=waits))]
        known = self.tickets.of(request.lock, request.who)
        fence = request.fence
        held = next((entry for entry in known if fence and entry.fence == fence), None)
        if held is not None:
            # Others may have only a waiting copy, which they know by its request number.
            request = replace(request, request=held.ticket.request)
        elif fence:
            for entry in known:  # The owner knows the request number of the hold.
                if self.epoch_state.reaches(entry.owner):
                    return self._refer(proxy, request, entry.owner)
        attempts = [self.attempts.own[one.key] for one in known if one.key in self.attempts.own]
        has_copies = any(attempt.copied for attempt in attempts)
        found = self._forget(request.lock, request.who, request.request, request.fence)
        message = DropTicket(
            **request.key._asdict(),
            epoch=self.epoch_state.epoch,
            fence=request.fence,
            number=self.count + 1,
        )
        change = PendingChange(proxy, request.number, message, None, found, has_copies)
        return [*self._begin(change, now), *self.attempts.advance(request.lock, now)]

    def _forget(self, lock: str, who: Who, request: int, fence: int) -> bool:
        """Drop the named entries and their attempts; return whether they were known."""
        for entry in self.tickets.named(lock, who, request, fence):
            self.attempts.forget(entry)
        return self.tickets.drop(lock, who, request, fence)

    def on_dropped(self, leader: str, reply: TicketDropped, now: Instant) -> list[Effect]:
        """Count leaders that dropped a request; once its number is known, all drop it by that too.

        A client knows a hold by its fence. A leader that did not vote for it does not.
        """
        change = self.pending.get(reply.number)
        if change is None or not isinstance(message := change.message, DropTicket):
            return [Observe("bakery.late_answer")]
        effects: list[Effect] = []
        is_named = not message.request and reply.request > 0
        if is_named:
            message = change.message = replace(message, request=reply.request)
            change.answered.clear()
            self._forget(message.lock, message.who, message.request, message.fence)
            effects += self.epoch_state.send_to_all(message, (leader,))
        change.answered[leader] = None
        change.found = change.found or reply.found
        effects += self._settle(reply.number, change, now)
        return [*effects, *self.attempts.advance(message.lock, now)] if is_named else effects

    def on_extended(self, leader: str, reply: Extended, now: Instant) -> list[Effect]:
        change = self.pending.get(reply.number)
        if change is None or not isinstance(change.message, Extend):
            return [Observe("bakery.late_answer")]
        (change.answered if reply.kept else change.refused)[leader] = None
        return self._settle(reply.number, change, now)

    def _on_unlock_all(self, proxy: Address, request: UnlockAll, now: Instant) -> list[Effect]:
        """Drop everything of a session that is known here; the proxy also asks other leaders.

        There may be thousands of tickets. Those that this turn leaves are dropped by later ticks.
        """
        begins = request.session not in self.attempts.ending
        self.attempts.ending.setdefault(request.session, {})[proxy, request.number] = None
        return self._end_some(request.session, now) if begins else []

    def _end_some(self, session: str, now: Instant) -> list[Effect]:
        """Drop `QUEUE_ENDS_MAX` tickets of a session that ends; reply if none is left."""
        effects: list[Effect] = []
        for entry in self.tickets.of_session(session, QUEUE_ENDS_MAX):
            ticket = entry.ticket
            self.attempts.forget(entry)
            self.tickets.drop(ticket.lock, ticket.who, ticket.request, 0)
            message = DropTicket(**request_of(self.epoch_state.epoch, ticket))
            sent = self.epoch_state.send_to_all(message)
            effects += [*sent, *self.attempts.advance(ticket.lock, now)]
        requests = self.attempts.ending.pop(session)
        if self.tickets.sessions.get(session):
            self.attempts.ending[session] = requests  # The next tick goes on with another one.
            return effects
        replies = (Send(proxy, Unlocked(number=number, found=True)) for proxy, number in requests)
        return [*effects, *replies]

    def _on_renew(self, proxy: Address, request: RenewHold, now: Instant) -> list[Effect]:
        known = self.tickets.of(request.lock, request.who)
        entry = next((one for one in known if one.fence == request.fence), None)
        ends = request.who.session in self.attempts.ending
        if entry is None or entry.is_over(now) or ends:
            return [Send(proxy, not_held_here(request.number))]
        attempt = self.attempts.own.get(entry.key)
        if attempt is not None and attempt.is_voting and not attempt.held:
            return [Send(proxy, not_held_here(request.number))]
        if entry.owner not in request.missed and self.epoch_state.reaches(entry.owner):
            return self._refer(proxy, request, entry.owner)
        hold_ms = request.hold_ms or entry.ticket.hold_ms
        ticket = entry.ticket._replace(hold_ms=hold_ms)
        if why := self.terms.why_invalid(hold_ms, ticket.grace_ms):
            return [Send(proxy, replace(not_held_here(request.number), invalid=why))]
        waits = self.epoch_state.wait_for_bound(ticket.lease_ms)
        if waits:
            return waits
        # Its owner cannot be reached, or thinks it is over: this leader owns it from now on.
        entry.ticket, entry.owner = ticket, self.epoch_state.node
        # Never shorter: a late copy of an earlier renewal must not undo a later one.
        self.tickets.extend_until(entry, later(now, ticket.lease_ms))
        message = Extend(
            epoch=self.epoch_state.epoch,
            ticket=entry.ticket,
            fence=entry.fence,
            number=self.count + 1,
        )
        return self._begin(PendingChange(proxy, request.number, message, entry), now)

    def _begin(self, change: PendingChange, now: Instant) -> list[Effect]:
        """Make the other leaders do what this one has done."""
        self.count += 1
        change.due = later(now, self.epoch_state.timing.resend_ms)
        self.pending[self.count] = change
        self.asked[change.proxy, change.number] = self.count
        sent = self.epoch_state.send(change.message)
        return [*sent, *self._settle(self.count, change, now)]

    def _settle(self, number: int, change: PendingChange, now: Instant) -> list[Effect]:
        """Reply to the proxy once a quorum has done it; repeat until all leaders have answered.

        Copies do it only once a quorum of the leaders has.
        """
        effects: list[Effect] = []
        epoch_state = self.epoch_state
        voted = epoch_state.is_voted(change.answered)
        late = change.tries > 1 or epoch_state.needs_copies(change.refused)
        if voted and not change.copied and (late or change.has_copies):
            change.copied = True
            effects += epoch_state.copy(change.message)
        if not change.replied and epoch_state.is_agreed(change.answered):
            effects += self._answer(change, now)
        if not change.replied and not epoch_state.can_win(change.refused):
            # Too many have ended it, or voted for another: no quorum has it.
            change.replied = True
            effects.append(Send(change.proxy, not_held_here(change.number)))
        responded = change.answered.keys() | change.refused
        if responded >= {*epoch_state.others} and (change.replied or change.refused):
            self._end(number)
        return effects

    def _answer(self, change: PendingChange, now: Instant) -> list[Effect]:
        if isinstance(change.message, DropTicket):
            change.replied = True
            return [Send(change.proxy, Unlocked(number=change.number, found=change.found))]
        entry = change.entry
        assert entry is not None
        if not self.epoch_state.trusted(now) or not entry.holds or entry.is_over(now):
            return [Observe("bakery.untrusted")]
        change.replied = True
        ticket = entry.ticket
        hold_ms, grace_ms = ticket.hold_ms, ticket.grace_ms
        message = HoldRenewed(
            number=change.number, fence=entry.fence, hold_ms=hold_ms, grace_ms=grace_ms
        )
        return [Send(change.proxy, message), Observe("bakery.renewed")]

    def _end(self, number: int) -> None:
        change = self.pending.pop(number)
        del self.asked[change.proxy, change.number]

    def tick(self, now: Instant) -> list[Effect]:
        """Go on with a session that ends; send requests again that some have not answered."""
        effects: list[Effect] = []
        if (session := next(iter(self.attempts.ending), None)) is not None:
            effects += self._end_some(session, now)
        while (found := next(iter(self.pending.items()), None)) and found[1].due <= now:
            number, change = found
            change.tries += 1
            if change.tries > TRIES_MAX:
                self._end(number)
                continue
            change.due = later(now, self.epoch_state.timing.resend_ms)
            self.pending[number] = self.pending.pop(number)  # Keeps the order of deadlines.
            responded = change.answered.keys() | change.refused
            effects += self.epoch_state.send(change.message, responded)
            if change.copied and not change.replied:
                effects += self.epoch_state.copy(change.message, responded)
            effects += self._settle(number, change, now)
        return effects

    def clear(self) -> None:
        """Drop all: the epoch is over, and proxies repeat their requests."""
        self.pending.clear()
        self.asked.clear()
        self.attempts.ending.clear()


def over_share(key: str, has: int, share: int) -> str:
    return (
        f"key {quoted(key)} has {has} holds and waits, and the quota tickets is {share}: release "
        "locks, or give up waits, or let an operator raise tickets under [limits] in the "
        "configuration of all nodes"
    )


def not_held_here(number: int) -> HoldRenewed:
    """Return the reply for a proxy whose renewal this leader cannot perform."""
    return HoldRenewed(number=number, fence=0, hold_ms=0, grace_ms=0)


CONTENDERS_SHOWN_MAX = 1_000
"""Maximum contenders shown of all locks: 900 KiB with the longest names; a frame has 1 MiB."""


def query_result(table: TicketTable, query: Query, epoch: int, now: Instant) -> QueryResult:
    queue = table.queue(query.lock)
    holders, waiters = _contenders(queue, now)
    expired = table.expired_at(query.lock, now)
    return QueryResult(
        lock=query.lock,
        number=query.number,
        holders=holders,
        waiters=waiters,
        waiting=queue.waiting,
        epoch=epoch,
        nonce=query.nonce,
        expired_ms=None if expired is None else ms_between(expired, now),
    )


def _contenders(
    queue: TicketQueue, now: Instant
) -> tuple[tuple[Contender, ...], tuple[Contender, ...]]:
    """Return the holders for which this leader has voted, and the waiters.

    After a hand-over, this leader may have votes for an exclusive ticket and for others at the same
    time. Then only the holder with the highest fence counts.
    """
    votes = queue.holders()
    last = next((entry for entry in reversed(votes) if not entry.is_over(now)), None)
    if last is not None and not last.shared:
        votes = [last]
    shown = islice((entry for entry in votes if not entry.is_over(now)), HOLDERS_SHOWN_MAX)
    holders = [_contender(entry, now) for entry in shown]
    waiters = [_contender(entry, now) for entry in queue.waiters(WAITERS_SHOWN_MAX)]
    return tuple(holders), tuple(waiters)


def tickets_of(table: TicketTable, now: Instant) -> tuple[LockStatus, ...]:
    """Return the state of all locks in ``table``, as many as one answer has room for."""
    found: list[LockStatus] = []
    room = CONTENDERS_SHOWN_MAX
    for lock in nsmallest(CONTENDERS_SHOWN_MAX, table.queues):
        holders, waiters = _contenders(table.queues[lock], now)
        waiters = waiters[:room]
        room -= len(waiters) + max(1, len(holders))
        if room < 0:
            break
        if holders or waiters:
            found.append(lock_status(lock, holders, waiters))
    return tuple(found)


def lock_status(
    lock: str, holders: tuple[Contender, ...], waiters: tuple[Contender, ...]
) -> LockStatus:
    together = kind_of(lock) == RWLOCK
    return LockStatus(
        lock=lock,
        holder=holders[0] if holders else None,
        waiters=waiters,
        waits_for=(),
        permits=RWLOCK_PERMITS if together else 1,
        holders=holders if together else (),
    )


def _contender(entry: TicketEntry, now: Instant) -> Contender:
    ticket = entry.ticket
    session, owner = ticket.who
    exclusive = not ticket.shared and kind_of(ticket.lock) == RWLOCK
    return Contender(
        node_of(ticket.proxy),
        session,
        owner,
        entry.fence if entry.holds else None,
        ms_between(entry.since, now),
        ticket.label,
        RWLOCK_PERMITS if exclusive else 1,
    )
