"""Holds with a deadline: how long a client trusts one, and its renewal.

A hold lasts for its duration from some instant after its request, or its renewal, was sent. So
the client counts from that send time, on its own clock, and subtracts the drift of two clocks:
the cluster grants the lock to another owner later than that. A renewal never shortens a hold.
"""

from __future__ import annotations

from fencelock.actors.api.message import Granted, Reason, Refused, Release, ReleaseRequest
from fencelock.actors.api.name import titled
from fencelock.actors.api.session_message import Renew, Renewed, Unlocking
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import NS_PER_MS, Instant, ms_between
from fencelock.actors.session.backoff import later
from fencelock.actors.session.holding import LAPSED, HoldState, Lease
from fencelock.actors.session.message import Leased
from fencelock.actors.session.pending import Claim, Pending
from fencelock.actors.session.rejection import Rejection, lost
from fencelock.actors.session.session_lease import SessionLease
from fencelock.actors.session.session_state import SessionState


def is_late(pending: Pending, granted: Granted, now: Instant) -> bool:
    """Return whether less than half of the duration may be left of a grant that came late."""
    if not granted.hold_ms or pending.said_at is None:
        return False
    if pending.renewed_at is not None:
        return True
    ends = SessionLease.trusted_until(pending.said_at, granted.hold_ms)
    return ends - now < granted.hold_ms * NS_PER_MS // 2


def renew_first(ledger: SessionState, pending: Pending, granted: Granted, now: Instant) -> Effect:
    """Renew the lease before the user is told of the grant."""
    if pending.renewed_at is None:
        pending.renewed_at = now
    renew = Renew(
        lock=granted.lock,
        fence=granted.fence,
        session=ledger.session_lease.assigned,
        owner=granted.owner,
        request=pending.number,
    )
    return ledger.outstanding.say(pending.gate, renew, now)


def granted_by(pending: Pending, renewed: Renewed) -> Granted | None:
    """Return the grant that was renewed before the user was told of it."""
    if pending.renewed_at is None:
        return None
    return Granted(
        lock=renewed.lock,
        fence=renewed.fence,
        session=renewed.session,
        owner=renewed.owner,
        request=renewed.request,
        hold_ms=renewed.hold_ms,
        grace_ms=renewed.grace_ms,
    )


def lapsed(pending: Pending, refused: Refused) -> bool:
    """Return whether a grant expired before its lease was renewed; its user still waits."""
    return pending.renewed_at is not None and refused.reason is Reason.NOT_HELD


def begin(
    ledger: SessionState, claim: Claim, pending: Pending, granted: Granted, now: Instant
) -> list[Effect]:
    """Count the lease from the send time of the request that brought it."""
    said_at = pending.renewed_at if pending.renewed_at is not None else pending.said_at
    assert said_at is not None
    return _count(ledger, claim, said_at, granted, now)


def is_over(pending: Pending, renewed: Renewed, now: Instant) -> bool:
    """Return whether a lease renewed before its user was told of it may be over already."""
    said_at, lease_ms = pending.renewed_at, renewed.hold_ms + renewed.grace_ms
    return said_at is None or now >= SessionLease.trusted_until(said_at, lease_ms)


def renewed(ledger: SessionState, pending: Pending, answer: Renewed, now: Instant) -> list[Effect]:
    """Count the lease from the renewal's send time, and reply; unless the hold is lost by now."""
    claim = Claim(answer.lock, answer.owner)
    hold = ledger.holds.get(claim)
    if hold is None or hold.fence != answer.fence or pending.said_at is None:
        return ledger.reply_no(pending, lost(claim, answer.fence, LAPSED))
    counted = _count(ledger, claim, pending.said_at, answer, now)
    return [*counted, *ledger.reply(pending, answer)]


def _count(
    ledger: SessionState, claim: Claim, said_at: Instant, answer: Granted | Renewed, now: Instant
) -> list[Effect]:
    hold, hold_ms, grace_ms = ledger.holds[claim], answer.hold_ms, answer.grace_ms
    until = SessionLease.trusted_until(said_at, hold_ms + grace_ms)
    if hold.lease is None or hold.lease.until <= until:
        # The cluster's own notification comes some time after `ends_at`; this replaces a lost one.
        warn_at = min(later(now, hold_ms), later(said_at, hold_ms + grace_ms // 2))
        ends_at = SessionLease.trusted_until(said_at, hold_ms)
        hold.lease = Lease(ends_at, until, grace_ms, warn_at)
        if hold.state is HoldState.UNLOCKING:
            hold.move(HoldState.HELD)
    lease = hold.lease
    if ledger.lapses_at is None or lease.next_at < ledger.lapses_at:
        ledger.lapses_at = lease.next_at
    if ledger.watcher is None:
        return []
    leased = Leased(
        lock=claim.lock,
        owner=claim.owner,
        fence=hold.fence,
        until=lease.until,
        grace_ms=lease.grace_ms,
    )
    return [Send(ledger.watcher, leased)]


def judge(ledger: SessionState, now: Instant) -> list[Effect]:
    """Lose the holds whose leases may be over; warn of those whose duration is over."""
    if ledger.lapses_at is None or now < ledger.lapses_at:
        return []
    effects: list[Effect] = []
    for claim, hold in list(ledger.holds.items()):
        lease = hold.lease
        if lease is None or now < lease.next_at:
            continue
        effects += _lose(ledger, claim, now) if lease.until <= now else warn(ledger, claim, now)
    leases = [hold.lease for hold in ledger.holds.values() if hold.lease is not None]
    ledger.lapses_at = min((lease.next_at for lease in leases), default=None)
    return effects


def on_unlocking(ledger: SessionState, word: Unlocking, now: Instant) -> list[Effect]:
    """Pass on that a duration is over, unless it was renewed since."""
    claim = Claim(word.lock, word.owner)
    hold = ledger.holds.get(claim)
    if hold is None or hold.fence != word.fence or hold.lease is None:
        return []
    if now < hold.lease.ends_at or hold.lease.warn_at is None:
        return [Observe("client.late_unlocking_dropped")]
    return warn(ledger, claim, now)


def warn(ledger: SessionState, claim: Claim, now: Instant) -> list[Effect]:
    """Notify the watcher, once for each duration, that it is over: the holder must decide."""
    hold = ledger.holds[claim]
    assert hold.lease is not None
    hold.lease.warn_at = None
    if hold.state is HoldState.HELD:
        hold.move(HoldState.UNLOCKING)
    if ledger.watcher is None:
        return []
    word = Unlocking(
        lock=claim.lock,
        fence=hold.fence,
        grace_ms=ms_between(now, hold.lease.until),
        session=ledger.session_lease.name,
        owner=claim.owner,
    )
    return [Send(ledger.watcher, word), Observe("client.unlocking")]


def _lose(ledger: SessionState, claim: Claim, now: Instant) -> list[Effect]:
    """Lose a hold whose lease may be over, and release it in case it is not."""
    fence = ledger.holds[claim].fence
    effects = [Observe("client.lease_over"), *ledger.lose_hold(claim, LAPSED)]
    for number in list(ledger.outstanding.releases.get(claim, ())):
        pending = ledger.outstanding.pending[number]
        if pending.user is not None:
            effects += ledger.reply_no(pending, lost(claim, fence, LAPSED))
        if isinstance(pending.asked, ReleaseRequest):
            pending.user, pending.ends_at = None, None
        else:
            ledger.outstanding.drop(pending)
    if claim in ledger.outstanding.releases:
        return effects + ledger.outstanding.go_on(claim, now)
    release = Release(lock=claim.lock, fence=fence, owner=claim.owner)
    gate = ledger.gates.choose().address
    return effects + ledger.outstanding.ask(
        None, release, claim, gate, now, limit_ms=None, owed=True
    )


def why_not_renew(ledger: SessionState, renew: Renew, claim: Claim) -> Rejection | None:
    """Return why a renewal of ``claim`` is not sent, None if it is."""
    hold = ledger.holds.get(claim)
    if hold is not None and hold.fence == renew.fence and hold.lease is not None:
        return None
    loss = ledger.memory.tell(claim, renew.fence)
    if loss is not None:
        return lost(claim, renew.fence, loss)
    if hold is not None and hold.fence == renew.fence:
        text = f"{titled(claim.lock)}: this hold has no deadline; bakery has such"
        return Rejection(Reason.UNSUPPORTED, text)
    text = f"{titled(claim.lock)}: {claim.who} does not hold it under that fence"
    return Rejection(Reason.NOT_HELD, text)
