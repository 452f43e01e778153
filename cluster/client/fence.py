"""The fences that guard changes: what a user gives, and what the request names."""

from __future__ import annotations

from typing import Any

from fencelock.actors.api.lock_all import SEVERAL
from fencelock.actors.api.name import kind_of, plain_name, titled
from fencelock.actors.error import NotHeldError
from fencelock.cluster.client.base_lock import BaseLock
from fencelock.cluster.client.hold import BaseHold

Fence = BaseLock[Any] | BaseHold
"""A lock or another object that is held, or a hold. Its fence guards a change of an object."""


def guard_of(fence: Fence | None) -> tuple[str, int]:
    """Return the name of the object in the table and the fence; an empty name and 0 for None.

    Raises:
        NotHeldError: the object is not held.
        TypeError: ``fence`` is neither a lock nor a hold.

    """
    if fence is None:
        return "", 0
    if not isinstance(fence, BaseLock | BaseHold):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"fence is {fence!r}, and must be a lock or a hold of one")
    name, number = fence.object_name, fence.fence
    if number is None:
        raise NotHeldError(f"{titled(name)} is not held by this object; nothing was changed")
    return (plain_name(name) if kind_of(name) == SEVERAL else name), number
