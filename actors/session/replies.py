"""Processes the messages that endpoints send to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fencelock.actors.api.changes import ReadChanges
from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import (
    ERRORS,
    AcquireRequest,
    Cancel,
    CancellableRequest,
    Cancelled,
    Granted,
    Reason,
    Refused,
    Released,
    ReleaseRequest,
    Renewed,
)
from fencelock.actors.api.name import titled
from fencelock.actors.api.object_request import UpdateReply, UpdateRequest
from fencelock.actors.api.request import Reply
from fencelock.actors.api.session_message import Alive, Opened
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.error import NotHeldError
from fencelock.actors.message import Address, Instant
from fencelock.actors.session import holds
from fencelock.actors.session.endpoints import note_life, note_node, prefer_leader
from fencelock.actors.session.holds import EXPIRED, GONE, Acquisition, ClientHold, let_go, lose
from fencelock.actors.session.lease import SessionLease
from fencelock.actors.session.refusals import is_reply_to, lost
from fencelock.actors.session.requests import (
    ANY_ENDPOINT,
    CancelKey,
    LockKey,
    Pending,
    UserRequest,
    settle,
)
from fencelock.actors.session.upkeep import follow_members, keep_watching

if TYPE_CHECKING:
    from fencelock.actors.session.state import SessionState

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


OVERLOADS = frozenset({Reason.OVERLOADED, Reason.UNAVAILABLE})
"""The `UNDECIDED` refusals after which an earlier copy of an update may have been applied."""

EARLIER = "it is unknown whether an earlier copy of this request took effect"


def on_reply(state: SessionState, sender: Address, reply: Reply, now: Instant) -> list[Effect]:
    """Pass ``reply`` to the user, once; drop it if no request waits for it."""
    effects, pending = _expected(state, sender, reply, now)
    if pending is None:
        return effects
    state.in_flight.drop(pending)
    return effects + state.reply(pending, reply) + state.in_flight.send_held_back(now)


def _expected(
    state: SessionState, sender: Address, reply: Reply, now: Instant
) -> tuple[list[Effect], Pending | None]:
    """Return the request to which ``reply`` replies, or None, and the effects of its arrival."""
    session_lease, unanswered = state.session_lease, state.in_flight.pending
    pending, session = unanswered.get(reply.request), reply.session
    if (
        pending is not None
        and pending.sent_at is not None
        and session == (session_lease.assigned if pending.lock_key else session_lease.name)
        and is_reply_to(pending, reply)
    ):
        effects = note_life(state, sender, now)
        if effects and reply.request not in unanswered:  # `note_life` has just moved it.
            return [*effects, Observe("client.late_answer_dropped")], None
        return effects, pending
    if session not in (session_lease.name, session_lease.assigned):
        return [Observe("client.answer_of_another_session_dropped")], None
    if pending is None:
        return _on_late(state, sender, reply, now), None
    return [Observe("client.unfit_answer_dropped")], None


def on_status(
    state: SessionState, sender: Address, status: NodeStatus, now: Instant
) -> list[Effect]:
    """Note the node that describes itself; pass that on, or add it to its survey."""
    effects, pending = _expected(state, sender, status, now)
    if pending is None:
        return effects
    effects += note_node(state, sender, status.node, status.leader, now)
    state.in_flight.drop(pending)
    if not pending.survey:
        return effects + state.reply(pending, status)
    survey = state.surveys[pending.survey]
    del survey.missing[pending.endpoint]
    survey.statuses[pending.endpoint] = status
    return effects + state.finish_surveys()


def on_updated(
    state: SessionState, sender: Address, reply: UpdateReply, now: Instant
) -> list[Effect]:
    """Pass on the result of an update; keep the session if something ends with it."""
    effects, pending = _expected(state, sender, reply, now)
    if pending is None:
        return effects
    lock_key, request = state.in_flight.drop(pending), pending.request
    assert lock_key is not None
    if isinstance(request, UpdateRequest) and request.needs_session:
        state.session_lease.pinned = True
    state.session_lease.confirm(pending.sent_at)
    return [*effects, *state.reply(pending, reply), *state.in_flight.go_on(lock_key, now)]


def on_cancelled(
    state: SessionState, sender: Address, cancelled: Cancelled, now: Instant
) -> list[Effect]:
    """Remove a cancel, and send the requests that it blocked."""
    settled = None
    if cancelled.session == state.session_lease.assigned:
        settled = settle(state.in_flight.cancels, state.endpoints.table, cancelled)
    if settled is None:
        return [Observe("client.late_answer_dropped")]
    cancel_key, pending_cancel = settled
    effects = note_life(state, cancel_key.endpoint or sender, now)
    state.session_lease.confirm(pending_cancel.sent_at)
    return [
        *effects,
        *state.in_flight.go_on(cancel_key.lock_key, now, cancel_key.endpoint),
    ]


def _on_cancel_forbidden(
    state: SessionState, sender: Address, reply: Refused, now: Instant
) -> list[Effect]:
    """Give up a cancel that the key does not allow: no repetition would be allowed either.

    The refusal has the key of the cancel, with the number negated.
    """
    cancelled = Cancelled(
        lock=reply.lock, session=reply.session, owner=reply.owner, request=-reply.request
    )
    return on_cancelled(state, sender, cancelled, now)


def on_alive(state: SessionState, sender: Address, alive: Alive, now: Instant) -> list[Effect]:
    """Note that a node lives, and, if it confirms that, that the cluster keeps the session."""
    session_lease = state.session_lease
    if alive.session not in (session_lease.name, session_lease.assigned):
        return [Observe("client.answer_of_another_session_dropped")]
    effects = note_life(state, sender, now)
    state.endpoints.note_excuse(sender, alive.excuse, now)
    if session_lease.kept and alive.session == session_lease.assigned:
        session_lease.confirm(session_lease.sent.pop(alive.request, None))
    effects += note_node(state, sender, alive.node, alive.leader, now)
    effects += follow_members(state, sender, alive, now)
    return effects + keep_watching(state, now)


def on_opened(state: SessionState, sender: Address, opened: Opened, now: Instant) -> list[Effect]:
    """Take the session, and send everything that waited for it."""
    effects = note_life(state, sender, now)
    if not state.session_lease.opened(opened, now):
        return [*effects, Observe("client.late_answer_dropped")]
    if state.session_lease.kept:
        state.endpoints.live_by(state.session_lease.lived_ms)
        state.greet_at = None
        effects.append(Observe("client.session_opened"))
    effects += note_node(state, sender, opened.node, opened.leader, now)
    effects += follow_members(state, sender, opened, now)
    effects += prefer_leader(state, now)  # It may have been known before the session.
    return effects + state.in_flight.start_over(now) + keep_watching(state, now)


def _on_expired(state: SessionState, sender: Address, reply: Refused, now: Instant) -> list[Effect]:
    effects = note_life(state, sender, now)
    if not state.session_lease.kept or reply.session != state.session_lease.assigned:
        return effects  # It answers a keep-alive from before the session, or an old session.
    if state.closing.begun and reply.session == state.closing.session:
        return effects + holds.on_own_end(
            state
        )  # Its waits are refused before the end is confirmed.
    detail = f"the cluster does not know the session (any more): {reply.detail}"
    return effects + lose(state, detail, now, ended=True)


def _on_not_opened(
    state: SessionState, sender: Address, reply: Refused, now: Instant
) -> list[Effect]:
    """Refuse all requests that need the session, since none can be opened."""
    effects = note_life(state, sender, now)
    state.session_lease.drop()
    no = ERRORS[reply.reason](f"no session: {reply.detail}")
    for pending in state.pending_of_locks():
        effects += state.refuse(pending, no, now)
    return [*effects, Observe("client.session_refused")]


def on_granted(
    state: SessionState, sender: Address, granted: Granted, now: Instant
) -> list[Effect]:
    """Hold the lock, and pass the grant on; renew it before if most of its duration is over."""
    effects, pending = _expected(state, sender, granted, now)
    if pending is None:
        return effects
    if granted.hold_ms and holds.is_late(state, pending, granted, now):
        state.session_lease.confirm(pending.sent_at)
        return [*effects, holds.renew_first(state, pending, granted, now)]
    return effects + _hold(state, pending, granted, now)


def _hold(state: SessionState, pending: Pending, granted: Granted, now: Instant) -> list[Effect]:
    lock_key = state.in_flight.drop(pending)
    assert lock_key is not None
    assert pending.user is not None
    state.session_lease.confirm(pending.sent_at)
    effects: list[Effect] = []
    loss = (
        state.unreported.take_reason(lock_key, granted.fence) if state.unreported.losses else None
    )
    if loss is None and granted.hold_ms and holds.is_given_back(state, lock_key, granted):
        loss = EXPIRED
    if loss is not None:  # It was taken away before this answer came.
        effects += state.reply_no(pending, lost(lock_key, granted.fence, loss))
        if granted.hold_ms:
            effects += holds.release_lost(state, lock_key, granted.fence, now)
        return effects + state.in_flight.go_on(lock_key, now)
    hold = state.holds.get(lock_key)
    if hold is not None and hold.fence != granted.fence:
        assert state.session_lease.kept  # one-endpoint-a-claim
        effects += state.lose_hold(lock_key, f"it was granted anew, under fence {granted.fence}")
        hold = None
    begins = granted.hold_ms and not holds.is_known(state, granted)
    acquisition = Acquisition(pending.user, pending.request.request)
    if hold is None:
        trust, fence = state.session_lease.trust, granted.fence
        state.holds[lock_key] = ClientHold(pending.endpoint, fence, (acquisition,), trust)
        if isinstance(pending.request, AcquireRequest) and not pending.request.owner:
            state.anonymous[lock_key.lock, fence] = lock_key.owner
    else:
        hold.acquisitions += (acquisition,)
    if begins:
        holds.begin_lease(state, lock_key, pending, granted, now)
    effects += state.reply(pending, granted)
    return effects + state.in_flight.go_on(lock_key, now)


def on_renewed(
    state: SessionState, sender: Address, renewed: Renewed, now: Instant
) -> list[Effect]:
    """Extend a hold; or take one that was renewed before its user received the grant."""
    effects, pending = _expected(state, sender, renewed, now)
    if pending is None:
        return effects
    if not isinstance(pending.request, AcquireRequest):
        return effects + _extend(state, pending, renewed, now)
    if pending.renewed_at is None:
        return [*effects, Observe("client.unfit_answer_dropped")]
    fence, hold_ms, grace_ms = renewed.fence, renewed.hold_ms, renewed.grace_ms
    if now >= SessionLease.trusted_until(pending.renewed_at, hold_ms + grace_ms):
        # It came so late that it may have ended meanwhile.
        effects += state.in_flight.again(pending, pending.endpoint, now)
        return [*effects, Observe("client.wait_renewed")]
    granted = Granted(**renewed.fields(), fence=fence, hold_ms=hold_ms, grace_ms=grace_ms)
    return effects + _hold(state, pending, granted, now)


def _extend(state: SessionState, pending: Pending, renewed: Renewed, now: Instant) -> list[Effect]:
    lock_key = state.in_flight.drop(pending)
    assert lock_key is not None
    state.session_lease.confirm(pending.sent_at)
    effects = holds.take_renewal(state, pending, renewed, now)
    if lock_key in state.holds:
        effects += state.release_owed(lock_key, now)
    return effects + state.in_flight.go_on(lock_key, now)


def on_released(
    state: SessionState, sender: Address, released: Released, now: Instant
) -> list[Effect]:
    """End one acquire of a hold, or the hold with its last acquire."""
    effects, pending = _expected(state, sender, released, now)
    if pending is None:
        return effects
    lock_key = state.in_flight.drop(pending)
    assert lock_key is not None
    hold = state.holds.get(lock_key)  # None if the rest was taken away meanwhile.
    if hold is not None:
        if released.count <= 0:
            state.drop_hold(lock_key)
        elif not _is_partial(pending.request):
            hold.freed(released.count, None if pending.owed else pending.request.request)
    state.session_lease.confirm(pending.sent_at)
    effects += state.reply(pending, released)
    if hold is not None and released.count > 0:
        state.match_state(lock_key)
        effects += state.release_owed(lock_key, now)
    return effects + state.in_flight.go_on(lock_key, now)


def on_refused(state: SessionState, sender: Address, reply: Refused, now: Instant) -> list[Effect]:
    """Pass a refusal on, unless the request goes on; note what it says about the session."""
    if reply.reason is Reason.SESSION_EXPIRED:
        return _on_expired(state, sender, reply, now)
    if state.session_lease.asked_for(reply.session, reply.request):
        return _on_not_opened(state, sender, reply, now)
    effects, pending = _expected(state, sender, reply, now)
    return effects if pending is None else effects + _on_refused(state, pending, reply, now)


def _on_refused(
    state: SessionState, pending: Pending, reply: Refused, now: Instant
) -> list[Effect]:
    lock_key = pending.lock_key
    match pending.request:
        case AcquireRequest() if reply.reason is Reason.CANCELLED or (
            pending.renewed_at is not None and reply.reason is Reason.NOT_HELD
        ):
            # The node took us for gone, or the grant expired before its lease was renewed. Our user
            # still waits.
            state.in_flight.renew(pending, now)
            return [Observe("client.wait_renewed")]
        case CancellableRequest() if (
            reply.reason in UNDECIDED
            and state.session_lease.kept
            and (pending.times_sent > 1 or pending.renewed_at is not None)
        ):
            request = pending.request
            once = isinstance(request, UpdateRequest) and not request.IDEMPOTENT
            if once and reply.reason in OVERLOADS:
                reply = replace(reply, detail=f"{reply.detail}; {EARLIER}")
            return [*state.reply(pending, reply), *state.in_flight.withdraw(pending, now)]
        case ReadChanges() if reply.reason is Reason.STALE and (
            other := state.endpoints.after(pending.endpoint)
        ):
            return state.in_flight.again(pending, other.address, now)
        case ReleaseRequest() if (
            reply.reason not in GONE
            and reply.reason is not Reason.FORBIDDEN  # No repetition would be allowed either.
            # It cannot be done to this hold, or the protocol has no such request.
            and not (
                pending.request.REFUSABLE and reply.reason in {Reason.INVALID, Reason.UNSUPPORTED}
            )
        ):
            if pending.user is None or state.session_lease.kept:
                return []  # The hold is still there, or an earlier copy may be done: continue.
        case _:
            pass
    state.in_flight.drop(pending)
    effects = state.reply(pending, reply)
    if lock_key is None:
        return effects + state.in_flight.send_held_back(now)
    effects = [*let_go(state, lock_key, pending, reply), *effects, *_rest_of(state, lock_key, now)]
    state.match_state(lock_key)
    return effects


def _is_partial(request: UserRequest) -> bool:
    return isinstance(request, ReleaseRequest) and request.PARTIAL


def _rest_of(state: SessionState, lock_key: LockKey, now: Instant) -> list[Effect]:
    """Go on with ``lock_key``: its releases are over if there is nothing left to release."""
    effects: list[Effect] = []
    if lock_key not in state.holds:
        for number in list(state.in_flight.releases.get(lock_key, ())):
            pending = state.in_flight.pending[number]
            state.in_flight.drop(pending)
            text = f"{titled(lock_key.lock)}: owner {lock_key.owner!r} does not hold it any more"
            effects += state.reply_no(pending, NotHeldError(text))
    return [*effects, *state.in_flight.go_on(lock_key, now)]


def _on_late(state: SessionState, sender: Address, reply: Reply, now: Instant) -> list[Effect]:
    """Drop a reply that no request waits for. If it is a grant, cancel it where that is needed.

    A pending cancel gives a grant back, too. Another is needed in two cases. Without sessions, a
    node may have forgotten the cancel when a delayed copy of the acquire arrives. With deadlines, a
    proxy may have ended a wait while a leader granted it. A cluster that keeps sessions forgets no
    cancel.
    """
    if isinstance(reply, Refused) and reply.reason is Reason.FORBIDDEN and reply.request < 0:
        return _on_cancel_forbidden(state, sender, reply, now)
    effects: list[Effect] = [Observe("client.late_answer_dropped")]
    if not isinstance(reply, Granted) or sender not in state.endpoints.table:
        return effects
    kept = state.session_lease.kept
    if kept and (not reply.hold_ms or reply.session != state.session_lease.assigned):
        return effects
    lock_key = LockKey(reply.lock, reply.owner)
    hold = state.holds.get(lock_key)
    # A kept hold may be of this very request, which another leader granted again. So may any
    # other, if its endpoint has restarted: its earlier grants are over.
    older = hold is not None and sender == hold.endpoint and reply.fence < hold.fence
    repeated = hold is not None and (kept or older or hold.fence == reply.fence)
    cancel_key = CancelKey(ANY_ENDPOINT if kept else sender, lock_key)
    if repeated or cancel_key in state.in_flight.cancels:
        return effects
    stray = Observe("client.stray_grant_returned")
    return [*effects, Send(sender, Cancel(**reply.fields())), stray]
