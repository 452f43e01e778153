"""Regular work of a session: timeouts, repetition, links that change, the watch of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp, Watch
from fencelock.actors.api.lock_message import AcquireRequest
from fencelock.actors.api.session_message import Alive, Opened
from fencelock.actors.effect import Connect, Disconnect, Effect, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, later, ms_between
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.actors.session.endpoints import (
    BROKEN,
    REFUSED,
    come_back,
    leave,
    look_after,
    note_life,
    prefer_leader,
)
from fencelock.actors.session.event import ClusterState, Wait, Waiting, WatchCluster
from fencelock.actors.session.lease import (
    end_sessions,
    greet,
    keep_session,
    keep_soon,
    open_over,
    open_session,
)
from fencelock.actors.session.refusals import silence, wrong_cluster

if TYPE_CHECKING:
    from fencelock.actors.session.state import SessionState

ENDPOINT_WATCH_MS = 5_000
"""Interval of requests to an endpoint without a change (ms): it forgets silent clients."""

FIRST_MS = 500
"""The same while an endpoint has not replied at all (ms)."""

UNSURE_MS = 1_000
"""If a new endpoint has not replied within this time (ms), the last reply of the previous one
expires."""

NOBODY = Address("")
BEGINNING = Instant(0)


class ClusterPoll(Struct):
    """The last reply, its endpoint, and the last state sent to the watcher."""

    wanted: bool = False
    endpoint: Address = NOBODY
    """The endpoint asked last, as long as it is usable; another is asked from the beginning."""
    known: int = 0
    """The number of its last reply; 0 before the first."""
    request: int = 0
    due_at: Instant = BEGINNING
    unsure_since: Instant | None = None
    """The time since which the endpoint in use has not replied, or None if it has."""
    reported: ClusterState | None = None
    blind: bool = False
    """Whether the last notification to the watcher was an unknown state."""

    def report(self, watcher: Address | None, state: ClusterState) -> list[Effect]:
        """Send the watcher ``state``, if that is new."""
        self.blind = False
        if state == self.reported:
            return []
        self.reported = state
        return [] if watcher is None else [Send(watcher, state)]


def unknown(reason: str) -> ClusterState:
    return ClusterState(up=False, complete=False, ready=False, reason=reason, epoch=0, leaders=())


def state_of(reply: ClusterUp | ClusterDown) -> ClusterState:
    up = isinstance(reply, ClusterUp)
    return ClusterState(
        up=up,
        complete=isinstance(reply, ClusterUp) and reply.complete,
        ready=isinstance(reply, ClusterUp) and reply.ready,
        reason=reply.reason,
        epoch=reply.epoch,
        leaders=reply.leaders,
    )


def on_watch(state: SessionState, user: Address, event: WatchCluster, now: Instant) -> list[Effect]:
    """Begin to watch: from now on the session is opened and kept alive."""
    if state.closing.begun:
        return []
    state.cluster_poll.wanted = True
    return [*keep_watching(state, now), *open_session(state, now)]


def keep_watching(state: SessionState, now: Instant) -> list[Effect]:
    """Ask the endpoint in use, if that is due; report a state that has been unknown for long."""
    poll, endpoints, session_lease = state.cluster_poll, state.endpoints, state.session_lease
    if not poll.wanted:
        return []
    session_lease.need(now)
    used = endpoints.table[endpoints.current]
    endpoint = used.address if session_lease.ready and used.usable else NOBODY
    if endpoint != poll.endpoint or endpoint == NOBODY:
        poll.endpoint, poll.known, poll.due_at = endpoint, 0, now
        if poll.unsure_since is None:
            poll.unsure_since = now
    effects: list[Effect] = []
    if poll.due_at <= now:
        poll.due_at = later(now, ENDPOINT_WATCH_MS if poll.known else FIRST_MS)
        if endpoint != NOBODY:
            poll.request += 1
            watch = Watch(known=poll.known, session=session_lease.assigned, request=poll.request)
            owes = not poll.known  # A later reply comes only with a change.
            effects.append(state.in_flight.send(endpoint, watch, now, owes=owes))
    if poll.blind or poll.unsure_since is None:
        return effects
    if endpoints.any_usable() and now - poll.unsure_since < UNSURE_MS * NS_PER_MS:
        return effects
    effects += poll.report(
        state.watcher, unknown(f"no node says how it is: {endpoints.describe(now)}")
    )
    poll.blind = True
    return effects


def on_cluster_state(
    state: SessionState, sender: Address, reply: ClusterUp | ClusterDown, now: Instant
) -> list[Effect]:
    poll = state.cluster_poll
    is_last = sender == poll.endpoint and reply.request == poll.request
    if reply.session != state.session_lease.assigned or not poll.wanted or not is_last:
        return [Observe("client.late_answer_dropped")]
    poll.known, poll.due_at, poll.unsure_since = reply.number, now, None
    effects = note_life(state, sender, now)
    effects += poll.report(state.watcher, state_of(reply))
    return [*effects, *keep_watching(state, now)]


SESSIONLESS_KEEP_MS = 1_000
"""Interval of keep-alives to an endpoint at which anything is pending or held (ms).

It applies where the cluster keeps no sessions; else see `SessionLease.keep_ms`.
"""


def keep_up(state: SessionState, now: Instant) -> list[Effect]:
    """Run due work: send keep-alives, leave silent endpoints, end timed-out requests, repeat."""
    effects: list[Effect] = []
    owing = _owing(state, now)
    for endpoint in state.endpoints.table.values():
        if endpoint.address not in owing:
            endpoint.owing_since = None  # Its silence does not matter.
    if state.session_lease.kept:
        suspected = state.session_lease.suspect(now) if state.holds else None
        if suspected is not None and state.watcher is not None:
            effects.append(Send(state.watcher, suspected))
    elif not owing:
        state.greet_at = None
    elif state.greet_at is None or state.greet_at <= now:
        effects += greet(state, owing, now)
        state.greet_at = later(now, SESSIONLESS_KEEP_MS)
    for silent in state.endpoints.fall_silent(owing, now):
        effects.append(Observe("client.endpoint_silent"))
        effects += leave(state, silent, now)
    for pending in state.in_flight.over(now):
        if pending.survey:
            state.in_flight.drop(pending)
        else:
            effects.append(Observe("client.unanswered"))
            effects += state.refuse(pending, silence(pending, state.endpoints, now), now)
    repeated = state.in_flight.repeat(now)
    if repeated:
        keep_soon(state, now)
    effects += look_after(state, now, late=bool(repeated))
    effects += keep_watching(state, now)
    effects += speak(state, now)
    effects += [*repeated, *open_session(state, now), *keep_session(state, now)]
    return [*effects, *end_sessions(state, now), *state.finish_surveys()]


SPEAK_MS = 2_000
"""Wait of an acquire from which on the watcher is notified (ms)."""

SPEAK_AGAIN_MS = 30_000
"""Interval of such notifications for one lock (ms)."""

SPOKEN_MAX = 3
"""Most locks that a notification names."""


def speak(state: SessionState, now: Instant) -> list[Effect]:
    """Notify the watcher of acquires that wait for long, at most once a second."""
    if state.watcher is None or (state.speak_at is not None and now < state.speak_at):
        return []
    if state.speak_at is None:
        state.speak_at = later(now, SPEAK_MS) if state.in_flight.waits else None
        return []
    began: dict[str, Instant] = {}
    for pending in state.in_flight.pending.values():
        if pending.user is not None and isinstance(pending.request, AcquireRequest):
            lock = pending.request.lock
            began[lock] = min(pending.requested_at, began.get(lock, now))
    spoken = {lock: state.spoken[lock] for lock in began if lock in state.spoken}
    due = [
        Wait(lock, waited_ms)
        for lock, at in began.items()
        if (waited_ms := ms_between(at, now)) >= SPEAK_MS and spoken.get(lock, now) <= now
    ]
    spoken |= {wait.lock: later(now, SPEAK_AGAIN_MS) for wait in due}
    state.spoken, state.speak_at = spoken, later(now, SPEAK_MS // 2) if began else None
    if not due:
        return []
    used = state.endpoints.table[state.endpoints.current]
    answered = used.usable and used.received_at is not None
    if answered and used.owing_since is not None:
        answered = ms_between(used.owing_since, now) < SPEAK_MS // 2
    silence = "" if answered else state.endpoints.describe(now)
    more = max(0, len(due) - SPOKEN_MAX)
    waiting = Waiting(
        waits=tuple(due[:SPOKEN_MAX]), more=more, silence=silence, excuse=used.excuse_at(now)
    )
    return [Send(state.watcher, waiting)]


def on_link_up(state: SessionState, sender: Address, event: LinkUp, now: Instant) -> list[Effect]:
    """Send the node a keep-alive, since it may be new, and repeat its unanswered requests."""
    endpoint = state.endpoints.of_node(event.node)
    if endpoint is None:
        return [Observe("client.unknown_link")]
    revived = not endpoint.usable
    state.endpoints.linked(endpoint, now)
    state.in_flight.hurry(endpoint.address, now)
    effects = come_back(state, now) if revived else []
    effects += prefer_leader(state, now)
    effects += greet(state, [endpoint.address], now) + open_over(state, endpoint.address, now)
    return effects + state.in_flight.repeat(now) + keep_watching(state, now)


def on_link_down(
    state: SessionState, sender: Address, event: LinkDown, now: Instant
) -> list[Effect]:
    """Move the requests that can be moved to another endpoint."""
    endpoint = state.endpoints.of_node(event.node)
    if endpoint is None:
        return [Observe("client.unknown_link")]
    if endpoint.state is not REFUSED:
        endpoint.enter(BROKEN, now)
    left = leave(state, endpoint.address, now)
    left += keep_watching(state, now)
    idle = not state.in_flight.pending and not state.session_used(now)
    if idle and state.endpoints.any_usable():
        # The node may be gone forever, and with it one after the other: learn the members now.
        left += greet(state, [state.endpoints.choose().address], now)
    return [Observe("client.link_down"), *left, *state.finish_surveys()]


def follow_members(
    state: SessionState, sender: Address, reply: Alive | Opened, now: Instant
) -> list[Effect]:
    """Connect to the members that a node names, and drop those that it named before."""
    if sender.startswith(state.home):
        return []  # The callers inside a node use its own proxy.
    endpoints = state.endpoints
    new = endpoints.learn(reply.view, reply.members)
    effects: list[Effect] = [Connect(member.node, member.endpoint) for member in new]
    for endpoint in [one for one in endpoints.table.values() if one.left]:
        address = endpoint.address
        if endpoint.usable:
            endpoint.enter(BROKEN, now)
        effects += leave(state, address, now)
        needed = any(one.endpoint == address for one in state.in_flight.pending.values())
        if not needed and endpoints.current != address:
            del endpoints.table[address]
            effects.append(Disconnect(endpoint.node))
    return effects


def on_link_refused(
    state: SessionState, sender: Address, event: LinkRefused, now: Instant
) -> list[Effect]:
    """Stop using this endpoint; if it was the last, refuse every user's request."""
    endpoint = state.endpoints.of_node(event.node)
    if endpoint is None:
        return [Observe("client.unknown_link")]
    endpoint.enter(REFUSED, now)
    endpoint.refused, endpoint.by_key = event.detail, event.by_key
    effects: list[Effect] = [Observe("client.endpoint_refused")]
    if state.endpoints.all_refused():
        no = wrong_cluster(state.endpoints, now)
        for pending in list(state.in_flight.pending.values()):
            if not pending.survey:
                effects += state.refuse(pending, no, now)
    else:
        effects += leave(state, endpoint.address, now)
    return effects + keep_watching(state, now) + state.finish_surveys()


def _owing(state: SessionState, now: Instant) -> list[Address]:
    """Return the endpoints that owe a reply, in order; all, if a request waits and none replies.

    Where the cluster keeps no sessions, they get keep-alives.
    """
    in_flight, endpoints = state.in_flight, state.endpoints
    owing = {request.endpoint for request in in_flight.pending.values()}
    owing |= {cancel_key.endpoint or endpoints.current for cancel_key in in_flight.cancels}
    if not state.session_lease.kept:
        owing |= {hold.endpoint for hold in state.holds.values()}
    elif state.session_used(now):
        owing.add(endpoints.current)
    everyone = in_flight.pending and not endpoints.any_usable()
    return [endpoint for endpoint in endpoints.table if everyone or endpoint in owing]
