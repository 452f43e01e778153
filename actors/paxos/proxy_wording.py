"""Replies of the log's proxy: outcomes as messages to clients, and denials in words. Pure."""

from __future__ import annotations

from fencelock.actors.api.message import (
    Acquire,
    Alive,
    Cancelled,
    Contender,
    Granted,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.session_message import Ended, Evict, Evicted, HoldLost, Opened
from fencelock.actors.effect import Send
from fencelock.actors.fast_construction import maker
from fencelock.actors.message import Address, Instant, Message, ms_between
from fencelock.actors.paxos.proxy_clients import client_of
from fencelock.actors.paxos.proxy_event import Asked, Ending, Question
from fencelock.actors.paxos.proxy_in_flight import InFlightRequest
from fencelock.actors.table.command import CloseReason
from fencelock.actors.table.outcome import (
    Denial,
    Denied,
    Forced,
    Freed,
    Held,
    Lost,
    SessionClosed,
    SessionKept,
    SessionOpened,
    WaitCancelled,
)

new_granted, new_released = maker(Granted), maker(Released)
"""Makers of the most frequent replies."""

_REASONS: dict[Denial, Reason] = {
    Denial.TIMED_OUT: Reason.TIMED_OUT,
    Denial.NOT_HELD: Reason.NOT_HELD,
    Denial.OWNERSHIP_LOST: Reason.OWNERSHIP_LOST,
    Denial.LIMIT_REACHED: Reason.LIMIT_REACHED,
    Denial.CANCELLED: Reason.CANCELLED,
    Denial.SESSION_EXPIRED: Reason.SESSION_EXPIRED,
    Denial.SUPERSEDED: Reason.CANCELLED,
    Denial.FORGOTTEN: Reason.CANCELLED,
    Denial.OVERLOADED: Reason.OVERLOADED,
    Denial.INVALID: Reason.INVALID,
}


def answer(
    in_flight_request: InFlightRequest,
    outcome: Ending,
    now: Instant,
    node: str = "",
    master: str = "",
) -> Message:
    """Return the reply to the asker of ``in_flight_request``, which must have one.

    Args:
        in_flight_request: the request.
        outcome: its outcome.
        now: the time on this node's clock.
        node: this node, for replies about sessions.
        master: the node that leads the log, for those too; empty if unknown.

    """
    asked = in_flight_request.asked
    assert asked is not None
    match outcome:
        case Held():
            return new_granted(
                lock=outcome.lock,
                fence=outcome.fence,
                session=asked.session,
                owner=_owner(asked),
                request=asked.request,
                count=outcome.count,
            )
        case Freed():
            return new_released(
                lock=outcome.lock,
                session=asked.session,
                owner=_owner(asked),
                request=asked.request,
                count=outcome.count,
            )
        case Denied():
            return _refusal(asked, outcome, ms_between(in_flight_request.asked_at, now))
        case WaitCancelled():
            return Cancelled(
                lock=outcome.lock,
                session=asked.session,
                owner=_owner(asked),
                request=asked.request,
            )
        case Forced():
            return _evicted(outcome, asked)
        case SessionKept() | SessionOpened() | SessionClosed():
            return _about_session(outcome, asked, node, master)


def refusal(asked: Asked | Question, reason: Reason, detail: str) -> Refused:
    """Return the refusal of ``asked``, with its session, owner and number."""
    return Refused(
        lock=getattr(asked, "lock", ""),
        reason=reason,
        detail=detail,
        session=asked.session,
        owner=_owner(asked),
        request=asked.request,
    )


def refuse(asker: Address, asked: Asked | Question, reason: Reason, detail: str) -> Send:
    """Return `refusal` as a message to ``asker``."""
    return Send(asker, refusal(asked, reason, detail))


def hold_lost(lost: Lost) -> HoldLost:
    """Return the notification for the former holder."""
    return HoldLost(
        lock=lost.lock,
        fence=lost.fence,
        session=lost.session,
        owner=lost.owner,
        detail=f"lock {lost.lock!r}: the hold under fence {lost.fence} was taken by "
        f"{lost.operator!r}",
    )


def ended(closed: SessionClosed, request: int = 0) -> Ended:
    """Return the notification for the client of a session that has ended."""
    return Ended(session=closed.session, detail=why_closed(closed), request=request)


def why_closed(closed: SessionClosed) -> str:
    """Describe why a session ended."""
    match closed.reason:
        case CloseReason.GRACEFUL:
            why = "its client ended it"
        case CloseReason.EXPIRED:
            why = "nothing was heard of its client for its TTL"
        case CloseReason.FORCED:
            why = "an operator ended it"
        case CloseReason.IDLE:
            why = "nothing was held or waited for in it"
    return f"session {closed.session!r} has ended: {why}"


def _owner(asked: Asked | Question) -> str:
    owner: str = getattr(asked, "owner", "")
    return owner


def _about_session(
    outcome: SessionOpened | SessionKept | SessionClosed, asked: Asked, node: str, master: str
) -> Message:
    match outcome:
        case SessionOpened():
            return Opened(
                session=outcome.session,
                assigned=outcome.assigned,
                ttl_ms=outcome.ttl_ms,
                node=node,
                request=asked.request,
                master=master,
            )
        case SessionKept():
            return Alive(session=asked.session, node=node, request=asked.request, master=master)
        case SessionClosed():
            return ended(outcome, asked.request)


def _evicted(forced: Forced, asked: Asked) -> Evicted:
    holder = Contender(
        node=client_of(forced.session),
        session=forced.session,
        owner=forced.owner,
        fence=forced.fence,
        since_ms=0,
        label=forced.label,
    )
    return Evicted(
        lock=forced.lock,
        fence=forced.fence,
        holder=holder,
        session=asked.session,
        request=asked.request,
    )


def _refusal(asked: Asked, denied: Denied, waited_ms: int) -> Refused:
    reason, detail = _REASONS[denied.reason], denied.detail
    match denied.reason:
        case Denial.INVALID:
            return refusal(asked, reason, detail)
        case Denial.SESSION_EXPIRED:
            text = f"session {denied.session!r} does not exist (any more); open one"
            return refusal(asked, reason, text)
        case _ if not denied.lock:  # About a session: their table is full.
            return refusal(asked, reason, detail)
        case Denial.TIMED_OUT:
            waited = f"waited {waited_ms} ms; " if _waits(asked) else ""
            text = f"{waited}{detail}"
        case Denial.CANCELLED:
            text = "the wait was given up"
        case Denial.LIMIT_REACHED:
            if isinstance(asked, Acquire) and asked.limit == 1:
                reason = Reason.ALREADY_HELD
            text = f"this owner is at its limit: {detail}"
        case Denial.NOT_HELD:
            fence = asked.fence if isinstance(asked, Release | Evict) else 0
            text = f"fence {fence} was shown, which does not hold it; {detail}"
        case Denial.OWNERSHIP_LOST:
            text = f"this owner has lost it; {detail}"
        case Denial.SUPERSEDED | Denial.FORGOTTEN:
            text = "this owner has since asked for something else, so nothing is done now"
            if isinstance(asked, Release):
                reason = Reason.NOT_HELD
        case Denial.OVERLOADED:
            text = detail
    return refusal(asked, reason, f"lock {denied.lock!r}: {text}")


def _waits(asked: Asked) -> bool:
    return isinstance(asked, Acquire) and asked.wait_ms != 0
