"""A cyclic barrier for asyncio tasks."""

from __future__ import annotations

from fencelock.actors.api.message import LockStatus
from fencelock.cluster.aio.loop import drive
from fencelock.cluster.barrier import BaseBarrier
from fencelock.cluster.settings import Read


class Barrier(BaseBarrier):
    """One cyclic barrier of the cluster, from `fencelock.aio.Client.barrier`.

    Arguments, return values and errors are those of `fencelock.Barrier`. Cancelling a wait breaks
    its generation, unless all parties have already arrived.
    """

    async def wait(self, timeout: float | None = None) -> int:
        """Wait until all parties have arrived; return the place of this party, from 0."""
        return await drive(self._awaiting(timeout))

    async def n_waiting(self) -> int:
        """Return the number of parties that wait now."""
        return await drive(self._counting_waiters())

    async def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the waiters in order; ``left`` of ``permits`` parties are missing."""
        return await drive(self._inspecting(read, max_age))
