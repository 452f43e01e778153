"""What measured clients repeat: they acquire and release objects of one kind."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from fencelock.cluster.client import Client


class Use(StrEnum):
    """What a thread does again and again."""

    LOCK = "lock"
    SEMAPHORE = "semaphore"
    READ = "read"
    """It acquires a read/write lock to read, and releases it."""
    READ_ONE = "read_one"
    """It reads as well, under the same lock as all others."""
    WRITE = "write"
    LOCK_ALL = "lock_all"
    """It acquires two locks in one step, and releases them."""
    TWO_LOCKS = "two_locks"
    """It acquires two locks, one after the other, and releases them."""


class Acquirable(Protocol):
    """A lock, or another object that is acquired and released."""

    def acquire(self) -> Any:
        """Wait for it, and hold it."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


def one_pair(*objects: Acquirable) -> None:
    """Acquire each of ``objects``, then release them in the other order."""
    for one in objects:
        one.acquire()
    for one in reversed(objects):
        one.release()


def repeated(use: Use, client: Client, name: str) -> Callable[[], None]:
    """Return a function that does it once, with objects called ``name``."""
    match use:
        case Use.LOCK:
            return partial(one_pair, client.lock(name))
        case Use.SEMAPHORE:
            return partial(one_pair, client.semaphore(name, permits=1))
        case Use.READ:
            return partial(one_pair, client.rwlock(name).read())
        case Use.READ_ONE:
            return partial(one_pair, client.rwlock("one").read())
        case Use.WRITE:
            return partial(one_pair, client.rwlock(name).write())
        case Use.LOCK_ALL:
            return partial(one_pair, client.lock_all(name, f"{name}/2"))
        case Use.TWO_LOCKS:
            return partial(one_pair, client.lock(name), client.lock(f"{name}/2"))
