"""Locks like ``threading.Lock`` and ``asyncio.Lock``, but fenced, and held across machines."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self, overload

from fencelock.actors.api.lock_message import LockStatus
from fencelock.actors.api.name import titled
from fencelock.cluster.client.base_lock import BaseLock, BaseRLock, H
from fencelock.cluster.client.hold import BaseHold, renewing
from fencelock.cluster.client.operation import (
    InTasks,
    InThreads,
    Operation,
    drive,
    drive_async,
    operation,
)
from fencelock.cluster.client.owner import owner_of_task, owner_of_thread, task_here
from fencelock.cluster.client.settings import Read


class Exiting(InThreads):
    """The end of a ``with`` statement, for threads."""

    def _exiting(self, error: BaseException | None) -> Operation[None]:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. An error of the body passes unchanged; a failed release is noted on it.

        Raises:
            LockOwnershipLostError: the body ended well, but the lock was lost before.
            FencelockError: the body ended well, but the release failed.

        """
        drive(self._exiting(error))


class Hold(BaseHold, Exiting):
    """One successful acquire, from `Lock.acquire` or ``with``. Always true. For any thread."""

    def __enter__(self) -> Self:
        return self


class LockMethods(BaseLock[H]):
    """The methods that the locks of both clients have."""

    @operation
    def renew(self, duration: float | None = None) -> Operation[None]:
        """Start the duration of the current hold anew; only where holds have deadlines.

        Args:
            duration: how long it lasts from now on (s); None for as before. The deadline never
                becomes earlier.

        Raises:
            NotHeldError: it is not held through this object.
            LockOwnershipLostError: the hold was lost. Raised by each call until one of
                `release` or the end of ``with`` has reported the loss.
            InvalidRequestError: ``duration`` is out of the cluster's limits.
            UnsupportedError: this hold has no deadline; the text says which protocol has such.
            UnavailableError: no answer came for 10 s. It may have been renewed; calling `renew`
                again does no harm.
            ClosedError: the client is closed.

        """
        self._reach()
        own, token = self._to_release()
        return renewing(self._channel, own, token, duration)

    @operation
    def status(self, read: Read = "linearizable", max_age: float = 1.0) -> Operation[LockStatus]:
        """Return the holder and the queue; see `Client.status`."""
        return self.inspecting(read, max_age)


class ThreadLock(BaseLock[H], Exiting):
    """A lock, or another object that is held, for threads. In a ``with`` statement it is held."""

    _runner = staticmethod(owner_of_thread)

    def __enter__(self) -> H:
        """Hold the lock and return the hold, or raise; see `acquire`.

        Raises:
            LockTimeoutError: the ``timeout`` given to `Client.lock` ran out; the text names the
                holder, where it is known.

        """
        return drive(self._entering(self._wait_ms, leaves=True))


class AcquirableLock(ThreadLock[H]):
    """One lock or several, with the methods that ``threading.Lock`` has, too."""

    @overload
    def acquire(self, blocking: Literal[True] = True, timeout: None = None) -> H: ...

    @overload
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> H | None: ...

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> H | None:
        """Wait for the lock, or for all of several, and hold it.

        An interrupt (``KeyboardInterrupt``) ends the wait and leaves nothing held.

        Args:
            blocking: whether to wait while somebody else holds it.
            timeout: how long to wait (s), 0 to a week, or -1 for no limit; None for the ``timeout``
                given to `Client.lock`. If that is also None, the cluster's own limit applies: none,
                but on `bakery` 5 s, or what its config says.

        Returns:
            The hold, which is true. With ``timeout`` it is None if the time ran out, and without
            ``blocking`` if somebody holds the lock, this object included.

        Raises:
            LockTimeoutError: no ``timeout`` was given, and that of `Client.lock`, or the cluster's
                own limit, ran out.
            LimitReachedError: this owner holds an `RLock` as often as it may, and ``blocking``.
            LockOwnershipLostError: the owner of an `RLock` held it and lost it, and no error had
                reported that, or it was lost just when it was granted. It may acquire it again.
            UnavailableError: no node, or not every node that is needed, could be reached.
                The lock is not held. If a request was sent, its outcome may be
                unknown, as the text says: the client cancels it as soon as it is connected
                again. Until then the cluster may grant the lock to this client, and nobody
                else gets it. Comes at most 0.5 s after ``timeout`` was over, and not before 1.5 s.
            AcquireCancelledError: `cancel` was called, or the client was closed meanwhile.
            OverloadedError: a queue on the way is at its limit.
            ClosedError: the client is closed.
            TypeError: ``blocking`` is no bool, as in ``acquire(5)``: say ``timeout=5``.
            ValueError: ``timeout`` is out of its range, or given without ``blocking``.

        """
        return drive(self._acquiring(blocking, timeout))

    def release(self, *, wait: bool | None = None) -> None:
        """Give up the lock: the hold of this thread if it has one, else the oldest.

        Without waiting, the call returns once the client has recorded the release. It sends the
        release before whatever it is asked later, and repeats it until the cluster has it. Until
        then the lock stays held, also for `held`; another acquire waits for that within its
        timeout. If the hold turns out to have been lost, `on_lost` is called, and the next
        `acquire` of this object raises the error, or the next `release` while it holds nothing.

        Args:
            wait: whether to wait until the cluster has confirmed it; None for what
                ``confirm_release`` of `Client.lock` says, which is to wait.

        Raises:
            NotHeldError: it is not held through this object, or its node restarted and forgot it.
                It is a RuntimeError too, which is what ``threading.Lock`` raises.
            LockOwnershipLostError: it was lost before. It may be acquired again.
            UnavailableError: no node confirmed it within 10 s. The client keeps repeating the
                release in the background, and `held` stays true meanwhile. Calling `release` again
                when nothing else is held waits for it once more.
            ClosedError: the client is closed.

        """
        drive(self._releasing(wait))


class Lock(LockMethods[Hold], AcquirableLock[Hold]):
    """One named lock of the cluster, from `Client.lock`. Any thread may use it.

    As with ``threading.Lock``, any thread that has the object may release the lock, and acquiring
    it again waits until it is released. It stays held when the thread that acquired it ends, until
    the client is closed, or this object and the hold are dropped.

    With ``with``, the body runs only while the lock is held, as far as this client knows; a
    resource that checks the `fence` refuses a late holder. Callbacks run one after the other on
    a thread of their own, so they may block or use the client.
    """

    _hold_type = Hold

    def locked(self) -> bool:
        """Return whether anybody holds the lock; asks the cluster. See `Client.status`."""
        return drive(self._is_locked())


class RLock(BaseRLock[Hold], Lock):
    """One named lock of the cluster that its owner may enter again, from `Client.rlock`.

    Each thread is an owner, unless `Client.rlock` was given an ``owner``: as with
    ``threading.RLock``, one thread cannot release the hold of another, and an owner must release as
    often as it acquired. Objects of one name and owner in a client are one lock.
    """


class AsyncExiting(InTasks):
    """The end of an ``async with`` statement."""

    def _exiting(self, error: BaseException | None) -> Operation[None]:
        raise NotImplementedError

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. An error of the body passes unchanged; see `fencelock.Lock`."""
        await drive_async(self._exiting(error))


class AsyncHold(BaseHold, AsyncExiting):
    """One successful acquire, from `Lock.acquire` or ``async with``. Always true.

    A cancelled release still happens. A cancelled `detach` either releases the lock, or leaves it
    free after ``within``.
    """

    async def __aenter__(self) -> Self:
        return self


class TaskLock(BaseLock[H], AsyncExiting):
    """A lock, or another object that is held, for tasks. In ``async with`` it is held."""

    _runner = staticmethod(owner_of_task)
    _here = staticmethod(task_here)

    def _entering(self, *arguments: Any, **named: Any) -> Operation[H]:
        """Acquire, unless a lazy client's connection of another loop, which runs, is used.

        That connection, and all that is held over it, ends with its loop.
        """
        channel = self._channel
        present = None if channel.closed or channel.forked else channel.present
        if present is not None and present().line is not channel:
            raise RuntimeError(
                f"{titled(self._options.name)} is used by another event loop, which runs: make an "
                "object for each"
            )
        return super()._entering(*arguments, **named)

    async def __aenter__(self) -> H:
        """Hold it and return the hold, or raise; see `fencelock.Lock`."""
        return await drive_async(self._entering(self._wait_ms, leaves=True))


class AsyncAcquirableLock(TaskLock[H]):
    """One lock or several, with the methods that ``asyncio.Lock`` has, too."""

    @overload
    async def acquire(self, blocking: Literal[True] = True, timeout: None = None) -> H: ...

    @overload
    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> H | None: ...

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> H | None:
        """Wait for the lock and hold it; arguments, value and errors of `fencelock.Lock.acquire`.

        Raises:
            asyncio.CancelledError: the task was cancelled; nothing is held.
            RuntimeError: it is of a lazy client, and another loop that runs has used it.

        """
        return await drive_async(self._acquiring(blocking, timeout))

    async def release(self, *, wait: bool | None = None) -> None:
        """Give up the lock; see `fencelock.Lock.release`."""
        await drive_async(self._releasing(wait))


class AsyncLock(LockMethods[AsyncHold], AsyncAcquirableLock[AsyncHold]):
    """One named lock of the cluster, from `fencelock.aio.Client.lock`.

    Any task that has the object may release it, and acquiring it again waits until it
    was released. It stays held when the task that acquired it ends, until the client is closed.

    Callbacks run on the loop, where they must not block. A cancellation is safe at any
    moment: a cancelled acquire leaves nothing held, a cancelled release still happens.
    """

    _hold_type = AsyncHold

    async def locked(self) -> bool:
        """Return whether anybody holds the lock; see `fencelock.Lock.locked`."""
        return await drive_async(self._is_locked())


class AsyncRLock(BaseRLock[AsyncHold], AsyncLock):
    """A lock that its owner may enter again, from `fencelock.aio.Client.rlock`.

    Each task is an owner, unless `Client.rlock` was given an ``owner``: one task cannot release the
    hold of another. Before Python 3.12 `asyncio.wait_for` runs its argument in a new task: use
    ``timeout``, or `asyncio.timeout`, instead.
    """
