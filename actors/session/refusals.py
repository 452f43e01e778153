"""Refusals that a session makes itself, without asking an endpoint, and their texts."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from fencelock.actors.api.account import Purge, SetQuota
from fencelock.actors.api.backup_message import LockQuery, ReadBackup
from fencelock.actors.api.membership_message import ChangeMembers, ReadMembers
from fencelock.actors.api.message import (
    AcquireRequest,
    CancellableRequest,
    Describe,
    Inspect,
    LockReply,
    LockStatus,
    Reason,
    Refused,
    ReleaseRequest,
)
from fencelock.actors.api.name import check_object_name, check_owner, check_wait, quoted, titled
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.api.request import Reply
from fencelock.actors.api.session_message import (
    HAVE_DEADLINES,
    CloseSession,
    Evict,
    Evicted,
    ListLocks,
    ListRecords,
    Renew,
    Renewed,
)
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Address, Instant, ms_between, role_of
from fencelock.actors.session.requests import LockKey, Pending, UserRequest, lock_key_named

if TYPE_CHECKING:
    from fencelock.actors.session.endpoints import Endpoints
    from fencelock.actors.session.state import SessionState

CHECKED_MAX = 4_096
"""Valid lock keys that are cached: most are used again and again."""


class Rejection(NamedTuple):
    """Reason why a request is not sent, or has ended."""

    reason: Reason
    detail: str


@lru_cache(maxsize=CHECKED_MAX)
def checked_lock_key(lock: str, owner: str) -> LockKey:
    """Return the lock key of ``owner`` to ``lock``; each pair is checked once.

    Raises:
        InvalidRequestError: a name is invalid; that is not cached.

    """
    check_object_name(lock)
    check_owner(owner)
    return lock_key_named(lock, owner)


def silence(pending: Pending, endpoints: Endpoints, now: Instant) -> Rejection:
    """Return why ``pending`` ends unanswered, with the state of every endpoint."""
    request, is_sent = pending.request, pending.sent_at is not None
    waited = f"{ms_between(pending.requested_at, now) / 1000:.1f} s"
    about = f"{titled(request.lock)}: " if request.lock else ""
    match request:
        case _ if isinstance(request, LockQuery) and not is_sent:
            text = f"not sent within {waited}, since earlier reads of this client had no reply"
        case CancellableRequest() if not is_sent:
            text = f"{about}no node could be asked for it within {waited}"
        case UpdateRequest():
            text = f"{about}no node answered within {waited}, and {UNKNOWN}"
        case CancellableRequest():
            text = (
                f"{about}no node decided within {waited}, and the outcome is unknown; the client "
                "cancels the request as soon as it is connected again, and releases the lock if it "
                "was granted meanwhile"
            )
        case ReleaseRequest():
            text = (
                f"{about}its release was not confirmed by "
                f"{endpoints.table[pending.endpoint].label} within {waited}; it goes on being "
                "repeated in the background until it is"
            )
        case ChangeMembers(node=node):
            text = (
                f"no node answered within {waited} whether the change of {node} is done; asking "
                "again does no harm"
            )
        case CloseSession(handle=handle):
            text = (
                f"no node confirmed within {waited} that session {quoted(handle)} was closed; "
                "asking again does no harm"
            )
        case Evict(fence=fence):
            text = (
                f"{about}no node confirmed within {waited} that it was taken from its holder under "
                f"fence {fence}; asking again does no harm"
            )
        case Purge():
            text = (
                f"no node confirmed within {waited} that anything was deleted; asking again does "
                "no harm"
            )
        case _:
            not_done = _NOT_DONE.get(type(request), "answered")
            text = f"{about}no node {not_done} within {waited}"
    return Rejection(Reason.UNAVAILABLE, f"{text}; nodes: {endpoints.describe(now)}")


_NOT_DONE: dict[type[UserRequest], str] = {
    Renew: "renewed its lease",
    Inspect: "sent its status",
    Describe: "described itself",
    ListRecords: "listed sessions or evictions",
    ListLocks: "listed the held locks",
    ReadMembers: "listed the members",
    ReadBackup: "sent its part of a backup",
    SetQuota: "confirmed that the quota is set",
}


UNKNOWN = "it is unknown whether the request took effect"
"""Ends the refusal of an `UpdateRequest` that a node may have received."""


def unfinished(pending: Pending, no: Rejection) -> Rejection:
    """Return ``no``, which ends ``pending``, with a note if the outcome of that is unknown."""
    request = pending.request
    if not isinstance(request, UpdateRequest) or pending.sent_at is None or request.IDEMPOTENT:
        return no
    return Rejection(no.reason, f"{no.detail}; {UNKNOWN}")


def wrong_cluster(endpoints: Endpoints, now: Instant) -> Rejection:
    """Return why nothing can be requested when every endpoint is the wrong one."""
    if any(endpoint.by_key for endpoint in endpoints.table.values()):
        text = (
            f"no node accepts the connection: {endpoints.describe(now)}. Give the file of a key "
            "that the cluster knows: --key, FENCELOCK_KEY, or key= of connect "
            '("fencelock keys add" makes one)'
        )
        return Rejection(Reason.FORBIDDEN, text)
    return Rejection(
        Reason.WRONG_CLUSTER,
        f"no node accepts this client: {endpoints.describe(now)}. Is the name of "
        "the cluster right? (--cluster, FENCELOCK_CLUSTER, or the argument of connect)",
    )


def lost(lock_key: LockKey, fence: int, detail: str) -> Rejection:
    """Return the refusal of a release, or another acquire, of a hold that was lost."""
    text = f"{_owner(lock_key)} held it under fence {fence} and lost it: {detail}"
    return Rejection(Reason.OWNERSHIP_LOST, text)


def _owner(lock_key: LockKey) -> str:
    """Return the beginning of a sentence about a lock and its owner."""
    return f"{titled(lock_key.lock)}: {lock_key.who}"


def is_reply_to(pending: Pending, reply: Reply) -> bool:
    """Return whether ``reply`` is a possible reply to the request of ``pending``."""
    request, lock_key = pending.request, pending.lock_key
    if not (isinstance(request, reply.REPLIES_TO) or isinstance(reply, Refused)):
        late = isinstance(reply, Renewed) and isinstance(request, AcquireRequest)
        if not late:  # See `holds.is_late`.
            return False
    if lock_key is not None:
        return isinstance(reply, LockReply) and lock_key == (reply.lock, reply.owner)
    if isinstance(request, Inspect | Evict):
        return isinstance(reply, LockStatus | Evicted | Refused) and reply.lock == request.lock
    return True


PENDING_MAX = 10_000
"""Maximum unanswered requests and cancels; each is repeated, and an endpoint reads them all."""


HOLDS_MAX = 100_000
"""Maximum locks one client may hold at a time; a session in the cluster has the same limit."""


CLOSED = Rejection(Reason.CANCELLED, "the client is closed")


def check_claim(
    state: SessionState, user: Address, claim: CancellableRequest, now: Instant
) -> LockKey | Rejection:
    """Return the lock key of an acquire or an update, or why it is not sent to any endpoint.

    An acquire that names no owner is a separate owner; its fence is enough to release it.
    """
    if state.closing.begun:
        return CLOSED
    try:
        lock_key = checked_lock_key(claim.lock, claim.owner or role_of(user))
        if claim.WAITS:
            check_wait(claim.wait_ms)
    except InvalidRequestError as problem:
        return Rejection(Reason.INVALID, str(problem))
    if isinstance(claim, AcquireRequest):
        no = _why_not_acquire(state, claim, lock_key)
    else:
        no = _why_not_update(state, lock_key)
    return no or _why_not_sent(state, now) or lock_key


def check_release(state: SessionState, release: ReleaseRequest) -> LockKey | Rejection:
    """Return the lock key of a release, or why it is not sent to any endpoint."""
    if state.closing.begun:
        return CLOSED
    try:
        owner = release.owner or state.owner_of(release.lock, release.fence)
        lock_key = checked_lock_key(release.lock, owner)
    except InvalidRequestError as problem:
        return Rejection(Reason.INVALID, str(problem))
    return _why_not_release(state, release, lock_key) or lock_key


def check_request(
    state: SessionState, request: UserRequest, now: Instant
) -> LockKey | Rejection | None:
    """Return the lock key of any other request, or why it is not sent to any endpoint.

    None if it needs no session.
    """
    if state.closing.begun:
        return CLOSED
    try:
        match request:
            case Renew():
                owner = request.owner or state.owner_of(request.lock, request.fence)
                lock_key = checked_lock_key(request.lock, owner)
                return why_not_renew(state, request, lock_key) or lock_key
            case Inspect() | Evict():
                checked_lock_key(request.lock, "")  # So the name is checked once.
            case ChangeMembers():
                request.check()
            case _:
                pass
    except InvalidRequestError as problem:
        return Rejection(Reason.INVALID, str(problem))
    return _why_not_sent(state, now)


def _why_not_sent(state: SessionState, now: Instant) -> Rejection | None:
    """Return why nothing can be sent to any endpoint now, or None if it can."""
    endpoints, in_flight = state.endpoints, state.in_flight
    if endpoints.all_refused():
        return wrong_cluster(endpoints, now)
    if len(in_flight.pending) + len(in_flight.cancels) >= PENDING_MAX:
        text = f"{PENDING_MAX} requests of this client are unanswered, the limit"
        return Rejection(Reason.OVERLOADED, text)
    return None


def _why_not_acquire(
    state: SessionState, acquire: AcquireRequest, lock_key: LockKey
) -> Rejection | None:
    if lock_key in state.in_flight.waits:
        return Rejection(Reason.ALREADY_HELD, f"{_owner(lock_key)} waits for it already")
    hold = state.holds.get(lock_key)
    if (
        hold is not None
        and (acquire.limit == 1 or not state.session_lease.kept)
        # A hold that is being released refuses nobody: requests of a lock key are sent in order, so
        # the acquire is sent once the release is confirmed.
        and len(hold.acquisitions) > len(state.in_flight.releases_of(lock_key))
    ):
        text = f"{_owner(lock_key)} holds it, under fence {hold.fence}"
        return Rejection(Reason.ALREADY_HELD, text)
    if hold is None and len(state.holds) >= HOLDS_MAX:
        return Rejection(Reason.OVERLOADED, f"this client holds {HOLDS_MAX} locks, the limit")
    return None


def _why_not_update(state: SessionState, lock_key: LockKey) -> Rejection | None:
    if lock_key not in state.in_flight.waits:
        return None
    text = f"{titled(lock_key.lock)}: a request of {lock_key.who} about it is unanswered"
    return Rejection(Reason.ALREADY_HELD, text)


def _why_not_release(
    state: SessionState, release: ReleaseRequest, lock_key: LockKey
) -> Rejection | None:
    loss = (
        state.unreported.take_reason(lock_key, release.fence) if state.unreported.losses else None
    )
    if loss is not None:
        return lost(lock_key, release.fence, loss)
    hold = state.holds.get(lock_key)
    if hold is None and not lock_key.owner:
        text = (
            f"{titled(lock_key.lock)}: fence {release.fence} was shown, which does not hold it here"
        )
    elif hold is None:
        text = f"{_owner(lock_key)} does not hold it"
    elif hold.fence != release.fence:
        shown = release.fence
        text = f"{_owner(lock_key)} holds it under fence {hold.fence}, fence {shown} was shown"
    elif _being_released(state, lock_key) >= len(hold.acquisitions):
        text = f"{_owner(lock_key)} is releasing it already"
    else:
        return None
    return Rejection(Reason.NOT_HELD, text)


def _being_released(state: SessionState, lock_key: LockKey) -> int:
    """Return the number of releases of ``lock_key`` that users wait for."""
    if lock_key not in state.in_flight.releases:
        return 0
    return sum(one.user is not None for one in state.in_flight.releases_of(lock_key))


def why_not_renew(state: SessionState, renew: Renew, lock_key: LockKey) -> Rejection | None:
    hold = state.holds.get(lock_key)
    if hold is not None and hold.fence == renew.fence and hold.lease is not None:
        return None
    loss = state.unreported.take_reason(lock_key, renew.fence)
    if loss is not None:
        return lost(lock_key, renew.fence, loss)
    if hold is not None and hold.fence == renew.fence:
        text = f"{titled(lock_key.lock)}: this hold has no deadline; {HAVE_DEADLINES}"
        return Rejection(Reason.UNSUPPORTED, text)
    return Rejection(Reason.NOT_HELD, f"{_owner(lock_key)} does not hold it under that fence")
