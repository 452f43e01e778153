"""The fast path of nearly every request: no other request of its claim is in flight.

It applies if the session is also kept, its endpoint replies, and nothing of the claim was lost or
cancelled. Then these functions take the same steps as the general path
(`fencelock.actors.session.rejection`, `fencelock.actors.session.in_flight`,
`fencelock.actors.session.replies`), without its checks, which would double a client's time per
request. Otherwise each returns None and changes nothing. A test compares the two paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencelock.actors.api.message import Acquire, AcquireRequest, Granted, Release, Released
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.effect import Effect, Send
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import NS_PER_MS, Address, Instant, role_of
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
    state: SessionState, user: Address, acquire: AcquireRequest, now: Instant
) -> list[Effect] | None:
    """Request a lock that its owner neither holds, nor waits for, nor is releasing."""
    in_flight, session_lease, endpoints = state.in_flight, state.session_lease, state.endpoints
    try:
        claim = claim_checked(acquire.lock, acquire.owner or role_of(user))
    except InvalidRequestError:
        return None
    endpoint = endpoints.table[endpoints.current]
    if (
        claim in state.holds
        or claim in in_flight.waits
        or claim in in_flight.releases
        or in_flight.withdrawals
        or not session_lease.kept
        or endpoint.down
        or endpoint.refused
        or ((wait_ms := acquire.wait_ms) is not None and not 0 <= wait_ms <= WAIT_MS_MAX)
        or len(in_flight.pending) >= PENDING_MAX
        or len(state.holds) >= HOLDS_MAX
        or not user.startswith(state.home)
    ):
        return None
    session_lease.used_at = now
    in_flight.number = number = in_flight.number + 1
    ends_at = None if wait_ms is None else later(now, wait_ms)
    pending = Pending(number, user, acquire, claim, endpoint.address, now, ends_at)
    pending.said, pending.sent_at = 1, now
    in_flight.pending[number] = pending
    in_flight.waits[claim] = number
    copied = acquire_said[type(acquire)]
    said = copied(acquire, session_lease.assigned, claim.owner, number, wait_ms)
    return [Send(endpoint.address, said)]


def on_release(
    state: SessionState, user: Address, release: Release, now: Instant
) -> list[Effect] | None:
    """Request a release of a hold that is neither being acquired again nor released already."""
    in_flight, session_lease, endpoints = state.in_flight, state.session_lease, state.endpoints
    owner = release.owner or state.anonymous.get((release.lock, release.fence), "")
    try:
        claim = claim_checked(release.lock, owner)
    except InvalidRequestError:
        return None
    hold, endpoint = state.holds.get(claim), endpoints.table[endpoints.current]
    if (
        hold is None
        or hold.fence != release.fence
        or hold.state is not HoldState.HELD
        or not hold.levels
        or claim in in_flight.waits
        or claim in in_flight.releases
        or in_flight.withdrawals
        or state.unreported.losses
        or not session_lease.kept
        or endpoint.down
        or endpoint.refused
        or not user.startswith(state.home)
    ):
        return None
    session_lease.used_at = now
    in_flight.number = number = in_flight.number + 1
    ends_at = Instant(now + ANSWER_MS * NS_PER_MS)
    pending = Pending(number, user, release, claim, endpoint.address, now, ends_at)
    pending.said, pending.sent_at = 1, now
    in_flight.pending[number] = pending
    in_flight.releases[claim] = [number]
    hold.move(HoldState.RELEASING)
    if endpoint.owing_since is None:
        endpoint.owing_since = now
    return [
        Send(endpoint.address, release_said(release, session_lease.assigned, claim.owner, number))
    ]


def on_granted(
    state: SessionState, sender: Address, granted: Granted, now: Instant
) -> list[Effect] | None:
    """Pass on an expected grant of a first hold without a deadline."""
    in_flight, session_lease = state.in_flight, state.session_lease
    waited = _waited_for(state, sender, granted, AcquireRequest)
    if waited is None:
        return None
    pending, endpoint, claim, user, sent_at, asked = waited
    if (
        granted.fence <= 0
        or granted.hold_ms
        or claim in state.holds
        or claim in in_flight.releases
        or state.unreported.losses
    ):
        return None
    endpoint.heard_at, endpoint.owing_since = now, None
    del in_flight.pending[granted.request], in_flight.waits[claim]
    effects = state.tell_watcher(now) if session_lease.confirm(sent_at, now) else []
    owner, token = asked.owner, asked.request
    if not owner:
        state.anonymous[claim.lock, granted.fence] = claim.owner
    levels = [new_level(Acquisition, (user, token))]
    state.holds[claim] = Hold(pending.endpoint, granted.fence, levels, session_lease.trust)
    effects.append(Send(user, granted_as_asked(granted, owner, token)))
    return effects


def on_released(
    state: SessionState, sender: Address, released: Released, now: Instant
) -> list[Effect] | None:
    """Pass on the release of the last hold of a lock."""
    in_flight, session_lease = state.in_flight, state.session_lease
    waited = _waited_for(state, sender, released, Release)
    if waited is None:
        return None
    _, endpoint, claim, user, sent_at, asked = waited
    if (
        released.count > 0
        or claim not in state.holds
        or claim in in_flight.waits
        or len(in_flight.releases[claim]) > 1
    ):
        return None
    endpoint.heard_at, endpoint.owing_since = now, None
    del in_flight.pending[released.request], in_flight.releases[claim]
    hold = state.holds.pop(claim)
    hold.move(HoldState.RELEASED)
    if state.anonymous:
        state.anonymous.pop((claim.lock, hold.fence), None)
    effects = state.tell_watcher(now) if session_lease.confirm(sent_at, now) else []
    effects.append(Send(user, released_as_asked(released, asked.owner, asked.request)))
    return effects


def _waited_for(
    state: SessionState, sender: Address, answer: Granted | Released, asked: type
) -> tuple[Pending, Endpoint, Claim, Address, Instant, Any] | None:
    """Return the request that ``answer`` ends: its endpoint, claim, user, send time, original."""
    session_lease = state.session_lease
    pending = state.in_flight.pending.get(answer.request)
    endpoint = state.endpoints.table.get(sender)
    if (
        pending is None
        or endpoint is None
        or (claim := pending.claim) != (answer.lock, answer.owner)
        or claim is None
        or (user := pending.user) is None
        or (sent_at := pending.sent_at) is None
        or not isinstance(pending.asked, asked)
        or answer.session != session_lease.assigned
        or not session_lease.kept
        or endpoint.down
        or endpoint.refused
    ):
        return None
    return pending, endpoint, claim, user, sent_at, pending.asked


Way = Callable[[SessionState, Address, Any, Instant], list[Effect] | None]


class Ways(dict[type, Way | None]):
    """The fast path of each type of request or reply. Types without a fast path have None."""

    def __missing__(self, kind: type) -> Way | None:
        way = self[kind] = on_acquire if issubclass(kind, AcquireRequest) else None
        return way


WAYS = Ways({Acquire: on_acquire, Release: on_release, Granted: on_granted, Released: on_released})
