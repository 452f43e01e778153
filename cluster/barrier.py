"""Cyclic barriers: the part that both clients share, and the blocking one."""

from __future__ import annotations

from dataclasses import replace

from fencelock.actors.api.barrier import BARRIER, AwaitBarrier, BarrierPassed
from fencelock.actors.api.message import LockStatus
from fencelock.actors.error import BrokenBarrierError, LockTimeoutError
from fencelock.cluster.base_object import BaseObject
from fencelock.cluster.connection import Connection
from fencelock.cluster.guarantee import Guarantee
from fencelock.cluster.lock_options import checked, wait_ms_of
from fencelock.cluster.operation import Operation, drive
from fencelock.cluster.settings import Read


class BaseBarrier(BaseObject):
    """One cyclic barrier of the cluster."""

    def __init__(
        self, connection: Connection, name: str, parties: int, timeout: float | None
    ) -> None:
        super().__init__(connection, name, BARRIER, Guarantee.BARRIERS)
        self._timeout = timeout
        self._wait = checked(
            AwaitBarrier(barrier=name, parties=parties, request=1, wait_ms=wait_ms_of(timeout))
        )

    @property
    def parties(self) -> int:
        """The number of parties that pass together."""
        return self._wait.parties

    def _awaiting(self, timeout: float | None) -> Operation[int]:
        wait_ms = wait_ms_of(self._timeout if timeout is None else timeout)
        try:
            reply = yield from self._updating(replace(self._wait, wait_ms=wait_ms))
        except LockTimeoutError as error:
            raise BrokenBarrierError(str(error)) from None
        assert isinstance(reply, BarrierPassed)
        return reply.index

    def _counting_waiters(self) -> Operation[int]:
        status = yield from self._inspecting("linearizable", 0)
        return 0 if status.left is None else status.permits - status.left

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.parties} parties>"


class Barrier(BaseBarrier):
    """One cyclic barrier of the cluster, from `Client.barrier`. Any thread may use it.

    Callers of `wait` pass when there are `parties` of them; that is one generation. The next one
    begins with the next call. Each call is a party, also of one thread after the other.
    """

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all parties have arrived, as ``threading.Barrier.wait`` does.

        Args:
            timeout: how long to wait (s): 0 to a week; -1 for no limit; None for that of the
                barrier.

        Returns:
            The place of this party in the order of arrival, 0 to ``parties`` - 1. Each party of a
            generation gets another one.

        Raises:
            BrokenBarrierError: the time ran out, or another party stopped waiting: its time ran
                out, its call was interrupted, or its client is gone. Nobody of this generation
                passes. The barrier can be used again at once.
            InvalidRequestError: parties wait at the cluster that named another number.
            SessionExpiredError: the client's session ended meanwhile; it is unknown whether the
                others have passed.
            UnavailableError: no node answered in time; likewise, if the text says so.
            OverloadedError: the cluster has too many waiters.
            ClosedError: the client is closed.
            ValueError: ``timeout`` is out of its range.

        """
        return drive(self._awaiting(timeout))

    def n_waiting(self) -> int:
        """Ask the cluster how many parties wait now."""
        return drive(self._counting_waiters())

    def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the waiters in order; ``left`` of ``permits`` parties have not arrived.

        Arguments and errors are those of `Client.status`.
        """
        return drive(self._inspecting(read, max_age))
