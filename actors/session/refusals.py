"""Refusals that a session makes itself, without asking an endpoint, and their texts.

Each is the error that the user gets in the end. The session raises it before it changes anything,
or ends a request with it. `fencelock.actors.api.lock_message.refused_by` makes the reply.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from fencelock.actors.api.account import Purge, SetQuota
from fencelock.actors.api.backup_message import LockQuery, ReadBackup
from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.api.lock_message import (
    HAVE_DEADLINES,
    AcquireRequest,
    CancellableRequest,
    Inspect,
    LockReply,
    LockStatus,
    Refused,
    ReleaseRequest,
    Renew,
    Renewed,
)
from fencelock.actors.api.membership_message import ChangeMembers, ReadMembers
from fencelock.actors.api.name import check_object_name, check_owner, check_wait, quoted, titled
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.api.operator_message import (
    CloseSession,
    Evict,
    Evicted,
    ListLocks,
    ListRecords,
)
from fencelock.actors.api.request import Reply
from fencelock.actors.error import (
    AcquireCancelledError,
    AlreadyHeldError,
    FencelockError,
    ForbiddenError,
    LockOwnershipLostError,
    NotHeldError,
    OverloadedError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from fencelock.actors.message import Address, Instant, ms_between, role_of
from fencelock.actors.session.endpoints import REFUSED
from fencelock.actors.session.requests import LockKey, Pending, UserRequest, lock_key_named

if TYPE_CHECKING:
    from fencelock.actors.session.endpoints import Endpoints
    from fencelock.actors.session.state import SessionState

CHECKED_MAX = 4_096
"""Valid lock keys that are cached: most are used again and again."""


@lru_cache(maxsize=CHECKED_MAX)
def checked_lock_key(lock: str, owner: str) -> LockKey:
    """Return the lock key of ``owner`` to ``lock``; each pair is checked once.

    Raises:
        InvalidRequestError: a name is invalid; that is not cached.

    """
    check_object_name(lock)
    check_owner(owner)
    return lock_key_named(lock, owner)


def silence(pending: Pending, endpoints: Endpoints, now: Instant) -> UnavailableError:
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
    return UnavailableError(f"{text}; nodes: {endpoints.describe(now)}")


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


def unfinished(pending: Pending, no: FencelockError) -> FencelockError:
    """Return ``no``, which ends ``pending``, with a note if the outcome of that is unknown."""
    request = pending.request
    if not isinstance(request, UpdateRequest) or pending.sent_at is None or request.IDEMPOTENT:
        return no
    return type(no)(f"{no}; {UNKNOWN}")


def wrong_cluster(endpoints: Endpoints, now: Instant) -> FencelockError:
    """Return why nothing can be requested when every endpoint is the wrong one."""
    if any(endpoint.by_key for endpoint in endpoints.table.values()):
        text = (
            f"no node accepts the connection: {endpoints.describe(now)}. Give the file of a key "
            "that the cluster knows: --key, FENCELOCK_KEY, or key= of connect "
            '("fencelock keys add" makes one)'
        )
        return ForbiddenError(text)
    return WrongClusterError(
        f"no node accepts this client: {endpoints.describe(now)}. Is the name of "
        "the cluster right? (--cluster, FENCELOCK_CLUSTER, or the argument of connect)",
    )


def lost(lock_key: LockKey, fence: int, detail: str) -> LockOwnershipLostError:
    """Return the refusal of a release, or another acquire, of a hold that was lost."""
    text = f"{_owner(lock_key)} held it under fence {fence} and lost it: {detail}"
    return LockOwnershipLostError(text)


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


PENDING_REQUESTS_MAX = 10_000
"""Maximum unanswered requests and cancels; each is repeated, and an endpoint reads them all."""


HOLDS_MAX = 100_000
"""Maximum locks one client may hold at a time; a session in the cluster has the same limit."""


def check_claim(
    state: SessionState, user: Address, claim: CancellableRequest, now: Instant
) -> LockKey:
    """Return the lock key of an acquire or an update, or raise why it is sent to no endpoint.

    An acquire that names no owner is a separate owner; its fence is enough to release it.
    """
    if state.closing.begun:
        raise _closed()
    lock_key = checked_lock_key(claim.lock, claim.owner or role_of(user))
    if claim.WAITS:
        check_wait(claim.wait_ms)
    if isinstance(claim, AcquireRequest):
        _check_acquire(state, claim, lock_key)
    elif lock_key in state.in_flight.waits:
        text = f"{titled(lock_key.lock)}: a request of {lock_key.who} about it is unanswered"
        raise AlreadyHeldError(text)
    _check_sendable(state, now)
    return lock_key


def check_release(state: SessionState, release: ReleaseRequest) -> LockKey:
    """Return the lock key of a release, or raise why it is sent to no endpoint."""
    if state.closing.begun:
        raise _closed()
    shown = release.fence
    lock_key = checked_lock_key(release.lock, release.owner or state.owner_of(release.lock, shown))
    loss = state.unreported.take_reason(lock_key, shown) if state.unreported.losses else None
    if loss is not None:
        raise lost(lock_key, shown, loss)
    hold = state.holds.get(lock_key)
    if hold is None and not lock_key.owner:
        text = f"{titled(lock_key.lock)}: fence {shown} was shown, which does not hold it here"
    elif hold is None:
        text = f"{_owner(lock_key)} does not hold it"
    elif hold.fence != shown:
        text = f"{_owner(lock_key)} holds it under fence {hold.fence}, fence {shown} was shown"
    elif _being_released(state, lock_key) >= len(hold.acquisitions):
        text = f"{_owner(lock_key)} is releasing it already"
    else:
        return lock_key
    raise NotHeldError(text)


def check_request(state: SessionState, request: UserRequest, now: Instant) -> LockKey | None:
    """Return the lock key of any other request, or raise why it is sent to no endpoint.

    None if it needs no session.
    """
    if state.closing.begun:
        raise _closed()
    match request:
        case Renew():
            owner = request.owner or state.owner_of(request.lock, request.fence)
            lock_key = checked_lock_key(request.lock, owner)
            _check_renew(state, request, lock_key)
            return lock_key
        case Inspect() | Evict():
            checked_lock_key(request.lock, "")  # So the name is checked once.
        case ChangeMembers():
            request.check()
        case _:
            pass
    _check_sendable(state, now)
    return None


def _closed() -> AcquireCancelledError:
    return AcquireCancelledError("the client is closed")


def _check_sendable(state: SessionState, now: Instant) -> None:
    """Raise why nothing can be sent to any endpoint now, if that is so."""
    endpoints, in_flight = state.endpoints, state.in_flight
    if endpoints.table[endpoints.current].state is REFUSED and endpoints.all_refused():
        raise wrong_cluster(endpoints, now)
    if len(in_flight.pending) + len(in_flight.cancels) >= PENDING_REQUESTS_MAX:
        text = f"{PENDING_REQUESTS_MAX} requests of this client are unanswered, the limit"
        raise OverloadedError(text)


def _check_acquire(state: SessionState, acquire: AcquireRequest, lock_key: LockKey) -> None:
    if lock_key in state.in_flight.waits:
        raise AlreadyHeldError(f"{_owner(lock_key)} waits for it already")
    hold = state.holds.get(lock_key)
    if (
        hold is not None
        and (acquire.limit == 1 or not state.session_lease.kept)
        # A hold that is being released refuses nobody: requests of a lock key are sent in order, so
        # the acquire is sent once the release is confirmed.
        and len(hold.acquisitions) > len(state.in_flight.releases_of(lock_key))
    ):
        raise AlreadyHeldError(f"{_owner(lock_key)} holds it, under fence {hold.fence}")
    if hold is None and len(state.holds) >= HOLDS_MAX:
        raise OverloadedError(f"this client holds {HOLDS_MAX} locks, the limit")


def _being_released(state: SessionState, lock_key: LockKey) -> int:
    """Return the number of releases of ``lock_key`` that users wait for."""
    if lock_key not in state.in_flight.releases:
        return 0
    return sum(one.user is not None for one in state.in_flight.releases_of(lock_key))


def _check_renew(state: SessionState, renew: Renew, lock_key: LockKey) -> None:
    hold = state.holds.get(lock_key)
    held = hold is not None and hold.fence == renew.fence
    if hold is not None and held and hold.lease is not None:
        return
    loss = state.unreported.take_reason(lock_key, renew.fence)
    if loss is not None:
        raise lost(lock_key, renew.fence, loss)
    if held:
        text = f"{titled(lock_key.lock)}: this hold has no deadline; {HAVE_DEADLINES}"
        raise UnsupportedError(text)
    raise NotHeldError(f"{_owner(lock_key)} does not hold it under that fence")
