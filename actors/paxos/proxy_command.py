"""Translates requests into commands for the log, and outcomes back to requests. Pure."""

from __future__ import annotations

from fencelock.actors.api.message import Acquire, Cancel, Inspect, KeepAlive, Release
from fencelock.actors.api.name import (
    LOCK_NAME_BYTES_MAX,
    REQUEST_MAX,
    WAIT_MS_MAX,
    check_lock_name,
    check_new_lock_name,
    check_owner,
    check_request,
    is_invisible,
)
from fencelock.actors.api.session_message import End, Evict, Open
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.fast_construction import maker
from fencelock.actors.paxos.proxy_clients import client_of
from fencelock.actors.paxos.proxy_event import Asked, Question, Rarely, Rest
from fencelock.actors.paxos.proxy_in_flight import (
    ACQUIRE,
    RELEASE,
    InFlightRequest,
    InFlightRequests,
    Key,
    Kind,
    key_of_cancel,
    key_of_session,
)
from fencelock.actors.table.command import (
    LABEL_BYTES_MAX,
    AcquireLock,
    CancelWait,
    CloseReason,
    CloseSession,
    Command,
    ForceRelease,
    KeepSession,
    OpenSession,
    ReleaseLock,
    check_command,
)
from fencelock.actors.table.outcome import (
    Denial,
    Denied,
    Forced,
    Lost,
    Queued,
    SessionClosed,
    SessionKept,
    SessionOpened,
    WaitCancelled,
)

_acquire, _release = maker(AcquireLock), maker(ReleaseLock)

PAGE_MAX = 1_000
"""Maximum lines of one `ListLocks`."""


def translate(asked: Asked) -> tuple[Kind, Key, Command]:
    """Return ``asked`` as a command for the log, and the key of its outcome.

    Raises:
        InvalidRequestError: a field exceeds its limits; the text names it.

    """
    # The most frequent requests are tested first, and without patterns, which take longer.
    if isinstance(asked, Acquire):
        session, owner, lock, request = asked.session, asked.owner, asked.lock, asked.request
        command: Command = _acquire(
            session=session,
            owner=owner,
            request=request,
            lock=lock,
            wait_ms=asked.wait_ms,
            limit=asked.limit,
            label=asked.label,
        )
        kind, key = ACQUIRE, (session, owner, lock, request)
        if is_invisible(lock):
            check_new_lock_name(lock)
        if request > REQUEST_MAX:
            check_request(request)
    elif isinstance(asked, Release):
        session, owner, lock, request = asked.session, asked.owner, asked.lock, asked.request
        command = _release(
            session=session, owner=owner, request=request, lock=lock, fence=asked.fence
        )
        kind, key = RELEASE, (session, owner, lock, request)
    else:
        kind, key, command = _translate(asked)
    check_command(command)
    return kind, key, command


def _translate(asked: Rarely) -> tuple[Kind, Key, Command]:
    session, request = asked.session, asked.request
    match asked:
        case Cancel(lock=lock, owner=owner):
            check_request(request)
            cancel = CancelWait(session=session, owner=owner, request=request, lock=lock)
            return Kind.CANCEL, key_of_cancel(session, owner, lock, request), cancel
        case KeepAlive():
            keep = KeepSession(session=session, request=request)
            return Kind.KEEP, key_of_session(Kind.KEEP, session, request), keep
        case Open():
            _check_name(session)
            opening = OpenSession(
                session=session, ttl_ms=asked.ttl_ms, label=asked.label, request=request
            )
            return Kind.OPEN, key_of_session(Kind.OPEN, session, request), opening
        case End():
            end = CloseSession(session=session, reason=CloseReason.GRACEFUL, request=request)
            return Kind.END, key_of_session(Kind.END, session, request), end
        case Evict(lock=lock):
            operator = _operator(asked)
            force = ForceRelease(operator=operator, request=request, lock=lock, fence=asked.fence)
            return Kind.EVICT, ("", operator, lock, request), force


def check_question(question: Question) -> None:
    """Refuse a query whose fields exceed their limits.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    age_ms = question.age_ms
    if age_ms is not None and not 0 <= age_ms <= WAIT_MS_MAX:
        raise InvalidRequestError(f"age_ms is {age_ms}, 0 to {WAIT_MS_MAX} are allowed")
    check_owner(question.session)
    if isinstance(question, Inspect):
        check_lock_name(question.lock)
        return
    if not 1 <= question.most <= PAGE_MAX:
        raise InvalidRequestError(f"most is {question.most}, 1 to {PAGE_MAX} are allowed")
    for field, text in (("prefix", question.prefix), ("after", question.after)):
        size = len(text.encode(errors="replace"))
        if size > LOCK_NAME_BYTES_MAX:
            raise InvalidRequestError(
                f"{field} has {size} bytes, at most {LOCK_NAME_BYTES_MAX} are allowed"
            )


def errand_of(in_flight_requests: InFlightRequests, outcome: Rest) -> InFlightRequest | None:
    """Return the request in flight that ``outcome`` answers, None if there is none here."""
    by_key = in_flight_requests.by_key
    match outcome:
        case Queued():
            key = (outcome.session, outcome.owner, outcome.lock, outcome.request)
            in_flight_request = by_key.get(key)
            return (
                in_flight_request
                if in_flight_request is not None and in_flight_request.kind is ACQUIRE
                else None
            )
        case Denied():
            return _denied_of(in_flight_requests, outcome)
        case WaitCancelled():
            session, owner, lock = outcome.session, outcome.owner, outcome.lock
            return by_key.get(key_of_cancel(session, owner, lock, outcome.request))
        case SessionKept():
            return by_key.get(key_of_session(Kind.KEEP, outcome.session, outcome.request))
        case SessionOpened():
            return by_key.get(key_of_session(Kind.OPEN, outcome.session, outcome.request))
        case SessionClosed():
            return by_key.get(key_of_session(Kind.END, outcome.session, outcome.request))
        case Forced():
            return by_key.get(("", outcome.operator, outcome.lock, outcome.request))
        case Lost():
            return None  # It answers no request.


def _denied_of(in_flight_requests: InFlightRequests, denied: Denied) -> InFlightRequest | None:
    session, owner, lock, request = denied.session, denied.owner, denied.lock, denied.request
    if not lock:
        keys = (key_of_session(kind, session, request) for kind in (Kind.KEEP, Kind.OPEN, Kind.END))
        return next(
            (in_flight_requests.by_key[key] for key in keys if key in in_flight_requests.by_key),
            None,
        )
    in_flight_request = in_flight_requests.by_key.get((session, owner, lock, request))
    if in_flight_request is None and denied.reason is Denial.SESSION_EXPIRED:
        in_flight_request = in_flight_requests.by_key.get(
            key_of_cancel(session, owner, lock, request)
        )
    return in_flight_request


def _check_name(session: str) -> None:
    """Refuse a session name that could be mistaken for a session's id.

    A node's own is ``n1/5f3a``; `why_foreign` refuses the like to every client.
    """
    if "." in session.rpartition("/")[2] or not client_of(session):
        raise InvalidRequestError(
            f"session {session[:80]!r}: a name like 'me' or 'me~2' is wanted, without '.'"
        )


def _operator(evict: Evict) -> str:
    """Return the operator as the log keeps it: unique with the request, and readable.

    It has the client's id and not its session: an eviction that is sent again after the session
    was lost is the same one.
    """
    operator = f"{evict.operator} ({client_of(evict.session)})"
    size = len(operator.encode(errors="replace"))
    if size > LABEL_BYTES_MAX:
        raise InvalidRequestError(
            f"operator and client together have {size} bytes, at most {LABEL_BYTES_MAX} are allowed"
        )
    return operator
