"""The loss of holds: when a client decides that its locks are lost, and what follows.

The session decides it in four cases, and every one ends in `Hold.lose`:

- its session may have ended, by the client's clock (`judge_belief`), or the cluster ended it
  (`lose`): all holds are lost;
- the deadline of a hold is over, by the client's clock (`fencelock.actors.session.lease`);
- the cluster took one hold away (`fencelock.actors.session.notifications`), or no longer knows
  it (`let_go`).

A thread of the client may read a hold before the session has handled the time that passed. It then
decides by the same clock and the same times, in `Hold.state_at`.
"""

from __future__ import annotations

from fencelock.actors.api.message import (
    AcquireRequest,
    Reason,
    Refused,
    ReleaseRequest,
)
from fencelock.actors.api.session_message import Renew
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.message import Instant, ms_between
from fencelock.actors.session import lease
from fencelock.actors.session.backoff import later
from fencelock.actors.session.holding import Hold
from fencelock.actors.session.keep_alive import end_sessions, open_session
from fencelock.actors.session.message import Loss
from fencelock.actors.session.pending import Claim, Pending
from fencelock.actors.session.rejection import lost
from fencelock.actors.session.session_lease import Ending
from fencelock.actors.session.session_state import SessionState

END_TTLS = 2
"""Number of TTLs for which `End` is sent for a session given up; after them it is over."""

ENDINGS_MAX = 16
"""Maximum sessions given up at a time; beyond it the oldest expires by itself."""

GONE = frozenset({Reason.NOT_HELD, Reason.OWNERSHIP_LOST})
"""Refusals after which there is no hold to release."""


def judge_belief(ledger: SessionState, now: Instant) -> list[Effect]:
    """Lose the session if it may have ended: later messages of the cluster do not count."""
    session_lease = ledger.session_lease
    if not session_lease.passed(now):
        return lease.judge(ledger, now) if ledger.lapses_at is not None else []
    silent = ms_between(session_lease.confirmed_at, now) / 1000
    detail = (
        f"nothing confirmed the session for {silent:.1f} s, its TTL is "
        f"{session_lease.lived_ms / 1000:g} s; nodes: {ledger.gates.describe(now)}"
    )
    return lose(ledger, detail, now, ended=False)


def lose(ledger: SessionState, detail: str, now: Instant, *, ended: bool) -> list[Effect]:
    """Give up the session: its holds are lost, its waits continue in the next one.

    Args:
        ledger: the session's state.
        detail: the reason, in words.
        now: the time.
        ended: whether the cluster ended it; if not, `End` is sent, since it may live.

    """
    questions, holds = ledger.claims_pending(), dict(ledger.holds)
    needed = bool(questions or holds or ledger.outstanding.withdrawals)
    session = ledger.session_lease.drop()
    for hold in holds.values():
        hold.lose(detail)
    ledger.outstanding.withdrawals.clear()
    effects: list[Effect] = [Observe("client.session_lost")]
    if holds:
        losses = tuple(Loss(claim.lock, claim.owner, hold.fence) for claim, hold in holds.items())
        effects += ledger.report_losses(losses, detail)
    told: dict[Claim, int] = {}
    for pending in questions:
        effects += _end_or_go_on(ledger, pending, holds, told, detail)
    for claim, hold in holds.items():
        times = len(hold.levels) - told.get(claim, 0)
        ledger.note_loss(claim, hold, times, detail)
    ledger.drop_holds()
    if needed and not ended:
        if len(ledger.endings) >= ENDINGS_MAX:
            del ledger.endings[next(iter(ledger.endings))]
        gives_up_at = later(now, END_TTLS * ledger.session_lease.lived_ms)
        ledger.endings[session] = Ending(gives_up_at, now)
        effects += end_sessions(ledger, now)
    if ledger.claims_pending():
        ledger.session_lease.need(now)
        effects += open_session(ledger, now)
    return effects


def _end_or_go_on(
    ledger: SessionState,
    pending: Pending,
    holds: dict[Claim, Hold],
    told: dict[Claim, int],
    detail: str,
) -> list[Effect]:
    """Report the loss to a claim that held the lock (rules 59, 65); let others wait on (58)."""
    claim = pending.claim
    assert claim is not None
    hold = holds.get(claim)
    if hold is None:
        pending.said, pending.said_at, pending.renewed_at = 0, None, None
        return []
    ledger.outstanding.drop(pending)
    asked = pending.asked
    if isinstance(asked, ReleaseRequest) and pending.user is not None and not asked.PARTIAL:
        told[claim] = told.get(claim, 0) + 1
    return ledger.reply_no(pending, lost(claim, hold.fence, detail))


def let_go(ledger: SessionState, claim: Claim, pending: Pending, answer: Refused) -> list[Effect]:
    """Drop a hold that has ended; a later one, under another fence, is not affected."""
    hold = ledger.holds.get(claim)
    if hold is None or answer.reason not in GONE:
        return []
    match pending.asked:
        case ReleaseRequest(fence=fence) if fence == hold.fence:
            told, others = pending.user is not None, len(hold.levels) > (not pending.owed)
            if pending.asked.PARTIAL:
                told, others = False, True
        case Renew(fence=fence) if fence == hold.fence:
            told, others = False, True
        case AcquireRequest():
            told, others = False, True
        case _:
            return []
    if others or answer.reason is Reason.OWNERSHIP_LOST:  # A user believes that it is held.
        return ledger.lose_hold(claim, answer.detail, told=int(told))
    ledger.drop_hold(claim)
    return []
