"""The loss of holds: when a client decides that its locks are lost, and the consequences.

The session decides it in four cases. Each ends in `Hold.lose`, except that `let_go` drops a hold
whose release was already under way (`SessionState.drop_hold`):

- its session may have ended, by the client's clock (`judge_belief`), or the cluster ended it
  (`lose`): all holds are lost;
- the deadline of a hold is over, by the client's clock (`judge_deadlines`);
- the cluster took one hold away (`on_hold_lost`);
- the cluster no longer knows the hold (`let_go`).

A thread of the client may read a hold before the session has handled the time that passed. It then
decides by the same clock and the same times, in `Hold.state_at`.

A hold with a deadline lasts for its duration from some instant after its request, or its renewal,
was sent. So the client counts from that send time, on its own clock, and subtracts the drift of
two clocks: the cluster grants the lock to another owner later than that. A renewal never shortens
a hold.
"""

from __future__ import annotations

from fencelock.actors.api.message import (
    AcquireRequest,
    Granted,
    Reason,
    Refused,
    Release,
    ReleaseRequest,
)
from fencelock.actors.api.name import titled
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.api.session_message import (
    HAVE_DEADLINES,
    ConfirmHold,
    DisownHold,
    Ended,
    HoldLost,
    Renew,
    Renewed,
    Unlocking,
)
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between
from fencelock.actors.session.endpoint_selection import hear
from fencelock.actors.session.holding import LAPSED, Hold, HoldState, Lease
from fencelock.actors.session.keep_alive import end_sessions, open_session
from fencelock.actors.session.message import Leased, Loss
from fencelock.actors.session.pending import Claim, Pending, later
from fencelock.actors.session.rejection import Rejection, lost, unfinished
from fencelock.actors.session.session_lease import Ending, SessionLease
from fencelock.actors.session.session_state import SessionState


def is_known(state: SessionState, granted: Granted) -> bool:
    """Return whether the owner already has the hold: acquiring it again moves no deadline."""
    hold = state.holds.get(Claim(granted.lock, granted.owner))
    return hold is not None and hold.fence == granted.fence


def is_given_back(state: SessionState, claim: Claim, granted: Granted) -> bool:
    """Return whether the hold was lost at its deadline and its release is not confirmed yet."""
    numbers = state.in_flight.releases.get(claim, ())
    asked = (state.in_flight.pending[number].asked for number in numbers)
    released = any(isinstance(one, ReleaseRequest) and one.fence == granted.fence for one in asked)
    return released and not is_known(state, granted)


def is_late(state: SessionState, pending: Pending, granted: Granted, now: Instant) -> bool:
    """Return whether less than half of the duration may be left of a grant that came late."""
    if not granted.hold_ms or pending.sent_at is None or is_known(state, granted):
        return False
    if pending.renewed_at is not None:
        return True
    ends = SessionLease.trusted_until(pending.sent_at, granted.hold_ms)
    return ends - now < granted.hold_ms * NS_PER_MS // 2


def renew_first(state: SessionState, pending: Pending, granted: Granted, now: Instant) -> Effect:
    """Renew the lease before the user receives the grant."""
    if pending.renewed_at is None:
        pending.renewed_at = now
    renew = Renew(
        lock=granted.lock,
        fence=granted.fence,
        session=state.session_lease.assigned,
        owner=granted.owner,
        request=pending.number,
    )
    return state.in_flight.send(pending.endpoint, renew, now)


def granted_by(pending: Pending, renewed: Renewed) -> Granted | None:
    """Return the grant that was renewed before the user received it."""
    if pending.renewed_at is None:
        return None
    fence, hold_ms, grace_ms = renewed.fence, renewed.hold_ms, renewed.grace_ms
    return Granted(**renewed.fields(), fence=fence, hold_ms=hold_ms, grace_ms=grace_ms)


def lapsed(pending: Pending, refused: Refused) -> bool:
    """Return whether a grant expired before its lease was renewed; its user still waits."""
    return pending.renewed_at is not None and refused.reason is Reason.NOT_HELD


def begin_lease(
    state: SessionState, claim: Claim, pending: Pending, granted: Granted, now: Instant
) -> list[Effect]:
    """Count the lease from the send time of the request that brought it."""
    sent_at = pending.renewed_at if pending.renewed_at is not None else pending.sent_at
    assert sent_at is not None
    return _count_from(state, claim, sent_at, granted, now)


def is_renewed_too_late(pending: Pending, renewed: Renewed, now: Instant) -> bool:
    """Return whether a lease renewed before its user received the grant may be over already."""
    sent_at, lease_ms = pending.renewed_at, renewed.hold_ms + renewed.grace_ms
    return sent_at is None or now >= SessionLease.trusted_until(sent_at, lease_ms)


def take_renewal(
    state: SessionState, pending: Pending, answer: Renewed, now: Instant
) -> list[Effect]:
    """Count the lease from the renewal's send time, and reply; unless the hold is lost by now."""
    claim = Claim(answer.lock, answer.owner)
    hold = state.holds.get(claim)
    if hold is None or hold.fence != answer.fence or pending.sent_at is None:
        return state.reply_no(pending, lost(claim, answer.fence, LAPSED))
    counted = _count_from(state, claim, pending.sent_at, answer, now)
    return [*counted, *state.reply(pending, answer)]


def _count_from(
    state: SessionState, claim: Claim, sent_at: Instant, answer: Granted | Renewed, now: Instant
) -> list[Effect]:
    hold, hold_ms, grace_ms = state.holds[claim], answer.hold_ms, answer.grace_ms
    until = SessionLease.trusted_until(sent_at, hold_ms + grace_ms)
    if hold.lease is None or hold.lease.until <= until:
        # The cluster's own notification comes some time after `ends_at`; this replaces a lost one.
        warn_at = min(later(now, hold_ms), later(sent_at, hold_ms + grace_ms // 2))
        ends_at = SessionLease.trusted_until(sent_at, hold_ms)
        hold.lease = Lease(ends_at, until, grace_ms, warn_at)
        if hold.state is HoldState.UNLOCKING:
            hold.move(HoldState.HELD)
    lease = hold.lease
    if state.lapses_at is None or lease.next_at < state.lapses_at:
        state.lapses_at = lease.next_at
    if state.watcher is None:
        return []
    leased = Leased(
        lock=claim.lock,
        owner=claim.owner,
        fence=hold.fence,
        until=lease.until,
        grace_ms=lease.grace_ms,
    )
    return [Send(state.watcher, leased)]


def judge_deadlines(state: SessionState, now: Instant) -> list[Effect]:
    """Lose the holds with leases that may be over; notify users of holds past their duration."""
    if state.lapses_at is None or now < state.lapses_at:
        return []
    effects: list[Effect] = []
    for claim, hold in list(state.holds.items()):
        lease = hold.lease
        if lease is None or now < lease.next_at:
            continue
        effects += (
            _lose_at_deadline(state, claim, now) if lease.until <= now else warn(state, claim, now)
        )
    leases = [hold.lease for hold in state.holds.values() if hold.lease is not None]
    state.lapses_at = min((lease.next_at for lease in leases), default=None)
    return effects


def warn(state: SessionState, claim: Claim, now: Instant) -> list[Effect]:
    """Notify the watcher, once for each duration, that it is over: the holder must decide."""
    hold = state.holds[claim]
    assert hold.lease is not None
    hold.lease.warn_at = None
    if hold.state is HoldState.HELD:
        hold.move(HoldState.UNLOCKING)
    if state.watcher is None:
        return []
    word = Unlocking(
        lock=claim.lock,
        fence=hold.fence,
        grace_ms=ms_between(now, hold.lease.until),
        session=state.session_lease.name,
        owner=claim.owner,
    )
    return [Send(state.watcher, word), Observe("client.unlocking")]


def _lose_at_deadline(state: SessionState, claim: Claim, now: Instant) -> list[Effect]:
    """Lose a hold whose lease may be over; release all its acquires in case it is not over yet."""
    hold = state.holds[claim]
    fence, times = hold.fence, len(hold.levels) + hold.owed
    effects = [Observe("client.lease_over"), *state.lose_hold(claim, LAPSED)]
    for number in list(state.in_flight.releases.get(claim, ())):
        pending = state.in_flight.pending[number]
        if pending.user is not None:
            effects += state.reply_no(pending, lost(claim, fence, LAPSED))
        if isinstance(pending.asked, ReleaseRequest):
            pending.user, pending.ends_at = None, None
        else:
            state.in_flight.drop(pending)
    effects += state.in_flight.go_on(claim, now)
    for _ in range(times - len(state.in_flight.releases.get(claim, ()))):
        effects += release_lost(state, claim, fence, now)
    return effects


def release_lost(state: SessionState, claim: Claim, fence: int, now: Instant) -> list[Effect]:
    """Release one acquire of a lost hold, which the cluster may still have for a while."""
    release = Release(lock=claim.lock, fence=fence, owner=claim.owner)
    endpoint = state.endpoints.choose().address
    return state.in_flight.ask(None, release, claim, endpoint, now, limit_ms=None, owed=True)


def why_not_renew(state: SessionState, renew: Renew, claim: Claim) -> Rejection | None:
    """Return why a renewal of ``claim`` is not sent, or None if it is."""
    hold = state.holds.get(claim)
    if hold is not None and hold.fence == renew.fence and hold.lease is not None:
        return None
    loss = state.unreported.tell(claim, renew.fence)
    if loss is not None:
        return lost(claim, renew.fence, loss)
    if hold is not None and hold.fence == renew.fence:
        text = f"{titled(claim.lock)}: this hold has no deadline; {HAVE_DEADLINES}"
        return Rejection(Reason.UNSUPPORTED, text)
    text = f"{titled(claim.lock)}: {claim.who} does not hold it under that fence"
    return Rejection(Reason.NOT_HELD, text)


END_TTLS = 2
"""Number of TTLs for which `End` is sent for a session given up; after them it is over."""

ENDINGS_MAX = 16
"""Maximum sessions given up at a time; beyond it the oldest expires by itself."""

GONE = frozenset({Reason.NOT_HELD, Reason.OWNERSHIP_LOST})
"""Refusals after which there is no hold to release."""


def judge_belief(state: SessionState, now: Instant) -> list[Effect]:
    """Lose the session if it may have ended: later messages of the cluster do not count."""
    session_lease = state.session_lease
    if not session_lease.passed(now):
        return judge_deadlines(state, now) if state.lapses_at is not None else []
    silent = ms_between(session_lease.confirmed_at, now) / 1000
    detail = (
        f"nothing confirmed the session for {silent:.1f} s, its TTL is "
        f"{session_lease.lived_ms / 1000:g} s; nodes: {state.endpoints.describe(now)}"
    )
    return lose(state, detail, now, ended=False)


def lose(state: SessionState, detail: str, now: Instant, *, ended: bool) -> list[Effect]:
    """Give up the session: its holds are lost, its waits continue in the next one.

    Args:
        state: the session's state.
        detail: the reason, in words.
        now: the time.
        ended: whether the cluster ended it; if not, `End` is sent, since it may live.

    """
    questions, holds = state.claims_pending(), dict(state.holds)
    needed = bool(questions or holds or state.in_flight.withdrawals)
    session = state.session_lease.drop()
    for hold in holds.values():
        hold.lose(detail)
    state.in_flight.withdrawals.clear()
    effects: list[Effect] = [Observe("client.session_lost")]
    if holds:
        losses = tuple(Loss(claim.lock, claim.owner, hold.fence) for claim, hold in holds.items())
        effects += state.report_losses(losses, detail)
    told: dict[Claim, int] = {}
    for pending in questions:
        effects += _end_or_go_on(state, pending, holds, told, detail)
    for claim, hold in holds.items():
        times = len(hold.levels) - told.get(claim, 0)
        state.note_loss(claim, hold, times, detail)
    state.drop_holds()
    if needed and not ended:
        if len(state.endings) >= ENDINGS_MAX:
            del state.endings[next(iter(state.endings))]
        gives_up_at = later(now, END_TTLS * state.session_lease.lived_ms)
        state.endings[session] = Ending(gives_up_at, now)
        effects += end_sessions(state, now)
    if state.claims_pending():
        state.session_lease.need(now)
        effects += open_session(state, now)
    return effects


def _end_or_go_on(
    state: SessionState,
    pending: Pending,
    holds: dict[Claim, Hold],
    told: dict[Claim, int],
    detail: str,
) -> list[Effect]:
    """Report the loss to a claim that held the lock (rules 59, 65); let others wait on (58).

    An update that was sent in the lost session may have taken effect. It is not sent again, and its
    user receives SESSION_EXPIRED.
    """
    claim = pending.claim
    assert claim is not None
    hold = holds.get(claim)
    asked = pending.asked
    if isinstance(asked, UpdateRequest) and pending.said and not asked.IDEMPOTENT:
        state.in_flight.drop(pending)
        text = f"{titled(claim.lock)}: the session ended ({detail})"
        return state.reply_no(pending, unfinished(pending, Rejection(Reason.SESSION_EXPIRED, text)))
    if hold is None:
        pending.said, pending.sent_at, pending.renewed_at = 0, None, None
        return []
    state.in_flight.drop(pending)
    if isinstance(asked, ReleaseRequest) and pending.user is not None and not asked.PARTIAL:
        told[claim] = told.get(claim, 0) + 1
    return state.reply_no(pending, lost(claim, hold.fence, detail))


def let_go(state: SessionState, claim: Claim, pending: Pending, answer: Refused) -> list[Effect]:
    """Drop a hold that has ended; a later one, under another fence, is not affected."""
    hold = state.holds.get(claim)
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
        return state.lose_hold(claim, answer.detail, told=int(told))
    state.drop_hold(claim)
    return []


def on_ended(state: SessionState, sender: Address, ended: Ended, now: Instant) -> list[Effect]:
    """Note that a session has ended: one that was given up, or the one in force."""
    if state.endings.pop(ended.session, None) is not None:
        return hear(state, sender, now)
    if not state.session_lease.kept or ended.session != state.session_lease.assigned:
        return [Observe("client.late_answer_dropped")]
    effects = hear(state, sender, now)
    return effects + lose(state, f"the session ended: {ended.detail}", now, ended=True)


def on_hold_lost(
    state: SessionState, sender: Address, word: HoldLost, now: Instant
) -> list[Effect]:
    """Note that one hold was taken away, possibly before its grant arrived."""
    if not state.session_lease.ready or word.session != state.session_lease.assigned:
        return [Observe("client.answer_of_another_session_dropped")]
    effects = hear(state, sender, now)
    claim = Claim(word.lock, word.owner)
    hold = state.holds.get(claim)
    if hold is not None and hold.fence == word.fence:
        if hold.lease is not None and now < hold.lease.until and not word.decided:
            # One leader's clock is early; the others keep the hold, so no other owner gets it yet.
            return [*effects, Observe("client.early_loss_dropped")]
        return effects + state.lose_hold(claim, word.detail)
    if hold is None and claim in state.in_flight.waits:
        state.unreported.add(claim, word.fence, 1, word.detail)
    return effects


def on_confirm_hold(
    state: SessionState, sender: Address, word: ConfirmHold, now: Instant
) -> list[Effect]:
    """Notify a node that lost its memory if this client does not have the hold.

    A client that disowns a hold must never take a late grant of it. So each wait for the lock
    is sent again under a new number: only a grant of the latest number is accepted.
    """
    session_lease, in_flight = state.session_lease, state.in_flight
    known = (
        word.session in (session_lease.name, session_lease.assigned)
        and sender in state.endpoints.table
    )
    if session_lease.kept or not known:
        return [Observe("client.answer_of_another_session_dropped")]
    effects = hear(state, sender, now)
    if any(claim.lock == word.lock and h.fence == word.fence for claim, h in state.holds.items()):
        return effects
    for number in [n for claim, n in in_flight.waits.items() if claim.lock == word.lock]:
        waiting = in_flight.pending[number]
        if waiting.sent_at is not None:
            effects += in_flight.again(waiting, waiting.endpoint, now)
    disown = DisownHold(lock=word.lock, fence=word.fence, session=word.session)
    return [*effects, Send(sender, disown), Observe("client.hold_disowned")]


def on_unlocking(
    state: SessionState, sender: Address, word: Unlocking, now: Instant
) -> list[Effect]:
    """Notify the holder that a duration is over, unless it was renewed since."""
    if not state.session_lease.kept or word.session != state.session_lease.assigned:
        return [Observe("client.answer_of_another_session_dropped")]
    effects = hear(state, sender, now)
    claim = Claim(word.lock, word.owner)
    hold = state.holds.get(claim)
    if hold is None or hold.fence != word.fence or hold.lease is None:
        return effects
    if now < hold.lease.ends_at or hold.lease.warn_at is None:
        return [*effects, Observe("client.late_unlocking_dropped")]
    return effects + warn(state, claim, now)
