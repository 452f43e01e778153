"""The elected leaders behind a node's proxy: a request is kept until leaders have answered it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp, Elected, MemberSeen, Watch
from fencelock.actors.api.lock_message import (
    HOLDER_UNKNOWN,
    Acquire,
    Cancel,
    Cancelled,
    Contender,
    Granted,
    HoldLost,
    Inspect,
    LockStatus,
    Reason,
    Release,
    Released,
    Renew,
    Renewed,
)
from fencelock.actors.api.lock_message import Unlocking as ClientUnlocking
from fencelock.actors.api.name import OWNER_BYTES_MAX, client_of, titled
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.session_message import Alive, End, Ended, Open, Opened
from fencelock.actors.bakery.bounds import is_possible_reply
from fencelock.actors.bakery.config import BAKERY_TIMING, BakeryTiming, Terms, leader_of, quorum
from fencelock.actors.bakery.epochs import EpochLimit, Refusals
from fencelock.actors.bakery.event import ListTickets, Readiness, Tally
from fencelock.actors.bakery.in_flight import (
    InFlightRequest,
    InFlightRequests,
    Kind,
    LockAcquire,
    Name,
)
from fencelock.actors.bakery.leader_requests import lock_status
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.wire import (
    Error,
    Expired,
    HoldRenewed,
    Locked,
    LockFailed,
    NotLeading,
    QueryResult,
    ToProxy,
    Unlocked,
    Unlocking,
)
from fencelock.actors.bootstrap_message import VotingStatus
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.error import InvalidRequestError, NotHeldError, OverloadedError
from fencelock.actors.message import Address, Instant, Timer, later, ms_between, node_of
from fencelock.actors.proxy.backend import Handler, MembersBackend, Status
from fencelock.actors.proxy.clients import NODE_REQUESTS_MAX, is_full
from fencelock.actors.proxy.event import WAITERS_SHOWN_MAX

if TYPE_CHECKING:
    from random import Random

TRY_MS = 1_000
"""Time for a request that does not wait to learn that the lock is taken (ms)."""

PROXY_END_DELAY_MS = 150
"""Delay before the proxy itself ends a wait (ms): the leader with the ticket can say more."""

LEADER_ANSWER_MS = 15_000
"""Timeout of a request that no leader answers (ms)."""

BAKERY_READ_MS = 2_000
"""Timeout of a read while no locks can be granted (ms)."""

CANCEL_MS = 500
"""Time after which a cancel is confirmed to the client, whether or not a leader has answered (ms):
at once while no locks can be granted. The proxy goes on with it (`_confirm_cancel`)."""

BAKERY_LOCKS_SHOWN_MAX = 200
"""Maximum locks in one `NodeStatus`: 200 KiB with the longest names."""


BAKERY_REASONS = {
    Error.TIMED_OUT: Reason.TIMED_OUT,
    Error.INVALID: Reason.INVALID,
    Error.DUPLICATE: Reason.ALREADY_HELD,
    Error.HELD: Reason.ALREADY_HELD,
    Error.OVERFLOW: Reason.OVERLOADED,
    Error.FAILED: Reason.CANCELLED,
}
"""The reason that a client receives. After the last, its session asks again, as a new request."""


class SendsDue(Timer):
    """Send the due requests that earlier turns have left."""


class BakeryBackend(MembersBackend):
    """Has requests decided by leaders. They know all holds, so any proxy serves any client.

    A request is kept until it is answered, and sent again under the same number when its
    leader does not answer, or leads no more. So a request that comes before there are leaders
    waits for them, until its own timeout. The leaders keep no sessions: a session is a name.

    Invariants: one-reply.
    """

    name = "bakery"
    TICK_MS = 50

    def __init__(
        self,
        node: str,
        members: tuple[str, ...],
        terms: Terms,
        random: Random,
        life: int,
        endpoints: Mapping[str, str] | None = None,
        timing: BakeryTiming = BAKERY_TIMING,
        limit: EpochLimit | None = None,
    ) -> None:
        super().__init__(node, members, endpoints)
        self.timing = timing
        self.refusals = Refusals(node, limit or EpochLimit())
        self.leaders = set(members)
        """The nodes that may have been leaders, in this life."""
        self.terms = terms
        self.in_flight = InFlightRequests(node, random, timing.repeat_ms)
        self.watchers = Watchers(life)
        self.tickets: Tally | None = None
        """The tickets of this node's leader, for a description; None while they are awaited."""
        self.goes_on = False
        """Whether the `SendsDue` timer runs."""
        self.is_seated = False
        """Whether the group is known, so that the coordinator reports the election."""
        self.requests = {
            Acquire: self._on_acquire,
            AcquireReadWrite: self._on_acquire,
            Release: self._on_release,
            Cancel: self._on_cancel,
            Renew: self._on_renew,
            Inspect: self._on_inspect,
            End: self._on_end,
            Open: self._on_open,
            **self.member_requests,
        }
        from_leader: dict[type[ToProxy], Handler] = {
            Locked: self._on_decided,
            LockFailed: self._on_decided,
            Unlocked: self._on_unlocked,
            HoldRenewed: self._on_renewed,
            QueryResult: self._on_query_result,
            NotLeading: self._on_not_leading,
            Unlocking: self._on_notice,
            Expired: self._on_notice,
        }
        self.events = {
            Watch: self._on_watch,
            Readiness: self._on_readiness,
            VotingStatus: self._on_voting_status,
            Tally: self._on_tally,
            SendsDue: self._on_sends_due,
            **self.member_events,
            **{kind: self._from_leader(handler) for kind, handler in from_leader.items()},
        }

    def __len__(self) -> int:
        return len(self.in_flight.by_number)

    def is_busy(self) -> bool:
        return bool(self.in_flight.by_number or self.clients.by_id)

    def is_ready(self) -> bool:
        return self.in_flight.readiness.ready

    def leader_for(self, session: str) -> str:
        """Return the leader that a client should use; clients are divided among the leaders."""
        leaders = self.in_flight.leaders()
        return leaders[sum(session.encode()) % len(leaders)] if leaders else ""

    def _on_open(self, sender: Address, request: Open, now: Instant) -> Effects:
        """Reply without keeping a session: it is a name, and leaders know its holds."""
        opened = Opened(
            session=request.session,
            assigned=request.session,
            ttl_ms=max(self.timing.silent_ms, request.ttl_ms),
            node=self.node,
            request=request.request,
            leader=self.leader_for(request.session),
            view=self.known.view,
            members=self.known.members,
        )
        return [Send(sender, opened)]

    def _on_acquire(self, sender: Address, request: LockAcquire, now: Instant) -> Effects:
        terms = self.terms
        hold_ms, grace_ms = request.hold_ms or terms.hold_ms, request.grace_ms or terms.grace_ms
        self._check_durations(request.lock, hold_ms, grace_ms)
        if isinstance(request, Acquire):
            self.check_not_reentrant(request)
        name = _name_of(Kind.LOCK, request)
        if any(wait.name.number > name.number for wait in self._waits(name)):
            return [Observe("proxy.late_request_dropped")]
        effects: list[Effect] = []
        for wait in self._waits(name):
            if wait.name.number < name.number:
                self.in_flight.end(wait)  # An owner is sequential: it has abandoned the old wait.
                text = f"{titled(wait.name.lock)}: the wait was given up"
                effects += wait.refuse(Reason.CANCELLED, text)
        until, note = None, ""
        if request.wait_ms is None and terms.wait_ms is not None:
            note = (
                f"; without a timeout in the call, the limit is {terms.wait_ms} ms: "
                '"obtention" under [bakery] in the configuration'
            )
        request = replace(
            request,
            wait_ms=terms.wait_ms if request.wait_ms is None else request.wait_ms,
            hold_ms=hold_ms,
            grace_ms=grace_ms,
        )
        if request.wait_ms is not None:
            until = later(now, (request.wait_ms or TRY_MS) + PROXY_END_DELAY_MS)
        wait = InFlightRequest(name, sender, request, now, until=until, note=note)
        return [*effects, *self._begin(wait, now)]

    def _check_durations(self, lock: str, hold_ms: int, grace_ms: int) -> None:
        if why := self.terms.why_invalid(hold_ms, grace_ms):
            raise InvalidRequestError(f"{titled(lock)}: {why}")

    def _on_release(self, sender: Address, request: Release, now: Instant) -> Effects:
        if request.fence <= 0:
            raise NotHeldError(self._not_held(request))
        name = _name_of(Kind.UNLOCK, request)
        release = InFlightRequest(name, sender, request, now, fence=request.fence)
        return self._begin(release, now)

    def _on_renew(self, sender: Address, request: Renew, now: Instant) -> Effects:
        self._check_durations(request.lock, request.hold_ms, 0)
        if request.fence <= 0:
            raise NotHeldError(self._not_held(request))
        name, until = _name_of(Kind.RENEW, request), later(now, LEADER_ANSWER_MS)
        fence = request.fence
        return self._begin(InFlightRequest(name, sender, request, now, fence, until), now)

    def _on_cancel(self, sender: Address, request: Cancel, now: Instant) -> Effects:
        """Send the leaders a request to drop an acquire, in any state; repeatable."""
        name, leader = _name_of(Kind.UNLOCK, request), ""
        known = self.in_flight.by_name.get(name)
        if known is not None and isinstance(known.request, Cancel) and known.until is None:
            known.sender, known.request = sender, request  # It was confirmed, and that was lost.
            return self._confirm_cancel(known)
        for wait in self._waits(name):
            if wait.name.number <= name.number:
                leader = wait.leader  # It has the ticket.
                self.in_flight.end(wait)
        for earlier in self.in_flight.about(name.lock, name.who):
            # This cancel includes the earlier ones, and it drops what the proxy drops by itself.
            confirmed = earlier.sender is None and earlier.name.kind is Kind.UNLOCK
            if confirmed and earlier.name.number <= name.number:
                self.in_flight.end(earlier)
        until_ms = CANCEL_MS if self.is_ready() else 0
        until = later(now, until_ms)
        cancel = InFlightRequest(name, sender, request, now, until=until, leader=leader)
        return self._begin(cancel, now)

    @staticmethod
    def _confirm_cancel(cancel: InFlightRequest) -> list[Effect]:
        """Confirm ``cancel``, which goes on without a client that waits for it.

        The client relies on no grant of that request any more: if one comes, it gives it back.
        Later requests of the same owner have higher numbers, so a late drop does not mean them.
        Until the drop is done, a leader may hold the lock for the cancelled request, and calls a
        later one a duplicate: that is not passed on (`_on_decided`).
        """
        assert isinstance(cancel.request, Cancel)
        confirmed = cancel.reply(Cancelled(**cancel.request.fields()))
        cancel.sender, cancel.until = None, None
        return [*confirmed, Observe("bakery.cancel_unconfirmed")]

    def _on_end(self, sender: Address, request: End, now: Instant) -> Effects:
        self._end_waits(lambda session: session == request.session)
        name, until = (
            Name(Kind.UNLOCK_ALL, "", Who(request.session, ""), 0),
            later(now, LEADER_ANSWER_MS),
        )
        return self._begin(InFlightRequest(name, sender, request, now, until=until), now)

    def _on_inspect(self, sender: Address, request: Inspect, now: Instant) -> Effects:
        self.check_linearizable(request)
        name = Name(Kind.QUERY, request.lock, Who(sender, ""), request.request)
        reader = self.clients.owner_of(node_of(sender))
        until = later(now, LEADER_ANSWER_MS)
        return self._begin(
            InFlightRequest(name, sender, request, now, until=until, reader=reader), now
        )

    def _begin(self, pending: InFlightRequest, now: Instant) -> list[Effect]:
        """Begin a request, unless it is in flight; then its reply goes to the last sender.

        A repetition is confirmed, so that this proxy does not seem silent. That reply names no
        leader. Two proxies that see different leaders would send a client to and fro, which
        repeats its request at each, as fast as messages travel.
        """
        request, waits = pending.request, pending.sender is not None
        known = self.in_flight.by_name.get(pending.name)
        if known is not None:
            known.sender, known.request = pending.sender, request
            return known.reply(Alive(session=request.session, node=self.node))
        if waits and is_full(len(self), NODE_REQUESTS_MAX, eases=request.EASES):
            raise OverloadedError(f"node {self.node} has {len(self)} requests, its limit")
        sent = self.in_flight.add(pending, now)
        return [*sent, *self._go_on(now)] if pending.waits_turn else sent

    def _waits(self, name: Name) -> list[InFlightRequest]:
        about = self.in_flight.about(name.lock, name.who)
        return [pending for pending in about if pending.name.kind is Kind.LOCK]

    def _end_waits(self, chosen: Callable[[str], bool]) -> list[InFlightRequest]:
        """End and return the waits of the sessions that are ``chosen``."""
        requests = self.in_flight.by_number.values()
        waits = [one for one in requests if one.name.kind is Kind.LOCK]
        ended = [wait for wait in waits if chosen(wait.name.who.session)]
        for wait in ended:
            self.in_flight.end(wait)
        return ended

    def _from_leader(self, handler: Handler) -> Handler:
        """Return ``handler``, which gets only possible replies of nodes that can be leaders."""

        def handle(sender: Address, event: ToProxy, now: Instant) -> Effects:
            node = node_of(sender)
            if node not in self.leaders or sender != leader_of(node):
                return [Observe("bakery.stranger_answers")]
            limit = self.refusals.limit
            if not is_possible_reply(event, limit.highest(now), limit.lease_ms_max):
                return self.refusals.malformed(sender, "bakery.answer_malformed", event, now)
            return handler(sender, event, now)

        return handle

    def _on_decided(self, leader: Address, event: Locked | LockFailed, now: Instant) -> Effects:
        """Reply to an acquire.

        If no request here waits for a grant any more, the client may have the hold through another
        proxy. So it is notified; if it does not have the hold, it gives it back.
        """
        name = Name(Kind.LOCK, event.lock, event.who, event.request)
        pending = self.in_flight.by_name.get(name)
        if pending is not None:
            duplicate = isinstance(event, LockFailed) and event.error in (
                Error.DUPLICATE,
                Error.HELD,
            )
            if duplicate and self._is_cancelled_before(name):
                return [Observe("bakery.behind_cancel")]  # It is sent again.
            if isinstance(event, LockFailed) and event.error is Error.HELD:
                return self._verify_held(pending, event, now)
            self._end(pending, "acquire" if isinstance(event, Locked) else "other", now)
            return self._decided(pending, event, now)
        if isinstance(event, LockFailed):
            return [Observe("bakery.late_answer")]
        client = self.clients.of(event.who.session)
        stray = Observe("bakery.stray_grant")
        return [stray] if client is None else [stray, Send(client.address, _granted(event))]

    def _decided(
        self, pending: InFlightRequest, event: Locked | LockFailed, now: Instant
    ) -> list[Effect]:
        """Return the reply to an acquire.

        A leader that is left alone ends waits as if another owner were ahead. The proxy knows
        better whether locks can be granted.
        """
        if isinstance(event, Locked):
            return pending.reply(_granted(event), "proxy.granted")
        timed_out = event.error is Error.TIMED_OUT
        if timed_out and not self.is_ready():
            return self._over(pending, now)
        detail = event.detail + (pending.note if timed_out else "")
        return pending.refuse(BAKERY_REASONS[event.error], detail, "proxy.refused")

    def _verify_held(
        self, acquire: InFlightRequest, refusal: LockFailed, now: Instant
    ) -> list[Effect]:
        """Ask a quorum whether the owner of ``acquire`` holds the lock, as one leader replied.

        A leader that missed the drop of a hold, because the one that sent it died, has it until the
        next epoch. Meanwhile the owner, whose release was confirmed, may acquire the lock again.
        """
        name = acquire.name._replace(kind=Kind.QUERY)
        if name in self.in_flight.by_name:
            return []
        acquire.refusal = refusal
        read = Inspect(lock=name.lock, session=name.who.session, request=name.number)
        reader = self.clients.owner_of(client_of(read.session))
        until = later(now, LEADER_ANSWER_MS)
        pending = InFlightRequest(name, None, read, now, until=until, reader=reader)
        return [Observe("bakery.held_verified"), *self._begin(pending, now)]

    def _on_verified(self, name: Name, state: QueryResult, now: Instant) -> list[Effect]:
        """Refuse an acquire whose owner holds the lock; else another leader is asked for it."""
        acquire = self.in_flight.by_name.get(name._replace(kind=Kind.LOCK))
        if acquire is None or acquire.refusal is None:
            return []
        if name.who in [Who(one.session, one.owner) for one in state.holders]:
            self.in_flight.end(acquire)
            return self._decided(acquire, acquire.refusal, now)
        acquire.refusal = None
        self.in_flight.avoid(acquire)
        return []

    def _is_cancelled_before(self, name: Name) -> bool:
        """Return whether a cancel of an earlier request of the same owner is not confirmed yet."""
        about = self.in_flight.about(name.lock, name.who)
        return any(
            isinstance(one.request, Cancel) and one.name.number < name.number for one in about
        )

    def _on_unlocked(self, leader: Address, event: Unlocked, now: Instant) -> list[Effect]:
        pending = self.in_flight.by_number.get(event.number)
        if pending is None or pending.name.kind not in {Kind.UNLOCK, Kind.UNLOCK_ALL}:
            return [Observe("bakery.late_answer")]
        request = pending.request
        if isinstance(request, End):
            pending.answered[node_of(leader)] = None
            if len(pending.answered) < quorum(len(self.in_flight.readiness.seating.leaders)):
                return []
        self._end(pending, "release" if isinstance(request, Release) else "other", now)
        match request:
            case Release() if not event.found:
                return pending.refuse(Reason.NOT_HELD, self._not_held(request))
            case Release():
                return pending.reply(Released(**request.fields()), "proxy.released")
            case Cancel():
                return pending.reply(Cancelled(**request.fields()))
            case End():
                text = "its holds were released"
                ended = Ended(session=request.session, detail=text, request=request.request)
                return pending.reply(ended)
            case _:  # A wait that was given up.
                return []

    def _on_renewed(self, leader: Address, event: HoldRenewed, now: Instant) -> list[Effect]:
        pending = self.in_flight.by_number.get(event.number)
        if pending is None or not isinstance(request := pending.request, Renew):
            return [Observe("bakery.late_answer")]
        if not event.fence and not event.invalid:
            passed_on = self.in_flight.pass_on(pending, node_of(leader), now)
            if passed_on is not None:
                return passed_on
        self._end(pending, "other", now)
        if event.invalid:
            return pending.refuse(Reason.INVALID, f"{titled(request.lock)}: {event.invalid}")
        if not event.fence:
            return pending.refuse(Reason.NOT_HELD, self._not_held(request))
        fields, hold_ms, grace_ms = request.fields(), event.hold_ms, event.grace_ms
        return pending.reply(
            Renewed(**fields, fence=event.fence, hold_ms=hold_ms, grace_ms=grace_ms)
        )

    def _on_query_result(self, leader: Address, event: QueryResult, now: Instant) -> list[Effect]:
        pending = self.in_flight.by_number.get(event.number)
        if pending is None or not isinstance(request := pending.request, Inspect):
            return [Observe("bakery.late_answer")]
        state = self.in_flight.read(pending, node_of(leader), event, now)
        if state is None:
            return []
        if pending.sender is None:
            self.in_flight.end(pending)
            return self._on_verified(pending.name, state, now)
        self._end(pending, "other", now)
        status = lock_status(request.lock, state.holders, state.waiters)
        return pending.reply(replace(status, session=request.session, request=request.request))

    def _end(self, pending: InFlightRequest, kind: str, now: Instant) -> None:
        """End a request that leaders have decided, and count how long that took."""
        self.in_flight.end(pending)
        self.latencies[kind].add(now - pending.since)

    def _not_held(self, request: Release | Renew) -> str:
        text = f"{titled(request.lock)}: fence {request.fence} was shown, which does not hold it"
        return f"{text} (says {self.node})"

    def _over(self, pending: InFlightRequest, now: Instant) -> list[Effect]:
        """Refuse a request that no leader answered in time, with the reason if it is known."""
        if isinstance(pending.request, End):
            return []
        readiness, reason = self.in_flight.readiness, Reason.UNAVAILABLE
        text = f"{titled(pending.name.lock)}: "
        waited = f"waited {ms_between(pending.since, now)} ms"
        if pending.name.kind is Kind.QUERY:
            why = "the leaders did not agree" if readiness.ready else readiness.detail
            text += f"{HOLDER_UNKNOWN}{waited}; {why}"
        elif not readiness.ready:
            text += f"{waited}; bakery grants nothing now: {readiness.detail}{pending.note}"
        elif pending.name.kind is Kind.LOCK:
            reason = Reason.TIMED_OUT
            text += f"{waited}; another holds it, or is ahead{pending.note}"
        else:
            text += f"{waited}; no leader answered"
        return pending.refuse(reason, text)

    def _on_not_leading(self, leader: Address, event: NotLeading, now: Instant) -> Effects:
        effects: list[Effect] = []
        for pending in self.in_flight.about(event.lock, event.who):
            effects += self.in_flight.redirect(pending, event.owner, now)
        return effects

    def _on_notice(self, leader: Address, event: Unlocking | Expired, now: Instant) -> Effects:
        client = self.clients.of(event.who.session)
        if client is not None:
            return [Send(client.address, _notice(event))]
        if isinstance(event, Unlocking):
            return [Observe("bakery.unlocking_of_stranger")]
        return [Observe("bakery.expiry_of_stranger")]

    def _on_watch(self, sender: Address, watch: Watch, now: Instant) -> Effects:
        if len(watch.session) > OWNER_BYTES_MAX:
            return [Observe("proxy.session_malformed")]
        return self.watchers.watch(sender, watch)

    def _on_readiness(self, sender: Address, readiness: Readiness, now: Instant) -> Effects:
        self.is_seated = True
        self.leaders.update(leader.node for leader in readiness.seating.leaders)
        self.in_flight.lead(readiness, now)
        return [*self._send_due(now), *self.watchers.see(readiness)]

    def _on_voting_status(self, sender: Address, status: VotingStatus, now: Instant) -> Effects:
        """Store why this node does not vote; before the first election nothing else is known."""
        self.let_serve(status)
        if self.is_seated or not status.why:
            return []
        self.in_flight.readiness = replace(self.in_flight.readiness, detail=status.why)
        return self.watchers.see(self.in_flight.readiness)

    def tick(self, now: Instant) -> Effects:
        return [*self.announce_members(), *self._send_due(now)]

    def _on_sends_due(self, sender: Address, due: SendsDue, now: Instant) -> Effects:
        self.goes_on = False
        return self._send_due(now)

    def _send_due(self, now: Instant) -> list[Effect]:
        """Send the requests that are due again, or end them: `ENDS_MAX` at most, and some reads.

        Thousands may be due together, after an election for example. The turns right after this
        one do the rest, and others are served between them.
        """
        effects: list[Effect] = []
        for pending in self.in_flight.due(now):
            if pending.until is not None and pending.until <= now:
                if isinstance(pending.request, Cancel):
                    effects += self._confirm_cancel(pending)
                    effects += self.in_flight.send(pending, now)
                    continue
                self.in_flight.end(pending)
                effects += self._over(pending, now)
                if pending.name.kind is Kind.LOCK and pending.sent:
                    effects += self._undo(pending, now)
            elif pending.sender is None and self._is_moot(pending, now):
                self.in_flight.end(pending)  # Its target ends by its lease.
            elif self._is_hopeless(pending, now):
                self.in_flight.end(pending)
                effects += self._over(pending, now)
            else:
                effects += self.in_flight.send(pending, now)
        effects += self.in_flight.send_reads(now)
        return [*effects, *self._go_on(now)]

    def _go_on(self, now: Instant) -> list[Effect]:
        """Let a turn right after this one send what is left."""
        if self.goes_on or not (self.in_flight.reads or self.in_flight.is_due(now)):
            return []
        self.goes_on = True
        return [Wake(1, SendsDue())]

    def _is_moot(self, pending: InFlightRequest, now: Instant) -> bool:
        """Return whether ``pending``, for which no client waits, has been sent for long enough.

        A cancel is sent until the lease of a hold that it means must be over: while the hold lives,
        leaders refuse the next request of its owner.
        """
        cancels = isinstance(pending.request, Cancel)
        longest_ms = max(LEADER_ANSWER_MS, self.terms.max_ms) if cancels else LEADER_ANSWER_MS
        return ms_between(pending.since, now) >= longest_ms

    def _is_hopeless(self, pending: InFlightRequest, now: Instant) -> bool:
        """Return whether ``pending`` is a read that no leaders will answer soon."""
        read = pending.name.kind is Kind.QUERY and not self.in_flight.readiness.ready
        return read and ms_between(pending.since, now) >= BAKERY_READ_MS

    def _undo(self, wait: InFlightRequest, now: Instant) -> list[Effect]:
        """Send a request to drop a wait that a leader has; no client waits for the reply."""
        name = wait.name._replace(kind=Kind.UNLOCK)
        return self._begin(InFlightRequest(name, None, wait.request, now, leader=wait.leader), now)

    def forget(self, clients: list[str], now: Instant) -> Effects:
        silent = set(clients)
        gone = len(self._end_waits(lambda session: client_of(session) in silent))
        return [Observe("proxy.wait_of_silent_client_ended", gone)] if gone else []

    def cancel_waits(self, clients: list[str], now: Instant) -> Effects:
        """End the waits of clients whose key was removed, and have the leaders drop them."""
        removed = set(clients)
        ended = self._end_waits(lambda session: client_of(session) in removed)
        return [effect for wait in ended if wait.sent for effect in self._undo(wait, now)]

    def gather_status(self, now: Instant) -> Effects:
        self.tickets = None
        return [Send(leader_of(self.node), ListTickets())]

    def _on_tally(self, sender: Address, tally: Tally, now: Instant) -> Effects:
        self.tickets = tally
        return []

    def status(self, now: Instant) -> Status | None:
        """Return the election and the locks.

        Where this node leads, the locks come from its tickets. Where no leader is ready, they are
        the locks awaited through this proxy. Otherwise the leaders describe them.
        """
        if self.tickets is None:
            return None
        readiness = self.in_flight.readiness
        leaders = tuple(self.in_flight.leaders())
        problems = [self.why_no_vote] if self.why_no_vote != readiness.detail else []
        detail = "; ".join(filter(None, (readiness.detail, *problems, self.why_times)))
        locks = self.tickets.locks
        if not self.tickets.serving and not readiness.ready:
            locks = self._awaited(now)
        priorities = {member.node: member.priority for member in readiness.members}
        members = tuple(
            MemberSeen(name, name in priorities, priorities.get(name, 0)) for name in self.members
        )
        elected = Elected(readiness.seating.epoch, leaders, members)
        return Status(readiness.ready, detail, locks, leaders[0] if leaders else "", elected)

    def _awaited(self, now: Instant) -> tuple[LockStatus, ...]:
        waiting: dict[str, list[Contender]] = {}
        for pending in self.in_flight.by_number.values():
            if pending.name.kind is Kind.LOCK and len(waiting) < BAKERY_LOCKS_SHOWN_MAX:
                who, since_ms = pending.name.who, ms_between(pending.since, now)
                waiter = Contender(self.node, who.session, who.owner, None, since_ms)
                waiting.setdefault(pending.name.lock, []).append(waiter)
        return tuple(
            LockStatus(
                lock=lock, holder=None, waiters=tuple(waiters[:WAITERS_SHOWN_MAX]), waits_for=()
            )
            for lock, waiters in sorted(waiting.items())
        )


def _granted(event: Locked) -> Granted:
    return Granted(
        **event.who._asdict(),
        lock=event.lock,
        request=event.request,
        fence=event.fence,
        hold_ms=event.hold_ms,
        grace_ms=event.grace_ms,
    )


def _notice(event: Unlocking | Expired) -> ClientUnlocking | HoldLost:
    lock, fence, who = event.lock, event.fence, event.who._asdict()
    if isinstance(event, Unlocking):
        return ClientUnlocking(**who, lock=lock, fence=fence, grace_ms=event.grace_ms)
    text = "its duration and its grace were over (timed out)"
    return HoldLost(**who, lock=lock, fence=fence, detail=text)


def _name_of(kind: Kind, request: LockAcquire | Release | Cancel | Renew) -> Name:
    return Name(kind, request.lock, Who(request.session, request.owner), request.request)


WATCHERS_MAX = 10_000
"""Maximum clients that wait at one proxy; a new one replaces the one that waits for longest."""

CHANGE_NUMBERS = 1 << 20
"""Changes, with numbers that differ from those in another life of the proxy."""

_LIVES = 1 << 31


class Watchers:
    """Answers each `Watch` once the cluster's state differs from the one that its sender knows.

    Each client is owed one answer at most, so a slow one receives only the newest state, and one
    that is gone is sent one message more.
    """

    def __init__(self, life: int) -> None:
        number = life % _LIVES * CHANGE_NUMBERS + 1
        self.state: ClusterUp | ClusterDown = ClusterDown(
            number=number, reason="starting", epoch=0, leaders=()
        )
        self.waiting: OrderedDict[Address, Watch] = OrderedDict()

    def watch(self, asker: Address, asked: Watch) -> list[Effect]:
        """Reply at once if the sender does not know the present state, else when it changes."""
        if asked.known != self.state.number:
            self.waiting.pop(asker, None)
            return [self._answer(asker, asked)]
        self.waiting[asker] = asked
        self.waiting.move_to_end(asker)
        if len(self.waiting) <= WATCHERS_MAX:
            return []
        displaced, former = self.waiting.popitem(last=False)
        return [Observe("proxy.watcher_displaced"), self._answer(displaced, former)]

    def see(self, readiness: Readiness) -> list[Effect]:
        """Store the cluster's state; answer all waiting clients, if it is new."""
        voters = {member.node for member in readiness.members if member.votes}
        electorate, seating = readiness.electorate, readiness.seating
        known: dict[str, Any] = {
            "number": self.state.number,
            "reason": readiness.detail,
            "epoch": seating.epoch,
            "leaders": tuple(leader.node for leader in seating.leaders),
        }
        state: ClusterUp | ClusterDown = ClusterDown(**known)
        if electorate.members and electorate.is_quorum(voters):
            complete = electorate.everyone.keys() <= voters
            state = ClusterUp(**known, complete=complete, ready=readiness.ready)
        if state == self.state:
            return []
        self.state = replace(state, number=state.number + 1)
        waiting, self.waiting = self.waiting, OrderedDict()
        return [self._answer(asker, asked) for asker, asked in waiting.items()]

    def _answer(self, asker: Address, asked: Watch) -> Send:
        return Send(asker, replace(self.state, session=asked.session, request=asked.request))
