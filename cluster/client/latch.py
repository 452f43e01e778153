"""Count-down latches: what both clients share, then the class of each client."""

from __future__ import annotations

import math

from msgspec.structs import replace

from fencelock.actors.api.latch import COUNT_MAX, LATCH, AwaitLatch, CountDown
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.error import InvalidRequestError, LockTimeoutError
from fencelock.cluster.client.base_object import BaseObject
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.operation import InTasks, InThreads, Operation, operation
from fencelock.cluster.client.settings import check_number, check_range, checked, wait_ms_of
from fencelock.cluster.guarantee import Guarantee


class BaseLatch(BaseObject):
    """One count-down latch of the cluster."""

    def __init__(self, connection: Connection, name: str, count: int, keep_s: float) -> None:
        super().__init__(connection, name, LATCH, Guarantee.LATCHES)
        check_range("count", count, 1, COUNT_MAX)
        most_s = WAIT_MS_MAX // 1000
        allowed = f"a number of seconds from 0 to {most_s}"
        check_number("keep_s", keep_s, allowed, lambda s: 0 <= s <= most_s, InvalidRequestError)
        keep_ms = math.ceil(float(keep_s) * 1000)
        self._down = checked(CountDown(latch=self.name, count=count, request=1, keep_ms=keep_ms))
        self._wait = AwaitLatch(latch=self.name, count=count, request=1, keep_ms=keep_ms)

    @operation
    def count_down(self, n: int = 1) -> Operation[int]:
        """Lower the count by ``n``, but not below 0, and return the new count.

        The request takes effect once, however often the client has to send it.

        Args:
            n: by how much to lower the count, 1 to 2,147,483,647.

        Raises:
            InvalidRequestError: ``n`` is out of its range, or the latch began with another count.
            SessionExpiredError: the client's session ended during the call. It is unknown whether
                the request took effect.
            UnavailableError: no node answered for 10 s. The text says if it is unknown whether the
                request took effect.
            OverloadedError: the cluster has too many such objects.
            ClosedError: the client is closed.
            TypeError: ``n`` is not an int.

        """
        check_range("n", n, 1, COUNT_MAX)
        return (yield from self._updating(checked(replace(self._down, amount=n)))).left

    @operation
    def wait(self, timeout: float | None = None) -> Operation[bool]:
        """Wait until the count is 0, as ``threading.Event.wait`` waits for an event.

        Args:
            timeout: how long to wait (s): 0 to a week, or None or -1 for no limit.

        Returns:
            True once the count is 0; False if the timeout ends first.

        Raises:
            InvalidRequestError: the latch began with another count.
            UnavailableError: no node answered in time.
            OverloadedError: the cluster has too many such objects, or too many waiters.
            ClosedError: the client is closed.
            TypeError: ``timeout`` is no number.
            ValueError: ``timeout`` is out of its range.

        """
        try:
            yield from self._updating(replace(self._wait, wait_ms=wait_ms_of(timeout)))
        except LockTimeoutError:
            return False
        return True

    @operation
    def count(self) -> Operation[int]:
        """Return the present count, as a linearizable read.

        The count of a latch that nobody has used is the one with which it begins. The errors are
        those of `Client.status`.
        """
        status = yield from self._inspecting("linearizable", 0)
        return self._down.count if status.left is None else status.left

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._down.count}>"


class Latch(BaseLatch, InThreads):
    """One count-down latch of the cluster, from `Client.latch`. Any thread may use it.

    The count only falls. Callers of `wait` pass once it is 0. Then the latch is kept for ``keep_s``
    seconds, so that late callers pass too. After that, the name stands for a new latch.
    """


class AsyncLatch(BaseLatch, InTasks):
    """One count-down latch of the cluster, from `fencelock.aio.Client.latch`.

    Arguments, return values and errors are those of `fencelock.Latch`. It is unknown whether a
    cancelled `count_down` has taken effect.
    """
