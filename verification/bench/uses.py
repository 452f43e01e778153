"""The uses of objects that measured clients repeat."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from fencelock.cluster.client.client import Client

ELECTION = "one"
"""The election of `Use.LEAD`."""


class Use(StrEnum):
    """A use of an object, which a thread repeats."""

    LOCK = "lock"
    SEMAPHORE = "semaphore"
    READ = "read"
    """Acquire a read/write lock to read, and release it."""
    READ_ONE = "read_one"
    """Acquire the read/write lock that all threads share to read, and release it."""
    WRITE = "write"
    LOCK_ALL = "lock_all"
    """Acquire two locks in one step, and release them."""
    TWO_LOCKS = "two_locks"
    """Acquire two locks, one after the other, and release them."""
    LEAD = "lead"
    """Lead in the election that all threads share, and step down."""


Once = Callable[[], object]
"""A function that makes a use once."""


class Acquirable(Protocol):
    """A lock, or another object that is acquired and released."""

    def acquire(self) -> Any:
        """Wait for the object, and hold it."""
        ...

    def release(self) -> None:
        """Release the object."""
        ...


def one_pair(*objects: Acquirable) -> None:
    """Acquire each of ``objects``, then release them in reverse order."""
    for one in objects:
        one.acquire()
    for one in reversed(objects):
        one.release()


def repeated(use: Use, client: Client, name: str) -> Once:
    return _USES[use](client, name)


def _pair(object_of: Callable[[Client, str], Acquirable]) -> Callable[[Client, str], Once]:
    return lambda client, name: partial(one_pair, object_of(client, name))


def _two_locks(client: Client, name: str) -> Once:
    return partial(one_pair, client.lock(name), client.lock(f"{name}/2"))


_USES: dict[Use, Callable[[Client, str], Once]] = {
    Use.LOCK: _pair(lambda client, name: client.lock(name)),
    Use.SEMAPHORE: _pair(lambda client, name: client.semaphore(name, permits=1)),
    Use.READ: _pair(lambda client, name: client.rwlock(name).read()),
    Use.READ_ONE: _pair(lambda client, _: client.rwlock("one").read()),
    Use.WRITE: _pair(lambda client, name: client.rwlock(name).write()),
    Use.LOCK_ALL: _pair(lambda client, name: client.lock_all(name, f"{name}/2")),
    Use.TWO_LOCKS: _two_locks,
    Use.LEAD: _pair(lambda client, name: client.election(ELECTION).lead(name)),
}
