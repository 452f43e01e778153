"""Replies and notifications of a node's proxy, from the leaders' messages. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from fencelock.actors.api.message import (
    AcquireRequest,
    Cancel,
    Cancelled,
    Granted,
    Inspect,
    Reason,
    Release,
    Released,
    refused,
)
from fencelock.actors.api.name import titled
from fencelock.actors.api.session_message import End, Ended, HoldLost, Renew, Renewed
from fencelock.actors.api.session_message import Unlocking as ClientUnlocking
from fencelock.actors.bakery.event import Readiness
from fencelock.actors.bakery.in_flight import InFlightRequest, Kind
from fencelock.actors.bakery.leader_requests import lock_status
from fencelock.actors.bakery.proxy_message import (
    Error,
    Expired,
    HoldRenewed,
    Locked,
    LockFailed,
    QueryResult,
    Unlocked,
    Unlocking,
)
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Instant, Message, ms_between

REASONS = {
    Error.TIMED_OUT: Reason.TIMED_OUT,
    Error.INVALID: Reason.INVALID,
    Error.DUPLICATE: Reason.ALREADY_HELD,
    Error.HELD: Reason.ALREADY_HELD,
    Error.OVERFLOW: Reason.OVERLOADED,
    Error.FAILED: Reason.CANCELLED,
}
"""The reason that a client receives. After the last, its session asks again, as a new request."""


def granted(event: Locked) -> Granted:
    return Granted(
        lock=event.lock,
        fence=event.fence,
        session=event.who.session,
        owner=event.who.owner,
        request=event.request,
        hold_ms=event.hold_ms,
        grace_ms=event.grace_ms,
    )


def decided(
    pending: InFlightRequest, event: Locked | LockFailed, readiness: Readiness, now: Instant
) -> list[Effect]:
    """Return the reply to an acquire.

    A leader that is left alone ends waits as if another owner were ahead. The proxy knows better
    whether locks can be granted.
    """
    if pending.sender is None:
        return []
    if isinstance(event, Locked):
        return [Send(pending.sender, granted(event)), Observe("proxy.granted")]
    if event.error is Error.TIMED_OUT and not readiness.ready:
        return over(pending, readiness, now)
    detail = event.detail
    if event.error is Error.TIMED_OUT:
        detail += pending.note
    no = refused(pending.request, REASONS[event.error], detail)
    return [Send(pending.sender, no), Observe("proxy.refused")]


def cancelled(pending: InFlightRequest) -> list[Effect]:
    if pending.sender is None or not isinstance(pending.request, Cancel):
        return []
    return [Send(pending.sender, Cancelled(**pending.request.fields()))]


def done(
    pending: InFlightRequest, event: Unlocked | HoldRenewed | QueryResult, node: str
) -> list[Effect]:
    if pending.sender is None:
        return []
    request = pending.request
    reply: Message
    match request:
        case Release() if isinstance(event, Unlocked) and not event.found:
            reply = refused(request, Reason.NOT_HELD, not_held(request, node))
        case Release():
            reply = Released(**request.fields())
            return [Send(pending.sender, reply), Observe("proxy.released")]
        case Cancel():
            reply = Cancelled(**request.fields())
        case End():
            text = "its holds were released"
            reply = Ended(session=request.session, detail=text, request=request.request)
        case Renew() if isinstance(event, HoldRenewed) and event.fence:
            fence, hold_ms, grace_ms = event.fence, event.hold_ms, event.grace_ms
            reply = Renewed(**request.fields(), fence=fence, hold_ms=hold_ms, grace_ms=grace_ms)
        case Renew() if isinstance(event, HoldRenewed) and event.invalid:
            reply = refused(request, Reason.INVALID, f"{titled(request.lock)}: {event.invalid}")
        case Renew():
            reply = refused(request, Reason.NOT_HELD, not_held(request, node))
        case Inspect():
            assert isinstance(event, QueryResult)
            status = lock_status(request.lock, event.holders, event.waiters)
            reply = replace(status, session=request.session, request=request.request)
        case AcquireRequest():
            return []
    return [Send(pending.sender, reply)]


def notice(event: Unlocking | Expired) -> ClientUnlocking | HoldLost:
    """Return the warning that a hold's duration is over, or the notification that it has ended."""
    session, owner = event.who
    if isinstance(event, Unlocking):
        return ClientUnlocking(
            lock=event.lock,
            fence=event.fence,
            grace_ms=event.grace_ms,
            session=session,
            owner=owner,
        )
    text = "its duration and its grace were over (timed out)"
    return HoldLost(lock=event.lock, fence=event.fence, session=session, owner=owner, detail=text)


def not_held(request: Release | Renew, node: str) -> str:
    """Return the text of the refusal to release, or renew, a hold that does not exist."""
    text = f"{titled(request.lock)}: fence {request.fence} was shown, which does not hold it"
    return f"{text} (says {node})"


def default_timeout(wait_ms: int) -> str:
    """Return the note for the refusal of a wait that had the cluster's default timeout."""
    return (
        f"; without a timeout in the call, the limit is {wait_ms} ms: "
        '"obtention" under [bakery] in the configuration'
    )


def given_up(wait: InFlightRequest) -> list[Effect]:
    if wait.sender is None:
        return []
    text = f"{titled(wait.name.lock)}: the wait was given up"
    return [Send(wait.sender, refused(wait.request, Reason.CANCELLED, text))]


def over(pending: InFlightRequest, readiness: Readiness, now: Instant) -> list[Effect]:
    """Refuse a request that no leader answered in time, with the reason if it is known."""
    if pending.sender is None or isinstance(pending.request, End):
        return []
    lock = titled(pending.name.lock)
    waited = f"waited {ms_between(pending.since, now)} ms"
    reason = Reason.UNAVAILABLE
    if pending.name.kind is Kind.QUERY:
        why = "the leaders did not agree" if readiness.ready else readiness.detail
        text = f"{lock}: it is not known who holds it: {waited}; {why}"
    elif not readiness.ready:
        text = f"{lock}: {waited}; bakery grants nothing now: {readiness.detail}{pending.note}"
    elif pending.name.kind is Kind.LOCK:
        reason = Reason.TIMED_OUT
        text = f"{lock}: {waited}; another holds it, or is ahead{pending.note}"
    else:
        text = f"{lock}: {waited}; no leader answered"
    return [Send(pending.sender, refused(pending.request, reason, text))]
