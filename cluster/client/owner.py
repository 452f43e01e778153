"""Owners of locks: one for each acquire, thread or task; and names of the process for people."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

from fencelock.actors.api.name import FORBIDDEN, OWNER_BYTES_MAX

if TYPE_CHECKING:
    from asyncio import Task

OPERATOR_BYTES_MAX = 200
"""The longest name of an operator in the log, which also names the client that was used."""

_numbers = itertools.count(1)
"""Distinguishes threads and tasks for the life of a process; the system reuses its numbers."""

_threads = threading.local()
_tasks: dict[int, tuple[ref[Task[Any]], str]] = {}
"""The task and its owner name, by the task's address in memory. The reference to the task
distinguishes it from a later task at the same address. A dictionary of weak keys takes three times
as long to read."""
_acquires: list[str] = []
"""The owners that are one acquire each, by number; made when they are first needed."""


def _name_anew() -> None:
    vars(_threads).clear()  # Of the thread that forked.
    _tasks.clear()
    _acquires.clear()


if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=_name_anew)


def owner_of_thread() -> str:
    """Return the name of the calling thread as an owner: host, process, thread and a number."""
    try:
        owner: str = _threads.owner
    except AttributeError:
        _threads.owner = owner = new_owner(threading.current_thread().name)
    return owner


def owner_of_task() -> str:
    """Return the name of the running task as an owner: host, process, task and a number."""
    import asyncio  # noqa: PLC0415 (a blocking client does without)

    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("no task runs here; give the lock an owner to use it outside of tasks")
    key = id(task)
    known = _tasks.get(key)
    if known is not None and known[0]() is task:
        return known[1]
    owner = new_owner(task.get_name())
    # The callback runs before the address can be another task's. It may run at the end of the
    # process, when this module is already cleared.
    forget = _tasks.pop
    gone = ref(task, lambda _: forget(key, None))
    _tasks[key] = gone, owner
    return owner


def task_here() -> object:
    import asyncio  # noqa: PLC0415 (as above)

    try:
        return id(asyncio.current_task())
    except RuntimeError:  # No loop runs here.
        return None


def owner_of_acquire(number: int) -> str:
    """Return owner ``number``, 1 or above, for acquires of one lock: host, process and number."""
    while len(_acquires) < number:
        _acquires.append(f"{_process()}#{len(_acquires) + 1}")
    return _acquires[number - 1]


def name_of(owner: str) -> str:
    """Return ``owner`` for a person who uses this process: the name of its thread or task."""
    start = f"{_process()}:"
    if not owner.startswith(start):
        return "another acquire" if owner.startswith(f"{_process()}#") else f"owner {owner!r}"
    return owner.removeprefix(start).rpartition("#")[0]


def process_label(bytes_max: int) -> str:
    """Return host and process, for people, in at most ``bytes_max`` bytes."""
    return _allowed(_process(), bytes_max)


def job_label(job: str) -> str:
    """Return host, process and ``job``, for people: which process ran it, or runs it."""
    job = job[:64]
    return f"{process_label(128)} {job}" if job.isprintable() else process_label(128)


def new_owner(name: str) -> str:
    """Return an owner called ``name`` that no other thread or task of this process ever gets."""
    end = f"#{next(_numbers)}"
    start = f"{_process()}:{name}"
    return _allowed(start, OWNER_BYTES_MAX - len(end)) + end


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _allowed(text: str, bytes_max: int) -> str:
    allowed = "".join("?" if sign in FORBIDDEN else sign for sign in text)
    return allowed.encode()[:bytes_max].decode(errors="ignore")


def operator_named(operator: str | None) -> str:
    """Return the name of an operator for the audit: by default user and host."""
    from getpass import getuser  # noqa: PLC0415 (as above)

    if operator is not None:
        return operator
    try:
        user = getuser()
    except (KeyError, OSError):  # The user has no name, as in some containers.
        user = str(os.getuid())
    return _allowed(f"{user}@{socket.gethostname()}", OPERATOR_BYTES_MAX)
