"""Count-down latches: the part that both clients share, and the blocking one."""

from __future__ import annotations

import math
from dataclasses import replace

from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown
from fencelock.actors.api.message import LockStatus
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.error import InvalidRequestError, LockTimeoutError
from fencelock.cluster.base_object import BaseObject
from fencelock.cluster.connection import Connection
from fencelock.cluster.guarantee import Guarantee
from fencelock.cluster.lock_options import checked, wait_ms_of
from fencelock.cluster.operation import Operation, drive
from fencelock.cluster.settings import Read


class BaseLatch(BaseObject):
    """One count-down latch of the cluster."""

    def __init__(self, connection: Connection, name: str, count: int, keep_s: float) -> None:
        super().__init__(connection, name, LATCH, Guarantee.LATCHES)
        if not 0 <= keep_s <= WAIT_MS_MAX / 1000:
            most = WAIT_MS_MAX // 1000
            raise InvalidRequestError(f"keep_s is {keep_s}, and must be from 0 to {most} s")
        keep_ms = math.ceil(float(keep_s) * 1000)
        self._down = checked(CountDown(latch=name, count=count, request=1, keep_ms=keep_ms))
        self._wait = AwaitLatch(latch=name, count=count, request=1, keep_ms=keep_ms)

    def _counting_down(self, n: int) -> Operation[int]:
        reply = yield from self._updating(checked(replace(self._down, amount=n)))
        assert isinstance(reply, CountedDown)
        return reply.left

    def _awaiting(self, timeout: float | None) -> Operation[bool]:
        try:
            yield from self._updating(replace(self._wait, wait_ms=wait_ms_of(timeout)))
        except LockTimeoutError:
            return False
        return True

    def _counting(self) -> Operation[int]:
        status = yield from self._inspecting("linearizable", 0)
        return self._down.count if status.left is None else status.left

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._down.count}>"


class Latch(BaseLatch):
    """One count-down latch of the cluster, from `Client.latch`. Any thread may use it.

    Its count only falls. Callers of `wait` pass once it is 0. Then the latch is kept for ``keep_s``
    seconds, so that callers that come late pass too; after that the name stands for a new latch.
    """

    def count_down(self, n: int = 1) -> int:
        """Lower the count by ``n``, at most to 0, and return what is left of it.

        However often the client has to send the request, it counts once.

        Raises:
            InvalidRequestError: ``n`` is below 1, or the latch began with another count at the
                cluster.
            SessionExpiredError: the client's session ended meanwhile; it is unknown whether the
                request has counted.
            UnavailableError: no node answered in time; likewise, if the text says so.
            OverloadedError: the cluster has too many latches.
            ClosedError: the client is closed.
            TypeError: ``n`` is not a whole number.

        """
        return drive(self._counting_down(n))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the count is 0; return whether it is, as ``threading.Event.wait`` does.

        Args:
            timeout: how long to wait (s): 0 to a week; None or -1 for no limit.

        Raises:
            InvalidRequestError: the latch began with another count at the cluster.
            UnavailableError: no node answered in time.
            OverloadedError: the cluster has too many latches or waiters.
            ClosedError: the client is closed.
            ValueError: ``timeout`` is out of its range.

        """
        return drive(self._awaiting(timeout))

    def count(self) -> int:
        """Ask the cluster for the count; for a latch that nobody has used, that to begin with."""
        return drive(self._counting())

    def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the waiters and the count, which is ``left`` of ``permits``.

        Arguments and errors are those of `Client.status`.
        """
        return drive(self._inspecting(read, max_age))
