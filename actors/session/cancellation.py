"""Cancels requests whose user gave up, or does not exist any more."""

from __future__ import annotations

from fencelock.actors.api.message import Cancel, Cancelled, Reason, ReleaseRequest
from fencelock.actors.api.name import titled
from fencelock.actors.effect import Effect, Send
from fencelock.actors.message import Address, Instant, ms_between, role_of
from fencelock.actors.session.pending import ANY_GATE, Claim
from fencelock.actors.session.rejection import Rejection
from fencelock.actors.session.session_state import SessionState

LOST_MS = 500
"""A cancel unanswered for this long (ms) may be lost: its endpoint was silent."""

CANCELS_MAX = 100
"""Maximum cancels sent at one sign of life; the rest wait for the next."""


def cancel_again(ledger: SessionState, gate: Address, now: Instant) -> list[Effect]:
    """Repeat cancels that may have been lost, now that ``gate`` has sent something.

    Another owner may be queued behind a wait that is to be cancelled. So a cancel does not wait
    for the end of its pause, which grows while no endpoint replies.
    """
    outstanding = ledger.outstanding
    effects: list[Effect] = []
    for debt, withdrawal in outstanding.withdrawals.items():
        last = withdrawal.last_said_at or withdrawal.said_at
        if debt.gate in (ANY_GATE, gate) and ms_between(last, now) >= LOST_MS:
            effects.append(outstanding.cancel(debt, withdrawal, now))
            if len(effects) >= CANCELS_MAX:
                break
    return effects


def on_cancel(ledger: SessionState, user: Address, cancel: Cancel, now: Instant) -> list[Effect]:
    """Undo an acquire, whether it waits or was granted, and confirm that at once."""
    claim = Claim(cancel.lock, cancel.owner or role_of(user))
    effects: list[Effect] = []
    number = ledger.outstanding.waits.get(claim)
    waiting = None if number is None else ledger.outstanding.pending[number]
    if waiting is not None and waiting.asked.request == cancel.request:
        text = f"{titled(claim.lock)}: the wait was cancelled"
        effects += ledger.refuse(waiting, Rejection(Reason.CANCELLED, text), now)
    elif (hold := ledger.holds.get(claim)) is not None:
        for level in [level for level in hold.levels if level.token == cancel.request][:1]:
            effects += ledger.give_back(claim, level, now)
    cancelled = Cancelled(
        lock=cancel.lock,
        session=ledger.session_lease.name,
        owner=cancel.owner,
        request=cancel.request,
    )
    return [*effects, Send(user, cancelled)]


def on_abandon(ledger: SessionState, user: Address, now: Instant) -> list[Effect]:
    """Undo what ``user`` waited for, or was just granted: it does not exist any more."""
    effects: list[Effect] = []
    for pending in list(ledger.outstanding.pending.values()):
        if pending.user != user:
            continue
        if isinstance(pending.asked, ReleaseRequest):
            pending.user, pending.ends_at = None, None
        else:
            effects += ledger.outstanding.withdraw(pending, now)
    for claim, hold in list(ledger.holds.items()):
        for level in [level for level in hold.levels if level.user == user]:
            effects += ledger.give_back(claim, level, now)
    return effects
