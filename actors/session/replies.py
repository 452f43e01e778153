"""Processes the messages that endpoints send to a session."""

from __future__ import annotations

from fencelock.actors.api.message import (
    AcquireRequest,
    Alive,
    Cancel,
    Cancelled,
    Granted,
    NodeStatus,
    Reason,
    Refused,
    Released,
    ReleaseRequest,
)
from fencelock.actors.api.name import titled
from fencelock.actors.api.session_message import Opened, Renewed
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.session import session_loss
from fencelock.actors.session.holding import Acquisition, Hold
from fencelock.actors.session.maintenance import hear, keep_watching, note_node, prefer_master
from fencelock.actors.session.pending import ANY_GATE, CancelKey, Claim, Pending, Question, settle
from fencelock.actors.session.rejection import Answer, Rejection, answers, lost, unsupported
from fencelock.actors.session.session_loss import GONE, let_go, lose
from fencelock.actors.session.session_state import SessionState

UNDECIDED = frozenset(
    {
        Reason.OVERLOADED,
        Reason.UNAVAILABLE,
        Reason.INVALID,
        Reason.UNSUPPORTED,
        Reason.TIMED_OUT,  # A proxy of `bakery` may send it while another's leader grants.
    }
)
"""Refusals of a single node, not of the cluster: an earlier copy may still be done."""


def on_answer(ledger: SessionState, sender: Address, answer: Answer, now: Instant) -> list[Effect]:
    """Pass ``answer`` to the user, once; drop it if no request waits for it."""
    session_lease = ledger.session_lease
    if isinstance(answer, Refused):
        if answer.reason is Reason.SESSION_EXPIRED:
            return _on_expired(ledger, sender, answer, now)
        if session_lease.asked_for(answer.session, answer.request):
            return _on_not_opened(ledger, sender, answer, now)
    if answer.session not in (session_lease.name, session_lease.assigned):
        return [Observe("client.answer_of_another_session_dropped")]
    pending = ledger.outstanding.pending.get(answer.request)
    if pending is None:
        return _on_late(ledger, sender, answer)
    session = session_lease.name if pending.claim is None else session_lease.assigned
    fits = answer.session == session and answers(pending, answer)
    if pending.said_at is None or not fits:
        return [Observe("client.unfit_answer_dropped")]
    effects = hear(ledger, sender, now)
    if answer.request not in ledger.outstanding.pending:  # `hear` has just moved it.
        return [*effects, Observe("client.late_answer_dropped")]
    match answer:
        case Granted() if answer.hold_ms and session_loss.is_late(pending, answer, now):
            effects += ledger.confirm(pending.said_at, now)
            return [*effects, session_loss.renew_first(ledger, pending, answer, now)]
        case Granted():
            return effects + _on_granted(ledger, pending, answer, now)
        case Released():
            return effects + _on_released(ledger, pending, answer, now)
        case Refused():
            return effects + _on_refused(ledger, pending, answer, now)
        case _:
            return effects + _on_rarer(ledger, sender, pending, answer, now)


def _on_rarer(
    ledger: SessionState, sender: Address, pending: Pending, answer: Answer, now: Instant
) -> list[Effect]:
    effects: list[Effect] = []
    match answer:
        case Renewed() if isinstance(pending.asked, AcquireRequest):
            granted = session_loss.granted_by(pending, answer)
            if granted is None:
                return [Observe("client.unfit_answer_dropped")]
            if session_loss.is_renewed_too_late(
                pending, answer, now
            ):  # It came so late that it has ended meanwhile.
                ledger.outstanding.renew(pending, now)
                return [Observe("client.wait_renewed")]
            return _on_granted(ledger, pending, granted, now)
        case Renewed():
            return _on_renewed(ledger, pending, answer, now)
        case NodeStatus():
            effects += note_node(ledger, sender, answer.node, answer.master, now)
            if pending.survey:
                return effects + _on_surveyed(ledger, pending, answer)
        case _:
            pass
    ledger.outstanding.drop(pending)
    return effects + ledger.reply(pending, answer)


def on_cancelled(
    ledger: SessionState, sender: Address, cancelled: Cancelled, now: Instant
) -> list[Effect]:
    """Remove a cancel, and send the requests that it blocked."""
    settled = None
    if cancelled.session == ledger.session_lease.assigned:
        settled = settle(ledger.outstanding.withdrawals, ledger.gates.table, cancelled)
    if settled is None:
        return [Observe("client.late_answer_dropped")]
    debt, withdrawal = settled
    return [
        *hear(ledger, debt.gate or sender, now),
        *ledger.confirm(withdrawal.said_at, now),
        *ledger.outstanding.go_on(debt.claim, now, debt.gate),
    ]


def on_alive(ledger: SessionState, sender: Address, alive: Alive, now: Instant) -> list[Effect]:
    """Note that a node lives, and, if it confirms that, that the cluster keeps the session."""
    session_lease = ledger.session_lease
    if alive.session not in (session_lease.name, session_lease.assigned):
        return [Observe("client.answer_of_another_session_dropped")]
    effects = hear(ledger, sender, now)
    if session_lease.kept and alive.session == session_lease.assigned:
        effects += ledger.confirm(session_lease.sent.pop(alive.request, None), now)
    effects += note_node(ledger, sender, alive.node, alive.master, now)
    return effects + keep_watching(ledger, now)


def on_opened(ledger: SessionState, sender: Address, opened: Opened, now: Instant) -> list[Effect]:
    """Take the session, and send everything that waited for it."""
    effects = hear(ledger, sender, now)
    if not ledger.session_lease.opened(opened, now):
        return [*effects, Observe("client.late_answer_dropped")]
    if ledger.session_lease.kept:
        ledger.gates.live_by(ledger.session_lease.lived_ms)
        ledger.greet_at = None
        effects.append(Observe("client.session_opened"))
    for pending in ledger.claims_pending():
        if isinstance(pending.asked, AcquireRequest):
            no = unsupported(ledger.session_lease, pending.asked)
            effects += [] if no is None else ledger.refuse(pending, no, now)
    effects += ledger.tell_watcher(now)
    effects += note_node(ledger, sender, opened.node, opened.master, now)
    effects += prefer_master(ledger, now)  # It may have been known before the session.
    return effects + ledger.outstanding.start_over(now) + keep_watching(ledger, now)


def _on_expired(
    ledger: SessionState, sender: Address, answer: Refused, now: Instant
) -> list[Effect]:
    effects = hear(ledger, sender, now)
    if not ledger.session_lease.kept or answer.session != ledger.session_lease.assigned:
        return effects  # It answers a keep-alive from before the session, or an old session.
    detail = f"the cluster does not know the session (any more): {answer.detail}"
    return effects + lose(ledger, detail, now, ended=True)


def _on_not_opened(
    ledger: SessionState, sender: Address, answer: Refused, now: Instant
) -> list[Effect]:
    """Refuse all requests that need the session, since none can be opened (rule 57)."""
    effects = hear(ledger, sender, now)
    ledger.session_lease.drop()
    no = Rejection(answer.reason, f"no session: {answer.detail}")
    for pending in ledger.claims_pending():
        effects += ledger.refuse(pending, no, now)
    return [*effects, Observe("client.session_refused")]


def _on_granted(
    ledger: SessionState, pending: Pending, granted: Granted, now: Instant
) -> list[Effect]:
    claim = pending.claim
    assert pending.user is not None
    assert claim is not None
    ledger.outstanding.drop(pending)
    effects = ledger.confirm(pending.said_at, now)
    loss = ledger.memory.tell(claim, granted.fence) if ledger.memory.losses else None
    if loss is not None:  # It was taken away before this answer came.
        return [*effects, *ledger.reply_no(pending, lost(claim, granted.fence, loss))]
    hold = ledger.holds.get(claim)
    if hold is not None and hold.fence != granted.fence:
        assert ledger.session_lease.kept  # C3
        effects += ledger.lose_hold(claim, f"it was granted anew, under fence {granted.fence}")
        hold = None
    if hold is None:
        trust = ledger.session_lease.trust
        hold = ledger.holds[claim] = Hold(pending.gate, granted.fence, [], trust)
        if isinstance(pending.asked, AcquireRequest) and not pending.asked.owner:
            ledger.anonymous[claim.lock, granted.fence] = claim.owner
    hold.levels.append(Acquisition(pending.user, pending.asked.request))
    if granted.hold_ms:
        effects += session_loss.begin_lease(ledger, claim, pending, granted, now)
    effects += ledger.reply(pending, granted)
    return effects + ledger.outstanding.go_on(claim, now)


def _on_renewed(
    ledger: SessionState, pending: Pending, renewed: Renewed, now: Instant
) -> list[Effect]:
    claim = pending.claim
    assert claim is not None
    ledger.outstanding.drop(pending)
    effects = [
        *ledger.confirm(pending.said_at, now),
        *session_loss.take_renewal(ledger, pending, renewed, now),
    ]
    if claim in ledger.holds:
        effects += ledger.release_owed(claim, now)
    return effects + ledger.outstanding.go_on(claim, now)


def _on_released(
    ledger: SessionState, pending: Pending, released: Released, now: Instant
) -> list[Effect]:
    claim = pending.claim
    assert claim is not None
    ledger.outstanding.drop(pending)
    hold = ledger.holds.get(claim)  # None if what was left was taken away meanwhile.
    if hold is not None:
        if released.count <= 0 or not _is_partial(pending.asked):
            hold.freed(released.count, owed=pending.owed)
        if released.count <= 0:
            ledger.drop_hold(claim)
    effects = [*ledger.confirm(pending.said_at, now), *ledger.reply(pending, released)]
    if hold is not None and released.count > 0:
        ledger.match_state(claim)
        effects += ledger.release_owed(claim, now)
    return effects + ledger.outstanding.go_on(claim, now)


def _on_refused(
    ledger: SessionState, pending: Pending, answer: Refused, now: Instant
) -> list[Effect]:
    claim = pending.claim
    match pending.asked:
        case AcquireRequest() if answer.reason is Reason.CANCELLED or session_loss.lapsed(
            pending, answer
        ):
            # The node took us for gone. Our user still waits.
            ledger.outstanding.renew(pending, now)
            return [Observe("client.wait_renewed")]
        case AcquireRequest() if (
            answer.reason in UNDECIDED and ledger.session_lease.kept and pending.said > 1
        ):
            return [*ledger.reply(pending, answer), *ledger.outstanding.withdraw(pending, now)]
        case ReleaseRequest() if answer.reason not in GONE and not (
            pending.asked.PARTIAL and answer.reason is Reason.INVALID  # It is too much of the hold.
        ):
            if pending.user is None or ledger.session_lease.kept:
                return []  # The hold is still there, or an earlier copy may be done: go on.
        case _:
            pass
    ledger.outstanding.drop(pending)
    effects = ledger.reply(pending, answer)
    if claim is None:
        return effects
    effects = [*let_go(ledger, claim, pending, answer), *effects, *_rest_of(ledger, claim, now)]
    ledger.match_state(claim)
    return effects


def _is_partial(question: Question) -> bool:
    return isinstance(question, ReleaseRequest) and question.PARTIAL


def _rest_of(ledger: SessionState, claim: Claim, now: Instant) -> list[Effect]:
    """Go on with ``claim``: its releases are over if there is nothing left to release."""
    effects: list[Effect] = []
    if claim not in ledger.holds:
        for number in list(ledger.outstanding.releases.get(claim, ())):
            pending = ledger.outstanding.pending[number]
            ledger.outstanding.drop(pending)
            text = f"{titled(claim.lock)}: owner {claim.owner!r} does not hold it any more"
            effects += ledger.reply_no(pending, Rejection(Reason.NOT_HELD, text))
    return [*effects, *ledger.outstanding.go_on(claim, now)]


def _on_surveyed(ledger: SessionState, pending: Pending, status: NodeStatus) -> list[Effect]:
    ledger.outstanding.drop(pending)
    survey = ledger.surveys[pending.survey]
    del survey.missing[pending.gate]
    survey.statuses[pending.gate] = status
    return ledger.finish_surveys()


def _on_late(ledger: SessionState, sender: Address, answer: Answer) -> list[Effect]:
    """Drop a reply that no request waits for; a grant among them is handed back (C2).

    A cancel usually does that, unless a network that delays without bound brought the wait
    to a node that had forgotten its cancel. A cluster that keeps the session does not
    forget it. But where holds have deadlines, a proxy may have ended a wait while a leader
    granted it.
    """
    effects: list[Effect] = [Observe("client.late_answer_dropped")]
    if not isinstance(answer, Granted) or sender not in ledger.gates.table:
        return effects
    kept = ledger.session_lease.kept
    if kept and (not answer.hold_ms or answer.session != ledger.session_lease.assigned):
        return effects
    claim = Claim(answer.lock, answer.owner)
    hold = ledger.holds.get(claim)
    # A kept hold may be of this very request, which another leader granted anew. So may any
    # other, if its endpoint has restarted: its earlier grants are over.
    older = hold is not None and sender == hold.gate and answer.fence < hold.fence
    repeated = hold is not None and (kept or older or hold.fence == answer.fence)
    debt = CancelKey(ANY_GATE if kept else sender, claim)
    if repeated or debt in ledger.outstanding.withdrawals:
        return effects
    cancel = Cancel(
        lock=answer.lock, session=answer.session, owner=answer.owner, request=answer.request
    )
    return [*effects, Send(sender, cancel), Observe("client.stray_grant_returned")]
