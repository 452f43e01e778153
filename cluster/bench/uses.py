"""What measured clients repeat: they acquire and release objects of one kind."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from fencelock.cluster.client import Client

ELECTION = "one"
"""The election of `Use.LEAD`."""


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
    LEAD = "lead"
    """It leads in the election that all have in common."""
    PUT_100_B = "put_100_b"
    """It puts a value of 100 bytes into a map."""
    GET_100_B = "get_100_b"
    PUT_10_KIB = "put_10_kib"
    GET_10_KIB = "get_10_kib"


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


def repeated(use: Use, client: Client, name: str) -> Callable[[], object]:
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
        case Use.LEAD:
            return partial(one_pair, client.election(ELECTION).lead(name))
        case Use.PUT_100_B:
            return partial(client.map("small").put, name, bytes(100))
        case Use.GET_100_B:
            return _get(client, "small", name, 100)
        case Use.PUT_10_KIB:
            return partial(client.map("large").put, name, bytes(10 << 10))
        case Use.GET_10_KIB:
            return _get(client, "large", name, 10 << 10)


def _get(client: Client, name: str, key: str, size: int) -> Callable[[], object]:
    """Return a function that reads an entry, which is there from now on."""
    entries = client.map(name)
    entries.put(key, bytes(size))
    return partial(entries.get, key)
