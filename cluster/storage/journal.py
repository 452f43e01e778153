"""What a node wrote down: records of its roles, read back when the node starts again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Self

from loguru import logger

from holdfast.cluster.storage.directory import DirectoryLock, make_directory, sync_directory
from holdfast.cluster.storage.error import JournalDamagedError, JournalFailedError
from holdfast.cluster.storage.folder import (
    make_segment,
    remove,
    segment_path,
    write_all,
    write_snapshot,
)
from holdfast.cluster.storage.index import Index, Place, without_forgotten
from holdfast.cluster.storage.live import live_entries
from holdfast.cluster.storage.record import (
    HEADER_BYTES,
    SALT_BYTES,
    Entry,
    Header,
    Kind,
    encode_group,
)
from holdfast.cluster.storage.recovery import NO_SALT, Recovered, recover

SEGMENT_BYTES_MAX = 16 << 20
"""A segment that has grown beyond this gets a successor (bytes, 16 MiB). It is also how much
of what is forgotten may lie on the disk beside twice of what counts."""


class Journal:
    """A node's records on disk, in streams, and the lock on the folder they lie in.

    A stream is what one role wrote. A role may say at any time that all it wrote before
    is forgotten; `trim` then gives the room back. Used by one thread. Made with `Journal.open`.

    Invariants:
        J1  When `sync` has returned, every record appended before it and not forgotten
            is read back by each later `open`, in the order of its stream.
        J2  After a failure nothing more is written or synced. In particular a sync is never
            tried twice: Linux may report a lost write once and then call it good.
        J3  Nothing is appended while an earlier append is not synced. So only the last
            group of the last segment can be unfinished, whatever a crash leaves.
        J4  What one append wrote is read back as a whole or not at all.
    """

    def __init__(self, folder: Path, lock: DirectoryLock, segment_bytes_max: int) -> None:
        self.folder = folder
        self.segment_bytes_max = segment_bytes_max
        self.path = segment_path(folder, 1)
        """The segment that is being written."""
        self.torn_bytes = 0
        """How much of an unfinished write was cut off when the folder was opened (bytes)."""
        self.failure: Exception | None = None
        """What ended the journal's use, if something did."""
        self.disk_bytes = 0
        """How long all files in use are together (bytes)."""
        self._lock = lock
        self._files: dict[Path, int] = {}
        self._records: dict[str, list[bytes]] = {}
        self._index = Index()
        self._header = Header(Kind.SEGMENT, 0, 1, NO_SALT, NO_SALT)  # Of none: the first is 1.
        self._descriptor = -1
        self._closed = False
        self._end = 0
        self._sequence = 1
        self._unsynced = False

    @classmethod
    def open(cls, folder: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> Self:
        """Open the journal in ``folder``, which is made where it is missing.

        Args:
            folder: nobody else's.
            segment_bytes_max: how long a segment grows before the next begins (bytes).

        Raises:
            FolderBusyError: another journal has the folder open.
            JournalDamagedError: what was synced once cannot be read; nothing was changed.
            JournalFailedError: the disk refuses.

        """
        with contextlib.ExitStack() as undo:
            try:
                make_directory(folder)
                lock = DirectoryLock(folder)
                undo.callback(lock.close)
                journal = cls(folder, lock, segment_bytes_max)
                undo.callback(journal.close)
                journal._go_on(recover(folder))
            except OSError as error:
                raise JournalFailedError(f"{folder} cannot be opened: {error.strerror}") from error
            undo.pop_all()
        return journal

    def take_records(self) -> dict[str, list[bytes]]:
        """Hand out what was found at `open`, by stream, oldest first; it is kept no longer."""
        records, self._records = self._records, {}
        return records

    def append(self, entries: Sequence[Entry]) -> None:
        """Write ``entries`` after all others. They are durable once `sync` has returned.

        Args:
            entries: payloads of 1 byte to 1 MiB each; None forgets the stream's earlier ones.

        Raises:
            ValueError: a payload is empty or too long; nothing was written.
            JournalFailedError: the disk refuses, or did before.

        """
        self._check_usable()
        assert not self._unsynced, "J3: one append, one sync"
        kept = without_forgotten(entries)
        if not kept:
            return
        group = self._encoded(kept)
        with self._failing("written"):
            if self._end > self.segment_bytes_max:
                self._begin_segment()
                group = self._encoded(kept)
            self._write(group, kept)

    def sync(self) -> None:
        """Return once everything appended is on disk.

        Raises:
            JournalFailedError: the disk refuses, or did before.

        """
        self._check_usable()
        with self._failing("synced"):
            os.fdatasync(self._descriptor)
        self._unsynced = False

    def trim(self) -> None:
        """Give back the room of what is forgotten, when that is more than what counts.

        What counts is written into a snapshot, and all older files are removed. The work is
        in proportion to what counts, and is paid for by what was written since.

        Raises:
            JournalFailedError: the disk refuses, or did before.

        """
        self._check_usable()
        assert not self._unsynced, "what is not durable cannot stand for anything"
        if self.disk_bytes <= 2 * self._index.live_bytes + self.segment_bytes_max:
            return
        with self._failing("trimmed"):
            self._replace_by_snapshot()

    def close(self) -> None:
        """Let go of files and folder. What was not synced is not promised. Twice does nothing."""
        self._closed = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._lock.close()

    def _go_on(self, found: Recovered) -> None:
        self._records, self._index = found.records, found.index
        self._files, self._sequence = found.files, found.sequence
        self.disk_bytes = sum(found.files.values())
        self.torn_bytes = found.torn
        if found.torn:
            logger.warning("{}: cut {} bytes of an unfinished write", found.torn_path, found.torn)
        if found.doomed:
            remove(found.doomed)
            sync_directory(self.folder)
        if found.last is None:
            self._begin_segment()
            return
        self._header = found.last
        self.path = segment_path(self.folder, found.last.number)
        self._end = found.files[self.path]
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        if found.torn_path == self.path:
            os.ftruncate(self._descriptor, self._end)
        # A process that was killed may have left a whole group that was never synced. The node
        # will act on it now, so it is made durable, and then an empty group says that it is.
        os.fsync(self._descriptor)
        sync_directory(self.folder)
        if not found.marked:
            self._write(self._encoded([]), [])
            os.fdatasync(self._descriptor)
            self._unsynced = False

    def _encoded(self, entries: Sequence[Entry]) -> bytes:
        salt = self._header.salt
        return encode_group(entries, salt=salt, offset=self._end, sequence=self._sequence)

    def _write(self, group: bytes, entries: Sequence[Entry]) -> None:
        self._unsynced = True
        write_all(self._descriptor, group)
        self._index.note(Place(self._sequence, self._header.number, self._end), entries)
        self._sequence += 1
        self._grow(len(group))

    def _grow(self, size: int) -> None:
        self._end += size
        self.disk_bytes += size
        self._files[self.path] = self._end

    def _begin_segment(self) -> None:
        """Begin the next segment; everything in the one before is synced."""
        header = Header(
            kind=Kind.SEGMENT,
            number=self._header.number + 1,
            first=self._sequence,
            salt=os.urandom(SALT_BYTES),
            previous=self._header.salt,
        )
        descriptor = make_segment(self.folder, header)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._header, self._end = descriptor, header, 0
        self.path = segment_path(self.folder, header.number)
        self._grow(HEADER_BYTES)

    def _replace_by_snapshot(self) -> None:
        old = list(self._files)
        self._begin_segment()
        header = self._header._replace(kind=Kind.SNAPSHOT, salt=os.urandom(SALT_BYTES))
        entries = live_entries(old, self._index)
        path, size = write_snapshot(self.folder, header, entries)
        self._index.move(Place(header.first - 1, 0, 0))
        remove(old)
        self._files = {path: size, self.path: self._end}
        self.disk_bytes = size + self._end

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise JournalFailedError(
                f"{self.folder} failed before ({_told(self.failure)}) and takes nothing more: "
                "start the node anew"
            ) from self.failure
        if self._closed:
            raise ValueError(f"{self.folder} is closed")

    @contextlib.contextmanager
    def _failing(self, verb: str) -> Generator[None, None, None]:
        try:
            yield
        except (OSError, JournalDamagedError) as error:
            self.failure = error  # J2
            raise JournalFailedError(
                f"{self.path} could not be {verb}: {_told(error)}. What was not synced may be "
                "lost; free or repair the disk and start the node anew"
            ) from error


def _told(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
