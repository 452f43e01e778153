"""A leader election for asyncio tasks."""

from __future__ import annotations

from fencelock.actors.api.message import Contender, LockStatus
from fencelock.cluster.aio.lock import Hold, Lock
from fencelock.cluster.aio.loop import drive
from fencelock.cluster.aio.watch import Waiting
from fencelock.cluster.election import BaseCandidate, BaseElection, BaseElectionWatch, Leader
from fencelock.cluster.settings import Read


class Candidate(BaseCandidate[Hold], Lock):
    """A candidate of an `Election`: a lock like `fencelock.aio.Lock`, whose holder leads."""


class ElectionWatch(BaseElectionWatch, Waiting["Leader | None"]):
    """An iterator over the leaders, from `Election.watch`; see `fencelock.ElectionWatch`."""


class Election(BaseElection[Candidate]):
    """One election of the cluster, from `fencelock.aio.Client.election`.

    ``async with election.lead(value) as term:`` leads until the end of the block. Rules, arguments
    and errors are those of `fencelock.Election`.
    """

    _candidate_type = Candidate

    async def leader(self, read: Read = "linearizable", max_age: float = 1.0) -> Leader | None:
        """Return the present leader, or None if nobody leads."""
        return await drive(self._leader(read, max_age))

    def watch(self) -> ElectionWatch:
        """Return an iterator for ``async for`` over the leaders, beginning with the present one."""
        return ElectionWatch(self._connection.line, self._lock)

    async def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the leader as a holder, and the candidates that wait."""
        return await drive(self._status(read, max_age))

    async def evict(self, fence: int, operator: str | None = None) -> Contender:
        """End the term under ``fence``."""
        return await drive(self._evicting(fence, operator))
