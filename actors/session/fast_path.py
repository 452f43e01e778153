"""The fast path of nearly every request: a lock with which only one owner is busy.

It applies if the session is kept, its endpoint replies, nothing else of the claim is in flight,
and nothing was lost or cancelled. Then these functions do what the general path does
(`fencelock.actors.session.rejection`, `fencelock.actors.session.in_flight`,
`fencelock.actors.session.replies`), without its checks, which would double a client's time per
request. Otherwise each returns None and changes nothing. A test has both paths take the same
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencelock.actors.api.message import Acquire, Granted, Release, Released
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.effect import Effect, Send
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Address, Instant, role_of
from fencelock.actors.session.admission import PENDING_MAX
from fencelock.actors.session.endpoint import Endpoint
from fencelock.actors.session.holding import HOLDS_MAX, Acquisition, Hold, HoldState, new_level
from fencelock.actors.session.pending import (
    ANSWER_MS,
    Claim,
    Pending,
    acquire_said,
    later,
    release_said,
)
from fencelock.actors.session.rejection import claim_checked, granted_as_asked, released_as_asked
from fencelock.actors.session.session_state import SessionState


def on_acquire(
    ledger: SessionState, user: Address, acquire: Acquire, now: Instant
) -> list[Effect] | None:
    """Request a lock that its owner neither holds, nor waits for, nor is releasing."""
    outstanding, session_lease, gates = ledger.outstanding, ledger.session_lease, ledger.gates
    try:
        claim = claim_checked(acquire.lock, acquire.owner or role_of(user))
    except InvalidRequestError:
        return None
    gate = gates.table[gates.current]
    if (
        claim in ledger.holds
        or claim in outstanding.waits
        or claim in outstanding.releases
        or outstanding.withdrawals
        or not session_lease.kept
        or gate.down
        or gate.refused
        or ((wait_ms := acquire.wait_ms) is not None and not 0 <= wait_ms <= WAIT_MS_MAX)
        or len(outstanding.pending) >= PENDING_MAX
        or len(ledger.holds) >= HOLDS_MAX
        or not user.startswith(ledger.home)
    ):
        return None
    session_lease.used_at = now
    outstanding.number = number = outstanding.number + 1
    ends_at = None if wait_ms is None else later(now, wait_ms)
    pending = Pending(number, user, acquire, claim, gate.address, now, ends_at)
    pending.said, pending.said_at = 1, now
    outstanding.pending[number] = pending
    outstanding.waits[claim] = number
    said = acquire_said(acquire, session_lease.assigned, claim.owner, number, wait_ms)
    return [Send(gate.address, said)]


def on_release(
    ledger: SessionState, user: Address, release: Release, now: Instant
) -> list[Effect] | None:
    """Request a release of a hold that is neither being acquired again nor released already."""
    outstanding, session_lease, gates = ledger.outstanding, ledger.session_lease, ledger.gates
    owner = release.owner or ledger.anonymous.get((release.lock, release.fence), "")
    try:
        claim = claim_checked(release.lock, owner)
    except InvalidRequestError:
        return None
    hold, gate = ledger.holds.get(claim), gates.table[gates.current]
    if (
        hold is None
        or hold.fence != release.fence
        or hold.state is not HoldState.HELD
        or not hold.levels
        or claim in outstanding.waits
        or claim in outstanding.releases
        or outstanding.withdrawals
        or ledger.memory.losses
        or not session_lease.kept
        or gate.down
        or gate.refused
        or not user.startswith(ledger.home)
    ):
        return None
    session_lease.used_at = now
    outstanding.number = number = outstanding.number + 1
    ends_at = later(now, ANSWER_MS)
    pending = Pending(number, user, release, claim, gate.address, now, ends_at)
    pending.said, pending.said_at = 1, now
    outstanding.pending[number] = pending
    outstanding.releases[claim] = [number]
    hold.move(HoldState.RELEASING)
    if gate.owing_since is None:
        gate.owing_since = now
    return [Send(gate.address, release_said(release, session_lease.assigned, claim.owner, number))]


def on_granted(
    ledger: SessionState, sender: Address, granted: Granted, now: Instant
) -> list[Effect] | None:
    """Pass on an expected grant of a first hold without a deadline."""
    outstanding, session_lease = ledger.outstanding, ledger.session_lease
    waited = _waited_for(ledger, sender, granted, Acquire)
    if waited is None:
        return None
    pending, gate, claim, user, said_at, asked = waited
    if (
        granted.fence <= 0
        or granted.hold_ms
        or claim in ledger.holds
        or claim in outstanding.releases
        or ledger.memory.losses
    ):
        return None
    gate.heard_at, gate.owing_since = now, None
    del outstanding.pending[granted.request], outstanding.waits[claim]
    effects = ledger.tell_watcher(now) if session_lease.confirm(said_at, now) else []
    owner, token = asked.owner, asked.request
    if not owner:
        ledger.anonymous[claim.lock, granted.fence] = claim.owner
    levels = [new_level(Acquisition, (user, token))]
    ledger.holds[claim] = Hold(pending.gate, granted.fence, levels, session_lease.trust)
    effects.append(Send(user, granted_as_asked(granted, owner, token)))
    return effects


def on_released(
    ledger: SessionState, sender: Address, released: Released, now: Instant
) -> list[Effect] | None:
    """Pass on the release of the last hold of a lock."""
    outstanding, session_lease = ledger.outstanding, ledger.session_lease
    waited = _waited_for(ledger, sender, released, Release)
    if waited is None:
        return None
    _, gate, claim, user, said_at, asked = waited
    if (
        released.count > 0
        or claim not in ledger.holds
        or claim in outstanding.waits
        or len(outstanding.releases[claim]) > 1
    ):
        return None
    gate.heard_at, gate.owing_since = now, None
    del outstanding.pending[released.request], outstanding.releases[claim]
    hold = ledger.holds.pop(claim)
    hold.move(HoldState.RELEASED)
    if ledger.anonymous:
        ledger.anonymous.pop((claim.lock, hold.fence), None)
    effects = ledger.tell_watcher(now) if session_lease.confirm(said_at, now) else []
    effects.append(Send(user, released_as_asked(released, asked.owner, asked.request)))
    return effects


def _waited_for(
    ledger: SessionState, sender: Address, answer: Granted | Released, asked: type
) -> tuple[Pending, Endpoint, Claim, Address, Instant, Any] | None:
    """Return the request that ``answer`` ends: its endpoint, claim, user, send time, original."""
    session_lease = ledger.session_lease
    pending = ledger.outstanding.pending.get(answer.request)
    gate = ledger.gates.table.get(sender)
    if (
        pending is None
        or gate is None
        or (claim := pending.claim) != (answer.lock, answer.owner)
        or claim is None
        or (user := pending.user) is None
        or (said_at := pending.said_at) is None
        or type(pending.asked) is not asked
        or answer.session != session_lease.assigned
        or not session_lease.kept
        or gate.down
        or gate.refused
    ):
        return None
    return pending, gate, claim, user, said_at, pending.asked


Way = Callable[[SessionState, Address, Any, Instant], list[Effect] | None]

WAYS: dict[type, Way] = {
    Acquire: on_acquire,
    Release: on_release,
    Granted: on_granted,
    Released: on_released,
}
"""Fast paths by type of the request or reply."""
