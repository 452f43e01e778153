"""What a node wrote down: records appended to one file, read back when the node starts again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Self

from loguru import logger

from holdfast.cluster.storage.directory import DirectoryLock, make_directory, sync_directory
from holdfast.cluster.storage.error import JournalFailedError
from holdfast.cluster.storage.record import encode_records, header, scan

SEGMENT_NAME = "00000001.journal"
"""The first segment. Later ones, with higher numbers, sort after it."""


class Journal:
    """An append-only file of records, and the lock on the folder it lies in.

    Used by one thread. Made with `Journal.open`.

    Invariants:
        J1  When `sync` has returned, every record appended before it is read back by
            each later `open`, in order.
        J2  After a failure nothing more is written or synced. In particular ``fdatasync`` is
            never tried twice: Linux may report a lost write once and then call it good.
    """

    def __init__(self, path: Path, lock: DirectoryLock, descriptor: int) -> None:
        self.path = path
        self.records: list[bytes] = []
        """What the file held when it was opened, oldest first."""
        self.torn_bytes = 0
        """How much of an unfinished write was cut off when the file was opened (bytes)."""
        self.failure: OSError | None = None
        """What ended the journal's use, if something did."""
        self._lock = lock
        self._descriptor = descriptor

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the journal in ``folder``, which is made where it is missing.

        Raises:
            FolderBusyError: another journal has the folder open.
            JournalDamagedError: what was written before the last write cannot be read.
            JournalFailedError: the disk refuses.

        """
        path = folder / SEGMENT_NAME
        with contextlib.ExitStack() as undo:
            try:
                make_directory(folder)
                lock = DirectoryLock(folder)
                undo.callback(lock.close)
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                journal = cls(path, lock, os.open(path, flags, 0o644))
                undo.callback(journal.close)
                journal._recover()
            except OSError as error:
                raise JournalFailedError(f"{path} cannot be opened: {error.strerror}") from error
            undo.pop_all()
        return journal

    def append(self, payloads: Sequence[bytes]) -> None:
        """Write ``payloads`` after all others. They are durable once `sync` has returned.

        Args:
            payloads: 1 byte to 1 MiB each.

        Raises:
            ValueError: a payload is empty or too long; nothing was written.
            JournalFailedError: the disk refuses, or did before.

        """
        self._check_usable()
        content = encode_records(payloads)
        try:
            self._write(content)
        except OSError as error:
            self._fail("written", error)

    def sync(self) -> None:
        """Return once everything appended is on disk.

        Raises:
            JournalFailedError: the disk refuses, or did before.

        """
        self._check_usable()
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._fail("synced", error)

    def close(self) -> None:
        """Let go of file and folder. What was not synced is not promised. Twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._lock.close()

    def _recover(self) -> None:
        with self.path.open("rb") as file:
            found = scan(file.read(), str(self.path))
        self.records = found.records
        if found.end == 0:
            os.ftruncate(self._descriptor, 0)
            self._write(header())
        elif found.torn:
            os.ftruncate(self._descriptor, found.end)
        if found.torn:
            self.torn_bytes = found.torn
            logger.warning("{}: cut {} bytes of an unfinished write", self.path, found.torn)
        # A process that was killed may have left whole records that were never synced. The
        # node will act on them now, so they are made durable first.
        os.fsync(self._descriptor)
        sync_directory(self.path.parent)

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:  # A write may be cut short, by a signal or by a disk that fills up.
            rest = rest[os.write(self._descriptor, rest) :]

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise JournalFailedError(
                f"{self.path} failed before ({self.failure.strerror}) and takes nothing more: "
                "start the node anew"
            ) from self.failure
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed")

    def _fail(self, verb: str, error: OSError) -> NoReturn:
        self.failure = error  # J2
        raise JournalFailedError(
            f"{self.path} could not be {verb}: {error.strerror}. What was not synced may be lost; "
            "free or repair the disk and start the node anew"
        ) from error
