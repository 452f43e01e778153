"""Checks on a user's request that let a session refuse it at once, without asking an endpoint."""

from __future__ import annotations

from fencelock.actors.api.message import AcquireRequest, Reason, ReleaseRequest
from fencelock.actors.api.name import titled
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.api.session_message import Renew
from fencelock.actors.message import Instant
from fencelock.actors.session.holding import HOLDS_MAX
from fencelock.actors.session.pending import Claim, Question
from fencelock.actors.session.rejection import Rejection, lost, problem_of, wrong_cluster
from fencelock.actors.session.session_loss import why_not_renew
from fencelock.actors.session.session_state import SessionState

PENDING_MAX = 10_000
"""Maximum unanswered requests and cancels; each is repeated, and an endpoint reads them all."""


def why_not(
    state: SessionState, question: Question, claim: Claim | None, now: Instant
) -> Rejection | None:
    """Return why ``question`` is not sent to any endpoint, or None if it is.

    ``claim`` is the question's claim, or None if it needs no session.
    """
    problem = problem_of(question)
    if problem is not None:
        return problem
    no: Rejection | None = None
    match question:
        case AcquireRequest():
            assert claim is not None
            no = _why_not_acquire(state, question, claim)
        case ReleaseRequest():
            assert claim is not None
            return _why_not_release(state, question, claim)
        case UpdateRequest():
            assert claim is not None
            no = _why_not_update(state, claim)
        case Renew():
            assert claim is not None
            return why_not_renew(state, question, claim)
        case _:
            pass
    if no is not None:
        return no
    if state.endpoints.all_refused():
        return wrong_cluster(state.endpoints, now)
    unanswered = len(state.in_flight.pending) + len(state.in_flight.withdrawals)
    if unanswered >= PENDING_MAX:
        text = f"{PENDING_MAX} requests of this client are unanswered, the limit"
        return Rejection(Reason.OVERLOADED, text)
    return None


def _why_not_acquire(
    state: SessionState, acquire: AcquireRequest, claim: Claim
) -> Rejection | None:
    if claim in state.in_flight.waits:
        text = f"{titled(claim.lock)}: owner {claim.owner!r} waits for it already"
        return Rejection(Reason.ALREADY_HELD, text)
    hold = state.holds.get(claim)
    if hold is not None and (acquire.limit == 1 or not state.session_lease.kept):
        text = f"{titled(claim.lock)}: owner {claim.owner!r} holds it, under fence {hold.fence}"
        if claim in state.in_flight.releases:
            by = state.endpoints.table[state.endpoint_for(hold)].label
            text += f"; its release is not confirmed by {by} yet"
        return Rejection(Reason.ALREADY_HELD, text)
    if hold is None and len(state.holds) >= HOLDS_MAX:
        return Rejection(Reason.OVERLOADED, f"this client holds {HOLDS_MAX} locks, the limit")
    return None


def _why_not_update(state: SessionState, claim: Claim) -> Rejection | None:
    if claim not in state.in_flight.waits:
        return None
    text = f"{titled(claim.lock)}: a request of owner {claim.owner!r} about it is unanswered"
    return Rejection(Reason.ALREADY_HELD, text)


def _why_not_release(
    state: SessionState, release: ReleaseRequest, claim: Claim
) -> Rejection | None:
    loss = state.unreported.tell(claim, release.fence) if state.unreported.losses else None
    if loss is not None:
        return lost(claim, release.fence, loss)
    hold = state.holds.get(claim)
    if hold is None and not claim.owner:
        text = f"{titled(claim.lock)}: fence {release.fence} was shown, which does not hold it here"
    elif hold is None:
        text = f"{titled(claim.lock)}: owner {claim.owner!r} does not hold it"
    elif hold.fence != release.fence:
        text = (
            f"{titled(claim.lock)}: owner {claim.owner!r} holds it under fence "
            f"{hold.fence}, fence {release.fence} was shown"
        )
    elif _being_released(state, claim) >= len(hold.levels):
        text = f"{titled(claim.lock)}: owner {claim.owner!r} is releasing it already"
    else:
        return None
    return Rejection(Reason.NOT_HELD, text)


def _being_released(state: SessionState, claim: Claim) -> int:
    """Return the number of releases of ``claim`` that users wait for."""
    in_flight = state.in_flight
    numbers = in_flight.releases.get(claim)
    if numbers is None:
        return 0
    pending = [in_flight.pending[number] for number in numbers]
    return sum(
        one.user is not None and isinstance(one.asked, ReleaseRequest) and not one.asked.PARTIAL
        for one in pending
    )
