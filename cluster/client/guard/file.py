"""Fenced writes of a file: the fence is kept beside it, under a lock of the file system."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

from fencelock.actors.error import StaleFenceError
from fencelock.cluster.client.guard.guard import check_fence
from fencelock.cluster.node.storage.directory import sync_directory
from fencelock.transport.posix import posix

DIGITS = 19
"""The digits of a kept fence, with leading zeros: its file is overwritten in place, within one
sector of the disk, so a crash leaves the former fence or the new one."""


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
            highest = int(os.pread(kept, DIGITS, 0) or b"0")
            if fence < highest:
                raise StaleFenceError(resource or self.path.name, fence, highest)
            if fence > highest:
                os.pwrite(kept, b"%0*d" % (DIGITS, fence), 0)
                os.fsync(kept)
                if not highest:
                    sync_directory(self.path.parent)
            yield
        finally:
            os.close(kept)
