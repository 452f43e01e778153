"""Requests of a session that have no reply yet: their order, repetition and pending cancels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fencelock.actors.api.backup_message import LockQuery, ReadBackup
from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.api.lock_message import (
    Cancel,
    CancellableRequest,
    Cancelled,
    ReleaseRequest,
    Renew,
)
from fencelock.actors.api.membership_message import ChangeMembers, ReadMembers
from fencelock.actors.api.operator_message import OperatorCommand
from fencelock.actors.api.request import Request, TableQuery, is_watch
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, later, ms_between
from fencelock.actors.timing import PROBE_AFTER_MS

if TYPE_CHECKING:
    from random import Random

    from fencelock.actors.session.endpoints import Endpoint, Endpoints
    from fencelock.actors.session.lease import SessionLease

FIRST_REPEAT_MS = PROBE_AFTER_MS
"""First pause before a request is repeated (ms); it doubles from there."""

RETRY_MS_MAX = 4_000
"""Longest such pause (ms): a restarted endpoint learns of a wait this late at most."""

WATCH_RETRY_MS_MAX = 16_000
"""Longest pause before a read that waits for a change is repeated (ms); the first is
`RETRY_MS_MAX`. Keep-alives detect a dead node sooner."""

CANCEL_MS_MAX = 15_000
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

UNANSWERED_MS = 10_000
"""Timeout of a release or a query, after which the user is refused (ms)."""

JITTER = 0.5
"""Range of a pause as a fraction of it, so that clients do not repeat in step."""


_LEAST = 1 - JITTER / 2
"""The shortest pause, as a fraction of the usual one."""


def paused(random: Random, step_ms: int, now: Instant) -> Instant:
    """Return an instant about ``step_ms`` from ``now``, randomly sooner or later."""
    vary = _LEAST + JITTER * random.random()
    return Instant(now + int(step_ms * vary) * NS_PER_MS)


LOST_MS = 500
"""A cancel unanswered for this long (ms) may be lost: its endpoint was silent."""

CANCELS_MAX = 100
"""Maximum cancels sent at one sign of life; the rest wait for the next."""

ANY_ENDPOINT = Address("")
"""In a `CancelKey`: any endpoint in use may settle it."""


class LockKey(NamedTuple):
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
    """A lock key, and the endpoint that owes a `Cancelled` for it."""

    endpoint: Address
    lock_key: LockKey


LOCK_KEYS_MAX = 4_096
"""Claims that are cached: most locks are requested again and again."""

NodeRequest = OperatorCommand | Describe | ReadMembers | ChangeMembers | ReadBackup
UserRequest = CancellableRequest | ReleaseRequest | Renew | TableQuery | NodeRequest
"""All requests of users. A `CancellableRequest` is an acquire or an update."""


class Pending(Struct):
    """A request of a user that has no reply yet."""

    number: int
    user: Address | None
    """None for a release that no user waits for."""
    request: UserRequest
    """The request as the user sent it."""
    lock_key: LockKey | None
    """The lock key that needs a session, or None if it needs none."""
    endpoint: Address
    requested_at: Instant
    ends_at: Instant | None
    """End of the wait, for a request that waits. Otherwise the time at which the request is
    refused."""
    resend_at: Instant | None = None
    """Time of the next repetition; None until a tick asks for it: most get a reply before."""
    step_ms: int = FIRST_REPEAT_MS
    times_sent: int = 0
    """Number of times it was sent, under this number and in this session."""
    sent_at: Instant | None = None
    """Time at which it was first sent so."""
    survey: int = 0
    """The survey it belongs to; such a request stays at its endpoint."""
    owed: bool = False
    """Whether it releases a hold that no user owns any more."""
    renewed_at: Instant | None = None
    """Send time of the first renewal of an `Acquire` that was granted late."""


class PendingCancel(Struct):
    """A wait that was sent to an endpoint under ``number`` and must not be granted any more."""

    number: int
    sent_at: Instant
    resend_at: Instant
    step_ms: int = FIRST_REPEAT_MS
    last_sent_at: Instant | None = None
    """Time of the last repetition; None before the first."""


@lru_cache(maxsize=LOCK_KEYS_MAX)
def lock_key_named(lock: str, owner: str) -> LockKey:
    """Return the lock key of ``owner`` to ``lock``, usually from the cache."""
    return LockKey(lock, owner)


def as_sent(pending: Pending, session: str, now: Instant) -> UserRequest:
    """Return the request of ``pending`` as it is sent to an endpoint in ``session``."""
    request, number, lock_key = pending.request, pending.number, pending.lock_key
    if lock_key is None:
        return replace(request, session=session, request=number)
    if not request.WAITS:
        return replace(request, session=session, owner=lock_key.owner, request=number)
    ends_at = pending.ends_at
    wait_ms = None if ends_at is None else ms_between(now, ends_at)
    return replace(request, session=session, owner=lock_key.owner, request=number, wait_ms=wait_ms)


def settle(
    cancels: dict[CancelKey, PendingCancel], endpoints: Iterable[Address], cancelled: Cancelled
) -> tuple[CancelKey, PendingCancel] | None:
    """Note that a wait was cancelled; return the cancel, or None if none was pending."""
    lock_key = LockKey(cancelled.lock, cancelled.owner)
    for endpoint in (ANY_ENDPOINT, *endpoints):
        cancel_key = CancelKey(endpoint, lock_key)
        pending_cancel = cancels.get(cancel_key)
        if pending_cancel is not None and pending_cancel.number == cancelled.request:
            del cancels[cancel_key]
            return cancel_key, pending_cancel
    return None


READS_SENT_MAX = 128
"""Maximum linearizable reads in flight. A node refuses reads beyond its quota `queries`, by default
256, which clients with one key share. It may still count some that the client has given up."""

BOUNDED_READS_SENT_MAX = 64
"""The same for reads with a maximum age. They do not wait for linearizable reads, which have no
reply while the cluster has no majority."""

_UNLIMITED = 1 << 31


@dataclass(slots=True)
class ReadWindow:
    """The numbers of the reads of a session: those that were sent, and those that wait to be sent.

    Invariants:
        sent-or-held-back: Each number is sent or held back, never both, until `drop`. At most
            ``most`` are sent.

    """

    most: int
    sent: set[int] = field(default_factory=set[int])
    held_back: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])

    def admit(self, number: int) -> bool:
        """Return whether the read may be sent, also for a repetition. If not, hold it back."""
        if number in self.sent:
            return True
        if len(self.sent) >= self.most:
            self.held_back[number] = None
            return False
        self.held_back.pop(number, None)
        self.sent.add(number)
        return True

    def next(self) -> int | None:
        """Return the read that was held back longest, if there is room for it."""
        return next(iter(self.held_back), None) if len(self.sent) < self.most else None

    def drop(self, number: int) -> None:
        """Forget a read: it has a reply, or is not wanted any more."""
        self.sent.discard(number)
        self.held_back.pop(number, None)


def windows(*, local: bool) -> tuple[ReadWindow, ReadWindow]:
    """Return the windows for linearizable reads and for reads with a maximum age.

    Args:
        local: whether the session belongs to callers inside the node, which have no such quota.

    """
    if local:
        return ReadWindow(_UNLIMITED), ReadWindow(_UNLIMITED)
    return ReadWindow(READS_SENT_MAX), ReadWindow(BOUNDED_READS_SENT_MAX)


@dataclass(slots=True)
class SessionRequests:
    """All unanswered requests; the requests of one lock key are sent one after another.

    No acquire or update is sent to an endpoint that owes a `Cancelled` for its lock key, and no
    request of a lock key while an earlier one is unanswered (``releases`` also has renewals). So an
    endpoint knows of one wait of a lock key at a time, and one cancel per endpoint and lock key is
    enough. Where sessions are kept, any endpoint knows all waits and holds of the client; otherwise
    each has its own.
    """

    random: Random
    endpoints: Endpoints
    session_lease: SessionLease
    windows: tuple[ReadWindow, ReadWindow]
    """For linearizable reads, and for reads with a maximum age."""
    number: int = 0
    pending: dict[int, Pending] = field(default_factory=dict[int, Pending])
    waits: dict[LockKey, int] = field(default_factory=dict[LockKey, int])
    releases: dict[LockKey, list[int]] = field(default_factory=dict[LockKey, list[int]])
    cancels: dict[CancelKey, PendingCancel] = field(default_factory=dict[CancelKey, PendingCancel])

    def ask(
        self,
        user: Address | None,
        request: UserRequest,
        lock_key: LockKey | None,
        endpoint: Address,
        now: Instant,
        *,
        limit_ms: int | None,
        survey: int = 0,
        owed: bool = False,
    ) -> list[Effect]:
        """Send ``request`` to ``endpoint``, and repeat it until `drop`.

        ``lock_key`` is None for a request that needs no session.
        """
        self.number = number = self.number + 1
        ends_at = None if limit_ms is None else Instant(now + limit_ms * NS_PER_MS)
        pending = Pending(
            number, user, request, lock_key, endpoint, now, ends_at, survey=survey, owed=owed
        )
        if lock_key is None and is_watch(request):
            pending.step_ms = RETRY_MS_MAX
        self._file(pending)
        return self._send(pending, now)

    def releases_of(self, lock_key: LockKey) -> list[Pending]:
        """Return the unanswered releases of ``lock_key`` that end one of its acquires each.

        Those that a user asked for count, also if nobody waits for them any more. The acquires that
        the session gives back are not among a hold's levels any more.
        """
        return [
            pending
            for number in self.releases.get(lock_key, ())
            if not (pending := self.pending[number]).owed
            and isinstance(pending.request, ReleaseRequest)
            and not pending.request.PARTIAL
        ]

    def drop(self, pending: Pending) -> LockKey | None:
        """Forget ``pending``: it has a reply, or is not wanted any more. Return its lock key."""
        del self.pending[pending.number]
        lock_key = pending.lock_key
        if lock_key is None:
            if (window := self._window(pending)) is not None:
                window.drop(pending.number)
        elif pending.request.CANCELLABLE:
            del self.waits[lock_key]
        else:
            numbers = self.releases[lock_key]
            numbers.remove(pending.number)
            if not numbers:
                del self.releases[lock_key]
        return lock_key

    def withdraw(self, pending: Pending, now: Instant) -> list[Effect]:
        """Forget ``pending``; cancel a wait at the endpoint to which it was sent."""
        lock_key = self.drop(pending)
        if lock_key is None:
            return []
        if not isinstance(pending.request, CancellableRequest) or pending.sent_at is None:
            return self.go_on(lock_key, now)
        if self.endpoints.table[pending.endpoint].foreign and not self.session_lease.kept:
            return []  # A kept wait may have been elsewhere before.
        cancel_key = self._cancel_key(pending.endpoint, lock_key)
        assert cancel_key not in self.cancels
        pending_cancel = PendingCancel(
            pending.number, now, paused(self.random, FIRST_REPEAT_MS, now)
        )
        self.cancels[cancel_key] = pending_cancel
        return [self.cancel(cancel_key, pending_cancel, now)]

    def go_on(
        self, lock_key: LockKey, now: Instant, endpoint: Address = ANY_ENDPOINT
    ) -> list[Effect]:
        """Send what was blocked by an earlier request of ``lock_key`` (at ``endpoint``)."""
        if lock_key not in self.waits and lock_key not in self.releases:
            return []
        effects: list[Effect] = []
        numbers = self.releases.get(lock_key, [])
        if lock_key in self.waits:
            numbers = sorted([*numbers, self.waits[lock_key]])
        for number in list(numbers):
            pending = self.pending[number]
            if pending.sent_at is None and endpoint in (ANY_ENDPOINT, pending.endpoint):
                effects += self._send(pending, now)
        return effects

    def send_held_back(self, now: Instant) -> list[Effect]:
        """Send the reads whose turn has come, since earlier ones have ended."""
        effects: list[Effect] = []
        for window in self.windows:
            while (number := window.next()) is not None:
                pending = self.pending[number]
                pending.resend_at, pending.step_ms = (
                    paused(self.random, FIRST_REPEAT_MS, now),
                    FIRST_REPEAT_MS,
                )
                effects += self._send(pending, now)
        return effects

    def leave(self, endpoint: Address, now: Instant, to: Endpoint | None = None) -> list[Effect]:
        """Move requests from ``endpoint`` to ``to``, or the next usable one, as far as possible.

        Where the cluster keeps the session, all move, under their numbers. Otherwise a request is
        sent there under a new number for the rest of its time, the wait under the old number is
        cancelled, and a release stays with its hold. Without a usable endpoint everything stays.
        """
        other = self.endpoints.after(endpoint) if to is None else to
        if other is None:
            return []
        if self.endpoints.current == endpoint:
            self.endpoints.use(other.address, now)
        effects: list[Effect] = []
        for pending in list(self.pending.values()):
            if pending.endpoint != endpoint or pending.survey:
                continue
            if self.session_lease.kept:
                pending.endpoint = other.address
                pending.resend_at, pending.step_ms = (
                    paused(self.random, FIRST_REPEAT_MS, now),
                    FIRST_REPEAT_MS,
                )
                effects += self._send(pending, now)
            elif not isinstance(pending.request, ReleaseRequest):
                effects += self.again(pending, other.address, now)
            else:
                continue
            effects.append(Observe("client.request_moved"))
        for cancel_key, pending_cancel in self.cancels.items():
            if cancel_key.endpoint == ANY_ENDPOINT:
                pending_cancel.resend_at = paused(self.random, FIRST_REPEAT_MS, now)
                pending_cancel.step_ms = FIRST_REPEAT_MS
                effects.append(self.cancel(cancel_key, pending_cancel, now))
        return effects

    def renew(self, pending: Pending, now: Instant) -> None:
        """Send a request to the same endpoint under a new number, after a pause.

        The endpoint has ended the wait under the old number.
        """
        self.drop(pending)
        self._file(self._renumbered(pending, pending.endpoint, now))

    def start_over(self, now: Instant) -> list[Effect]:
        """Send the requests that waited for the session, which is open now."""
        effects: list[Effect] = []
        for pending in list(self.pending.values()):
            if pending.sent_at is None:
                pending.resend_at, pending.step_ms = (
                    paused(self.random, FIRST_REPEAT_MS, now),
                    FIRST_REPEAT_MS,
                )
                effects += self._send(pending, now)
        return effects

    def repeat(self, now: Instant) -> list[Effect]:
        """Repeat the requests and cancels that are due."""
        effects: list[Effect] = []
        for pending in list(self.pending.values()):
            if self._resend_at(pending) <= now:
                most_ms = WATCH_RETRY_MS_MAX if is_watch(pending.request) else RETRY_MS_MAX
                pending.step_ms = min(2 * pending.step_ms, most_ms)
                pending.resend_at = paused(self.random, pending.step_ms, now)
                effects += self._send(pending, now)
        for cancel_key, pending_cancel in self.cancels.items():
            if pending_cancel.resend_at <= now:
                pending_cancel.step_ms = min(2 * pending_cancel.step_ms, CANCEL_MS_MAX)
                pending_cancel.resend_at = paused(self.random, pending_cancel.step_ms, now)
                effects.append(self.cancel(cancel_key, pending_cancel, now))
        return effects

    def hurry(self, endpoint: Address, now: Instant) -> None:
        """Make everything unanswered at ``endpoint`` due: its link is new."""
        for pending in self.pending.values():
            if pending.endpoint == endpoint:
                pending.resend_at, pending.step_ms = now, FIRST_REPEAT_MS
        for cancel_key, pending_cancel in self.cancels.items():
            if cancel_key.endpoint in (ANY_ENDPOINT, endpoint):
                pending_cancel.resend_at, pending_cancel.step_ms = now, FIRST_REPEAT_MS

    def send(
        self,
        address: Address,
        message: Request,
        now: Instant,
        *,
        owes: bool = True,
    ) -> Send:
        """Send, and note that ``address`` owes a reply, unless that may come much later."""
        endpoint = self.endpoints.table[address]
        if owes and endpoint.owing_since is None:
            endpoint.owing_since = now
        return Send(address, message)

    def over(self, now: Instant) -> list[Pending]:
        """Return the requests that time out now, by the session's own clock."""
        return [
            pending
            for pending in self.pending.values()
            if (end := self._end(pending)) is not None and end <= now
        ]

    def next_at(self) -> Instant | None:
        """Return when the next request is due, or None if all are answered."""
        ends = (self._end(pending) for pending in self.pending.values())
        return min(
            [
                *map(self._resend_at, self.pending.values()),
                *(end for end in ends if end is not None),
                *(pending_cancel.resend_at for pending_cancel in self.cancels.values()),
            ],
            default=None,
        )

    def _resend_at(self, pending: Pending) -> Instant:
        if pending.resend_at is None:
            pending.resend_at = paused(self.random, pending.step_ms, pending.requested_at)
        return pending.resend_at

    def _end(self, pending: Pending) -> Instant | None:
        request = pending.request
        if pending.ends_at is None or not request.WAITS:
            return pending.ends_at
        if not self.endpoints.any_usable():
            return pending.ends_at  # No node can judge the wait, or grant it.
        least = later(pending.requested_at, DECISION_MS)
        if not self.endpoints.any_received():
            return max(least, pending.ends_at)
        return max(least, later(pending.ends_at, MARGIN_MS))

    def again(self, pending: Pending, endpoint: Address, now: Instant) -> list[Effect]:
        """Send the request to ``endpoint`` under a new number; cancel a wait under the old."""
        effects = self.withdraw(pending, now)
        renewed = self._renumbered(pending, endpoint, now)
        self._file(renewed)
        return [*effects, *self._send(renewed, now)]

    def _renumbered(self, pending: Pending, endpoint: Address, now: Instant) -> Pending:
        self.number += 1
        return Pending(
            self.number,
            pending.user,
            pending.request,
            pending.lock_key,
            endpoint,
            pending.requested_at,
            pending.ends_at,
            resend_at=paused(self.random, FIRST_REPEAT_MS, now),
            survey=pending.survey,
            owed=pending.owed,
        )

    def _file(self, pending: Pending) -> None:
        number, lock_key = pending.number, pending.lock_key
        self.pending[number] = pending
        if lock_key is None:
            return
        if pending.request.CANCELLABLE:
            self.waits[lock_key] = number
        else:
            self.releases.setdefault(lock_key, []).append(number)

    def _send(self, pending: Pending, now: Instant) -> list[Effect]:
        session_lease, lock_key = self.session_lease, pending.lock_key
        session = session_lease.name
        if lock_key is not None:
            number = pending.number
            releases = self.releases.get(lock_key)  # Numbers only rise: the first is the least.
            if (
                self.waits.get(lock_key, number) < number
                or (releases is not None and releases[0] < number)
                or not session_lease.ready
            ):
                return []
            if (
                self.cancels
                and (cancel_key := self._cancel_key(pending.endpoint, lock_key)) in self.cancels
            ):
                return [self.cancel(cancel_key, self.cancels[cancel_key], now)]
            session = session_lease.assigned
        elif (window := self._window(pending)) is not None and not window.admit(pending.number):
            return []
        pending.times_sent += 1
        if pending.sent_at is None:
            pending.sent_at = now
        request = as_sent(pending, session, now)
        # A grant may take long; where the session is kept, keep-alives show that a node lives.
        late = session_lease.kept and request.WAITS if lock_key is not None else is_watch(request)
        return [self.send(pending.endpoint, request, now, owes=not late)]

    def _window(self, pending: Pending) -> ReadWindow | None:
        request = pending.request
        if pending.lock_key is not None or not isinstance(request, LockQuery) or is_watch(request):
            return None
        bounded = not isinstance(request, ReadBackup) and request.age_ms is not None
        return self.windows[bounded]

    def _cancel_key(self, endpoint: Address, lock_key: LockKey) -> CancelKey:
        return CancelKey(ANY_ENDPOINT if self.session_lease.kept else endpoint, lock_key)

    def cancel(self, cancel_key: CancelKey, pending_cancel: PendingCancel, now: Instant) -> Send:
        """Send a cancel, once more."""
        pending_cancel.last_sent_at = now
        endpoint, (lock, owner) = cancel_key
        session, number = self.session_lease.assigned, pending_cancel.number
        cancel = Cancel(lock=lock, session=session, owner=owner, request=number)
        return self.send(endpoint or self.endpoints.current, cancel, now)

    def cancel_again(self, endpoint: Address, now: Instant) -> list[Effect]:
        """Repeat cancels that may have been lost, now that ``endpoint`` has sent something.

        Another owner may be queued behind a wait that is to be cancelled. So a cancel does not wait
        for the end of its pause, which grows while no endpoint replies.
        """
        effects: list[Effect] = []
        for cancel_key, pending_cancel in self.cancels.items():
            last = pending_cancel.last_sent_at or pending_cancel.sent_at
            if cancel_key.endpoint in (ANY_ENDPOINT, endpoint) and ms_between(last, now) >= LOST_MS:
                effects.append(self.cancel(cancel_key, pending_cancel, now))
                if len(effects) >= CANCELS_MAX:
                    break
        return effects
