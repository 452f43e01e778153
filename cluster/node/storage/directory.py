"""A node's folder on disk: its errors, its lock, and its durable entries."""

from __future__ import annotations

import contextlib
import errno
import os
from itertools import count
from pathlib import Path

from fencelock.actors.error import FencelockError
from fencelock.transport.descriptors import NO_SPARES, SpareDescriptors
from fencelock.transport.posix import A_NODE, posix

LOCK_NAME = "lock"
PID_BYTES_MAX = 32

FILE_MODE = 0o600
"""Only the node's own user reads its files: they have the names of locks and sessions."""


class StorageError(FencelockError):
    """Base of the errors about a node's folder on disk. Never raised itself."""


class FolderBusyError(StorageError):
    """Another journal, here or in another process, has the folder open. Nothing was touched."""


class JournalDamagedError(StorageError):
    """The disk's content was altered. The node must not use it; nothing was changed."""


class JournalForeignError(StorageError):
    """The folder belongs to another node, cluster or set of members. Nothing was changed."""


class JournalFailedError(StorageError):
    """The disk refused a write. Unsynced records may be lost; the journal is closed for use.

    The node must stop before it sends anything that depends on the lost records; restart it.
    """


class DirectoryLock:
    """Holds ``folder`` for this object alone, until `close` or the end of the process.

    Two processes that write one journal would ruin it.

    ``flock`` belongs to the open file, so a second lock in the same process is refused
    too, and a killed process leaves nothing to clean up. The file stays: removing it
    would let two processes hold locks on two files of one name.
    """

    def __init__(self, folder: Path) -> None:
        fcntl = posix("fcntl", A_NODE)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(folder / LOCK_NAME, flags, FILE_MODE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write_pid()
        except OSError as error:
            holder = self._read_pid()
            self.close()
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise
            raise FolderBusyError(
                f"{folder} is in use by process {holder}: every node needs a folder of its own. "
                "Stop that process, or give this node another folder"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the folder. Calling it more than once does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)  # The lock ends with the open file.
            self._descriptor = -1

    def _write_pid(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _read_pid(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            pid = os.pread(self._descriptor, PID_BYTES_MAX, 0).decode("ascii").strip()
            if pid.isdigit():
                return pid
        return "unknown"  # The holder has not yet written it, or is on another machine.


def sync_directory(folder: Path, spares: SpareDescriptors = NO_SPARES) -> None:
    """Make the names in ``folder`` durable: without this a new file may vanish in a crash."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = spares.spend(lambda: os.open(folder, flags))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def name_beside(folder: Path, suffix: str) -> Path:
    """Return the first unused path of ``folder`` with ``suffix`` and a number."""
    numbered = (folder.with_name(f"{folder.name}{suffix}-{number}") for number in count(1))
    return next(path for path in numbered if not path.exists())


def make_directory(folder: Path) -> None:
    """Make ``folder`` and its missing parents, durably, for their owner only."""
    missing = [step for step in (folder, *folder.parents) if not step.exists()]
    for made in reversed(missing):
        made.mkdir(mode=0o700, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)
