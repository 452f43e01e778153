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


def greet(ledger: SessionState, gates: Iterable[Address], now: Instant) -> list[Effect]:
    """Send a keep-alive to each of ``gates``. Each number is used once."""
    ledger.greetings += 1
    order, session_lease = list(ledger.gates.table), ledger.session_lease
    effects: list[Effect] = []
    for gate in gates:
        number = ledger.greetings * len(order) + order.index(gate)
        if session_lease.kept:
            session_lease.note_sent(number, now)
        alive = KeepAlive(session=session_lease.spoken, request=number)
        effects.append(ledger.outstanding.say(gate, alive, now))
    return effects


def open_session(ledger: SessionState, now: Instant) -> list[Effect]:
    """Request a session, if one is wanted and an attempt is due.

    Each attempt has its own number, which identifies its send time: the session's TTL counts
    from there.
    """
    session_lease, outstanding = ledger.session_lease, ledger.outstanding
    if session_lease.stage is not Stage.OPENING or session_lease.due_at > now:
        return []
    if not ledger.session_used(now):
        session_lease.drop()  # The users that wanted it have given up.
        return []
    session_lease.due_at = paused(outstanding.random, session_lease.step_ms, now)
    session_lease.step_ms = min(2 * session_lease.step_ms, OPEN_MS_MAX)
    outstanding.number += 1
    session_lease.note_sent(outstanding.number, now)
    said = Open(
        session=session_lease.wanted,
        ttl_ms=session_lease.ttl_ms,
        label=session_lease.label,
        request=outstanding.number,
    )
    return [outstanding.say(gate, said, now) for gate in _targets(ledger)]


def keep_session(ledger: SessionState, now: Instant) -> list[Effect]:
    """Send a keep-alive, if anything needs the session and one is due."""
    session_lease = ledger.session_lease
    if not session_lease.kept or session_lease.due_at > now or not ledger.session_used(now):
        return []
    lost = (
        not ledger.gates.any_usable() or session_lease.suspected or ledger.outstanding.withdrawals
    )
    session_lease.due_at = later(
        now, min(session_lease.keep_ms, PROBE_MS) if lost else session_lease.keep_ms
    )
    return greet(ledger, _targets(ledger), now)


def probe(ledger: SessionState, now: Instant) -> None:
    """Send a keep-alive soon: a request had to be repeated."""
    session_lease = ledger.session_lease
    if session_lease.kept:
        soon = later(session_lease.last_sent_at, min(PROBE_MS, session_lease.keep_ms))
        session_lease.due_at = min(session_lease.due_at, max(soon, now))


def end_sessions(ledger: SessionState, now: Instant) -> list[Effect]:
    """Send `End` for sessions that were given up, repeatedly, for a while."""
    effects: list[Effect] = []
    for session, ending in list(ledger.endings.items()):
        if ending.gives_up_at <= now:
            del ledger.endings[session]  # It expires by itself.
            effects.append(Observe("client.end_unconfirmed"))
        elif ending.resend_at <= now:
            ending.resend_at = paused(ledger.outstanding.random, ending.step_ms, now)
            ending.step_ms = min(2 * ending.step_ms, RETRY_MS_MAX)
            gate = ledger.gates.choose().address
            ledger.outstanding.number += 1
            end = End(session=session, request=ledger.outstanding.number)
            effects.append(ledger.outstanding.say(gate, end, now, owes=False))
    return effects


def hasten(ledger: SessionState, now: Instant) -> list[Effect]:
    """Open the session or keep it alive at once: the endpoint in use has changed."""
    ledger.session_lease.due_at = now
    ledger.session_lease.step_ms = RETRY_MS
    return [*open_session(ledger, now), *keep_session(ledger, now)]


def _targets(ledger: SessionState) -> list[Address]:
    """Return the endpoint in use, or all, if none replies."""
    if ledger.gates.any_usable():
        return [ledger.gates.choose().address]
    return list(ledger.gates.table)
