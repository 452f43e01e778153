"""The backend of `lamport` and `central`: waits and holds of one node, and their replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from fencelock.actors.api.lock_message import (
    HOLDER_UNKNOWN,
    Acquire,
    Cancel,
    Cancelled,
    ConfirmHold,
    Contender,
    DisownHold,
    Granted,
    HoldLost,
    Inspect,
    LockStatus,
    Reason,
    Refused,
    Release,
    Released,
    refused,
)
from fencelock.actors.api.name import client_of
from fencelock.actors.api.operator_message import Evict, Evicted
from fencelock.actors.api.request import Reply
from fencelock.actors.api.session_message import End, Ended
from fencelock.actors.deadline_queue import DeadlineQueue
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.error import AlreadyHeldError, NotHeldError, OverloadedError
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Instant,
    Timer,
    address_of,
    is_node,
    ms_between,
)
from fencelock.actors.proxy.backend import Backend, Status
from fencelock.actors.proxy.clients import NODE_REQUESTS_MAX
from fencelock.actors.proxy.event import (
    STARTING,
    WAITERS_SHOWN_MAX,
    AcquireLock,
    EndHolds,
    HoldInDoubt,
    HoldReleased,
    HoldsEnded,
    LockDescription,
    LockGranted,
    LockRevoked,
    QueryLock,
    QueueFull,
    Ready,
    ReleaseHold,
    ReleaseLock,
    ReleaseOutcome,
    ready_notice,
)
from fencelock.actors.proxy.queries import PendingQueries
from fencelock.actors.turn_budget import TurnBudget

TRY_MS = 1_000
"""Time for a request that does not wait (``wait_ms`` 0) to learn that the lock is taken (ms)."""

TRY_QUERY_MS = 20
"""Interval at which such a request checks whether another owner is ahead (ms)."""

WAIT_TIMER_MS_MAX = 30_000
"""The longest timer of a wait (ms); a longer wait gets several. Timers cannot be cancelled: one for
the whole wait would remain for as long, even if the lock is granted at once."""

CLAIMS_ENDED_MAX = 50
"""Maximum waits that time out in one turn, and maximum claims that end in one turn because their
client ended its session or is silent. Each takes some 300 us, with the messages to other roles and
nodes, and other clients are served between turns."""

CLAIMS_ENDED_MS = 20
"""Interval at which further claims end, if there are more (ms): 2,500 a second, which other nodes
can take in. In `lamport`, too many messages that wait for them would stop all acquires."""

CONFIRM_AFTER_MS = 2_000
"""Age at which a hold is confirmed with its client for the first time (ms)."""

CONFIRMS_MAX = 100
"""Maximum holds that are confirmed with their clients in one tick; each takes its turn."""

HOLDER_QUERIES_MAX = 100
"""Maximum number of awaited locks whose holder elsewhere is requested for a description."""

UNCONFIRMED_MAX = 100_000
"""Maximum requests of one kind that wait to be confirmed. The oldest is dropped first: a client
that still waits for its reply repeats it."""

REPLIES_MAX = 100_000
"""Maximum number of last replies kept for repeated requests; the oldest is dropped first."""

STATUS_LOCKS_MAX = 1_000
"""Maximum locks in one `NodeStatus`."""

LOCKS_BYTES_MAX = 1 << 19
"""Maximum text of the locks in one `NodeStatus` (bytes), half of its frame. Without it, the
status of a node with many waits would not fit any frame."""

K = TypeVar("K")
V = TypeVar("V")


class Key(NamedTuple):
    """One owner's relation to one lock; an owner is sequential, so there is one at a time."""

    session: str
    owner: str
    lock: str


class Phase(Enum):
    """State of a claim."""

    WAITING = "waiting"
    HELD = "held"
    ENDING = "ending"
    """The wait is over and its refusal is being prepared; it is never granted any more."""


@dataclass(slots=True)
class LockRequest:
    """One acquire that waits or holds."""

    key: Key
    ticket: int
    """Its number at the protocol."""
    request: int
    sender: Address
    """Receiver of replies; it changes when the request is sent again."""
    since: Instant
    """The time at which it began to wait, or was granted."""
    wait_ms: int | None
    """Its timeout (ms), None for no limit."""
    phase: Phase = Phase.WAITING
    fence: int = 0
    """The fence of the hold, 0 while it waits."""
    query: int | None = None
    """The request to the protocol whose answer its refusal waits for."""


@dataclass(slots=True)
class LockRequests:
    """All claims of a node, found by owner, by session, by ticket, by lock and by timeout."""

    by_key: dict[Key, LockRequest] = field(default_factory=dict[Key, LockRequest])
    by_ticket: dict[int, LockRequest] = field(default_factory=dict[int, LockRequest])
    by_session: dict[str, dict[int, LockRequest]] = field(
        default_factory=dict[str, dict[int, LockRequest]]
    )
    """The claims of each session that has any, by ticket, the oldest first."""
    holder: dict[str, LockRequest] = field(default_factory=dict[str, LockRequest])
    """The claim that holds a lock through this node, by lock."""
    waits: DeadlineQueue[int] = field(default_factory=DeadlineQueue[int])
    """The tickets whose waits have a timeout."""
    replies: dict[Key, tuple[int, Reply]] = field(default_factory=dict[Key, tuple[int, Reply]])
    """The last reply to each owner about each lock, for a request that is sent again."""

    def add(self, claim: LockRequest) -> None:
        assert claim.key not in self.by_key
        self.by_key[claim.key] = claim
        self.by_ticket[claim.ticket] = claim
        self.by_session.setdefault(claim.key.session, {})[claim.ticket] = claim

    def grant(self, claim: LockRequest, fence: int, now: Instant) -> None:
        assert claim.phase is Phase.WAITING
        assert claim.key.lock not in self.holder
        claim.phase = Phase.HELD
        claim.fence = fence
        claim.since = now
        self.waits.set(claim.ticket, None)
        self.holder[claim.key.lock] = claim

    def drop(self, claim: LockRequest) -> None:
        del self.by_key[claim.key]
        del self.by_ticket[claim.ticket]
        of_session = self.by_session[claim.key.session]
        del of_session[claim.ticket]
        if not of_session:
            del self.by_session[claim.key.session]
        self.waits.set(claim.ticket, None)
        if self.holder.get(claim.key.lock) is claim:
            del self.holder[claim.key.lock]

    def latest_of(self, session: str, most: int) -> list[LockRequest]:
        """Return the claims of ``session``, the newest first, at most ``most``."""
        claims = self.by_session.get(session)
        return [] if claims is None else list(islice(reversed(claims.values()), most))

    def record(self, key: Key, request: int, reply: Reply) -> None:
        """Remember the reply to ``request``, so that a repetition gets the same."""
        _remember(self.replies, key, (request, reply), REPLIES_MAX)

    def awaited(self) -> list[str]:
        """Return the locks that are awaited through this node, the longest wait first."""
        waiting = (c.key.lock for c in self.by_key.values() if c.phase is Phase.WAITING)
        return list(dict.fromkeys(waiting))


class WaitsDue(Timer):
    """The next wait times out at the instant ``at``, unless it has ended."""

    at: Instant


class EndsDue(Timer):
    """End more claims of sessions that end, and of silent clients."""


class TryQuery(Timer):
    """Check once more whether another owner is ahead of ``ticket``, which does not wait."""

    ticket: int


class LockManager(Backend):
    """Keeps the claims of one node, over the role ``granter``, which grants locks to nodes.

    The cluster keeps no sessions: a hold lasts however silent its client may be. Either only this
    node, which granted it, keeps it, and an operator cannot evict it. Or the protocol keeps it for
    the client's session (``holds_by_session``): then it outlives this node, and the protocol
    confirms releases, evictions and session ends before their clients get a reply. A client whose
    release is confirmed may at once send a request through another node, or exit.

    Invariants:
        one-holder: At most one claim of this node holds a lock, and the protocol granted it; a
            second grant is released.
        one-release-a-ticket: Every ticket gets one `AcquireLock` and at most one `ReleaseLock`.
        first-reply-again: A request that is sent again gets the first reply.

    """

    TICK_MS = 1_000

    def __init__(
        self,
        node: str,
        members: tuple[str, ...],
        name: str,
        granter: Address,
        *,
        holds_by_session: bool = False,
    ) -> None:
        super().__init__(node, members)
        self.name = name
        self.granter = granter
        self.confirms = holds_by_session
        self.claims = LockRequests()
        self.tickets = 0
        self.queries = PendingQueries(node, self.clients)
        self.endings: dict[int, LockRequest] = {}
        """Waits whose refusal waits for an answer of the protocol, by the query's number."""
        self.waits_due_at: Instant | None = None
        """Time of the timer that counts; others are ignored."""
        self.waits_end_from = Instant(0)
        """No wait ends before that, because many have just ended."""
        self.looking: set[int] = set()
        """The `QueryLock` requests of a description in flight."""
        self.descriptions: dict[str, LockDescription] = {}
        self.releases: dict[ReleaseHold, tuple[Address, Release | Evict, Instant]] = {}
        """The releases and evictions that the protocol has not confirmed, without operators."""
        self.ends: dict[str, tuple[Address, End]] = {}
        self.leaving: dict[str, None] = {}
        """Sessions that end, whose claims have not all ended yet; each has its turn."""
        self.abandoned: dict[int, None] = {}
        """Tickets whose waits end because their clients are silent."""
        self.ends_budget = TurnBudget(CLAIMS_ENDED_MAX, CLAIMS_ENDED_MS, EndsDue())
        self.unconfirmed: list[str] = []
        """The held locks that the present round of confirmations has not reached yet."""
        self.readiness = STARTING
        self.requests = {
            Acquire: self._on_acquire,
            Release: self._on_release,
            Cancel: self._on_cancel,
            Inspect: self._on_inspect,
            End: self._on_end,
            DisownHold: self._on_disown_hold,
        }
        self.events = {
            LockGranted: self._on_granted,
            QueueFull: self._on_queue_full,
            LockRevoked: self._on_revoked,
            LockDescription: self._on_description,
            Ready: self._on_ready,
            WaitsDue: self._on_waits_due,
            TryQuery: self._on_try_query,
            EndsDue: self._on_ends_due,
        }
        if holds_by_session:
            self.requests |= {Evict: self._on_evict}
            self.events |= {
                HoldReleased: self._on_hold_released,
                HoldsEnded: self._on_holds_ended,
                HoldInDoubt: self._on_hold_in_doubt,
            }

    def __len__(self) -> int:
        return len(self.claims.by_key)

    def is_busy(self) -> bool:
        """Return whether any client may fall silent."""
        return bool(self.clients.by_id)

    def is_ready(self) -> bool:
        return self.readiness.ready

    def tick(self, now: Instant) -> Effects:
        """Ask clients, some at a time, whether they hold the locks that were granted to them here.

        A node that has restarted may grant a late copy of a request that was granted before, or
        given up. Its client may never learn of that hold, and would never release it.
        """
        if not self.unconfirmed:
            self.unconfirmed = list(self.claims.holder)
        effects: list[Effect] = []
        for lock in self.unconfirmed[-CONFIRMS_MAX:]:
            claim = self.claims.holder.get(lock)
            if claim is not None and ms_between(claim.since, now) >= CONFIRM_AFTER_MS:
                effects.append(self._confirm(lock, claim.fence, claim.key.session))
        del self.unconfirmed[-CONFIRMS_MAX:]
        return effects

    def _confirm(self, lock: str, fence: int, session: str) -> Effect:
        client, node = self.clients.of(session), client_of(session)
        if client is None and not is_node(node):
            return Observe("proxy.session_malformed")  # Another node named it.
        known = address_of(node, "session") if client is None else client.address
        return Send(known, ConfirmHold(lock=lock, fence=fence, session=session))

    def _on_acquire(self, sender: Address, acquire: Acquire, now: Instant) -> Effects:
        self.check_not_reentrant(acquire)
        if acquire.session in self.leaving:
            return [Observe("proxy.acquire_of_ending_session")]  # Sent again, it gets a reply.
        key = Key(acquire.session, acquire.owner, acquire.lock)
        claim = self.claims.by_key.get(key)
        if claim is not None and acquire.request == claim.request:
            claim.sender = sender
            if claim.phase is not Phase.HELD:
                return ()
            return [Send(sender, _granted(claim)), Observe("proxy.answered_again")]
        request, reply = self.claims.replies.get(key, (0, None))
        if reply is not None and acquire.request == request:
            return [Send(sender, reply), Observe("proxy.answered_again")]
        if acquire.request < max(request, claim.request if claim is not None else 0):
            return [Observe("proxy.late_request_dropped")]
        if claim is None:
            if len(self.claims.by_key) >= NODE_REQUESTS_MAX:
                text = f"node {self.node} serves {NODE_REQUESTS_MAX} waits and holds, its limit"
                raise OverloadedError(text)
            return self._add(key, sender, acquire, now)
        if claim.phase is Phase.HELD:
            text = f"lock {acquire.lock!r}: this owner holds it, under fence {claim.fence}"
            raise AlreadyHeldError(text)
        # An owner is sequential: it has abandoned the old wait.
        return [*self._withdraw(claim), *self._add(key, sender, acquire, now)]

    def _add(self, key: Key, sender: Address, acquire: Acquire, now: Instant) -> list[Effect]:
        self.tickets += 1
        claim = LockRequest(
            key=key,
            ticket=self.tickets,
            request=acquire.request,
            sender=sender,
            since=now,
            wait_ms=acquire.wait_ms,
        )
        self.claims.add(claim)
        want = AcquireLock(lock=key.lock, ticket=claim.ticket, session=key.session, owner=key.owner)
        effects: list[Effect] = [Send(self.granter, want)]
        if acquire.wait_ms is not None:
            wait_ns = (acquire.wait_ms or TRY_MS) * NS_PER_MS
            self.claims.waits.set(claim.ticket, Instant(now + wait_ns))
            effects += self._wake_for_waits(now)
        if acquire.wait_ms == 0:
            effects += self._query_for(claim)
        return effects

    def _on_granted(self, sender: Address, got: LockGranted, now: Instant) -> Effects:
        claim = self.claims.by_ticket.get(got.ticket)
        if claim is None or claim.phase is not Phase.WAITING:
            return ()  # It crossed with our `ReleaseLock`, which releases the granted lock.
        holder = self.claims.holder.get(got.lock)
        if holder is not None:  # A lock server that lost its memory may grant a lock twice.
            self._forget_query(claim)
            text = f"lock {got.lock!r}: granted under fence {got.fence}, while fence {holder.fence}"
            give = Send(self.granter, ReleaseLock(lock=got.lock, ticket=got.ticket))
            refusal = self._end(claim, Reason.UNAVAILABLE, f"{text} holds it through {self.node}")
            return [give, *refusal, Observe("proxy.granted_twice")]
        self.latencies["acquire"].add(now - claim.since)
        self.claims.grant(claim, got.fence, now)  # one-holder
        self._forget_query(claim)
        return [Send(claim.sender, _granted(claim)), Observe("proxy.granted")]

    def _on_revoked(self, sender: Address, taken: LockRevoked, now: Instant) -> Effects:
        claim = self.claims.by_ticket.get(taken.ticket)
        if claim is None or claim.phase is not Phase.HELD:
            return ()
        self.claims.drop(claim)
        session, owner, lock = claim.key
        lost = HoldLost(
            lock=lock, fence=claim.fence, session=session, owner=owner, detail=taken.detail
        )
        return [Send(claim.sender, lost), Observe("proxy.hold_taken")]

    def _on_queue_full(self, sender: Address, full: QueueFull, now: Instant) -> Effects:
        claim = self.claims.by_ticket.get(full.ticket)
        if claim is None or claim.phase is Phase.HELD:
            return ()
        self._forget_query(claim)
        return self._end(claim, Reason.OVERLOADED, full.detail)

    def _on_release(self, sender: Address, release: Release, now: Instant) -> Effects:
        claim = self.claims.holder.get(release.lock)
        key = Key(release.session, release.owner, release.lock)
        request, reply = self.claims.replies.get(key, (0, None))
        if reply is not None and request == release.request:
            return [Send(sender, reply), Observe("proxy.answered_again")]
        mine = claim is not None and claim.key == key and claim.fence == release.fence
        if self.confirms:
            hold = ReleaseHold(lock=release.lock, fence=release.fence, session=release.session)
            _remember(self.releases, hold, (sender, release, now))
            if claim is not None and mine:
                return self._give(claim)
            return [Send(self.granter, hold)]
        if claim is None or not mine:
            raise NotHeldError(
                f"lock {release.lock!r}: fence {release.fence} was shown, which does not hold "
                f"it through node {self.node}"
            )
        done = Released(**release.fields())
        self.claims.record(key, release.request, done)
        self.latencies["release"].add(0)  # The hold is this node's alone: nobody confirms.
        return [*self._give(claim), Send(sender, done), Observe("proxy.released")]

    def _on_hold_released(self, sender: Address, given: HoldReleased, now: Instant) -> Effects:
        """Reply to a release or an eviction that the protocol has confirmed."""
        hold = ReleaseHold(lock=given.lock, fence=given.fence, session=given.session)
        if hold not in self.releases:
            return ()
        client, release, since = self.releases.pop(hold)
        if isinstance(release, Evict):
            return self._on_evicted(client, release, given)
        self.latencies["release"].add(now - since)
        match given.outcome:
            case ReleaseOutcome.FREED:
                done = Released(**release.fields())
                key = Key(release.session, release.owner, release.lock)
                self.claims.record(key, release.request, done)
                return [Send(client, done), Observe("proxy.released")]
            case ReleaseOutcome.NOT_HELD:
                return [Send(client, refused(release, Reason.NOT_HELD, _not_held(given)))]
            case ReleaseOutcome.TAKEN:
                text = f"lock {given.lock!r}: an operator took it from fence {given.fence}"
                return [Send(client, refused(release, Reason.OWNERSHIP_LOST, text))]

    def _on_evict(self, sender: Address, evict: Evict, now: Instant) -> Effects:
        hold = ReleaseHold(lock=evict.lock, fence=evict.fence, session="")
        _remember(self.releases, hold, (sender, evict, now))
        return [Send(self.granter, replace(hold, operator=evict.by))]

    def _on_evicted(self, operator: Address, evict: Evict, given: HoldReleased) -> Effects:
        if given.holder is None:
            return [Send(operator, refused(evict, Reason.NOT_HELD, _not_held(given)))]
        evicted = Evicted(
            lock=given.lock,
            fence=given.fence,
            holder=given.holder,
            session=evict.session,
            request=evict.request,
        )
        return [Send(operator, evicted), Observe("proxy.evicted")]

    def _on_disown_hold(self, sender: Address, disown: DisownHold, now: Instant) -> Effects:
        claim = self.claims.holder.get(disown.lock)
        if claim is not None and (claim.fence, claim.key.session) == (disown.fence, disown.session):
            return [*self._give(claim), Observe("proxy.hold_disowned")]
        if not self.confirms:
            return ()
        surrender = ReleaseHold(lock=disown.lock, fence=disown.fence, session=disown.session)
        return [Send(self.granter, surrender), Observe("proxy.hold_disowned")]

    def _on_hold_in_doubt(self, sender: Address, doubt: HoldInDoubt, now: Instant) -> Effects:
        """Ask a client whether it has a hold of which the protocol is not sure."""
        return [self._confirm(doubt.lock, doubt.fence, doubt.session)]

    def _on_cancel(self, sender: Address, cancel: Cancel, now: Instant) -> Effects:
        """End a wait or a hold, in any state; repeatable."""
        key = Key(cancel.session, cancel.owner, cancel.lock)
        effects: list[Effect] = []
        claim = self.claims.by_key.get(key)
        if claim is not None and claim.request == cancel.request:
            effects += self._give(claim)
        done = _cancelled(key, cancel.request)
        if cancel.request >= self.claims.replies.get(key, (0, None))[0]:
            self.claims.record(key, cancel.request, done)
        return [*effects, Send(sender, done)]

    def _on_end(self, sender: Address, end: End, now: Instant) -> Effects:
        """End the waits and holds of a session, and send one reply when all have ended."""
        _remember(self.ends, end.session, (sender, end))
        self.leaving.setdefault(end.session)
        return self._end_claims()

    def _on_ends_due(self, sender: Address, due: EndsDue, now: Instant) -> Effects:
        self.ends_budget.renew()
        return self._end_claims()

    def _end_claims(self) -> list[Effect]:
        """End claims of silent clients, and of sessions that end, as many as this turn may."""
        budget, effects = self.ends_budget, list[Effect]()
        while self.abandoned and budget.left:
            ticket = next(iter(self.abandoned))
            del self.abandoned[ticket]
            claim = self.claims.by_ticket.get(ticket)
            if claim is not None and claim.phase is Phase.WAITING:
                budget.left -= 1
                effects += self._withdraw(claim)
                effects.append(Observe("proxy.wait_of_silent_client_ended"))
        while self.leaving and budget.left:
            session = next(iter(self.leaving))
            del self.leaving[session]
            # The newest first: a wait ends before the hold of its session that it waits for.
            for claim in self.claims.latest_of(session, budget.left):
                budget.left -= 1
                effects += self._give(claim)
                self.claims.record(claim.key, claim.request, _cancelled(claim.key, claim.request))
            if session in self.claims.by_session:
                self.leaving[session] = None
            elif self.confirms:
                effects.append(Send(self.granter, EndHolds(session=session)))
            else:
                effects += self._reply_to_end(session, "its holds here were released")
        return [*budget.wake(), *effects]

    def _on_holds_ended(self, sender: Address, ended: HoldsEnded, now: Instant) -> Effects:
        return self._reply_to_end(ended.session, "its holds were released")

    def _reply_to_end(self, session: str, detail: str) -> list[Effect]:
        client, end = self.ends.pop(session, (None, None))
        if client is None or end is None:
            return []
        return [Send(client, Ended(session=session, detail=detail, request=end.request))]

    def _on_waits_due(self, sender: Address, due: WaitsDue, now: Instant) -> Effects:
        """End waits that timed out, `CLAIMS_ENDED_MAX` at most; later turns end the rest."""
        if due.at != self.waits_due_at:
            return ()
        self.waits_due_at = None
        effects: list[Effect] = []
        for ticket in self.claims.waits.each_due(now, CLAIMS_ENDED_MAX):
            effects += self._on_wait_over(self.claims.by_ticket[ticket])
        if self.claims.waits.is_due(now):
            self.waits_end_from = Instant(now + CLAIMS_ENDED_MS * NS_PER_MS)
        return [*effects, *self._wake_for_waits(now)]

    def _wake_for_waits(self, now: Instant) -> list[Effect]:
        """Set a timer for the wait that times out next, unless one is set for then or before."""
        next_at = self.claims.waits.next_at()
        if next_at is None:
            return []
        at = max(next_at, self.waits_end_from)
        if self.waits_due_at is not None and self.waits_due_at <= at:
            return []
        after_ms = min(max(1, -(-(at - now) // NS_PER_MS)), WAIT_TIMER_MS_MAX)
        due = self.waits_due_at = Instant(now + after_ms * NS_PER_MS)
        return [Wake(after_ms, WaitsDue(at=due))]

    def _on_wait_over(self, claim: LockRequest) -> list[Effect]:
        """End a wait that timed out, once the protocol has named the holder."""
        assert claim.phase is Phase.WAITING
        self._forget_query(claim)
        asked = self._query_for(claim)  # Ask first: the protocol must still know the wait.
        claim.phase = Phase.ENDING
        return [*asked, Send(self.granter, ReleaseLock(lock=claim.key.lock, ticket=claim.ticket))]

    def _on_try_query(self, sender: Address, over: TryQuery, now: Instant) -> Effects:
        claim = self.claims.by_ticket.get(over.ticket)
        if claim is None or claim.phase is not Phase.WAITING or claim.query is not None:
            return ()
        return self._query_for(claim)

    def _on_inspect(self, sender: Address, inspect: Inspect, now: Instant) -> Effects:
        self.check_linearizable(inspect)
        query = self.queries.add(sender, inspect, now)
        if query is None:
            return ()
        number = query.number
        look = QueryLock(lock=inspect.lock, query=number, proven=True, waiters=True)
        return [Send(self.granter, look)]

    def _on_description(
        self, sender: Address, description: LockDescription, now: Instant
    ) -> Effects:
        """Take an answer about a lock: for a wait that ends, a description or a query."""
        claim = self.endings.pop(description.query, None)
        if claim is not None:
            return self._on_description_for(claim, description, now)
        if description.query in self.looking:
            self.looking.remove(description.query)
            self.descriptions[description.lock] = description
            return ()
        query = self.queries.end(description.query)
        if query is None:
            return ()
        if description.unknown:
            text = f"lock {description.lock!r}: {HOLDER_UNKNOWN}{description.unknown}"
            return [Send(query.sender, refused(query.request, Reason.UNAVAILABLE, text))]
        status = LockStatus(
            lock=description.lock,
            holder=description.holder,
            waiters=description.waiters[:WAITERS_SHOWN_MAX],
            waits_for=description.waits_for,
            session=query.request.session,
            request=query.request.request,
            age_ms=0 if self.confirms else None,
        )
        return [Send(query.sender, status)]

    def _on_description_for(
        self, claim: LockRequest, description: LockDescription, now: Instant
    ) -> Effects:
        """Send the refusal that waited for this answer."""
        claim.query = None
        give: list[Effect] = []
        if claim.phase is Phase.WAITING:  # It does not wait; is another owner ahead?
            ours = (self.node, claim.key.session, claim.key.owner)
            if description.holder is None or description.holder[:3] == ours:
                return [Wake(TRY_QUERY_MS, TryQuery(ticket=claim.ticket))]
            give = [Send(self.granter, ReleaseLock(lock=claim.key.lock, ticket=claim.ticket))]
            claim.phase = Phase.ENDING
        return [*give, *self._end(claim, *why_it_ended(self.name, claim, description, now))]

    def _on_ready(self, sender: Address, ready: Ready, now: Instant) -> Effects:
        starting, self.readiness = self.readiness is STARTING, ready
        if not (ready.ready or starting):
            return ()
        return (Send(address_of(self.node, "node"), ready_notice(self.node, ready)),)

    def gather_status(self, now: Instant) -> Effects:
        self.descriptions, self.looking = {}, set()
        effects: list[Effect] = []
        for lock in self.claims.awaited()[:HOLDER_QUERIES_MAX]:
            number = self.queries.next_number()
            self.looking.add(number)
            effects.append(Send(self.granter, QueryLock(lock=lock, query=number)))
        return effects

    def status(self, now: Instant) -> Status | None:
        if self.looking:
            return None
        locks = locks_of(self.node, self.claims, self.descriptions, now)
        return Status(self.readiness.ready, self.readiness.detail, locks)

    def forget(self, clients: list[str], now: Instant) -> Effects:
        silent = set(clients)
        for session, claims in self.claims.by_session.items():
            if client_of(session) in silent:
                waits = (ticket for ticket, c in claims.items() if c.phase is Phase.WAITING)
                self.abandoned.update(dict.fromkeys(waits))
        return self._end_claims()

    def _withdraw(self, claim: LockRequest) -> list[Effect]:
        """End a wait and notify its client."""
        text = f"lock {claim.key.lock!r}: the wait was given up"
        return [*self._give(claim), self._refuse(claim, Reason.CANCELLED, text)]

    def _query_for(self, claim: LockRequest) -> list[Effect]:
        claim.query = self.queries.next_number()
        self.endings[claim.query] = claim
        return [Send(self.granter, QueryLock(lock=claim.key.lock, query=claim.query))]

    def _forget_query(self, claim: LockRequest) -> None:
        if claim.query is not None:
            self.endings.pop(claim.query, None)
            claim.query = None

    def _give(self, claim: LockRequest) -> list[Effect]:
        """Drop ``claim`` and notify the protocol, unless that was done before."""
        self._forget_query(claim)
        self.claims.drop(claim)
        if claim.phase is Phase.ENDING:
            return []
        return [Send(self.granter, ReleaseLock(lock=claim.key.lock, ticket=claim.ticket))]

    def _end(self, claim: LockRequest, reason: Reason, detail: str) -> Effects:
        self.claims.drop(claim)
        return [self._refuse(claim, reason, detail), Observe("proxy.refused")]

    def _refuse(self, claim: LockRequest, reason: Reason, detail: str) -> Send:
        key = claim.key._asdict()
        no = Refused(reason=reason, detail=detail, request=claim.request, **key)
        self.claims.record(claim.key, claim.request, no)
        return Send(claim.sender, no)


def why_it_ended(
    protocol: str, claim: LockRequest, described: LockDescription, now: Instant
) -> tuple[Reason, str]:
    """Return why a wait ended without a grant, naming the nodes that are missing."""
    waited = f"lock {claim.key.lock!r}: waited {ms_between(claim.since, now)} ms"
    if described.waits_for:
        absent = ", ".join(f"{a.node} (silent for {a.silent_ms} ms)" for a in described.waits_for)
        return Reason.UNAVAILABLE, f"{waited} for {absent}; {protocol} grants nothing without it"
    if described.unknown:
        return Reason.UNAVAILABLE, f"{waited}; {HOLDER_UNKNOWN}{described.unknown}"
    if described.holder is None:
        return Reason.TIMED_OUT, f"{waited}, and it was about to be granted or changed hands"
    holder = described.holder
    name = holder.owner or holder.session or "somebody"
    fence = "" if holder.fence is None else f" under fence {holder.fence}"
    return Reason.TIMED_OUT, f"{waited}; it is held by {name} on {holder.node}{fence}"


def locks_of(
    node: str, claims: LockRequests, described: Mapping[str, LockDescription], now: Instant
) -> tuple[LockStatus, ...]:
    """Return every lock that is held or awaited through this node, sorted by name.

    Waiters are in the order of their requests here. ``described`` has the protocol's knowledge of
    awaited locks.
    """
    waiters: dict[str, list[Contender]] = {lock: [] for lock in claims.holder}
    for claim in claims.by_key.values():
        if claim.phase is not Phase.HELD:
            shown = waiters.setdefault(claim.key.lock, [])
            if len(shown) < WAITERS_SHOWN_MAX:
                shown.append(_contender_of(node, claim, now))
    statuses: list[LockStatus] = []
    left = LOCKS_BYTES_MAX
    for lock in sorted(waiters)[:STATUS_LOCKS_MAX]:
        held, known = claims.holder.get(lock), described.get(lock)
        holder = known.holder if known is not None else None
        status = LockStatus(
            lock=lock,
            holder=holder if held is None else _contender_of(node, held, now),
            waiters=tuple(waiters[lock]),
            waits_for=known.waits_for if known is not None else (),
        )
        left -= _bytes_of(status)
        if left < 0:
            break
        statuses.append(status)
    return tuple(statuses)


def _contender_of(node: str, claim: LockRequest, now: Instant) -> Contender:
    return Contender(
        node=node,
        session=claim.key.session,
        owner=claim.key.owner,
        fence=claim.fence if claim.phase is Phase.HELD else None,
        since_ms=ms_between(claim.since, now),
    )


def _bytes_of(status: LockStatus) -> int:
    """Return the approximate size of ``status`` in a frame (bytes)."""
    contenders = (status.holder, *status.waiters)
    texts = ["".join(c[:3]) for c in contenders if c] + [a.node for a in status.waits_for]
    return sum(len(text.encode()) + 32 for text in (status.lock, *texts))


def _granted(claim: LockRequest) -> Granted:
    return Granted(fence=claim.fence, request=claim.request, **claim.key._asdict())


def _cancelled(key: Key, request: int) -> Cancelled:
    return Cancelled(request=request, **key._asdict())


def _not_held(given: HoldReleased) -> str:
    return f"lock {given.lock!r}: fence {given.fence} does not hold it, says the lock server"


def _remember(memory: dict[K, V], key: K, value: V, most: int = UNCONFIRMED_MAX) -> None:
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]
