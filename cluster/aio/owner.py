"""Who holds a lock unless told otherwise: each asyncio task by itself."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.cluster.owner import new_owner

_tasks: WeakKeyDictionary[asyncio.Task[Any], tuple[int, str]] = WeakKeyDictionary()
"""A task's address in memory is given to another once it is gone; its number never is."""


def owner_of_task() -> str:
    """Return the name of the running task as an owner: host, process, task and a number.

    Raises:
        RuntimeError: no task runs here, as in a callback of the loop.

    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("no task runs here; give the lock an owner to use it outside of tasks")
    known = _tasks.get(task)
    pid = os.getpid()
    if known is None or known[0] != pid:
        known = (pid, new_owner(task.get_name()))
        _tasks[task] = known
    return known[1]
