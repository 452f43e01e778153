"""Default owners of locks in asyncio programs, one for each task."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from weakref import ref

from fencelock.cluster.owner import new_owner

_owners: dict[int, tuple[ref[asyncio.Task[Any]], str]] = {}
"""The task and its owner name, by the task's address in memory. The reference to the task tells
it from a later one at the same address. A dictionary of weak keys takes three times as long to
read. A forked process names its tasks anew."""

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
