"""Messages about the session itself: it opens, lives, ends."""

from __future__ import annotations

from collections.abc import Iterable

from fencelock.actors.api.message import KeepAlive
from fencelock.actors.api.session_message import End, Open
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.message import Address, Instant
from fencelock.actors.session.pending import RETRY_MS, RETRY_MS_MAX, later, paused
from fencelock.actors.session.session_lease import OPEN_MS_MAX, PROBE_MS, Stage
from fencelock.actors.session.session_state import SessionState


def greet(state: SessionState, endpoints: Iterable[Address], now: Instant) -> list[Effect]:
    """Send a keep-alive to each of ``endpoints``. Each number is used once."""
    order, session_lease = list(state.endpoints.table), state.session_lease
    state.greetings += len(order)
    effects: list[Effect] = []
    for endpoint in endpoints:
        number = state.greetings + order.index(endpoint)
        if session_lease.kept:
            session_lease.note_sent(number, now)
        alive = KeepAlive(session=session_lease.spoken, request=number)
        effects.append(state.in_flight.send(endpoint, alive, now))
    return effects


def open_session(state: SessionState, now: Instant) -> list[Effect]:
    """Request a session, if one is wanted and an attempt is due.

    Each attempt has its own number, which identifies its send time: the session's TTL counts
    from there.
    """
    session_lease, in_flight = state.session_lease, state.in_flight
    if session_lease.stage is not Stage.OPENING or session_lease.due_at > now:
        return []
    if not state.session_used(now):
        session_lease.drop()  # The users that wanted it have given up.
        return []
    session_lease.due_at = paused(in_flight.random, session_lease.step_ms, now)
    session_lease.step_ms = min(2 * session_lease.step_ms, OPEN_MS_MAX)
    in_flight.number += 1
    session_lease.note_sent(in_flight.number, now)
    said = Open(
        session=session_lease.wanted,
        ttl_ms=session_lease.ttl_ms,
        label=session_lease.label,
        request=in_flight.number,
    )
    return [in_flight.send(endpoint, said, now) for endpoint in _targets(state)]


def keep_session(state: SessionState, now: Instant) -> list[Effect]:
    """Send a keep-alive, if anything needs the session and one is due."""
    session_lease = state.session_lease
    if not session_lease.kept or session_lease.due_at > now or not state.session_used(now):
        return []
    lost = (
        not state.endpoints.any_usable() or session_lease.suspected or state.in_flight.withdrawals
    )
    session_lease.due_at = later(
        now, min(session_lease.keep_ms, PROBE_MS) if lost else session_lease.keep_ms
    )
    return greet(state, _targets(state), now)


def probe(state: SessionState, now: Instant) -> None:
    """Send a keep-alive soon: a request had to be repeated."""
    session_lease = state.session_lease
    if session_lease.kept:
        soon = later(session_lease.last_sent_at, min(PROBE_MS, session_lease.keep_ms))
        session_lease.due_at = min(session_lease.due_at, max(soon, now))


def end_sessions(state: SessionState, now: Instant) -> list[Effect]:
    """Send `End` for sessions that were given up, repeatedly, for a while."""
    effects: list[Effect] = []
    for session, ending in list(state.endings.items()):
        if ending.gives_up_at <= now:
            del state.endings[session]  # It expires by itself.
            effects.append(Observe("client.end_unconfirmed"))
        elif ending.resend_at <= now:
            ending.resend_at = paused(state.in_flight.random, ending.step_ms, now)
            ending.step_ms = min(2 * ending.step_ms, RETRY_MS_MAX)
            endpoint = state.endpoints.choose().address
            state.in_flight.number += 1
            end = End(session=session, request=state.in_flight.number)
            effects.append(state.in_flight.send(endpoint, end, now, owes=False))
    return effects


def hasten(state: SessionState, now: Instant) -> list[Effect]:
    """Open the session or keep it alive at once: the endpoint in use has changed."""
    state.session_lease.due_at = now
    state.session_lease.step_ms = RETRY_MS
    return [*open_session(state, now), *keep_session(state, now)]


def _targets(state: SessionState) -> list[Address]:
    """Return the endpoint in use, or all, if none replies."""
    if state.endpoints.any_usable():
        return [state.endpoints.choose().address]
    return list(state.endpoints.table)
