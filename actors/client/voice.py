"""What a session says of itself: that it begins, that it lives, that it ends."""

from __future__ import annotations

from collections.abc import Iterable

from fencelock.actors.client.ledger import Ledger
from fencelock.actors.client.pacing import RETRY_MS, RETRY_MS_MAX, later, paused
from fencelock.actors.client.tenure import OPEN_MS_MAX, PROBE_MS, Stage
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.lock.message import KeepAlive
from fencelock.actors.lock.session_message import End, Open
from fencelock.actors.message import Address, Instant


def greet(ledger: Ledger, gates: Iterable[Address], now: Instant) -> list[Effect]:
    """Tell ``gates`` that the client, or its session, is there. Each number is said once."""
    ledger.greetings += 1
    order, tenure = list(ledger.gates.table), ledger.tenure
    effects: list[Effect] = []
    for gate in gates:
        number = ledger.greetings * len(order) + order.index(gate)
        if tenure.kept:
            tenure.note_sent(number, now)
        alive = KeepAlive(session=tenure.spoken, request=number)
        effects.append(ledger.outstanding.say(gate, alive, now))
    return effects


def open_session(ledger: Ledger, now: Instant) -> list[Effect]:
    """Ask for a session, if one is wanted and it is time to ask (again).

    Each attempt has a number of its own, which tells when it was made: how long the
    session lives counts from there.
    """
    tenure, outstanding = ledger.tenure, ledger.outstanding
    if tenure.stage is not Stage.OPENING or tenure.due_at > now:
        return []
    if not ledger.session_used(now):
        tenure.drop()  # Whoever wanted it has given up.
        return []
    tenure.due_at = paused(outstanding.random, tenure.step_ms, now)
    tenure.step_ms = min(2 * tenure.step_ms, OPEN_MS_MAX)
    outstanding.number += 1
    tenure.note_sent(outstanding.number, now)
    said = Open(
        session=tenure.wanted,
        ttl_ms=tenure.ttl_ms,
        label=tenure.label,
        request=outstanding.number,
    )
    return [outstanding.say(gate, said, now) for gate in _targets(ledger)]


def keep_session(ledger: Ledger, now: Instant) -> list[Effect]:
    """Say that the session lives, if anything needs it and it is time to."""
    tenure = ledger.tenure
    if not tenure.kept or tenure.due_at > now or not ledger.session_used(now):
        return []
    lost = not ledger.gates.any_usable() or tenure.suspected or ledger.outstanding.withdrawals
    tenure.due_at = later(now, min(tenure.keep_ms, PROBE_MS) if lost else tenure.keep_ms)
    return greet(ledger, _targets(ledger), now)


def probe(ledger: Ledger, now: Instant) -> None:
    """Have a sign of life asked for soon: a question had to be repeated."""
    tenure = ledger.tenure
    if tenure.kept:
        soon = later(tenure.last_sent_at, min(PROBE_MS, tenure.keep_ms))
        tenure.due_at = min(tenure.due_at, max(soon, now))


def end_sessions(ledger: Ledger, now: Instant) -> list[Effect]:
    """Say of sessions that were given up that they are over, again and for a while."""
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


def hasten(ledger: Ledger, now: Instant) -> list[Effect]:
    """Open the session or keep it alive at once: the gate in use is another one."""
    ledger.tenure.due_at = now
    ledger.tenure.step_ms = RETRY_MS
    return [*open_session(ledger, now), *keep_session(ledger, now)]


def _targets(ledger: Ledger) -> list[Address]:
    """Return the gate in use, or all, if none answers."""
    if ledger.gates.any_usable():
        return [ledger.gates.choose().address]
    return list(ledger.gates.table)
