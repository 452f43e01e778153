"""A lock for asyncio tasks."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fencelock.actors.api.message import LockStatus
from fencelock.cluster.aio.loop import drive
from fencelock.cluster.aio.owner import owner_of_task
from fencelock.cluster.base_lock import BaseLock
from fencelock.cluster.settings import Read, age_ms_of


class Lock(BaseLock):
    """One named lock of the cluster, from `fencelock.aio.Client.lock`.

    Each task is an owner of its own, unless `Client.lock` was given an ``owner``: one task
    cannot release what another holds. A lock stays held when its task ends, until the client is
    closed. Before Python 3.12 `asyncio.wait_for` runs its argument in a task of its own: use
    ``timeout``, or `asyncio.timeout`, instead.

    Callbacks run on the loop, where they must not block. A cancellation is safe at any
    moment: a cancelled acquire leaves nothing held, a cancelled release still happens.
    """

    _runner = staticmethod(owner_of_task)

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> int | None:
        """Wait for the lock and hold it; arguments, value and errors of `fencelock.Lock.acquire`.

        Raises:
            asyncio.CancelledError: the task was cancelled; nothing is held.

        """
        return await drive(self._acquiring(blocking, timeout))

    async def release(self) -> None:
        """Give up the lock, or one of several holds; errors of `fencelock.Lock.release`.

        Raises:
            asyncio.CancelledError: the task was cancelled; the release still happens.

        """
        await drive(self._releasing())

    async def renew(self, duration: float | None = None) -> None:
        """Start the duration of the hold anew; see `fencelock.Lock.renew`."""
        await drive(self._renewing(duration))

    async def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return who holds the lock and who waits; see `fencelock.Client.status`."""
        return await drive(self._line.inspecting(self.name, age_ms_of(read, max_age)))

    async def __aenter__(self) -> Self:
        """Hold the lock, or raise; see `fencelock.Lock`."""
        await drive(self._entering(self._wait_ms))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. An error of the body goes on as it is; a failed release is noted on it."""
        del kind, trace
        await drive(self._exiting(error))
