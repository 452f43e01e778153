"""A read/write lock for asyncio tasks."""

from __future__ import annotations

from fencelock.actors.api.message import Contender, LockStatus
from fencelock.cluster.aio.lock import Hold, RLock
from fencelock.cluster.aio.loop import drive
from fencelock.cluster.rwlock import BaseRWLock, BaseSide
from fencelock.cluster.settings import Read


class ReadWriteSide(BaseSide[Hold], RLock):
    """One side of an `RWLock`: a lock like `fencelock.aio.RLock` that acquires to read or write."""

    async def downgrade(self) -> None:
        """Turn this task's hold, which is one to write, into one to read, in one step."""
        await drive(self._downgrading())


class RWLock(BaseRWLock[ReadWriteSide]):
    """One read/write lock of the cluster, from `fencelock.aio.Client.rwlock`.

    ``async with rw.read():`` and ``async with rw.write():`` hold it. Rules and errors are those of
    `fencelock.RWLock`; the owner is the task.
    """

    _side_type = ReadWriteSide

    async def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the holders and the queue, in order."""
        return await self.read().status(read, max_age)

    async def evict(self, fence: int, operator: str | None = None) -> Contender:
        """Take the hold under ``fence`` from its owner."""
        return await drive(self._evicting(fence, operator))
