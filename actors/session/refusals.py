"""Refusals that a session makes itself, without asking an endpoint, and their texts."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.account import Purge, Purged, QuotaSet, SetQuota
from fencelock.actors.api.backup_message import BackupPart, ReadBackup
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MembersChanged,
    MembersRead,
    ReadMembers,
)
from fencelock.actors.api.message import (
    AcquireRequest,
    CancellableRequest,
    Describe,
    Granted,
    Inspect,
    LockStatus,
    NodeStatus,
    Reason,
    Refused,
    Released,
    ReleaseRequest,
)
from fencelock.actors.api.name import check_object_name, check_owner, check_wait, quoted, titled
from fencelock.actors.api.object_request import UpdateReply, UpdateRequest
from fencelock.actors.api.query import LockQuery
from fencelock.actors.api.request import TableQuery, TableReply
from fencelock.actors.api.session_message import (
    HAVE_DEADLINES,
    CloseSession,
    Evict,
    Evicted,
    ListLocks,
    ListRecords,
    LockList,
    RecordList,
    Renew,
    Renewed,
    SessionClosed,
)
from fencelock.actors.message import Address, Instant, ms_between, role_of
from fencelock.actors.session.requests import Claim, NodeQuestion, Pending, Question, claim_named

if TYPE_CHECKING:
    from fencelock.actors.session.endpoints import Endpoints
    from fencelock.actors.session.state import SessionState

Answer = (
    Granted
    | Released
    | UpdateReply
    | Renewed
    | Refused
    | LockStatus
    | NodeStatus
    | LockList
    | RecordList
    | Evicted
    | SessionClosed
    | QuotaSet
    | Purged
    | MembersRead
    | MembersChanged
    | BackupPart
    | TableReply
)
"""Replies that end a request."""


CHECKED_MAX = 4_096
"""Valid claims that are cached: most are used again and again."""


class Rejection(NamedTuple):
    """Reason why a request is not sent, or has ended."""

    reason: Reason
    detail: str


def refused(question: Question, session: str, no: Rejection) -> Refused:
    """Return the refusal ``no`` as the reply to ``question``."""
    _, owner, lock, _ = question.key
    return Refused(
        lock=lock,
        reason=no.reason,
        detail=no.detail,
        session=session,
        owner=owner,
        request=question.request,
    )


@lru_cache(maxsize=CHECKED_MAX)
def claim_checked(lock: str, owner: str) -> Claim:
    """Return the claim of ``owner`` to ``lock``; each pair is checked once.

    Raises:
        InvalidRequestError: a name is invalid; that is not cached.

    """
    check_object_name(lock)
    check_owner(owner)
    return claim_named(lock, owner)


def silence(pending: Pending, endpoints: Endpoints, now: Instant) -> Rejection:
    """Return why ``pending`` ends unanswered, with the state of every endpoint."""
    asked = f"{ms_between(pending.requested_at, now) / 1000:.1f} s"
    match pending.asked:
        case question if isinstance(question, LockQuery) and pending.sent_at is None:
            text = f"not sent within {asked}, since earlier reads of this client had no reply"
        case CancellableRequest(lock=lock) if pending.sent_at is None:
            text = f"{titled(lock)}: no node could be asked for it within {asked}"
        case UpdateRequest(lock=lock):
            text = f"{titled(lock)}: no node answered within {asked}, and {UNKNOWN}"
        case CancellableRequest(lock=lock):
            text = (
                f"{titled(lock)}: no node decided within {asked}, and the outcome is unknown; the "
                "client cancels the request as soon as it is connected again, and releases "
                "the lock if it was granted meanwhile"
            )
        case ReleaseRequest(lock=lock):
            text = (
                f"{titled(lock)}: its release was not confirmed by "
                f"{endpoints.table[pending.endpoint].label} within {asked}; it goes on being "
                "repeated in the background until it is"
            )
        case Renew(lock=lock):
            text = f"{titled(lock)}: no node renewed its lease within {asked}"
        case Inspect(lock=lock):
            text = f"{titled(lock)}: no node sent its status within {asked}"
        case TableQuery(lock=lock):
            text = f"{f'{titled(lock)}: ' if lock else ''}no node answered within {asked}"
        case (
            Describe()
            | ListRecords()
            | ListLocks()
            | ReadMembers()
            | ReadBackup()
            | SetQuota()
            | Purge()
        ):
            text = f"no node {_NOT_DONE[type(pending.asked)]} within {asked}"
        case ChangeMembers(node=node):
            text = (
                f"no node answered within {asked} whether the change of {node} is done; asking "
                "again does no harm"
            )
        case CloseSession(handle=handle):
            text = (
                f"no node confirmed within {asked} that session {quoted(handle)} was closed; "
                "asking again does no harm"
            )
        case Evict(lock=lock, fence=fence):
            text = (
                f"{titled(lock)}: no node confirmed within {asked} that it was taken from its "
                f"holder under fence {fence}; asking again does no harm"
            )
    return Rejection(Reason.UNAVAILABLE, f"{text}; nodes: {endpoints.describe(now)}")


_NOT_DONE: dict[type[Question], str] = {
    Describe: "described itself",
    ListRecords: "listed sessions or evictions",
    ListLocks: "listed the held locks",
    ReadMembers: "listed the members",
    ReadBackup: "sent its part of a backup",
    SetQuota: "confirmed that the quota is set",
    Purge: "confirmed that anything was deleted",
}


UNKNOWN = "it is unknown whether the request took effect"
"""Ends the refusal of an `UpdateRequest` that a node may have received."""


def unfinished(pending: Pending, no: Rejection) -> Rejection:
    """Return ``no``, which ends ``pending``, with a note if the outcome of that is unknown."""
    asked = pending.asked
    if not isinstance(asked, UpdateRequest) or pending.sent_at is None or asked.IDEMPOTENT:
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


def lost(claim: Claim, fence: int, detail: str) -> Rejection:
    """Return the refusal of a release, or another acquire, of a hold that was lost."""
    text = f"{titled(claim.lock)}: {claim.who} held it under fence {fence} and lost it"
    return Rejection(Reason.OWNERSHIP_LOST, f"{text}: {detail}")


def as_asked(answer: Answer, question: Question) -> Answer:
    """Return ``answer`` with the owner and the number that the user sent."""
    match answer:
        case Granted() | Released() | Renewed() | Refused() | UpdateReply():
            owner = getattr(question, "owner", "")
            return replace(answer, owner=owner, request=question.request)
        case _:
            return replace(answer, request=question.request)


def answers(pending: Pending, answer: Answer) -> bool:
    """Return whether ``answer`` is a possible reply to the request of ``pending``."""
    question = pending.asked
    match question:
        case CancellableRequest() | ReleaseRequest() | Renew():
            match answer:
                case Granted():
                    fits = isinstance(question, AcquireRequest) and answer.fence > 0
                case Released():
                    fits = isinstance(question, ReleaseRequest)
                case Renewed():
                    fits = isinstance(question, AcquireRequest | Renew) and answer.fence > 0
                case UpdateReply():
                    fits = isinstance(question, answer.ANSWERS)
                case Refused():
                    fits = True
                case _:
                    return False
            return fits and pending.claim == (answer.lock, answer.owner)
        case Inspect():
            return isinstance(answer, LockStatus | Refused) and answer.lock == question.lock
        case Evict():
            return isinstance(answer, Evicted | Refused) and answer.lock == question.lock
        case TableQuery():
            return isinstance(answer, Refused | question.REPLY)
        case _:
            return isinstance(answer, Refused | _REPLIES[type(question)])


_REPLIES: dict[type[NodeQuestion], type[Answer]] = {
    Describe: NodeStatus,
    ListLocks: LockList,
    ListRecords: RecordList,
    CloseSession: SessionClosed,
    SetQuota: QuotaSet,
    Purge: Purged,
    ReadMembers: MembersRead,
    ChangeMembers: MembersChanged,
    ReadBackup: BackupPart,
}


PENDING_MAX = 10_000
"""Maximum unanswered requests and cancels; each is repeated, and an endpoint reads them all."""


HOLDS_MAX = 100_000
"""Maximum locks one client may hold at a time; a session in the cluster has the same limit."""


def claim_of(state: SessionState, user: Address, question: Question) -> Claim | None:
    """Check the fields of ``question``; return its claim, or None if it needs no session.

    An acquire that names no owner is a separate owner; its fence is enough to release it.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    match question:
        case CancellableRequest():
            claim = claim_checked(question.lock, question.owner or role_of(user))
            if question.WAITS and question.wait_ms is not None:
                check_wait(question.wait_ms)
            return claim
        case ReleaseRequest() | Renew():
            owner = question.owner or state.owner_of(question.lock, question.fence)
            return claim_checked(question.lock, owner)
        case Inspect() | Evict():
            claim_checked(question.lock, "")  # So the name is checked once.
        case ChangeMembers():
            question.check()
        case _:
            pass
    return None


def why_not(
    state: SessionState, question: Question, claim: Claim | None, now: Instant
) -> Rejection | None:
    """Return why ``question`` is not sent to any endpoint, or None if it is.

    ``claim`` is the question's claim, or None if it needs no session.
    """
    if claim is not None:
        no = None
        match question:
            case AcquireRequest():
                no = _why_not_acquire(state, question, claim)
            case ReleaseRequest():
                return _why_not_release(state, question, claim)
            case UpdateRequest():
                no = _why_not_update(state, claim)
            case Renew():
                return why_not_renew(state, question, claim)
            case _:
                pass
        if no is not None:
            return no
    endpoints, in_flight = state.endpoints, state.in_flight
    if endpoints.table[endpoints.current].refused and endpoints.all_refused():
        return wrong_cluster(endpoints, now)
    if len(in_flight.pending) + len(in_flight.cancels) >= PENDING_MAX:
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
    if (
        hold is not None
        and (acquire.limit == 1 or not state.session_lease.kept)
        # A hold that is being released refuses nobody: requests of a claim are sent in order, so
        # the acquire is sent once the release is confirmed.
        and len(hold.levels) > len(state.in_flight.releases_of(claim))
    ):
        text = f"{titled(claim.lock)}: owner {claim.owner!r} holds it, under fence {hold.fence}"
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
    if claim not in state.in_flight.releases:
        return 0
    return sum(one.user is not None for one in state.in_flight.releases_of(claim))


def why_not_renew(state: SessionState, renew: Renew, claim: Claim) -> Rejection | None:
    """Return why a renewal of ``claim`` is not sent, or None if it is."""
    hold = state.holds.get(claim)
    if hold is not None and hold.fence == renew.fence and hold.lease is not None:
        return None
    loss = state.unreported.tell(claim, renew.fence)
    if loss is not None:
        return lost(claim, renew.fence, loss)
    if hold is not None and hold.fence == renew.fence:
        text = f"{titled(claim.lock)}: this hold has no deadline; {HAVE_DEADLINES}"
        return Rejection(Reason.UNSUPPORTED, text)
    text = f"{titled(claim.lock)}: {claim.who} does not hold it under that fence"
    return Rejection(Reason.NOT_HELD, text)
