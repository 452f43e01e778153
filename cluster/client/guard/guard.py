"""The interface of a guard, and the guard that keeps its fences in memory."""

from __future__ import annotations

import threading
from typing import Protocol

from fencelock.actors.error import OverloadedError, StaleFenceError

FENCE_MAX = (1 << 63) - 1
"""The highest fence: fences cross the wire, and fit into a BIGINT, as signed 64 bits."""

RESOURCES_MAX = 1_000_000
"""Limit of resources that a `MemoryGuard` remembers, some 200 bytes each. It may forget none."""


class Guard(Protocol):
    """Remembers the highest fence that wrote to each resource, and refuses lower ones.

    A write is safe if its fence is checked and raised in the same transaction as the write. Each
    guard of this package says how.
    """

    def check(self, resource: str, fence: int) -> None:
        """Raise the highest fence of ``resource`` to ``fence``.

        The same fence may write any number of times.

        Args:
            resource: the resource to be written, usually the name of the lock.
            fence: of the hold under which it is written.

        Raises:
            StaleFenceError: a higher fence was seen: the caller lost its lock, and another holder
                has written since. It must not write.
            ValueError: ``fence`` is not from 1 to `FENCE_MAX`.

        """
        ...


def check_fence(fence: int) -> None:
    if type(fence) is not int:  # The caller probably holds nothing.
        raise TypeError(f"the fence is {fence!r}, and must be the int of a hold")
    if not 1 <= fence <= FENCE_MAX:
        raise ValueError(f"the fence is {fence}, and must be from 1 to {FENCE_MAX}")


class MemoryGuard:
    """A guard for resources in the memory of one process. It forgets all fences with the process.

    To be safe from its own threads, write before another thread can check: under one lock, or
    without an ``await`` after `check`.
    """

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}
        self._guard = threading.Lock()

    def check(self, resource: str, fence: int) -> None:
        """Raise the highest fence of ``resource``; see `Guard.check`.

        Raises:
            OverloadedError: it knows `RESOURCES_MAX` other resources.

        """
        check_fence(fence)
        with self._guard:
            highest = self._highest.get(resource, 0)
            if fence < highest:
                raise StaleFenceError(resource, fence, highest)
            if not highest and len(self._highest) >= RESOURCES_MAX:
                raise OverloadedError(
                    f"this guard knows {RESOURCES_MAX} resources, and forgets none"
                )
            self._highest[resource] = fence
