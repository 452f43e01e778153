"""Chooses the endpoint that a session uses: leaves one that is silent, and probes others."""

from __future__ import annotations

from fencelock.actors.api.probe_message import Probe, ProbeReply
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.session.cancellation import cancel_again
from fencelock.actors.session.endpoint import Endpoint
from fencelock.actors.session.keep_alive import hasten
from fencelock.actors.session.session_state import SessionState
from fencelock.actors.timing import TIMING


def hear(state: SessionState, endpoint: Address, now: Instant) -> list[Effect]:
    """Record that ``endpoint`` sent something; if given up, move stranded requests to it."""
    known = state.endpoints.table.get(endpoint)
    if known is None:
        return []
    effects: list[Effect] = []
    if known.heard(now):
        known.serving = True
        state.probing.judge(known, now)
        effects += [*come_back(state, now), *prefer_master(state, now)]
    if state.in_flight.withdrawals:
        effects += cancel_again(state, endpoint, now)
    return effects


def come_back(state: SessionState, now: Instant) -> list[Effect]:
    """Move requests that are stranded at unusable endpoints to one that is usable again."""
    effects: list[Effect] = [Observe("client.endpoint_back")]
    for endpoint in state.endpoints.table.values():
        if not endpoint.usable:
            effects += state.in_flight.leave(endpoint.address, now)
    return effects


def prefer_master(state: SessionState, now: Instant) -> list[Effect]:
    """Use the master's endpoint, which saves a hop, if it is known and usable."""
    endpoints = state.endpoints
    master, former = endpoints.of_master(), endpoints.current
    if not state.session_lease.kept or master is None or master.address == former:
        return []
    endpoints.current = master.address
    moved = state.in_flight.move(former, master.address, now)
    return [Observe("client.master_preferred"), *moved]


def note_node(
    state: SessionState, sender: Address, node: str, master: str, now: Instant
) -> list[Effect]:
    """Note the node behind an endpoint, and the one that leads; act on changes only.

    A leader that reported that it cannot serve is not used until followers must have noticed as
    well.
    """
    endpoints = state.endpoints
    endpoint = endpoints.table.get(sender)
    if endpoint is None:
        return []
    for other in endpoints.table.values() if master else ():
        if other.node == master and not other.serving:
            own = master == node
            other.serving = own or not other.seen_within(2 * TIMING.election_ms, now)
    news = (master and master != endpoints.master) or (node and node != endpoint.node)
    if not news:
        return []
    endpoint.node, endpoints.master = node or endpoint.node, master or endpoints.master
    return prefer_master(state, now)


def look_after(state: SessionState, now: Instant, *, late: bool) -> list[Effect]:
    """Probe the endpoint in use if requests are ``late``, and the others if it does not reply."""
    endpoints, probing = state.endpoints, state.probing
    endpoint = endpoints.table[endpoints.current]
    waits = state.in_flight.pending or state.in_flight.withdrawals
    if (
        not state.session_lease.kept
        or not endpoint.usable
        or not waits
        or len(endpoints.table) == 1
    ):
        probing.end()
        return []
    if probing.endpoint != endpoint.address or probing.is_over(endpoint):
        probing.end()
    if probing.due_at is None:
        if endpoint.serving and (not late or endpoint.seen_within(probing.patience_ms, now)):
            return []
        probing.begin(endpoint.address, now)
        return [_probe(state, endpoint)]
    if probing.due_at > now:
        return []
    return _probe_all(state, now)


def on_reply(state: SessionState, sender: Address, reply: ProbeReply, now: Instant) -> list[Effect]:
    """Note whether an endpoint serves; use it if the current one is silent or cannot serve."""
    endpoints, probing, session_lease = state.endpoints, state.probing, state.session_lease
    endpoint = endpoints.table.get(sender)
    if endpoint is None or reply.session not in (session_lease.name, session_lease.assigned):
        return [Observe("client.answer_of_another_session_dropped")]
    endpoint.seen_at, endpoint.serving = now, reply.serving
    effects: list[Effect] = []
    if reply.serving:
        if endpoint.down:
            effects += hear(state, sender, now)
        effects += note_node(state, sender, reply.node, reply.leader, now)
        effects += prefer_master(state, now)
    used = endpoints.table[endpoints.current]
    if not session_lease.kept or not used.usable or not endpoint.usable:
        return effects
    if used is endpoint:
        waits = state.in_flight.pending or state.in_flight.withdrawals
        if endpoint.serving or not waits or probing.due_at is not None or len(endpoints.table) == 1:
            return effects
        probing.begin(endpoint.address, now)
        return [*effects, *_probe_all(state, now)]
    if probing.finds_silent(used, now):
        used.down, used.left_at = True, now
        return [*effects, Observe("client.endpoint_silent"), *_leave_for(state, endpoint, now)]
    if not used.serving and endpoint.serving:
        return [*effects, Observe("client.endpoint_not_serving"), *_leave_for(state, endpoint, now)]
    return effects


def _leave_for(state: SessionState, endpoint: Endpoint, now: Instant) -> list[Effect]:
    state.probing.end()
    former, state.endpoints.current = state.endpoints.current, endpoint.address
    moved = state.in_flight.move(former, endpoint.address, now)
    return [*moved, *hasten(state, now)]


def _probe_all(state: SessionState, now: Instant) -> list[Effect]:
    """Probe every usable endpoint, the one in use included: it may reply after all."""
    state.probing.again(now)
    return [
        _probe(state, endpoint) for endpoint in state.endpoints.table.values() if endpoint.usable
    ]


def _probe(state: SessionState, endpoint: Endpoint) -> Send:
    state.probing.number += 1
    return Send(
        endpoint.address, Probe(session=state.session_lease.name, request=state.probing.number)
    )
