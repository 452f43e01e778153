"""What measured clients repeat: they acquire and release objects of one kind, or use a map."""

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
    MAP_READ = "map_read"
    """It gets an entry of 100 bytes."""
    MAP_WRITE = "map_write"
    """It puts an entry of 100 bytes."""
    MAP_READ_LARGE = "map_read_large"
    """It gets an entry of 10 KiB."""
    MAP_WRITE_LARGE = "map_write_large"
    """It puts an entry of 10 KiB."""


SMALL_BYTES = 100
LARGE_BYTES = 10 << 10


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
        case Use.MAP_READ:
            return _reading(client, name, SMALL_BYTES)
        case Use.MAP_WRITE:
            return _writing(client, name, SMALL_BYTES)
        case Use.MAP_READ_LARGE:
            return _reading(client, name, LARGE_BYTES)
        case Use.MAP_WRITE_LARGE:
            return _writing(client, name, LARGE_BYTES)


def _reading(client: Client, name: str, size: int) -> Callable[[], None]:
    kv, key = client.map("bench"), f"{name}/{size}"
    kv.put(key, bytes(size))

    def read() -> None:
        assert kv.get(key) is not None

    return read


def _writing(client: Client, name: str, size: int) -> Callable[[], None]:
    kv, value = client.map("bench"), bytes(size)

    def write() -> None:
        kv.put(name, value)

    return write
