"""Pools, which are semaphores whose permits outlive sessions: the class of each client."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fencelock.actors.api.name import titled
from fencelock.actors.api.pool import POOL, GivePermits, ResizePool, TakePermits
from fencelock.actors.api.semaphore import PERMITS_MAX
from fencelock.actors.error import LockTimeoutError
from fencelock.cluster.client.base_object import BaseObject
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.operation import (
    InTasks,
    InThreads,
    Operation,
    drive,
    drive_async,
    operation,
)
from fencelock.cluster.client.settings import Read, check_range, checked, text_of, wait_ms_of
from fencelock.cluster.guarantee import Guarantee


class BasePool(BaseObject):
    """One pool of the cluster."""

    def __init__(
        self, connection: Connection, name: str, permits: int, timeout: float | None, label: str
    ) -> None:
        super().__init__(connection, name, POOL, Guarantee.POOLS)
        check_range("permits", permits, 1, PERMITS_MAX)
        self._wait_ms = wait_ms_of(timeout)
        self._template = checked(
            TakePermits(pool=self.name, size=permits, request=1, label=text_of("label", label))
        )

    @property
    def permits(self) -> int:
        """The number of permits, on which all clients must agree while any is taken."""
        return self._template.size

    @operation
    def acquire(
        self, n: int = 1, *, blocking: bool = True, timeout: float | None = None
    ) -> Operation[bool]:
        """Wait for ``n`` permits and take them, all at once; return whether they were taken.

        Args:
            n: number of permits, at most all permits.
            blocking: whether to wait.
            timeout: how long to wait (s): 0 to a week, -1 for no limit, or None for the timeout of
                the object.

        Raises:
            InvalidRequestError: the semaphore has another number of permits at the cluster.
            OverloadedError: the cluster has too many such objects, or too many waiters.
            SessionExpiredError: the client's session ended during the call.
            UnavailableError: no node answered for 10 s. The text says if it is unknown whether the
                permits were taken.
            ClosedError: the client is closed.
            TypeError: an argument is of a wrong type.
            ValueError: ``n`` or ``timeout`` is out of its range, or ``timeout`` is given without
                ``blocking``.

        """
        if not blocking and timeout is not None:
            raise ValueError("can't specify a timeout for a non-blocking call")
        check_range("n", n, 1, self.permits, ValueError)
        wait_ms = 0 if not blocking else self._wait_ms if timeout is None else wait_ms_of(timeout)
        try:
            yield from self._updating(replace(self._template, amount=n, wait_ms=wait_ms))
        except LockTimeoutError:
            return False
        return True

    @operation
    def release(self, n: int = 1) -> Operation[None]:
        """Give back ``n`` permits, whoever acquired them.

        Raises:
            ValueError: fewer are taken; none is given back.
            FencelockError: see `acquire`.

        """
        return self._giving(n)

    @operation
    def drain(self) -> Operation[int]:
        """Take all permits that are free now, in one step; return their number; see `acquire`."""
        try:
            return (yield from self._updating(replace(self._template, amount=0, wait_ms=0))).amount
        except LockTimeoutError:
            return 0

    @operation
    def available(self, read: Read = "linearizable", max_age: float = 1.0) -> Operation[int]:
        """Return the number of free permits. Arguments and errors are those of `Client.status`."""
        status = yield from self._inspecting(read, max_age)
        return self.permits if status.left is None else status.left

    @operation
    def resize(self, permits: int) -> Operation[int]:
        """Change its size to ``permits``; return how many are free; see `Semaphore.resize`."""
        check_range("permits", permits, 1, PERMITS_MAX)
        request = ResizePool(pool=self.name, permits=self.permits, size=permits, request=1)
        reply = yield from self._updating(request)
        self._template = replace(self._template, size=permits)
        return max(0, reply.free)

    def _entering(self) -> Operation[None]:
        yield from self._updating(replace(self._template, wait_ms=self._wait_ms))

    def _giving(self, n: int) -> Operation[None]:
        check_range("n", n, 1, PERMITS_MAX, ValueError)
        reply = yield from self._updating(GivePermits(pool=self.name, amount=n, request=1))
        if not reply.changed:
            raise ValueError(
                f"{titled(self._full_name)}: {n} permits were released, {reply.taken} are taken"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.permits}>"


class Pool(BasePool, InThreads):
    """One semaphore whose permits outlive sessions; see `Client.semaphore`.

    Any thread may use it. A permit that was acquired belongs to nobody. It stays taken when the
    client that acquired it is closed or dies, until anybody releases it, through any object and any
    client. So there are no holds, no fences and no losses. Claims are served in their order, as
    those of a `Semaphore`.

    A call takes effect once, however often the client has to send it. If the client's session ends
    during an acquire or a release, the call raises `SessionExpiredError`, and it is unknown whether
    it took effect. The same holds for an acquire that is interrupted.
    """

    def __enter__(self) -> None:
        """Take one permit, or raise `LockTimeoutError`."""
        drive(self._entering())

    def __exit__(self, *_: Any) -> None:
        """Give one permit back."""
        drive(self._giving(1))


class AsyncPool(BasePool, InTasks):
    """One semaphore whose permits outlive sessions, from `fencelock.aio.Client.semaphore`.

    Arguments, return values and errors are those of `fencelock.Pool`. It is unknown whether a
    cancelled call takes effect.
    """

    async def __aenter__(self) -> None:
        """Take one permit, or raise `LockTimeoutError`."""
        await drive_async(self._entering())

    async def __aexit__(self, *_: Any) -> None:
        """Give one permit back."""
        await drive_async(self._giving(1))
