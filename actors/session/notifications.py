"""Notifications about a session's holds: they were taken away, or soon will be."""

from __future__ import annotations

from fencelock.actors.api.session_message import (
    ConfirmHold,
    DisownHold,
    Ended,
    HoldLost,
    Unlocking,
)
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.session import lease
from fencelock.actors.session.endpoint_selection import hear
from fencelock.actors.session.pending import Claim
from fencelock.actors.session.session_loss import lose
from fencelock.actors.session.session_state import SessionState


def on_ended(ledger: SessionState, sender: Address, ended: Ended, now: Instant) -> list[Effect]:
    """Note that a session has ended: one that was given up, or the one in force."""
    if ledger.endings.pop(ended.session, None) is not None:
        return hear(ledger, sender, now)
    if not ledger.session_lease.kept or ended.session != ledger.session_lease.assigned:
        return [Observe("client.late_answer_dropped")]
    effects = hear(ledger, sender, now)
    return effects + lose(ledger, f"the session ended: {ended.detail}", now, ended=True)


def on_hold_lost(
    ledger: SessionState, sender: Address, word: HoldLost, now: Instant
) -> list[Effect]:
    """Note that one hold was taken away, possibly before its grant arrived."""
    if not ledger.session_lease.ready or word.session != ledger.session_lease.assigned:
        return [Observe("client.answer_of_another_session_dropped")]
    effects = hear(ledger, sender, now)
    claim = Claim(word.lock, word.owner)
    hold = ledger.holds.get(claim)
    if hold is not None and hold.fence == word.fence:
        if hold.lease is not None and now < hold.lease.until:
            # One leader's clock is early; the others keep the hold, so no other owner gets it yet.
            return [*effects, Observe("client.early_loss_dropped")]
        return effects + ledger.lose_hold(claim, word.detail)
    if hold is None and claim in ledger.outstanding.waits:
        ledger.memory.add(claim, word.fence, 1, word.detail)
    return effects


def on_confirm_hold(
    ledger: SessionState, sender: Address, word: ConfirmHold, now: Instant
) -> list[Effect]:
    """Tell a node that lost its memory if one of its holds is not ours.

    A client that disowns a hold must never take a late grant of it. So each wait for the lock
    is sent again under a new number: only a grant of the latest number is accepted.
    """
    session_lease, outstanding = ledger.session_lease, ledger.outstanding
    known = (
        word.session in (session_lease.name, session_lease.assigned)
        and sender in ledger.gates.table
    )
    if session_lease.kept or not known:
        return [Observe("client.answer_of_another_session_dropped")]
    effects = hear(ledger, sender, now)
    if any(claim.lock == word.lock and h.fence == word.fence for claim, h in ledger.holds.items()):
        return effects
    for number in [n for claim, n in outstanding.waits.items() if claim.lock == word.lock]:
        waiting = outstanding.pending[number]
        if waiting.said_at is not None:
            effects += outstanding.again(waiting, waiting.gate, now)
    disown = DisownHold(lock=word.lock, fence=word.fence, session=word.session)
    return [*effects, Send(sender, disown), Observe("client.hold_disowned")]


def on_unlocking(
    ledger: SessionState, sender: Address, word: Unlocking, now: Instant
) -> list[Effect]:
    """Pass on that a duration is over: the holder must decide."""
    if not ledger.session_lease.kept or word.session != ledger.session_lease.assigned:
        return [Observe("client.answer_of_another_session_dropped")]
    return [*hear(ledger, sender, now), *lease.on_unlocking(ledger, word, now)]
