"""Several locks at once: what both clients share, then the classes of each client."""

from __future__ import annotations

from typing import Any, TypeVar

from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.error import InvalidRequestError
from fencelock.cluster.client.base_lock import BaseLock
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.hold import BaseHold
from fencelock.cluster.client.lock import AcquirableLock, AsyncAcquirableLock, AsyncHold, Hold
from fencelock.cluster.client.operation import Operation
from fencelock.cluster.client.settings import LockOptions, name_text_of
from fencelock.cluster.guarantee import Guarantee
from fencelock.transport.codec import check_types


class BaseHoldAll(BaseHold):
    """One successful acquire of several locks, until it is released. It is always true.

    The locks are held and lost together.
    """

    locks: tuple[str, ...] = ()
    """The names of the locks."""

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each lock, by its name."""
        return {name: fence for fence, name in enumerate(self.locks, self.fence)}


A = TypeVar("A", bound=BaseHoldAll)


class BaseLockAll(BaseLock[A]):
    """Several locks of the cluster that are acquired together. Each acquire is a separate owner."""

    def __init__(
        self, connection: Connection, names: tuple[str, ...], timeout: float | None, label: str
    ) -> None:
        connection.check()
        names = tuple(map(name_text_of, names))
        if not names:
            raise InvalidRequestError("no lock was named; lock_all takes their names")
        connection.demand(Guarantee.LOCK_ALL)
        label = connection.options(names[0], timeout, label=label).label  # It checks them.
        asked = AcquireAll(locks=names, request=1, label=label)
        check_types(asked)
        asked.check_new()
        super().__init__(connection.line, LockOptions(asked.lock, timeout, label=label))
        self._acquire = asked
        self.names = names
        """The names of the locks, in the order of their fences."""

    def _entering(self, wait_ms: int | None, **how: Any) -> Operation[A]:
        hold = yield from super()._entering(wait_ms, **how)
        hold.locks = self.names
        return hold


class HoldAll(BaseHoldAll, Hold):
    """One successful acquire of several locks, from `LockAll`. Always true. For any thread."""


class LockAll(BaseLockAll[HoldAll], AcquirableLock[HoldAll]):
    """Several locks of the cluster, from `Client.lock_all`: all of them are held, or none.

    An acquire waits in the queue of each lock, as others do, and holds nothing until it is granted
    all of them in one step. So two of them cannot wait for each other, in whatever order the locks
    are named. See `fencelock.Lock` for owners, callbacks and ``with``.

    `acquire` returns the hold, whose `fences` has the fence of each lock. It returns None if the
    time ran out, or if without ``blocking`` one of the locks is held, or others wait for it.
    `release` gives up all the locks.
    """

    _hold_type = HoldAll


class AsyncHoldAll(BaseHoldAll, AsyncHold):
    """One successful acquire of several locks, from `LockAll`. Always true."""


class AsyncLockAll(BaseLockAll[AsyncHoldAll], AsyncAcquirableLock[AsyncHoldAll]):
    """Several locks of the cluster, from `fencelock.aio.Client.lock_all`: all are held, or none.

    Arguments, values and errors are those of `fencelock.LockAll`. A cancelled acquire leaves
    nothing held, a cancelled release still happens.
    """

    _hold_type = AsyncHoldAll
