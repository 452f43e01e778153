"""Regular tasks of a session: keep-alives, repetition, links that change, the cluster watch."""

from __future__ import annotations

from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp
from fencelock.actors.api.message import Alive
from fencelock.actors.api.session_message import Opened
from fencelock.actors.effect import Connect, Disconnect, Effect, Observe
from fencelock.actors.message import Address, Instant
from fencelock.actors.role_message import LinkRefused
from fencelock.actors.session import endpoint_selection
from fencelock.actors.session.endpoint_selection import come_back, hear, prefer_master
from fencelock.actors.session.keep_alive import (
    end_sessions,
    greet,
    hasten,
    keep_session,
    open_session,
    probe,
)
from fencelock.actors.session.pending import later
from fencelock.actors.session.rejection import silence, wrong_cluster
from fencelock.actors.session.session_state import SessionState, state_of


def watch(state: SessionState, now: Instant) -> list[Effect]:
    """Begin to watch: from now on the session is opened and kept alive."""
    state.cluster_poll.wanted = True
    return [*keep_watching(state, now), *open_session(state, now)]


def keep_watching(state: SessionState, now: Instant) -> list[Effect]:
    """Ask the endpoint in use, if that is due; report a state that is unknown."""
    cluster_poll, endpoints, session_lease = (
        state.cluster_poll,
        state.endpoints,
        state.session_lease,
    )
    if not cluster_poll.wanted:
        return []
    session_lease.need(now)
    effects: list[Effect] = []
    endpoint = endpoints.table[endpoints.current]
    if not session_lease.ready or not endpoint.usable:
        cluster_poll.forget(now)
    elif (word := cluster_poll.ask(endpoint.address, session_lease.assigned, now)) is not None:
        owes = not cluster_poll.known  # A later reply comes only with a change.
        effects.append(state.in_flight.send(endpoint.address, word, now, owes=owes))
    return [*effects, *cluster_poll.tell_unknown(state.watcher, endpoints, now)]


def on_news(
    state: SessionState, sender: Address, word: ClusterUp | ClusterDown, now: Instant
) -> list[Effect]:
    """Pass on the state of the cluster, and ask for the next."""
    if word.session != state.session_lease.assigned or not state.cluster_poll.hear(
        sender, word, now
    ):
        return [Observe("client.late_answer_dropped")]
    effects = hear(state, sender, now)
    effects += state.cluster_poll.tell(state.watcher, state_of(word))
    return [*effects, *keep_watching(state, now)]


KEEPALIVE_MS = 1_000
"""Interval of keep-alives to an endpoint at which anything is pending or held (ms).

It applies where the cluster keeps no sessions; else see `SessionLease.keep_ms`.
"""


def keep_up(state: SessionState, now: Instant) -> list[Effect]:
    """Run due work: send keep-alives, leave silent endpoints, end timed-out requests, repeat."""
    effects: list[Effect] = []
    busy = _busy(state, now)
    _forgive_idle(state, busy)
    if state.session_lease.kept:
        effects += state.tell_watcher(now)
    elif not (greeted := _greeted(state, busy)):
        state.greet_at = None
    elif state.greet_at is None or state.greet_at <= now:
        effects += greet(state, greeted, now)
        state.greet_at = later(now, KEEPALIVE_MS)
    for endpoint in state.endpoints.fall_silent(busy, now):
        effects.append(Observe("client.endpoint_silent"))
        effects += _leave(state, endpoint, now)
    for pending in state.in_flight.over(now):
        if pending.survey:
            state.in_flight.drop(pending)
        else:
            effects.append(Observe("client.unanswered"))
            effects += state.refuse(pending, silence(pending, state.endpoints, now), now)
    repeated = state.in_flight.repeat(now)
    if repeated:
        probe(state, now)
    effects += endpoint_selection.look_after(state, now, late=bool(repeated))
    effects += keep_watching(state, now)
    effects += [*repeated, *open_session(state, now), *keep_session(state, now)]
    return [*effects, *end_sessions(state, now), *state.finish_surveys()]


def on_link_up(state: SessionState, node: str, now: Instant) -> list[Effect]:
    """Send ``node`` a keep-alive, since it may be new, and repeat its unanswered requests."""
    endpoint = state.endpoints.of_node(node)
    if endpoint is None:
        return [Observe("client.unknown_link")]
    revived = not endpoint.usable
    state.endpoints.linked(endpoint, now)
    state.in_flight.hurry(endpoint.address, now)
    effects = come_back(state, now) if revived else []
    effects += prefer_master(state, now)
    effects += greet(state, [endpoint.address], now)
    return effects + state.in_flight.repeat(now) + keep_watching(state, now)


def on_link_down(state: SessionState, node: str, now: Instant) -> list[Effect]:
    """Move the requests that can be moved to another endpoint."""
    endpoint = state.endpoints.of_node(node)
    if endpoint is None:
        return [Observe("client.unknown_link")]
    endpoint.down = True
    left = _leave(state, endpoint.address, now)
    left += keep_watching(state, now)
    idle = not state.in_flight.pending and not state.session_used(now)
    if idle and state.endpoints.any_usable():
        # The node may be gone for ever, and with it one after the other: learn the members now.
        left += greet(state, [state.endpoints.choose().address], now)
    return [Observe("client.link_down"), *left, *state.finish_surveys()]


def follow_members(
    state: SessionState, sender: Address, answer: Alive | Opened, now: Instant
) -> list[Effect]:
    """Connect to the members that a node names, and drop those that it named before."""
    if sender.startswith(state.home):
        return []  # The callers inside a node use its own proxy.
    endpoints = state.endpoints
    new = endpoints.learn(answer.view, answer.members)
    effects: list[Effect] = [Connect(member.node, member.endpoint) for member in new]
    for endpoint in [one for one in endpoints.table.values() if one.left]:
        address = endpoint.address
        endpoint.down = True
        effects += _leave(state, address, now)
        needed = any(one.endpoint == address for one in state.in_flight.pending.values())
        if not needed and endpoints.current != address:
            del endpoints.table[address]
            effects.append(Disconnect(endpoint.node))
    return effects


def on_link_refused(state: SessionState, event: LinkRefused, now: Instant) -> list[Effect]:
    """Stop using this endpoint; if it was the last, refuse every user's request."""
    endpoint = state.endpoints.of_node(event.node)
    if endpoint is None:
        return [Observe("client.unknown_link")]
    endpoint.refused, endpoint.by_key = event.detail, event.by_key
    effects: list[Effect] = [Observe("client.endpoint_refused")]
    if state.endpoints.all_refused():
        no = wrong_cluster(state.endpoints, now)
        for pending in list(state.in_flight.pending.values()):
            if not pending.survey:
                effects += state.refuse(pending, no, now)
    else:
        effects += _leave(state, endpoint.address, now)
    return effects + keep_watching(state, now) + state.finish_surveys()


def _leave(state: SessionState, endpoint: Address, now: Instant) -> list[Effect]:
    """Leave ``endpoint``; if it was the one in use, announce the session to the next at once."""
    former = state.endpoints.current
    effects = state.in_flight.leave(endpoint, now)
    if state.endpoints.current != former:
        effects += hasten(state, now)
    return effects


def _busy(state: SessionState, now: Instant) -> list[Address]:
    """Return the endpoints that need keep-alives, in order; all, if none replies."""
    in_flight, endpoints = state.in_flight, state.endpoints
    used = {question.endpoint for question in in_flight.pending.values()}
    if state.session_lease.kept:
        used |= {endpoints.current} if state.session_used(now) else set()
    else:
        used |= {hold.endpoint for hold in state.holds.values()}
    if in_flight.pending and not endpoints.any_usable():
        return list(endpoints.table)
    return [endpoint for endpoint in endpoints.table if endpoint in used]


def _greeted(state: SessionState, busy: list[Address]) -> list[Address]:
    """Return the endpoints that get keep-alives: busy ones, and those that owe a `Cancelled`."""
    owing = {debt.endpoint or state.endpoints.current for debt in state.in_flight.withdrawals}
    return [endpoint for endpoint in state.endpoints.table if endpoint in owing or endpoint in busy]


def _forgive_idle(state: SessionState, busy: list[Address]) -> None:
    """Ignore the silence of an endpoint that owes us nothing."""
    owing = {debt.endpoint or state.endpoints.current for debt in state.in_flight.withdrawals}
    for endpoint in state.endpoints.table.values():
        if endpoint.address not in busy and endpoint.address not in owing:
            endpoint.owing_since = None
