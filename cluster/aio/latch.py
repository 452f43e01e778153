"""A count-down latch for asyncio tasks."""

from __future__ import annotations

from fencelock.actors.api.message import LockStatus
from fencelock.cluster.aio.loop import drive
from fencelock.cluster.latch import BaseLatch
from fencelock.cluster.settings import Read


class Latch(BaseLatch):
    """One count-down latch of the cluster, from `fencelock.aio.Client.latch`.

    Arguments, return values and errors are those of `fencelock.Latch`. It is unknown whether a
    cancelled `count_down` has taken effect.
    """

    async def count_down(self, n: int = 1) -> int:
        """Lower the count by ``n``, but not below 0, and return the new count."""
        return await drive(self._counting_down(n))

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the count is 0; return False if the timeout ends first."""
        return await drive(self._awaiting(timeout))

    async def count(self) -> int:
        """Return the present count."""
        return await drive(self._counting())

    async def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the waiters and the count, which is ``left`` of ``permits``."""
        return await drive(self._inspecting(read, max_age))
