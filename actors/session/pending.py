"""Requests of a session that have no reply yet, and the times of their repetition. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast

from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.membership_message import ChangeMembers, ReadMembers
from fencelock.actors.api.message import (
    Cancel,
    CancellableRequest,
    Cancelled,
    Describe,
    Inspect,
    Release,
    ReleaseRequest,
)
from fencelock.actors.api.request import TableQuery
from fencelock.actors.api.session_message import CloseSession, Evict, ListLocks, ListRecords, Renew
from fencelock.actors.message import NS_PER_MS, Address, Instant, copier, ms_between
from fencelock.actors.timing import PROBE_MS

RETRY_MS = PROBE_MS
"""First pause before a request is repeated (ms); it doubles from there."""

RETRY_MS_MAX = 4_000
"""Longest such pause (ms): a restarted endpoint learns of a wait this late at most."""

WATCH_RETRY_MS_MAX = 16_000
"""Longest pause before a read that waits for a change is repeated (ms); the first is
`RETRY_MS_MAX`. Keep-alives detect a dead node sooner."""

WITHDRAWAL_MS_MAX = 15_000
"""Longest pause between two cancels of one wait (ms): no user waits for it any more."""

MARGIN_MS = 500
"""Delay after which the session ends a wait itself, if the proxy did not at its timeout (ms).

A proxy's "not granted in time" says more than the session's "no node decided". It takes a few
milliseconds where the cluster serves; where it does not, users get their time.
"""

DECISION_MS = 1_500
"""The least time for an acquire to be decided (ms), also for one that does not wait for the lock.

It is long enough for a new leader to be elected, if the others are idle.
"""

ANSWER_MS = 10_000
"""Timeout of a release or a query, after which the user is refused (ms)."""

JITTER = 0.5
"""Range of a pause as a fraction of it, so that clients do not repeat in step."""


_LEAST = 1 - JITTER / 2
"""The shortest pause, as a fraction of the usual one."""


class RandomSource(Protocol):
    """The part of ``random.Random`` that a session draws from."""

    def random(self) -> float:
        """Return a random number x with 0 <= x < 1."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return a random integer n with 0 <= n < ``stop``."""
        ...


def later(now: Instant, after_ms: int) -> Instant:
    """Return the instant ``after_ms`` milliseconds after ``now``."""
    return Instant(now + after_ms * NS_PER_MS)


def paused(random: RandomSource, step_ms: int, now: Instant) -> Instant:
    """Return an instant about ``step_ms`` from ``now``, randomly sooner or later."""
    vary = _LEAST + JITTER * random.random()
    return Instant(now + int(step_ms * vary) * NS_PER_MS)


ANY_ENDPOINT = Address("")
"""In a `CancelKey`: any endpoint in use may settle it."""


class Claim(NamedTuple):
    """An owner and a lock that it wants or holds."""

    lock: str
    owner: str
    """Its name; for an acquire that names none, the role or call that sent it. Empty in a release
    that names none, unless the fence tells whose hold it is."""

    @property
    def who(self) -> str:
        """The owner, for texts."""
        return f"owner {self.owner!r}" if self.owner else "the caller"


class CancelKey(NamedTuple):
    """A claim, and the endpoint that owes a `Cancelled` for it."""

    endpoint: Address
    claim: Claim


CLAIMS_MAX = 4_096
"""Claims that are cached: most locks are requested again and again."""

NodeQuestion = (
    Describe | ListLocks | ListRecords | CloseSession | ReadMembers | ChangeMembers | ReadBackup
)
"""Requests that are about no object of the table."""

Question = CancellableRequest | ReleaseRequest | Renew | Inspect | Evict | TableQuery | NodeQuestion
"""All requests of users. A `CancellableRequest` is an acquire or an update."""


@dataclass
class Pending:
    """A request of a user that has no reply yet.

    One is made for each request. Rarely set fields default on the class, which makes
    construction cheaper.
    """

    number: int
    user: Address | None
    """None for a release that no user waits for."""
    asked: Question
    """The request as the user sent it."""
    claim: Claim | None
    """The claim that needs a session, or None if it needs none."""
    endpoint: Address
    requested_at: Instant
    ends_at: Instant | None
    """End of the wait, for a request that waits. Otherwise the time at which the request is
    refused."""
    resend_at: Instant | None = field(init=False, default=None)
    """Time of the next repetition; None until a tick asks for it: most get a reply before."""
    step_ms: int = field(init=False, default=RETRY_MS)
    said: int = field(init=False, default=0)
    """Number of times it was sent, under this number and in this session."""
    sent_at: Instant | None = field(init=False, default=None)
    """Time at which it was first sent so."""
    survey: int = field(init=False, default=0)
    """The survey it belongs to; such a request stays at its endpoint."""
    owed: bool = field(init=False, default=False)
    """Whether it releases a hold that no user owns any more."""
    renewed_at: Instant | None = field(init=False, default=None)
    """Send time of the first renewal of an `Acquire` that was granted late."""


@dataclass(slots=True)
class PendingCancel:
    """A wait that was sent to an endpoint under ``number`` and must not be granted any more."""

    number: int
    sent_at: Instant
    resend_at: Instant
    step_ms: int = RETRY_MS
    last_sent_at: Instant | None = None
    """Time of the last repetition; None before the first."""


@lru_cache(maxsize=CLAIMS_MAX)
def claim_named(lock: str, owner: str) -> Claim:
    """Return the claim of ``owner`` to ``lock``, usually from the cache."""
    return Claim(lock, owner)


def as_sent(pending: Pending, session: str, now: Instant) -> Question:
    """Return the request of ``pending`` as it is sent to an endpoint in ``session``."""
    asked = pending.asked
    owner = pending.claim.owner if pending.claim is not None else ""
    match asked:
        case Inspect():
            return _inspect_said(asked, session, pending.number)
        case CancellableRequest() if not asked.WAITS:
            return _replaced(asked, session=session, owner=owner, request=pending.number)
        case CancellableRequest():
            wait_ms = None if pending.ends_at is None else ms_between(now, pending.ends_at)
            return acquire_said[type(asked)](asked, session, owner, pending.number, wait_ms)
        case Release():
            return release_said(asked, session, owner, pending.number)
        case ReleaseRequest():
            return _replaced(asked, session=session, owner=owner, request=pending.number)
        case Renew():
            return replace(asked, session=session, owner=owner, request=pending.number)
        case _:
            return _replaced(asked, session=session, request=pending.number)


class AcquireCopiers(dict[type[CancellableRequest], Callable[..., CancellableRequest]]):
    """Functions that copy a request for an endpoint, by the type of the request."""

    def __missing__(self, asked: type[CancellableRequest]) -> Callable[..., CancellableRequest]:
        copy = self[asked] = copier(asked, "session", "owner", "request", "wait_ms")
        return copy


acquire_said = AcquireCopiers()
release_said = copier(Release, "session", "owner", "request")
_inspect_said = copier(Inspect, "session", "request")
_replaced: Callable[..., Question] = cast("Any", replace)
"""Copies of a request with the session, the owner and the number for an endpoint."""


def cancel_of(debt: CancelKey, withdrawal: PendingCancel, session: str) -> Cancel:
    """Return the message that cancels the wait of ``withdrawal``."""
    claim, number = debt.claim, withdrawal.number
    return Cancel(lock=claim.lock, session=session, owner=claim.owner, request=number)


def settle(
    withdrawals: dict[CancelKey, PendingCancel], endpoints: Iterable[Address], cancelled: Cancelled
) -> tuple[CancelKey, PendingCancel] | None:
    """Note that a wait was cancelled; return the cancel, or None if none was pending."""
    claim = Claim(cancelled.lock, cancelled.owner)
    for endpoint in (ANY_ENDPOINT, *endpoints):
        debt = CancelKey(endpoint, claim)
        withdrawal = withdrawals.get(debt)
        if withdrawal is not None and withdrawal.number == cancelled.request:
            del withdrawals[debt]
            return debt, withdrawal
    return None
