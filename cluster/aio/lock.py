"""A lock for asyncio tasks."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Any, Never
from weakref import ref

from fencelock.actors.api.message import LockStatus
from fencelock.cluster.aio.loop import drive
from fencelock.cluster.base_lock import BaseLock, BaseRLock
from fencelock.cluster.hold import BaseHold
from fencelock.cluster.operation import Operation
from fencelock.cluster.owner import new_owner
from fencelock.cluster.settings import Read, age_ms_of

_owners: dict[int, tuple[ref[asyncio.Task[Any]], str]] = {}
"""The task and its owner name, by the task's address in memory. The reference to the task
distinguishes it from a later task at the same address. A dictionary of weak keys takes three times
as long to read. A forked process names its tasks anew."""

os.register_at_fork(after_in_child=_owners.clear)


def owner_of_task() -> str:
    """Return the name of the running task as an owner: host, process, task and a number.

    Raises:
        RuntimeError: no task runs here, as in a callback of the loop.

    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("no task runs here; give the lock an owner to use it outside of tasks")
    key = id(task)
    known = _owners.get(key)
    if known is not None and known[0]() is task:
        return known[1]
    owner = new_owner(task.get_name())
    # The callback runs before the address can be another task's. It may run at the end of the
    # process, when this module is already cleared.
    forget = _owners.pop
    gone = ref(task, lambda _: forget(key, None))
    _owners[key] = gone, owner
    return owner


def task_here() -> object:
    """Return the identity of the running task, or None outside of tasks."""
    try:
        return id(asyncio.current_task())
    except RuntimeError:  # No loop runs here.
        return None


class Exiting:
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
        del kind, trace
        await drive(self._exiting(error))


class Hold(BaseHold, Exiting):
    """One successful acquire, from `Lock.acquire` or ``async with``. Always true."""

    async def release(self) -> None:
        """Give up this hold; errors of `fencelock.Hold.release`.

        Raises:
            asyncio.CancelledError: the task was cancelled; the release still happens.

        """
        await drive(self._releasing())

    async def renew(self, duration: float | None = None) -> None:
        """Start the duration of this hold anew; see `fencelock.Lock.renew`."""
        await drive(self._renewing(duration))

    async def __aenter__(self) -> Hold:
        return self


class Lock(BaseLock[Hold], Exiting):
    """One named lock of the cluster, from `fencelock.aio.Client.lock`.

    Any task that has the object may release it, and acquiring it again waits until it
    was released. It stays held when the task that acquired it ends, until the client is closed.

    Callbacks run on the loop, where they must not block. A cancellation is safe at any
    moment: a cancelled acquire leaves nothing held, a cancelled release still happens.
    """

    _hold_type = Hold
    _runner = staticmethod(owner_of_task)
    _here = staticmethod(task_here)

    async def acquire(
        self, *wrong: Never, blocking: bool = True, timeout: float | None = None
    ) -> Hold | None:
        """Wait for the lock and hold it; arguments, value and errors of `fencelock.Lock.acquire`.

        Raises:
            asyncio.CancelledError: the task was cancelled; nothing is held.

        """
        return await drive(self._acquiring(wrong, blocking, timeout))

    async def release(self) -> None:
        """Give up the lock; errors of `fencelock.Lock.release`.

        Raises:
            asyncio.CancelledError: the task was cancelled; the release still happens.

        """
        await drive(self._releasing())

    async def locked(self) -> bool:
        """Ask the cluster whether any client holds the lock; see `fencelock.Lock.locked`."""
        return await drive(self._is_locked())

    async def renew(self, duration: float | None = None) -> None:
        """Start the duration of the current hold anew; see `fencelock.Lock.renew`."""
        await drive(self._renewing(duration))

    async def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the holder and the queue; see `fencelock.Client.status`."""
        return await drive(self._inspecting(age_ms_of(read, max_age)))

    async def __aenter__(self) -> Hold:
        """Hold the lock and return the hold, or raise; see `fencelock.Lock`."""
        return await drive(self._held_now())


class RLock(BaseRLock[Hold], Lock):
    """A lock that its owner may enter again, from `fencelock.aio.Client.rlock`.

    Each task is an owner, unless `Client.rlock` was given an ``owner``: one task cannot release the
    hold of another. Before Python 3.12 `asyncio.wait_for` runs its argument in a new task: use
    ``timeout``, or `asyncio.timeout`, instead.
    """
