"""What a door answers: grants, refusals in words, its node's description. Pure."""

from __future__ import annotations

from holdfast.actors.bakery.config import Terms
from holdfast.actors.bakery.door_message import (
    Error,
    Expired,
    Locked,
    LockFailed,
    Peeked,
    Prolonged,
    Unlocked,
)
from holdfast.actors.bakery.door_message import Unlocking as LeaderUnlocking
from holdfast.actors.bakery.errand import Errand, Errands, Kind
from holdfast.actors.bakery.event import Readiness
from holdfast.actors.bakery.ticket import TERM_MS_MAX
from holdfast.actors.effect import Effect, Observe, Send
from holdfast.actors.error import InvalidRequestError
from holdfast.actors.lock.message import (
    Acquire,
    Cancel,
    Cancelled,
    Granted,
    Inspect,
    KeepAlive,
    LockStatus,
    Reason,
    Refused,
    Release,
    Released,
)
from holdfast.actors.lock.name import (
    OWNER_BYTES_MAX,
    check_lock_name,
    check_owner,
    check_wait,
)
from holdfast.actors.lock.session_message import (
    End,
    Ended,
    Evict,
    HoldLost,
    ListLocks,
    Open,
    Renew,
    Renewed,
)
from holdfast.actors.lock.session_message import Unlocking as ClientUnlocking
from holdfast.actors.message import Address, Instant, Message, ms_between, node_of

REASONS = {
    Error.TIMED_OUT: Reason.TIMED_OUT,
    Error.INVALID: Reason.INVALID,
    Error.DUPLICATE: Reason.ALREADY_HELD,
    Error.OVERFLOW: Reason.OVERLOADED,
    Error.FAILED: Reason.CANCELLED,
}
"""How a client is told. After the last its session asks again, under another number."""

FromClient = (
    Acquire | Release | Cancel | Renew | Inspect | KeepAlive | Open | End | ListLocks | Evict
)


def sound_session(session: str) -> bool:
    """Return whether a session's name may be kept until an answer."""
    return len(session) <= OWNER_BYTES_MAX


def problem_of(node: str, terms: Terms, asker: Address, asked: FromClient) -> tuple[Reason, str]:
    """Return what is wrong with a client's request; the empty string if nothing is."""
    client, session = node_of(asker), asked.session
    own = session.startswith((f"{client}~", f"{client}."))
    if client not in {node, session} and not own:
        return Reason.INVALID, f"session {session[:80]!r} is not of the client {client!r} itself"
    if isinstance(asked, Open | End | Cancel | KeepAlive) and not session and client != node:
        return Reason.INVALID, "session is empty"
    try:
        check_owner(session)
        if isinstance(asked, Acquire | Release | Cancel | Renew):
            check_lock_name(asked.lock)
            check_owner(asked.owner)
        if isinstance(asked, Inspect):
            check_lock_name(asked.lock)
        if isinstance(asked, Acquire):
            check_wait(asked.wait_ms)
            check_owner(asked.label)
    except InvalidRequestError as problem:
        return Reason.INVALID, str(problem)
    if isinstance(asked, Acquire | Renew) and (why := _why_not(asked, terms)):
        return Reason.INVALID, why
    if isinstance(asked, Acquire) and asked.limit != 1:
        text = f"limit {asked.limit} asks for a lock that its owner may hold more than once"
        return Reason.UNSUPPORTED, f"{text}; bakery has none, paxos has"
    return Reason.INVALID, ""


def _why_not(asked: Acquire | Renew, terms: Terms) -> str:
    """Return why the durations of a request are not allowed, empty if they are."""
    said = [("duration", asked.hold_ms)]
    if isinstance(asked, Acquire):
        said.append(("grace", asked.grace_ms))
    for name, term_ms in said:
        if term_ms and not terms.least_ms <= term_ms <= TERM_MS_MAX:
            allowed = f"{terms.least_ms} to {TERM_MS_MAX} ms are allowed"
            return f"lock {asked.lock!r}: {name} is {term_ms} ms, {allowed}"
    return ""


def refuse(asker: Address, asked: Message, reason: Reason, detail: str) -> Send:
    """Return the refusal of ``asked``, addressed to its asker."""
    return Send(
        asker,
        Refused(
            lock=getattr(asked, "lock", ""),
            reason=reason,
            detail=detail,
            session=getattr(asked, "session", ""),
            owner=getattr(asked, "owner", ""),
            request=getattr(asked, "request", 0),
        ),
    )


def not_held(asker: Address, asked: Release | Renew, node: str) -> Send:
    """Return the refusal to release, or to renew, what nobody holds so."""
    text = f"lock {asked.lock!r}: fence {asked.fence} was shown, which does not hold it"
    return refuse(asker, asked, Reason.NOT_HELD, f"{text} (says {node})")


def given_up(errand: Errand) -> Send:
    """Tell a wait that its owner asked anew."""
    assert errand.asker is not None
    text = f"lock {errand.name.lock!r}: the wait was given up"
    return refuse(errand.asker, errand.asked, Reason.CANCELLED, text)


def granted(errand: Errand, asked: Acquire, event: Locked) -> Send:
    """Return what a holder is told."""
    assert errand.asker is not None
    return Send(
        errand.asker,
        Granted(
            lock=event.lock,
            fence=event.fence,
            session=asked.session,
            owner=asked.owner,
            request=asked.request,
            hold_ms=event.hold_ms,
            grace_ms=event.grace_ms,
        ),
    )


def failed(errand: Errand, asked: Acquire, event: LockFailed) -> Send:
    """Return what whoever did not get its lock is told."""
    assert errand.asker is not None
    reason = REASONS[event.error]
    if reason is Reason.CANCELLED and not asked.session:
        reason = Reason.UNAVAILABLE
    return refuse(errand.asker, asked, reason, event.detail)


def over(errand: Errand, readiness: Readiness, now: Instant) -> list[Effect]:
    """Say that no leader answered in time, and why if that is known."""
    if errand.asker is None:
        return []
    waited = f"waited {ms_between(errand.since, now)} ms"
    lock = errand.name.lock
    if isinstance(errand.asked, End):
        return []
    if not readiness.ready:
        text = f"lock {lock!r}: {waited}; bakery grants nothing now: {readiness.detail}"
        return [refuse(errand.asker, errand.asked, Reason.UNAVAILABLE, text)]
    if errand.name.kind is Kind.LOCK:
        text = f"lock {lock!r}: {waited}; another holds it, or is ahead"
        return [refuse(errand.asker, errand.asked, Reason.TIMED_OUT, text)]
    text = f"lock {lock!r}: {waited}; no leader answered"
    return [refuse(errand.asker, errand.asked, Reason.UNAVAILABLE, text)]


def done(errand: Errand, event: Unlocked | Prolonged | Peeked, node: str) -> list[Effect]:
    """Return what became of a request other than for a lock."""
    asker, asked = errand.asker, errand.asked
    if asker is None:
        return []
    match asked:
        case Release() if isinstance(event, Unlocked) and not event.found:
            return [not_held(asker, asked, node)]
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
    asker: Address, asked: Renew, event: Unlocked | Prolonged | Peeked, node: str
) -> Effect:
    if not isinstance(event, Prolonged) or not event.fence:
        return not_held(asker, asked, node)
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


def _status(asker: Address, asked: Inspect, event: Unlocked | Prolonged | Peeked) -> Effect:
    assert isinstance(event, Peeked)
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
    """Return the warning as a client hears it."""
    return ClientUnlocking(
        lock=event.lock,
        fence=event.fence,
        grace_ms=event.grace_ms,
        session=event.who.session,
        owner=event.who.owner,
    )


def expired(event: Expired) -> HoldLost:
    """Return the end of a hold as a client hears it."""
    return HoldLost(
        lock=event.lock,
        fence=event.fence,
        session=event.who.session,
        owner=event.who.owner,
        detail="its duration and its grace were over (timed out)",
    )


def leader_for(session: str, errands: Errands) -> str:
    """Return the leader that a client should rather speak with; the clients share them out."""
    leaders = errands.leaders()
    if not leaders:
        return ""
    return leaders[sum(session.encode()) % len(leaders)]
