"""The session role of a client: it sends requests, repeats them, and leaves silent endpoints.

A client has one session. Its users are threads, tasks, or roles of its own node. They send it
requests; it passes each one to an *endpoint*, the proxy of a node, and passes the reply back. Links
lose, repeat and reorder messages, nodes crash, and clocks drift. A user sees none of that: it
receives one reply, or is notified in time that there is none. What the session owes its users is
stated as invariants of `ClientSession`.

A request goes through these steps (`requests.py`). It is *filed* until it has a reply:

    user ── check (refusals.py) ── file ── send ──> endpoint
                  │                 │       ^  │
               refused              │       │  └─ no reply: repeated after growing pauses under the
                                    │       │     same number, here or at another endpoint
                                    │       └──── held back: until there is a session, until earlier
                                    │             requests of its key end, until a read has room
                                    └─ ends: by its reply, by its timeout, or with its session

- *Lock keys.* A lock key is a lock and an owner. The requests of one are sent one after another, in
  order. So a node knows one wait of a key at a time, and a release never overtakes an acquire.
- *Numbers.* The cluster applies a number at most once. A repetition has the number of the first
  attempt, and so has a request that moves to another endpoint, where the cluster keeps sessions.
- *Pending cancels.* When nobody waits for an acquire any more, it may still be granted. Forgetting
  it would leave a lock held by nobody. So its cancel is sent until an endpoint confirms it, and
  nothing else of that lock key is sent before.
- *Silence.* A timeout says nothing about the outcome. An acquire becomes a pending cancel; a
  release goes on in the background; an update is reported as unknown.

Two state machines decide what a user may rely on, and a third where requests go. Each is an enum
with a table of its moves:

- the session in the cluster, `Stage` in `lease.py`: none, opening, open, or unkept;
- each hold, `HoldState` in `holds.py`: held, unlocking, releasing, released or lost;
- each endpoint, `EndpointState` in `endpoints.py`: untried, live, doubted, unable, silent, broken
  or refused.

Time connects them. The cluster ends a session when nothing of it was received for its TTL, and then
grants its locks to others. The client cannot observe that, so it counts for itself: from when it
*sent* the last message that the cluster confirmed, on its own clock, less the drift of two clocks.
At that time it gives all holds up, whatever arrives later. A hold with a deadline is counted alike,
from when its request or its renewal was sent. The client's threads read `ClientHold.state_at` and
reach the same result without asking this role, also while the role is paused. That is safe because
the times only grow while a hold lives, and a lost hold never returns.

Where the cluster keeps no sessions (stage UNKEPT), a hold belongs to the node that granted it. Then
a release goes to that node, and a request that leaves a node is cancelled there and sent elsewhere
under a new number.

Endpoints are chosen with two aims. The session stays at one, since changing costs repetitions; and
it prefers the node that leads, which saves a hop.

Each event has one handler, in `HANDLERS`, which changes the `SessionState` and returns effects.
`handle` adds only what concerns all events: it judges what the client still believes before it
looks at the event, and it makes sure that a tick comes. The tick (`upkeep.py`) does whatever is due
by time: keep-alives, timeouts, repetitions, probes.

Source: Cary Gray and David Cheriton, "Leases", SOSP 1989; Mike Burrows, "The Chubby lock service",
OSDI 2006, sections 2.4 and 2.8; for numbers that make a repetition harmless: Diego Ongaro,
"Consensus: Bridging Theory and Practice", 2014, section 6.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.changes import CHANGES_WATCH_MS
from fencelock.actors.api.cluster_message import (
    ClusterDown,
    ClusterUp,
    Describe,
    NodeStatus,
    ProbeReply,
)
from fencelock.actors.api.lock_message import (
    Abandon,
    Cancel,
    CancellableRequest,
    Cancelled,
    ConfirmHold,
    Granted,
    HoldLost,
    Refused,
    Released,
    ReleaseRequest,
    Renewed,
    Unlocking,
    refused_by,
)
from fencelock.actors.api.name import titled
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.request import Reply, Request, is_watch
from fencelock.actors.api.retained import Recall
from fencelock.actors.api.session_message import Alive, Ended, Opened
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.error import AcquireCancelledError, FencelockError
from fencelock.actors.message import NS_PER_MS, Address, Instant, later, node_of, role_of
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.actors.session import endpoints, holds, replies, upkeep
from fencelock.actors.session.endpoints import ENDPOINTS_MAX, Endpoint, Endpoints
from fencelock.actors.session.event import (
    Close,
    Closed,
    EndpointChanged,
    EndWait,
    ReleaseUnawaited,
    SessionTick,
    Survey,
    Undecided,
    WatchCluster,
)
from fencelock.actors.session.holds import ClientHold, HoldState, judge_belief
from fencelock.actors.session.lease import (
    Ending,
    SessionLease,
    Stage,
    end_sessions,
    greet,
    open_session,
)
from fencelock.actors.session.refusals import check_claim, check_release, check_request, unfinished
from fencelock.actors.session.requests import (
    UNANSWERED_MS,
    CancelKey,
    LockKey,
    PendingCancel,
    SessionRequests,
    UserRequest,
    windows,
)
from fencelock.actors.session.state import Broadcast, SessionState

if TYPE_CHECKING:
    from random import Random

TTL_MS = 15_000
"""Default time for which the holds of a dead client stay taken (ms)."""

SESSION_TICK_MS = 100
"""Resolution of the session's timers (ms): they may be late by this much."""

_TICK_NS = SESSION_TICK_MS * NS_PER_MS

Event = (
    UserRequest
    | ReleaseUnawaited
    | Cancel
    | Abandon
    | EndWait
    | Close
    | Survey
    | WatchCluster
    | Undecided
    | Reply
    | HoldLost
    | ConfirmHold
    | Unlocking
    | Recall
    | LinkUp
    | LinkDown
    | LinkRefused
)
"""Everything that a session receives, besides its own timer."""


class ClientSession(Role[Event | SessionTick]):
    """Serves the threads of one client process, or roles of its own node.

    A user's ``session`` is ignored and its ``request`` is its own token, which the reply
    returns. On the wire the session numbers its own requests.

    Where the cluster keeps sessions, one is opened for the first acquire. All holds and waits
    belong to it, and any endpoint will do for any request. When it can no longer be trusted,
    its holds are lost, and its waits continue in the next one.

    Invariants:
        one-reply: A user receives one reply to a request, from an endpoint or the session.
        unwanted-grants-cancelled: A grant that no user waits for any more is cancelled until that
            is confirmed.
        one-endpoint-a-claim: Without a kept session the owner of a lock key waits at one endpoint
            at a time, or holds through one, never both.
        nothing-held-beyond-trust: Nothing is held after ``session_lease.until``, whatever the
            cluster sends later.

    Args:
        session: the id of this client, from which its node is named; without ``~`` and ``.``. The
            session of callers inside a node is named after the node and its life: ``n1/5f3a``.
        endpoints: the proxies it may use, 1 to `ENDPOINTS_MAX`, each on its own node; the first
            one is chosen at random, the others follow in order.
        random: chooses the first endpoint, and jitter.
        labels: the user's names of the endpoints, for texts; by default their nodes.
        watcher: the role of this node that receives `Suspected`, `Unlocking`, `HoldsLost`.
        retainer: the role of this node that receives `Recall`, and also `HoldsLost`.
        ttl_ms: time for which the cluster keeps the session without a keep-alive (ms).
        label: description of this client for people, such as host and process.
        secret: random digits in the names of its sessions, so that nobody else can use them.
        holds: an empty table for the holds, which the client's threads may read; see `ClientHold`.
        cancels: the same for the cancels that no endpoint has confirmed.
        stays: whether it keeps to its endpoints, and to the one in use for as long as it works.
        advice: advice that error texts give while no endpoint has ever answered.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        session: str,
        endpoints: tuple[Address, ...],
        random: Random,
        labels: tuple[str, ...] = (),
        watcher: Address | None = None,
        retainer: Address | None = None,
        ttl_ms: int = TTL_MS,
        label: str = "",
        secret: str = "",
        holds: dict[LockKey, ClientHold] | None = None,
        cancels: dict[CancelKey, PendingCancel] | None = None,
        stays: bool = False,
        advice: str = "",
    ) -> None:
        super().__init__(address, host)
        labels = labels or tuple(node_of(endpoint) for endpoint in endpoints)
        assert 1 <= len(endpoints) <= ENDPOINTS_MAX
        assert len({node_of(endpoint) for endpoint in endpoints}) == len(endpoints) == len(labels)
        assert not set("~.") & set(session.rpartition("/")[2])
        table = {
            endpoint: Endpoint(endpoint, label)
            for endpoint, label in zip(endpoints, labels, strict=True)
        }
        first = endpoints[random.randrange(len(endpoints))]
        known = Endpoints(table, first, stays=stays, advice=advice)
        session_lease = SessionLease(session, ttl_ms, label, secret)
        home = f"{node_of(address)}/"
        reads = windows(local=all(endpoint.startswith(home) for endpoint in endpoints))
        in_flight = SessionRequests(random, known, session_lease, reads)
        self.session_state = SessionState(known, in_flight, session_lease, home, watcher, retainer)
        if holds is not None:
            self.session_state.holds = holds
        if cancels is not None:
            in_flight.cancels = cancels
        self.used = table[known.current].label
        """The endpoint in use at the last tick, as its user named it."""
        self.round = 0
        self.wake_at: Instant | None = None

    def begin(self, now: Instant) -> Effects:
        """Send every endpoint a keep-alive, so that it is known which ones reply."""
        if all(
            endpoint.startswith(self.session_state.home)
            for endpoint in self.session_state.endpoints.table
        ):
            return ()  # The proxy of its own node does.
        return [
            *greet(self.session_state, self.session_state.endpoints.table, now),
            *self._rearm(SESSION_TICK_MS, now),
        ]

    def summary(self) -> Summary:
        """Return the session in force, empty if there is none, and the number of its holds."""
        return ("session", self.session_state.session_lease.assigned), (
            "holds",
            len(self.session_state.holds),
        )

    def handle(self, sender: Address, event: Event | SessionTick, now: Instant) -> Effects:
        """Process a request or a message, and make sure that the next tick comes in time."""
        state = self.session_state
        lost: list[Effect] = []
        expires_at = state.expires_at
        if now >= state.session_lease.until or (expires_at is not None and now >= expires_at):
            # nothing-held-beyond-trust: before any message that came meanwhile.
            lost = judge_belief(state, now)
        if type(event) is SessionTick:
            return [*lost, *self._on_tick(event, now)]
        try:
            effects = HANDLERS[type(event)](state, sender, event, now)
        except FencelockError as no:  # A check refused a request, and nothing was changed.
            effects = _refuse(sender, event, no)
        if state.closing.due_at is not None:
            effects += finish_closing(state, now)
        if lost:
            effects = [*lost, *effects]
        if (self.wake_at is None or self.wake_at > now + _TICK_NS) and state.busy():
            effects += self._rearm(SESSION_TICK_MS, now)
        return effects

    def _on_tick(self, tick: SessionTick, now: Instant) -> Effects:
        if tick.round != self.round:
            return ()
        self.wake_at = None
        effects = [
            *upkeep.keep_up(self.session_state, now),
            *self.session_state.in_flight.send_held_back(now),
            *self._endpoint_news(),
            *finish_closing(self.session_state, now),
        ]
        due = self.session_state.next_at(now)
        if due is None:
            return effects
        return [*effects, *self._rearm(max(SESSION_TICK_MS, -((now - due) // NS_PER_MS)), now)]

    def _endpoint_news(self) -> list[Effect]:
        """Notify the watcher if another endpoint is used than at the last tick."""
        endpoints, watcher = self.session_state.endpoints, self.session_state.watcher
        former, self.used = self.used, endpoints.table[endpoints.current].label
        if watcher is None or former == self.used:
            return []
        return [Send(watcher, EndpointChanged(endpoint=self.used, former=former))]

    def _rearm(self, after_ms: int, now: Instant) -> list[Effect]:
        """Set a timer for a tick in ``after_ms``, unless one comes before that."""
        at = Instant(now + after_ms * NS_PER_MS)
        if self.wake_at is not None and self.wake_at <= at:
            return []
        self.round += 1
        self.wake_at = at
        return [Wake(after_ms, SessionTick(round=self.round))]


STRANGER = Observe("client.stranger_dropped")
"""A request came from outside the session's own node."""


def _refuse(user: Address, event: Event | SessionTick, no: FencelockError) -> list[Effect]:
    """Refuse a request that was not filed."""
    match event:
        case Request():
            return [Send(user, refused_by(event, no))]
        case ReleaseUnawaited():
            return [Send(user, refused_by(event.release, no))]
        case Survey():
            return [Send(user, refused_by(Describe(), no))]
        case _:
            raise no


def on_unawaited(
    state: SessionState, user: Address, event: ReleaseUnawaited, now: Instant
) -> list[Effect]:
    """Release a hold as `on_release` does, without a time by which it must be confirmed."""
    return on_release(state, user, event.release, now, limit_ms=None)


def on_claim(
    state: SessionState, user: Address, claim: CancellableRequest, now: Instant
) -> list[Effect]:
    """Refuse an acquire or an update, or file it and send it to an endpoint."""
    if not user.startswith(state.home):
        return [STRANGER]
    lock_key = check_claim(state, user, claim, now)
    state.session_lease.need(now)
    in_flight, endpoint = state.in_flight, state.endpoints.choose().address
    limit_ms = claim.wait_ms if claim.WAITS else UNANSWERED_MS
    effects = in_flight.ask(user, claim, lock_key, endpoint, now, limit_ms=limit_ms)
    return effects or open_session(state, now)  # Without a session nothing was sent yet.


def on_request(
    state: SessionState, user: Address, request: UserRequest, now: Instant
) -> list[Effect]:
    """Refuse a user's request that takes no hold and ends none, or send it to an endpoint."""
    if not user.startswith(state.home):
        return [STRANGER]
    lock_key = check_request(state, request, now)
    limit_ms = CHANGES_WATCH_MS + UNANSWERED_MS if is_watch(request) else UNANSWERED_MS
    if isinstance(request, ReadBackup):
        endpoint = state.endpoints.choose_on(request.node)
    else:
        endpoint = state.endpoints.choose()
    in_flight = state.in_flight
    return in_flight.ask(user, request, lock_key, endpoint.address, now, limit_ms=limit_ms)


def on_release(
    state: SessionState,
    user: Address,
    release: ReleaseRequest,
    now: Instant,
    *,
    limit_ms: int | None = UNANSWERED_MS,
) -> list[Effect]:
    """Refuse a release, or file it and send it to an endpoint.

    It must be confirmed within ``limit_ms``; None for no limit.
    """
    if not user.startswith(state.home):
        return [STRANGER]
    lock_key, in_flight = check_release(state, release), state.in_flight
    state.session_lease.need(now)
    for number in in_flight.releases.get(lock_key, ()):
        pending = in_flight.pending[number]
        request = pending.request
        same = type(request) is type(release) and not release.PARTIAL
        same = same and isinstance(request, ReleaseRequest) and request.fence == release.fence
        if pending.user is None and same:  # It is in flight already: wait for its reply.
            pending.user, pending.request, pending.requested_at = user, release, now
            pending.ends_at = None if limit_ms is None else later(now, limit_ms)
            pending.owed = False
            in_flight.hurry(pending.endpoint, now)
            return in_flight.repeat(now)
    hold = state.holds[lock_key]
    if hold.state is not HoldState.RELEASING:
        hold.move(HoldState.RELEASING)
    endpoint = state.endpoint_for(hold)
    return in_flight.ask(user, release, lock_key, endpoint, now, limit_ms=limit_ms)


def on_survey(state: SessionState, user: Address, survey: Survey, now: Instant) -> list[Effect]:
    """Ask every endpoint to describe itself."""
    check_request(state, Describe(), now)
    state.surveys_begun += 1
    number = state.surveys_begun
    effects: list[Effect] = []
    missing: dict[Address, int] = {}
    for endpoint in state.endpoints.table:
        effects += state.in_flight.ask(
            None,
            Describe(roles=survey.roles),
            None,
            endpoint,
            now,
            limit_ms=survey.within_ms,
            survey=number,
        )
        missing[endpoint] = state.in_flight.number
    state.surveys[number] = Broadcast(user, missing)
    return [*effects, *state.finish_surveys()]


def on_undecided(
    state: SessionState, proxy: Address, event: Undecided, now: Instant
) -> list[Effect]:
    """Note why the proxy of this node does not reply."""
    state.endpoints.note_excuse(proxy, event.detail, now)
    return []


def on_cancel(state: SessionState, user: Address, cancel: Cancel, now: Instant) -> list[Effect]:
    """Undo an acquire, whether it waits or was granted, and confirm that at once.

    An acquire that its user is releasing already needs nothing more.
    """
    if not user.startswith(state.home):
        return [STRANGER]
    lock_key = LockKey(cancel.lock, cancel.owner or role_of(user))
    effects: list[Effect] = []
    number = state.in_flight.waits.get(lock_key)
    waiting = None if number is None else state.in_flight.pending[number]
    if waiting is not None and waiting.request.request == cancel.request:
        no = unfinished(waiting, _wait_cancelled(lock_key.lock))
        effects += state.refuse(waiting, no, now)
    elif (hold := state.holds.get(lock_key)) is not None:
        releases = state.in_flight.releases_of(lock_key)
        if all(release.request.request != cancel.request for release in releases):
            mine = [one for one in hold.acquisitions if one.token == cancel.request]
            for acquisition in mine[:1]:
                effects += state.give_back(lock_key, acquisition, now)
    cancelled = Cancelled(
        lock=cancel.lock,
        session=state.session_lease.name,
        owner=cancel.owner,
        request=cancel.request,
    )
    return [*effects, Send(user, cancelled)]


def on_end_wait(state: SessionState, user: Address, event: EndWait, now: Instant) -> list[Effect]:
    """Refuse an acquire that waits; do nothing if it was granted, or has ended."""
    number = state.in_flight.waits.get(LockKey(event.lock, event.owner))
    waiting = None if number is None else state.in_flight.pending[number]
    if waiting is None or waiting.request.request != event.request:
        return []
    return state.refuse(waiting, _wait_cancelled(event.lock), now)


def _wait_cancelled(lock: str) -> AcquireCancelledError:
    return AcquireCancelledError(f"{titled(lock)}: the wait was cancelled")


def on_abandon(state: SessionState, user: Address, event: Abandon, now: Instant) -> list[Effect]:
    """Undo what ``user`` waited for, or was just granted: it does not exist any more."""
    effects: list[Effect] = []
    for pending in list(state.in_flight.pending.values()):
        if pending.user != user:
            continue
        if isinstance(pending.request, ReleaseRequest):
            pending.user, pending.ends_at = None, None
        else:
            effects += state.in_flight.withdraw(pending, now)
    for lock_key, hold in list(state.holds.items()):
        for acquisition in hold.acquisitions:
            if acquisition.user == user:
                effects += state.give_back(lock_key, acquisition, now)
    return [*effects, *state.in_flight.send_held_back(now)]


SESSION_CLOSE_MS = 2_000
"""Timeout for confirmations of releases and cancels, or of the session's end (ms)."""


def on_close(state: SessionState, user: Address, event: Close, now: Instant) -> list[Effect]:
    """End all waits, and release all holds; ``user`` receives `Closed` in the end.

    A session that the cluster keeps is ended as a whole: its waits and holds need no further
    message. Otherwise every hold is released at the endpoint that granted it. Then
    the session is ended too, for a cluster that keeps holds by session: that also frees the holds
    that were granted through an endpoint that is down or forgot them.
    """
    closing = state.closing
    closing.closers = (*closing.closers, user)
    if closing.begun:
        closing.due_at = closing.due_at or now
        return []
    closing.begun = True
    state.cluster_poll.wanted = False
    closing.due_at = later(now, SESSION_CLOSE_MS)
    kept = state.session_lease.kept
    effects: list[Effect] = []
    no = AcquireCancelledError("the client was closed")
    for pending in list(state.in_flight.pending.values()):
        if pending.survey:
            state.in_flight.drop(pending)
        elif not isinstance(pending.request, ReleaseRequest) and kept:
            effects += state.reply_no(pending, unfinished(pending, no))
            state.in_flight.drop(pending)
        elif not isinstance(pending.request, ReleaseRequest):
            effects += state.refuse(pending, no, now)
    if kept:
        effects += _end_session(state, closing.due_at, now)
    else:
        effects += _release_all(state, now)
    return [*effects, *state.finish_surveys()]


def finish_closing(state: SessionState, now: Instant) -> list[Effect]:
    """Answer the closing calls once nothing more can be confirmed, or time is up."""
    closing = state.closing
    if closing.due_at is None:
        return []
    left = state.unconfirmed()
    if now < closing.due_at and any(state.endpoints.table[endpoint].usable for endpoint in left):
        return []
    if now < closing.due_at and state.session_lease.ready and not state.session_lease.kept:
        endpoint = state.endpoints.choose()
        if not closing.end_sent and endpoint.received_at is not None:
            closing.end_sent = True  # At the endpoint in use, since no other reply can come.
            return _end_session(state, closing.due_at, now)
        if closing.session and endpoint.usable:
            return []
    closers, closing.closers, closing.due_at = closing.closers, (), None
    if state.session_lease.kept:  # Without keep-alives it ends by its TTL.
        state.session_lease.drop()
        state.drop_holds()
    return [Send(user, Closed(unanswered=len(left))) for user in closers]


def _end_session(state: SessionState, due_at: Instant, now: Instant) -> list[Effect]:
    session = state.closing.session = state.session_lease.assigned
    state.endings[session] = Ending(due_at, now)
    return end_sessions(state, now)


def _release_all(state: SessionState, now: Instant) -> list[Effect]:
    if state.session_lease.stage is Stage.OPENING:
        state.session_lease.drop()
    effects: list[Effect] = []
    for lock_key, hold in state.holds.items():
        for acquisition in hold.acquisitions if lock_key not in state.in_flight.releases else ():
            effects += state.give_back(lock_key, acquisition, now)
    return effects


Handler = Callable[[SessionState, Address, Any, Instant], list[Effect]]


class Handlers(dict[type, Handler]):
    """The handler of each type of event. A type without an entry has that of its nearest base."""

    def __missing__(self, kind: type) -> Handler:
        for base in kind.__mro__:
            if (handler := self.get(base)) is not None:
                self[kind] = handler
                return handler
        raise KeyError(kind)


HANDLERS = Handlers(
    {
        # From users, who live on the session's own node.
        Request: on_request,
        CancellableRequest: on_claim,
        ReleaseRequest: on_release,
        ReleaseUnawaited: on_unawaited,
        Cancel: on_cancel,
        Abandon: on_abandon,
        EndWait: on_end_wait,
        Close: on_close,
        Survey: on_survey,
        WatchCluster: upkeep.on_watch,
        # Replies of endpoints.
        Reply: replies.on_reply,
        Granted: replies.on_granted,
        Released: replies.on_released,
        Renewed: replies.on_renewed,
        UpdateReply: replies.on_updated,
        NodeStatus: replies.on_status,
        Refused: replies.on_refused,
        Cancelled: replies.on_cancelled,
        Alive: replies.on_alive,
        Opened: replies.on_opened,
        Ended: holds.on_ended,
        # Notifications of endpoints.
        HoldLost: holds.on_hold_lost,
        ConfirmHold: holds.on_confirm_hold,
        Unlocking: holds.on_unlocking,
        Recall: holds.on_recall,
        ProbeReply: endpoints.on_reply,
        ClusterUp: upkeep.on_cluster_state,
        ClusterDown: upkeep.on_cluster_state,
        Undecided: on_undecided,
        # Links.
        LinkUp: upkeep.on_link_up,
        LinkDown: upkeep.on_link_down,
        LinkRefused: upkeep.on_link_refused,
    }
)
