"""The segment that is being written, with room made before it is needed.

To sync a write that makes a file longer, a file system must write its own journal, too. So the
journal writes and syncs zeros ahead of the groups while nobody waits; a group that replaces
some of them needs no more than its own blocks on the disk. Reserving blocks would not be
enough: the first write to each reserved block costs the file system's journal again. PostgreSQL
prepares its log in the same way (``wal_init_zero``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from fencelock.cluster.storage.directory import sync_directory
from fencelock.cluster.storage.folder import segment_path, write_at
from fencelock.cluster.storage.record import HEADER_BYTES, Header, encode_header
from fencelock.transport.descriptors import NO_RESERVE, Reserve

ROOM_BYTES = 1 << 18
"""Size of the room made ahead of the last group (bytes, 256 KiB): some thousand groups."""

ROOM_BYTES_MIN = ROOM_BYTES // 2
"""If less room than this is left (bytes), more is made. That takes half a millisecond, every few
hundred groups."""

ZEROS = bytes(ROOM_BYTES)


class Segment:
    """One open segment: its header, its end and its room. Used by one thread.

    Args:
        path: of the file.
        descriptor: open for writing; closed by `close`.
        header: the header of the file.
        end: the end of its last group (bytes from the start of the file).
        size: the length of the file; zeros follow ``end`` (bytes).

    """

    __slots__ = ("_descriptor", "end", "header", "path", "size")

    def __init__(self, path: Path, descriptor: int, header: Header, end: int, size: int) -> None:
        self.path = path
        self.header = header
        self.end = end
        self.size = size
        self._descriptor = descriptor

    @classmethod
    def make(cls, folder: Path, header: Header, reserve: Reserve = NO_RESERVE) -> Self:
        """Create the segment of ``header`` durably, with its name.

        If the process has no descriptor left, one of ``reserve`` is given up for it.

        Raises:
            OSError: the disk refuses. A half-made segment is removed at the next start.

        """
        path = segment_path(folder, header.number)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = reserve.spend(lambda: os.open(path, flags, 0o644))
        segment = cls(path, descriptor, header, HEADER_BYTES, HEADER_BYTES)
        try:
            write_at(descriptor, encode_header(header), 0)
            os.fsync(descriptor)
            sync_directory(folder, reserve)
        except BaseException:
            segment.close()
            raise
        return segment

    @classmethod
    def reopen(cls, folder: Path, header: Header, end: int, *, torn: bool) -> Self:
        """Open a segment to go on at ``end``, and make its content durable.

        Args:
            folder: of the file.
            header: the header that was read from it.
            end: the end of its last group (bytes from the start of the file).
            torn: whether an unfinished write follows. It is cut off with the room: later groups
                must have nothing behind them but zeros.

        Raises:
            OSError: the disk refuses.

        """
        path = segment_path(folder, header.number)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        segment = cls(path, descriptor, header, end, end)
        try:
            if torn:
                os.ftruncate(descriptor, end)
            segment.size = os.fstat(descriptor).st_size
            os.fsync(descriptor)
            sync_directory(folder)
        except BaseException:
            segment.close()
            raise
        return segment

    def write(self, group: bytes) -> None:
        """Write ``group`` at the end, and move the end behind it.

        Raises:
            OSError: the disk refuses. Some of it may be written.

        """
        end = self.end
        written = os.pwrite(self._descriptor, group, end)
        self.end = end + len(group)
        if written < len(group):
            write_at(self._descriptor, group[written:], end + written)

    def sync(self) -> None:
        """Return once everything written is on the disk.

        Raises:
            OSError: the disk refuses, or lost something.

        """
        os.fdatasync(self._descriptor)

    def make_room(self, limit: int) -> None:
        """Make room for the next groups if little is left, and sync it.

        Args:
            limit: the end of the room at most (bytes from the start of the file).

        Raises:
            OSError: the disk refuses, or is full.

        """
        begin = max(self.size, self.end)
        if begin - self.end >= ROOM_BYTES_MIN or begin >= limit:
            return
        until = min(self.end + ROOM_BYTES, limit)
        write_at(self._descriptor, ZEROS[: until - begin], begin)
        os.fdatasync(self._descriptor)
        self.size = until

    def close(self) -> None:
        """Close the file. Calling it twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
