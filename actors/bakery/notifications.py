"""Replies and notifications of a proxy to its clients. Pure."""

from __future__ import annotations

from fencelock.actors.api.message import (
    Acquire,
    Alive,
    Cancel,
    Cancelled,
    Granted,
    Inspect,
    LockStatus,
    Release,
    Released,
)
from fencelock.actors.api.session_message import End, Ended, HoldLost, Renew, Renewed
from fencelock.actors.api.session_message import Unlocking as ClientUnlocking
from fencelock.actors.bakery import proxy_wording as words
from fencelock.actors.bakery.in_flight import InFlightRequest, InFlightRequests
from fencelock.actors.bakery.proxy_message import (
    Expired,
    HoldRenewed,
    Locked,
    QueryResult,
    Unlocked,
)
from fencelock.actors.bakery.proxy_message import Unlocking as LeaderUnlocking
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address


def alive(session: str, node: str, request: int, in_flight_requests: InFlightRequests) -> Alive:
    """Return the reply to a client's keep-alive."""
    leader = leader_for(session, in_flight_requests)
    return Alive(session=session, node=node, request=request, master=leader)


def leader_for(session: str, in_flight_requests: InFlightRequests) -> str:
    """Return the leader that a client should use; clients are divided among the leaders."""
    leaders = in_flight_requests.leaders()
    if not leaders:
        return ""
    return leaders[sum(session.encode()) % len(leaders)]


def granted(in_flight_request: InFlightRequest, asked: Acquire, event: Locked) -> Send:
    """Return the grant for a holder."""
    assert in_flight_request.asker is not None
    return Send(in_flight_request.asker, _grant(event, asked.session, asked.owner, asked.request))


def stray(event: Locked) -> Granted:
    """Return the grant for a client that has no waiting request here any more."""
    return _grant(event, event.who.session, event.who.owner, event.request)


def _grant(event: Locked, session: str, owner: str, request: int) -> Granted:
    return Granted(
        lock=event.lock,
        fence=event.fence,
        session=session,
        owner=owner,
        request=request,
        hold_ms=event.hold_ms,
        grace_ms=event.grace_ms,
    )


def done(
    in_flight_request: InFlightRequest, event: Unlocked | HoldRenewed | QueryResult, node: str
) -> list[Effect]:
    """Return the reply to a request other than for a lock."""
    asker, asked = in_flight_request.asker, in_flight_request.asked
    if asker is None:
        return []
    match asked:
        case Release() if isinstance(event, Unlocked) and not event.found:
            return [words.not_held(asker, asked, node)]
        case Release():
            released = Released(
                lock=asked.lock, session=asked.session, owner=asked.owner, request=asked.request
            )
            return [Send(asker, released), Observe("proxy.released")]
        case Cancel():
            cancelled = Cancelled(
                lock=asked.lock, session=asked.session, owner=asked.owner, request=asked.request
            )
            return [Send(asker, cancelled)]
        case End():
            text = "what it held was given back"
            return [Send(asker, Ended(session=asked.session, detail=text, request=asked.request))]
        case Renew():
            return [_renewed(asker, asked, event, node)]
        case Inspect():
            return [_status(asker, asked, event)]
        case Acquire():
            return []


def _renewed(
    asker: Address, asked: Renew, event: Unlocked | HoldRenewed | QueryResult, node: str
) -> Effect:
    if not isinstance(event, HoldRenewed) or not event.fence:
        return words.not_held(asker, asked, node)
    renewed = Renewed(
        lock=asked.lock,
        fence=event.fence,
        hold_ms=event.hold_ms,
        grace_ms=event.grace_ms,
        session=asked.session,
        owner=asked.owner,
        request=asked.request,
    )
    return Send(asker, renewed)


def _status(asker: Address, asked: Inspect, event: Unlocked | HoldRenewed | QueryResult) -> Effect:
    assert isinstance(event, QueryResult)
    status = LockStatus(
        lock=asked.lock,
        holder=event.holder,
        waiters=event.waiters,
        waits_for=(),
        session=asked.session,
        request=asked.request,
    )
    return Send(asker, status)


def unlocking(event: LeaderUnlocking) -> ClientUnlocking:
    """Return the warning for the client."""
    return ClientUnlocking(
        lock=event.lock,
        fence=event.fence,
        grace_ms=event.grace_ms,
        session=event.who.session,
        owner=event.who.owner,
    )


def expired(event: Expired) -> HoldLost:
    """Return the notification for the client that its hold has ended."""
    return HoldLost(
        lock=event.lock,
        fence=event.fence,
        session=event.who.session,
        owner=event.who.owner,
        detail="its duration and its grace were over (timed out)",
    )
