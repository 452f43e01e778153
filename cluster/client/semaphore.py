"""Semaphores: what both clients share, then the class of each client."""

from __future__ import annotations

import threading
from typing import Any, Generic, Literal, TypeVar, overload

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Contender, LockStatus
from fencelock.actors.api.name import object_name, titled
from fencelock.actors.api.semaphore import (
    PERMITS_MAX,
    SEMAPHORE,
    AcquirePermits,
    ReleasePermits,
    ResizeSemaphore,
)
from fencelock.actors.error import (
    FencelockError,
    LockOwnershipLostError,
    NotHeldError,
    RefusedError,
)
from fencelock.cluster.client.base_client import BaseClient
from fencelock.cluster.client.base_lock import BaseLock
from fencelock.cluster.client.base_object import updating
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.hold import BaseHold, give_back, releasing
from fencelock.cluster.client.hold_registry import Ownership
from fencelock.cluster.client.lock import AsyncHold, Hold, TaskLock, ThreadLock
from fencelock.cluster.client.operation import Operation, drive, drive_async, operation
from fencelock.cluster.client.pool import BasePool
from fencelock.cluster.client.settings import Read, check_int, check_range, checked
from fencelock.cluster.guarantee import Guarantee

H = TypeVar("H", bound=BaseHold)

Part = tuple[BaseHold, int, bool]
"""A hold, how many of its permits to release, and whether these are all of them."""


class BaseSemaphore(BaseLock[H]):
    """One semaphore of the cluster. Each acquire is a separate owner.

    Any thread or task that has the object may release permits that were acquired through it. Its
    properties (`fence`, `held`, `lost`) describe its current hold, as with a lock.
    """

    def __init__(
        self, connection: Connection, name: str, permits: int, timeout: float | None, label: str
    ) -> None:
        options = connection.options(name, timeout, label=label, retain=0.0, kind=SEMAPHORE)
        connection.demand(Guarantee.SEMAPHORES)
        check_range("permits", permits, 1, PERMITS_MAX)
        self._given = connection
        self._template = checked(
            AcquirePermits(semaphore=options.name, permits=permits, request=1, label=options.label)
        )
        named = replace(options, name=object_name(SEMAPHORE, options.name))
        super().__init__(connection.line, named)
        self._acquire = self._template
        self._guard = threading.Lock()
        self._prune_at = 1

    @property
    def permits(self) -> int:
        """The number of permits, on which all clients must agree while any is held."""
        return self._template.permits

    @operation
    def drain(self) -> Operation[int]:
        """Acquire all permits that are free now, in one step; return their number.

        It is 0 if no permit is free, or if others wait for some, whom it does not overtake. The
        permits are one hold, with one fence, as if `acquire` had acquired them. The errors are
        those of `acquire`.
        """
        hold = yield from self._acquiring(False, None, replace(self._template, amount=0))
        return 0 if hold is None else hold.amount

    @operation
    def resize(self, permits: int) -> Operation[int]:
        """Change the number of permits to ``permits``, and return how many are free.

        What is held stays held: if that is more, nothing is granted until enough is given back.
        Claims that wait for more than ``permits`` are refused. From now on this object names the
        new number. Other objects, of this client and of others, must be made with it or resized
        too: an acquire that names the old one is refused while any permit is held. A semaphore that
        nobody holds has no size at the cluster, so only this object changes then.

        Args:
            permits: the new number, 1 to 2,147,483,647.

        Raises:
            InvalidRequestError: ``permits`` is out of its range, or the semaphore has neither this
                number nor that of this object.
            SessionExpiredError: the client's session ended during the call. It is unknown whether
                the semaphore was resized; calling it again does no harm.
            UnavailableError: no node answered for 10 s. The text says if it is unknown whether the
                semaphore was resized.
            ClosedError: the client is closed.
            TypeError: ``permits`` is not an int.

        """
        check_range("permits", permits, 1, PERMITS_MAX)
        name, before = self._template.semaphore, self.permits
        request = ResizeSemaphore(semaphore=name, permits=before, size=permits, request=1)
        reply = yield from updating(self._given.present(), request)
        self._acquire = self._template = replace(self._template, permits=permits)
        return max(0, reply.free)

    @operation
    def available(self, read: Read = "linearizable", max_age: float = 1.0) -> Operation[int]:
        """Return the number of permits that nobody holds; `acquire` may still have to wait.

        While others wait for more permits than are free, nobody overtakes them. Arguments and
        errors are those of `Client.status`.
        """
        status = yield from self.inspecting(read, max_age)
        return self.permits if status.free is None else status.free

    @operation
    def locked(self) -> Operation[bool]:
        """Return whether an acquire would have to wait now: no permit is free, or others wait."""
        status = yield from self.inspecting()
        return bool(status.waiters) or (status.free is not None and status.free <= 0)

    @operation
    def status(self, read: Read = "linearizable", max_age: float = 1.0) -> Operation[LockStatus]:
        """Return the holders and the queue, in order; see `Client.status`.

        `LockStatus.holders` has the first 1,000 holders, and `Contender.times` the permits of each.
        """
        return self.inspecting(read, max_age)

    @operation
    def evict(self, fence: int, operator: str | None = None) -> Operation[Contender]:
        """Take the permits of the hold under ``fence``; see `Client.evict`."""
        return self._given.present().evicting(self._options.name, fence, operator)

    def _asking(self, amount: int) -> AcquirePermits:
        template = self._template
        if type(amount) is int and amount == template.amount:
            return template
        check_range("n", amount, 1, self.permits, ValueError)
        return replace(template, amount=amount)

    def _prune(self) -> None:
        """Forget released holds, once they may be more than half of all remembered ones."""
        with self._guard:
            if len(self._acquired) < self._prune_at:
                return
            for hold in tuple(self._acquired):
                if not hold.own.is_unreleased(hold.token):
                    self._acquired.remove(hold)
            self._prune_at = 2 * len(self._acquired) + 1

    def _releasing(self, wait: bool | None = None) -> Operation[None]:
        """Release one permit, as the end of ``with`` does. It always waits."""
        return self._releasing_permits(1)

    def _releasing_permits(self, amount: int) -> Operation[None]:
        """Release permits of several holds: all of them, even if one release fails."""
        self._reach()
        parts: list[Part] = []
        failure: FencelockError | None = None
        try:
            self._take(amount, parts)
            while parts:
                part = parts[0]
                if not part[2]:
                    parts.clear()  # It is the last. From here on, no interrupt sends it again.
                try:
                    yield from self._giving_back(part)
                except FencelockError as error:
                    failure = failure or error
                del parts[:1]
        except BaseException:
            self._release_later(parts)
            raise
        if failure is not None:
            raise failure

    def _giving_back(self, part: Part) -> Operation[None]:
        hold, count, whole = part
        own, token = hold.own, hold.token
        try:
            if whole:
                yield from releasing(self._channel, own, token)
            else:
                yield from self._channel.ask(self._part_of(own, count))
        except FencelockError as error:
            lost = isinstance(error, NotHeldError | LockOwnershipLostError)
            refused = whole or (isinstance(error, RefusedError) and not lost)
            if refused and token in own.acquisitions:  # It may be tried again.
                with self._guard:
                    hold.given_back -= count
            if whole or token in own.acquisitions or not isinstance(error, NotHeldError):
                raise  # Otherwise another thread has released the whole hold meanwhile.

    def _take(self, amount: int, parts: list[Part]) -> None:
        """Choose what to release: holds of this thread or task, the latest first, then others.

        It is added to ``parts``. Only the last may be a part of a hold. An interrupt may come
        between any two steps. A whole hold is added before it counts as given back: releasing it
        twice does no harm. A part would be released twice, so it counts first; after an interrupt
        it is released with the rest.
        """
        check_int("n", amount, "an int of at least 1", lambda n: n >= 1, ValueError)
        here, chosen, left = self._here(), list[Part](), amount
        with self._guard:
            acquired = [one for one in tuple(self._acquired) if one.own.is_unreleased(one.token)]
            mine = [hold for hold in reversed(acquired) if hold.runner == here]
            for hold in (*mine, *(one for one in acquired if one.runner != here)):
                count = hold.amount - hold.given_back
                if count and left:
                    chosen.append((hold, min(count, left), count <= left))
                    left -= min(count, left)
            if left:
                raise ValueError(
                    f"{titled(self._options.name)}: {amount} permits were released, "
                    f"{amount - left} are held through this object"
                )
            parts += [part for part in chosen if part[2]]
            for one, count, _ in chosen:
                one.given_back += count
            parts[:] = chosen

    def _part_of(self, own: Ownership, amount: int) -> ReleasePermits:
        assert own.hold is not None
        name, fence = self._template.semaphore, own.hold.fence
        return ReleasePermits(semaphore=name, fence=fence, amount=amount, owner=own.owner)

    def _release_later(self, parts: list[Part]) -> None:
        """Leave the rest of an interrupted release to the session."""
        for hold, amount, whole in parts:
            if not whole:
                self._channel.tell(self._part_of(hold.own, amount))
            else:
                give_back(self._channel, hold.own, hold.token)

    def __repr__(self) -> str:
        with self._guard:
            held = sum(
                hold.amount - hold.given_back
                for hold in self._acquired
                if hold.own.is_unreleased(hold.token)
            )
        return f"<{type(self).__name__} {self.name!r}, {held} of {self.permits} permits held here>"


P = TypeVar("P", bound=BaseSemaphore[Any])
Q = TypeVar("Q", bound=BasePool)


class SemaphoreFactory(BaseClient, Generic[P, Q]):
    """The part of a client that makes semaphores."""

    _semaphore_type: type[P]
    _pool_type: type[Q]

    @overload
    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        timeout: float | None = None,
        label: str = "",
        session_aware: Literal[True] = True,
    ) -> P: ...

    @overload
    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        timeout: float | None = None,
        label: str = "",
        session_aware: Literal[False],
    ) -> Q: ...

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        timeout: float | None = None,
        label: str = "",
        session_aware: bool = True,
    ) -> P | Q:
        """Return the semaphore called ``name``, which has ``permits``; sends nothing yet.

        A lock of the same name is another object.

        Args:
            name: see `lock`.
            permits: how many are held at most at a time, 1 to 2,147,483,647. A semaphore that
                nobody holds leaves no state; while it is held, an acquire that names another
                number is refused.
            timeout: see `lock`.
            label: see `lock`.
            session_aware: whether permits are given back when the session of their holder ends.
                With False the result is a `Pool`, whose permits stay taken until somebody releases
                them. It is another object than the semaphore of that name.

        Raises:
            UnsupportedError: the cluster's protocol has no semaphores; the text says which one
                does.
            FencelockError, TypeError, ValueError: as for `lock`.

        """
        made = self._semaphore_type if session_aware else self._pool_type
        return made(self._given, name, permits, timeout, label)


class Semaphore(BaseSemaphore[Hold], ThreadLock[Hold]):
    """One semaphore of the cluster, from `Client.semaphore`. Any thread may use it.

    At most ``permits`` are held at a time, by all clients together. Claims are served in their
    order: a large one at the head of the queue keeps smaller ones waiting, and nobody overtakes.

    As with ``threading.BoundedSemaphore``, any thread that has the object may release, and
    releasing more permits than were acquired raises. Permits stay held when their thread ends,
    until the client is closed, or loses its session: see `fencelock.Lock`, also for callbacks and
    ``with``.
    """

    _hold_type = Hold

    @overload
    def acquire(
        self, n: int = 1, *, blocking: Literal[True] = True, timeout: None = None
    ) -> Hold: ...

    @overload
    def acquire(
        self, n: int = 1, *, blocking: bool = True, timeout: float | None = None
    ) -> Hold | None: ...

    def acquire(
        self, n: int = 1, *, blocking: bool = True, timeout: float | None = None
    ) -> Hold | None:
        """Wait for ``n`` permits and hold them, all at once.

        Args:
            n: number of permits, at most all permits of the semaphore.
            blocking: whether to wait.
            timeout: see `fencelock.Lock.acquire`.

        Returns:
            The hold, which is true and has its own fence. Its ``release`` gives back the rest of
            the ``n`` permits. None if the time ran out; without ``blocking`` also if the permits
            are not free, or others wait for some.

        Raises:
            InvalidRequestError: the semaphore has another number of permits at the cluster.
            ValueError: ``n`` or ``timeout`` is out of its range, or ``timeout`` is given without
                ``blocking``.
            FencelockError: as `fencelock.Lock.acquire`.

        """
        return drive(self._acquiring(blocking, timeout, self._asking(n)))

    def release(self, n: int = 1) -> None:
        """Give back ``n`` permits: those that this thread acquired last, then the oldest.

        Raises:
            ValueError: fewer are held through this object; none is given back.
            LockOwnershipLostError: some were lost before.
            UnavailableError: no node confirmed it within 10 s. The client keeps repeating the
                release in the background.
            ClosedError: the client is closed.

        """
        drive(self._releasing_permits(n))


class AsyncSemaphore(BaseSemaphore[AsyncHold], TaskLock[AsyncHold]):
    """One semaphore of the cluster, from `fencelock.aio.Client.semaphore`.

    Arguments, values and errors are those of `fencelock.Semaphore`. A cancelled acquire leaves
    nothing held, a cancelled release still happens.
    """

    _hold_type = AsyncHold

    @overload
    async def acquire(
        self, n: int = 1, *, blocking: Literal[True] = True, timeout: None = None
    ) -> AsyncHold: ...

    @overload
    async def acquire(
        self, n: int = 1, *, blocking: bool = True, timeout: float | None = None
    ) -> AsyncHold | None: ...

    async def acquire(
        self, n: int = 1, *, blocking: bool = True, timeout: float | None = None
    ) -> AsyncHold | None:
        """Wait until ``n`` permits are free, then take all of them together."""
        return await drive_async(self._acquiring(blocking, timeout, self._asking(n)))

    async def release(self, n: int = 1) -> None:
        """Give back ``n`` permits: those that this task acquired last, then the oldest."""
        await drive_async(self._releasing_permits(n))
