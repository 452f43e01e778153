"""Refusals of a proxy, with their reasons in words. Pure."""

from __future__ import annotations

from fencelock.actors.api.message import (
    Acquire,
    Cancel,
    Inspect,
    KeepAlive,
    Reason,
    Refused,
    Release,
)
from fencelock.actors.api.name import (
    OWNER_BYTES_MAX,
    check_lock_name,
    check_new_lock_name,
    check_owner,
    check_request,
    check_wait,
)
from fencelock.actors.api.session_message import End, Evict, ListLocks, Open, Renew
from fencelock.actors.bakery.config import Terms
from fencelock.actors.bakery.event import Readiness
from fencelock.actors.bakery.in_flight import InFlightRequest, Kind
from fencelock.actors.bakery.proxy_message import Error, LockFailed
from fencelock.actors.bakery.ticket import TERM_MS_MAX
from fencelock.actors.effect import Effect, Send
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Address, Instant, Message, ms_between, node_of


def no_bounded_reads(protocol: str) -> str:
    """Return the reason why a read with a bound on its age is refused."""
    return (
        f"{protocol} cannot prove how old the knowledge of a node is, so it has no local reads "
        "with a bound (max_age); paxos has them"
    )


REASONS = {
    Error.TIMED_OUT: Reason.TIMED_OUT,
    Error.INVALID: Reason.INVALID,
    Error.DUPLICATE: Reason.ALREADY_HELD,
    Error.OVERFLOW: Reason.OVERLOADED,
    Error.FAILED: Reason.CANCELLED,
}
"""The reason that a client receives. After the last, its session asks again, as a new request."""

FromClient = (
    Acquire | Release | Cancel | Renew | Inspect | KeepAlive | Open | End | ListLocks | Evict
)


def sound_session(session: str) -> bool:
    """Return whether a session's name is short enough to be kept until a reply."""
    return len(session) <= OWNER_BYTES_MAX


def problem_of(node: str, terms: Terms, asker: Address, asked: FromClient) -> tuple[Reason, str]:
    """Return the reason and text of a refusal of a request; the text is empty if it is valid."""
    client, session = node_of(asker), asked.session
    own = session.startswith((f"{client}~", f"{client}."))
    if client not in {node, session} and not own:
        return Reason.INVALID, f"session {session[:80]!r} is not of the client {client!r} itself"
    if not session and not isinstance(asked, Inspect | ListLocks | Evict):
        return Reason.INVALID, f"session is empty; the role 'session' of {node} has one"
    try:
        check_owner(session)
        if isinstance(asked, Acquire | Release | Cancel | Renew):
            check_lock_name(asked.lock)
            check_owner(asked.owner)
        if isinstance(asked, Inspect):
            check_lock_name(asked.lock)
        if isinstance(asked, Acquire):
            check_new_lock_name(asked.lock)
            check_wait(asked.wait_ms)
            check_request(asked.request)
            check_owner(asked.label)
    except InvalidRequestError as problem:
        return Reason.INVALID, str(problem)
    if isinstance(asked, Acquire | Renew) and (why := _why_not(asked, terms)):
        return Reason.INVALID, why
    if isinstance(asked, Acquire) and asked.limit != 1:
        text = f"limit {asked.limit} asks for a lock that its owner may hold more than once"
        return Reason.UNSUPPORTED, f"{text}; bakery has none, paxos has"
    if isinstance(asked, Inspect) and asked.age_ms is not None:
        return Reason.UNSUPPORTED, no_bounded_reads("bakery")
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
    """Return the refusal to release, or renew, a hold that does not exist."""
    text = f"lock {asked.lock!r}: fence {asked.fence} was shown, which does not hold it"
    return refuse(asker, asked, Reason.NOT_HELD, f"{text} (says {node})")


def no_timeout_was_said(wait_ms: int) -> str:
    """Return the note for the refusal of a wait that had the cluster's default timeout."""
    return (
        f"; no timeout was said, and then it is {wait_ms} ms here: "
        '"obtention" under [bakery] in the configuration'
    )


def given_up(in_flight_request: InFlightRequest) -> Send:
    """Refuse a wait, since its owner has sent a new request."""
    assert in_flight_request.asker is not None
    text = f"lock {in_flight_request.name.lock!r}: the wait was given up"
    return refuse(in_flight_request.asker, in_flight_request.asked, Reason.CANCELLED, text)


def failed(in_flight_request: InFlightRequest, asked: Acquire, event: LockFailed) -> Send:
    """Return the refusal of an acquire that failed."""
    assert in_flight_request.asker is not None
    reason, detail = REASONS[event.error], event.detail
    if event.error is Error.TIMED_OUT:
        detail += in_flight_request.note
    return refuse(in_flight_request.asker, asked, reason, detail)


def over(in_flight_request: InFlightRequest, readiness: Readiness, now: Instant) -> list[Effect]:
    """Refuse a request that no leader answered in time, with the reason if it is known."""
    if in_flight_request.asker is None:
        return []
    waited = f"waited {ms_between(in_flight_request.since, now)} ms"
    lock = in_flight_request.name.lock
    if isinstance(in_flight_request.asked, End):
        return []
    if in_flight_request.name.kind is Kind.PEEK:
        why = "the leaders did not agree" if readiness.ready else readiness.detail
        text = f"lock {lock!r}: it is not known who holds it: {waited}; {why}"
        return [refuse(in_flight_request.asker, in_flight_request.asked, Reason.UNAVAILABLE, text)]
    if not readiness.ready:
        text = f"lock {lock!r}: {waited}; bakery grants nothing now: {readiness.detail}"
        text += in_flight_request.note
        return [refuse(in_flight_request.asker, in_flight_request.asked, Reason.UNAVAILABLE, text)]
    if in_flight_request.name.kind is Kind.LOCK:
        text = f"lock {lock!r}: {waited}; another holds it, or is ahead{in_flight_request.note}"
        return [refuse(in_flight_request.asker, in_flight_request.asked, Reason.TIMED_OUT, text)]
    text = f"lock {lock!r}: {waited}; no leader answered"
    return [refuse(in_flight_request.asker, in_flight_request.asked, Reason.UNAVAILABLE, text)]
