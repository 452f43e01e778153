"""Holds with a deadline: until when one is believed, and how it is renewed.

A hold lasts for a while from some instant after its request, or its renewal, was said. So it
is counted from when that was said, on the client's own clock, less what two clocks may drift
apart: whoever grants the lock to the next does so later.
"""

from __future__ import annotations

from holdfast.actors.client.ledger import Ledger
from holdfast.actors.client.message import Leased
from holdfast.actors.client.pending import Claim, Pending
from holdfast.actors.client.tenure import Tenure
from holdfast.actors.client.wording import No, lost
from holdfast.actors.effect import Effect, Observe, Send
from holdfast.actors.lock.message import Granted, Reason, Refused, Release
from holdfast.actors.lock.session_message import Renew, Renewed
from holdfast.actors.message import NS_PER_MS, Instant


def is_late(pending: Pending, granted: Granted, now: Instant) -> bool:
    """Whether less than half of the duration may be left of a grant that took long to come."""
    if not granted.hold_ms or pending.said_at is None:
        return False
    if pending.renewed_at is not None:
        return True
    ends = Tenure.trusted_until(pending.said_at, granted.hold_ms)
    return ends - now < granted.hold_ms * NS_PER_MS // 2


def renew_first(ledger: Ledger, pending: Pending, granted: Granted, now: Instant) -> Effect:
    """Ask for the lease to begin anew before the user hears of the grant."""
    if pending.renewed_at is None:
        pending.renewed_at = now
    renew = Renew(
        lock=granted.lock,
        fence=granted.fence,
        session=ledger.tenure.assigned,
        owner=granted.owner,
        request=pending.number,
    )
    return ledger.outstanding.say(pending.gate, renew, now)


def granted_by(pending: Pending, renewed: Renewed) -> Granted | None:
    """Return the grant that was renewed before anybody heard of it."""
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
    """Whether a grant was over before its lease could begin anew; its user still waits."""
    return pending.renewed_at is not None and refused.reason is Reason.NOT_HELD


def begin(ledger: Ledger, claim: Claim, pending: Pending, granted: Granted) -> list[Effect]:
    """Count from when what brought the grant was said, if it has a deadline."""
    said_at = pending.renewed_at if pending.renewed_at is not None else pending.said_at
    if not granted.hold_ms or said_at is None:
        return []
    return _count(ledger, claim, said_at, granted.hold_ms, granted.grace_ms)


def is_over(pending: Pending, renewed: Renewed, now: Instant) -> bool:
    """Whether a lease that was renewed before anybody heard of its grant may be over already."""
    said_at = pending.renewed_at
    return said_at is None or now >= _until(said_at, renewed.hold_ms, renewed.grace_ms)


def renewed(ledger: Ledger, pending: Pending, answer: Renewed) -> list[Effect]:
    """Count from when a user's renewal was said, and tell it; unless the hold is lost by now."""
    claim = Claim(answer.lock, answer.owner)
    hold = ledger.holds.get(claim)
    if hold is None or hold.fence != answer.fence or pending.said_at is None:
        detail = "its duration and its grace were over before the renewal was confirmed"
        return ledger.reply_no(pending, lost(claim, answer.fence, detail))
    counted = _count(ledger, claim, pending.said_at, answer.hold_ms, answer.grace_ms)
    return [*counted, *ledger.reply(pending, answer)]


def _until(said_at: Instant, hold_ms: int, grace_ms: int) -> Instant:
    return Tenure.trusted_until(said_at, hold_ms + grace_ms)


def _count(
    ledger: Ledger, claim: Claim, said_at: Instant, hold_ms: int, grace_ms: int
) -> list[Effect]:
    hold = ledger.holds[claim]
    until = _until(said_at, hold_ms, grace_ms)
    hold.until = until if hold.until is None else max(until, hold.until)
    _arm(ledger)
    if ledger.watcher is None:
        return []
    leased = Leased(
        lock=claim.lock,
        owner=claim.owner,
        fence=hold.fence,
        until=hold.until,
        grace_ms=grace_ms,
    )
    return [Send(ledger.watcher, leased)]


def _arm(ledger: Ledger) -> None:
    ends = [hold.until for hold in ledger.holds.values() if hold.until is not None]
    ledger.lapses_at = min(ends, default=None)


def judge(ledger: Ledger, now: Instant) -> list[Effect]:
    """Lose the holds whose leases may be over, and say that they are released."""
    if ledger.lapses_at is None or now < ledger.lapses_at:
        return []
    effects: list[Effect] = [Observe("client.lease_over")]
    for claim, hold in list(ledger.holds.items()):
        if hold.until is None or now < hold.until:
            continue
        effects += ledger.lose_hold(claim, "its duration and its grace are over")
        for number in list(ledger.outstanding.releases.get(claim, ())):
            pending = ledger.outstanding.pending[number]
            if pending.user is not None:
                no = lost(claim, hold.fence, "its duration and its grace are over")
                effects += ledger.reply_no(pending, no)
                pending.user, pending.ends_at = None, None
        if claim not in ledger.outstanding.releases:
            release = Release(lock=claim.lock, fence=hold.fence, owner=claim.owner)
            gate = ledger.gates.choose().address
            effects += ledger.outstanding.ask(None, release, gate, now, limit_ms=None, owed=True)
    _arm(ledger)
    return effects


def why_not_renew(ledger: Ledger, renew: Renew) -> No | None:
    """Return why a renewal is not asked for, None if it is."""
    claim = Claim(renew.lock, renew.owner)
    hold = ledger.holds.get(claim)
    if hold is not None and hold.fence == renew.fence and hold.until is not None:
        return None
    loss = ledger.memory.tell(claim, renew.fence)
    if loss is not None:
        return lost(claim, renew.fence, loss)
    if hold is not None and hold.fence == renew.fence:
        text = f"lock {claim.lock!r}: this hold has no deadline; bakery has such"
        return No(Reason.UNSUPPORTED, text)
    text = f"lock {claim.lock!r}: owner {claim.owner!r} does not hold it under that fence"
    return No(Reason.NOT_HELD, text)
