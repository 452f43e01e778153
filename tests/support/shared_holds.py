"""Semaphores and read/write locks in tests: their holders and waiters, and short holds."""

from __future__ import annotations

import fencelock
from fencelock.actors.api.message import LockStatus


def amounts(status: LockStatus) -> tuple[list[int], list[int]]:
    """Return the permits of each holder and of each waiter, in order."""
    return [one.times for one in status.holders], [one.times for one in status.waiters]


def until_queued(shared: fencelock.Semaphore | fencelock.RWLock, *queue: int) -> None:
    """Wait until the waiters want these permits, in that order."""
    while amounts(shared.status())[1] != list(queue):
        pass


def hold_to_write(rw: fencelock.RWLock) -> int:
    """Acquire and release in the calling thread; return the fence."""
    with rw.write() as hold:
        return hold.fence


def hold_to_read(rw: fencelock.RWLock) -> int:
    """Acquire and release in the calling thread; return the fence."""
    with rw.read() as hold:
        return hold.fence
