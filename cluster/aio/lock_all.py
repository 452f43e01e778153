"""Several locks at once, for asyncio tasks."""

from __future__ import annotations

from fencelock.cluster.aio.lock import Exiting, Hold, task_here
from fencelock.cluster.aio.loop import drive
from fencelock.cluster.lock_all import BaseHoldAll, BaseLockAll


class HoldAll(BaseHoldAll, Hold):
    """One successful acquire of several locks, from `LockAll`. Always true."""


class LockAll(BaseLockAll[HoldAll], Exiting):
    """Several locks of the cluster, from `fencelock.aio.Client.lock_all`: all are held, or none.

    Arguments, values and errors are those of `fencelock.LockAll`. A cancelled acquire leaves
    nothing held, a cancelled release still happens.
    """

    _hold_type = HoldAll
    _here = staticmethod(task_here)

    async def acquire(
        self, *, blocking: bool = True, timeout: float | None = None
    ) -> HoldAll | None:
        """Wait for all the locks and hold them."""
        return await drive(self._acquiring((), blocking, timeout))

    async def release(self) -> None:
        """Give up all the locks."""
        await drive(self._releasing())

    async def __aenter__(self) -> HoldAll:
        """Hold the locks and return the hold, or raise."""
        return await drive(self._held_now())
