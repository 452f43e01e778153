"""Cyclic barriers: what both clients share, then the class of each client."""

from __future__ import annotations

from msgspec.structs import replace

from fencelock.actors.api.barrier import BARRIER, PARTIES_MAX, AwaitBarrier
from fencelock.actors.error import BrokenBarrierError, LockTimeoutError
from fencelock.cluster.client.base_object import BaseObject
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.operation import InTasks, InThreads, Operation, operation
from fencelock.cluster.client.settings import check_range, checked, wait_ms_of
from fencelock.cluster.guarantee import Guarantee


class BaseBarrier(BaseObject):
    """One cyclic barrier of the cluster."""

    def __init__(
        self, connection: Connection, name: str, parties: int, timeout: float | None
    ) -> None:
        super().__init__(connection, name, BARRIER, Guarantee.BARRIERS)
        wait_ms = wait_ms_of(timeout)
        check_range("parties", parties, 1, PARTIES_MAX)
        self._wait = checked(
            AwaitBarrier(barrier=self.name, parties=parties, request=1, wait_ms=wait_ms)
        )

    @property
    def parties(self) -> int:
        """The number of parties, all of which pass together."""
        return self._wait.parties

    @operation
    def wait(self, timeout: float | None = None) -> Operation[int]:
        """Wait until all parties have arrived, as ``threading.Barrier.wait`` does.

        Args:
            timeout: how long to wait (s): 0 to a week, or -1 for no limit. None for the timeout of
                the barrier.

        Returns:
            The place of this party in the order of arrival, 0 to ``parties`` - 1. All parties of a
            generation get different places.

        Raises:
            BrokenBarrierError: the timeout ended, or another party stopped waiting: its timeout
                ended, its call was interrupted, or its session ended. No party of this generation
                passes. The barrier can be used again at once.
            InvalidRequestError: the parties that wait already have named another number of parties.
            SessionExpiredError: the client's session ended during the call. It is unknown whether
                the other parties have passed.
            UnavailableError: no node answered in time. The text says if it is unknown whether the
                other parties have passed.
            OverloadedError: the cluster has too many such objects, or too many waiters.
            ClosedError: the client is closed.
            TypeError: ``timeout`` is no number.
            ValueError: ``timeout`` is out of its range.

        """
        wait_ms = self._wait.wait_ms if timeout is None else wait_ms_of(timeout)
        try:
            return (yield from self._updating(replace(self._wait, wait_ms=wait_ms))).index
        except LockTimeoutError as error:
            raise BrokenBarrierError(str(error)) from None

    @operation
    def n_waiting(self) -> Operation[int]:
        """Return the number of parties that wait now, as a linearizable read.

        The errors are those of `Client.status`.
        """
        status = yield from self._inspecting("linearizable", 0)
        return 0 if status.left is None else status.permits - status.left

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.parties} parties>"


class Barrier(BaseBarrier, InThreads):
    """One cyclic barrier of the cluster, from `Client.barrier`. Any thread may use it.

    Callers of `wait` pass together once there are `parties` of them. These are one generation; the
    next call begins the next one. Each call counts as one party, whichever thread makes it.
    """


class AsyncBarrier(BaseBarrier, InTasks):
    """One cyclic barrier of the cluster, from `fencelock.aio.Client.barrier`.

    Arguments, return values and errors are those of `fencelock.Barrier`. Cancelling a wait breaks
    its generation, unless all parties have already arrived.
    """
