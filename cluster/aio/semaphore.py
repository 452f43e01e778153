"""A semaphore for asyncio tasks."""

from __future__ import annotations

from fencelock.actors.api.message import Contender, LockStatus
from fencelock.cluster.aio.lock import Exiting, Hold, task_here
from fencelock.cluster.aio.loop import drive
from fencelock.cluster.semaphore import BaseSemaphore
from fencelock.cluster.settings import Read, age_ms_of


class Semaphore(BaseSemaphore[Hold], Exiting):
    """One semaphore of the cluster, from `fencelock.aio.Client.semaphore`.

    Arguments, values and errors are those of `fencelock.Semaphore`. A cancelled acquire leaves
    nothing held, a cancelled release still happens.
    """

    _hold_type = Hold
    _here = staticmethod(task_here)

    async def acquire(
        self, n: int = 1, *, blocking: bool = True, timeout: float | None = None
    ) -> Hold | None:
        """Wait until ``n`` permits are free, then take all of them together."""
        return await drive(self._acquiring((), blocking, timeout, self._asking(n)))

    async def release(self, n: int = 1) -> None:
        """Give back ``n`` permits: those that this task acquired last, then the oldest."""
        await drive(self._releasing_permits(n))

    async def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the holders and the queue, in order."""
        return await drive(self._inspecting(age_ms_of(read, max_age)))

    async def evict(self, fence: int, operator: str | None = None) -> Contender:
        """Take the permits of the hold under ``fence``."""
        return await drive(self._evicting(self._options.name, fence, operator))

    async def __aenter__(self) -> Hold:
        """Hold one permit and return the hold, or raise."""
        return await drive(self._held_now())
