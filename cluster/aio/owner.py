"""Who holds a lock unless told otherwise: each asyncio task by itself."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from weakref import ref

from fencelock.cluster.owner import new_owner

_owners: dict[int, tuple[ref[asyncio.Task[Any]], str]] = {}
"""By a task's address in memory: the task, since that is given to another once it is gone; and its
name. A dictionary of weak keys asks thrice as long. A forked process names its tasks anew."""

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
    # While that is called the address is not another's yet. It may be called when this module is
    # cleared already, at the end of the process.
    forget = _owners.pop
    gone = ref(task, lambda _: forget(key, None))
    _owners[key] = gone, owner
    return owner
