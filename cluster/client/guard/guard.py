"""The interface of a guard, and guards that keep fences in memory, beside a file, and in Redis."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

from fencelock.actors.error import OverloadedError, StaleFenceError
from fencelock.cluster.node.storage.directory import sync_directory
from fencelock.transport.posix import posix

FENCE_MAX = (1 << 63) - 1
"""The highest fence: fences cross the wire, and fit into a BIGINT, as signed 64 bits."""

FENCE_DIGITS = 19
"""The digits of a fence that is kept as text, with leading zeros. In a file it is overwritten in
place, within one sector of the disk, so a crash leaves the former fence or the new one. In Redis
fences are compared as text: Lua's numbers have 53 bits."""

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


class FileGuard:
    """Keeps the highest fence of one file in a second one beside it, ``<name>.fence``.

    For example::

        FileGuard(path).write(text.encode(), hold.fence)

    The two are changed under ``flock``, so all writers must be on machines between which it works.
    The fence is on disk before the file changes.

    Args:
        path: the file that is protected.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fence = path.with_name(f"{path.name}.fence")

    def check(self, resource: str, fence: int) -> None:
        """Raise the highest fence of the file; see `Guard.check`. ``resource`` is for the error.

        A later write is not protected by it: use `write`, or write within `writing`.
        """
        with self.writing(fence, resource):
            pass

    def write(self, content: bytes, fence: int) -> None:
        """Replace the content of the file, as a whole, under ``fence``.

        Raises:
            StaleFenceError: see `Guard.check`; the file is as before.

        """
        with self.writing(fence):
            number, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            try:
                with open(number, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    @contextlib.contextmanager
    def writing(self, fence: int, resource: str | None = None) -> Generator[None]:
        """Enter under ``fence``; other writers wait until the end of ``with``.

        Raises:
            StaleFenceError: see `Guard.check`; the body does not run.
            UnsupportedError: the system has no ``flock``, as Windows.

        """
        check_fence(fence)
        fcntl = posix("fcntl", "FileGuard")
        kept = os.open(self._fence, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(kept, fcntl.LOCK_EX)  # Until it is closed.
            highest = int(os.pread(kept, FENCE_DIGITS, 0) or b"0")
            if fence < highest:
                raise StaleFenceError(resource or self.path.name, fence, highest)
            if fence > highest:
                os.pwrite(kept, b"%0*d" % (FENCE_DIGITS, fence), 0)
                os.fsync(kept)
                if not highest:
                    sync_directory(self.path.parent)
            yield
        finally:
            os.close(kept)


PREFIX = "fence:"

SCRIPT = """
local highest = redis.call('GET', KEYS[1])
if highest and ARGV[1] < highest then
  return {highest}
end
redis.call('SET', KEYS[1], ARGV[1])
local replies, at = {}, 2
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
return {'', replies}
"""
"""Writes the commands in ARGV, each after its number of words, unless a higher fence did before."""


class RedisClient(Protocol):
    """The part of a blocking client of redis-py that a guard needs."""

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script."""
        ...


class RedisGuard:
    """Keeps the highest fence of each resource in a key of Redis, without an expiry.

    For example::

        RedisGuard(redis).write("orders/42", hold.fence, ("SET", "orders:42", state))

    It is as durable as the server: one that forgets its last second accepts fences of that
    second again. In Redis Cluster, put a hash tag into resource and keys: ``{orders}/42``.

    Args:
        client: a blocking client of redis-py.
        prefix: the beginning of the keys that hold fences.

    """

    def __init__(self, client: RedisClient, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = prefix

    def check(self, resource: str, fence: int) -> None:
        """Raise the highest fence of ``resource``; see `Guard.check`.

        A later command is not protected by it: use `write`.
        """
        self.write(resource, fence)

    def write(self, resource: str, fence: int, *commands: tuple[Any, ...]) -> list[Any]:
        """Run ``commands`` under ``fence`` in one step, and return their replies.

        Each is a tuple like ``("SET", key, value)``. If one fails, those before it stay written.

        Raises:
            StaleFenceError: see `Guard.check`; none of the commands was run.

        """
        check_fence(fence)
        words: list[Any] = []
        for command in commands:
            words += [len(command), *command]
        key = self._prefix + resource
        reply = self._client.eval(SCRIPT, 1, key, f"{fence:0{FENCE_DIGITS}}", *words)
        if highest := reply[0]:
            raise StaleFenceError(resource, fence, int(highest))
        return list(reply[1])
