"""Read/write locks: what both clients share, then the classes of each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Contender, LockStatus
from fencelock.actors.api.name import object_name, titled
from fencelock.actors.api.retained import READERS, WRITERS
from fencelock.actors.api.rwlock import NO_DEADLINES, RWLOCK, AcquireReadWrite, Downgrade
from fencelock.actors.error import (
    AlreadyHeldError,
    FencelockError,
    LockTimeoutError,
    NotHeldError,
    UnsupportedError,
)
from fencelock.actors.session.requests import lock_key_named
from fencelock.cluster.client.base_client import BaseClient
from fencelock.cluster.client.base_lock import BaseRLock, H
from fencelock.cluster.client.base_object import BaseObject
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.hold import check_held
from fencelock.cluster.client.hold_registry import Ownership
from fencelock.cluster.client.lock import AsyncHold, AsyncRLock, Hold, RLock
from fencelock.cluster.client.operation import InTasks, InThreads, Operation, operation
from fencelock.cluster.client.owner import name_of
from fencelock.cluster.client.settings import LockOptions, Read
from fencelock.cluster.guarantee import Guarantee, promises

S = TypeVar("S", bound=BaseRLock[Any])


class BaseSide(BaseRLock[H]):
    """One side of a read/write lock: it acquires the lock to read, or to write.

    Both sides have the same owners: the thread or the task, or the name given to the client. The
    properties of the write side, such as `held` and `fence`, describe a hold that writes; those of
    the read side also describe it, since a writer may read.
    """

    def __init__(self, connection: Connection, options: LockOptions, *, write: bool) -> None:
        named = replace(options, name=object_name(RWLOCK, options.name))
        super().__init__(connection.line, named)
        self._write = write
        self._key = lock_key_named(named.name, WRITERS if write else READERS)
        if self._terms is not None:
            self._terms = self._terms._replace(shared=not write)
        self._acquire = AcquireReadWrite(
            rwlock=options.name,
            write=write,
            label=options.label,
            hold_ms=options.hold_ms,
            grace_ms=options.grace_ms,
        )

    @operation
    def downgrade(self) -> Operation[None]:
        """Turn the hold of this thread from writing into reading, in one step.

        No other owner can write in between. Readers that wait at the head of the queue are granted
        the lock too. The fence stays the same.

        Raises:
            UnsupportedError: the cluster's protocol has no downgrade (`bakery`).
            InvalidRequestError: this thread holds the lock to read.
            NotHeldError: this thread does not hold the lock.
            LockOwnershipLostError: the hold was lost before. The error is raised until the hold is
                released.
            UnavailableError: no node confirmed the downgrade within 10 s. The client repeats the
                request in the background.
            ClosedError: the client is closed.

        """
        self._reach()
        own, token = self._to_release()
        check_held(self._channel, own, token)
        assert own.hold is not None
        fence = own.hold.fence
        wrote, own.write_fence = own.write_fence, 0  # The outcome may stay unknown.
        downgrade = Downgrade(rwlock=self.name, fence=fence, owner=own.owner)
        if own.retained is not None:
            downgrade = self._registry.retaining.surrender(own, downgrade)
        try:
            yield from self._channel.ask(downgrade)
        except UnsupportedError:
            own.write_fence = wrote
            raise

    def _entering(self, *arguments: Any, **named: Any) -> Operation[H]:
        hold = yield from super()._entering(*arguments, **named)
        if self._write:
            own = hold.own
            assert own.hold is not None
            own.write_fence = own.hold.fence
        return hold

    def _check_again(self, own: Ownership) -> None:
        if self._write and not own.write_fence:
            assert own.hold is not None
            raise AlreadyHeldError(
                f"{titled(own.lock)}: this owner holds it for reading, under fence "
                f"{own.hold.fence}: release it before you acquire it for writing, since two "
                "readers that do not would wait for each other forever"
            )

    def _current(self) -> Ownership | None:
        own = super()._current()
        if self._write and own is not None and own.hold is not None:
            return own if own.write_fence == own.hold.fence else None
        return own

    def _to_release(self) -> tuple[Ownership, int]:
        """Return the latest acquire of the owner, through whichever side."""
        return self._latest_of(super()._current())

    def _held_already(self, own: Ownership) -> FencelockError:
        assert own.hold is not None
        return AlreadyHeldError(
            f"{titled(own.lock)}: {name_of(own.owner)} holds it already, under fence "
            f"{own.hold.fence}; with this protocol an owner reads or writes once at a time: "
            "release it first"
        )

    def _not_held(self) -> NotHeldError:
        own = super()._current()
        if own is None:
            return super()._not_held()
        return NotHeldError(
            f"{titled(own.lock)}: {name_of(own.owner)} holds it to read, not to write"
        )

    @staticmethod
    def _is_not_now(error: FencelockError, blocking: bool) -> bool:
        """Return whether it is held by others; a reader that tries to write gets the refusal."""
        return isinstance(error, LockTimeoutError)


class BaseRWLock(BaseObject, Generic[S]):
    """One read/write lock of the cluster, with its two sides."""

    _side_type: Callable[..., S]

    def __init__(self, connection: Connection, options: LockOptions) -> None:
        super().__init__(connection, options.name, RWLOCK, Guarantee.RWLOCKS)
        self._reader = self._side_type(connection, options, write=False)
        self._writer = self._side_type(connection, options, write=True)

    @operation
    def evict(self, fence: int, operator: str | None = None) -> Operation[Contender]:
        """Take the hold under ``fence`` from its owner; see `Client.evict`."""
        return self._connection.evicting(self._full_name, fence, operator)

    @operation
    def status(self, read: Read = "linearizable", max_age: float = 1.0) -> Operation[LockStatus]:
        """Return the holders and the queue, in order; see `Client.status`.

        Of a writer, `Contender.times` is `LockStatus.permits`; of a reader, the number of times
        that it holds the lock.
        """
        return self._reader.inspecting(read, max_age)

    def read(self) -> S:
        """Return the side that acquires it to read, together with other readers."""
        return self._reader

    def write(self) -> S:
        """Return the side that acquires it to write, alone."""
        return self._writer


W = TypeVar("W", bound=BaseRWLock[Any])


class RWLockFactory(BaseClient, Generic[W]):
    """The part of a client that makes read/write locks."""

    _rwlock_type: type[W]

    def rwlock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        owner: str | None = None,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
        confirm_release: bool = True,
        retain: float | None = None,
        cohort: int = 0,
    ) -> W:
        """Return the read/write lock called ``name``; sends nothing yet.

        A lock of the same name is another object. Arguments and errors are those of `lock`, but for
        ``owner``, which is by default the thread or the task, as for `rlock`. ``duration`` and
        ``grace`` are for reading and for writing, on `bakery` only. All readers of this client
        share one retained hold.

        Raises:
            UnsupportedError: the cluster's protocol has no read/write locks, or no deadlines; the
                text names those that have them.

        """
        connection = self._given
        connection.check()
        connection.demand(Guarantee.RWLOCKS)
        protocol = connection.protocol  # While it is unknown, the nodes refuse a second acquire.
        limit = None if not protocol or promises(protocol, Guarantee.REENTRANT) else 1
        given = timeout, owner, label, duration, grace, confirm_release, retain, cohort
        options = connection.options(name, *given, kind=RWLOCK, reentrant=True, limit=limit)
        if protocol == "paxos" and (options.hold_ms or options.grace_ms):
            raise UnsupportedError(f"{titled(object_name(RWLOCK, name))}: {NO_DEADLINES}")
        return self._rwlock_type(connection, options)


class ReadWriteSide(BaseSide[Hold], RLock):
    """One side of an `RWLock`: a lock like `fencelock.RLock` that acquires to read, or to write."""


class RWLock(BaseRWLock[ReadWriteSide], InThreads):
    """One read/write lock of the cluster, from `Client.rwlock`: many readers, or one writer.

    ``with rw.read():`` and ``with rw.write():`` hold the lock. `read` and `write` return its two
    sides, which have the methods of `fencelock.RLock`. The owner is the thread, or the ``owner``
    given to `Client.rwlock`. It must release as often as it acquired.

    Claims are served in order: a reader that comes after a waiting writer waits for that writer. An
    owner that reads may read again at once. An owner that writes may also read; it goes on writing
    until it has released as often as it acquired, or until `ReadWriteSide.downgrade`. An owner that
    reads and requests to write gets `AlreadyHeldError`: it must release first.

    On `bakery`, an owner that holds the lock cannot acquire it again at all (`AlreadyHeldError`),
    and there is no downgrade.
    """

    _side_type = ReadWriteSide


class AsyncReadWriteSide(BaseSide[AsyncHold], AsyncRLock):
    """One side of an `RWLock`: a lock like `fencelock.aio.RLock` that acquires to read or write."""


class AsyncRWLock(BaseRWLock[AsyncReadWriteSide], InTasks):
    """One read/write lock of the cluster, from `fencelock.aio.Client.rwlock`.

    ``async with rw.read():`` and ``async with rw.write():`` hold it. Rules and errors are those of
    `fencelock.RWLock`; the owner is the task.
    """

    _side_type = AsyncReadWriteSide
