"""The files of a journal's folder: segments, with room made before it is needed, and snapshots.

To sync a write that makes a file longer, a file system must also write its own journal. So the
journal writes and syncs zeros ahead of the groups while no caller waits; a group that replaces some
of them needs no more than its own blocks on the disk. Reserving blocks would not be enough: the
first write to each reserved block costs the file system's journal again. PostgreSQL prepares its
log in the same way (``wal_init_zero``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from fencelock.cluster.node.storage.directory import FILE_MODE, JournalDamagedError, sync_directory
from fencelock.cluster.node.storage.record import (
    ENTRY_BYTES,
    HEADER_BYTES,
    REJOIN,
    Entry,
    FileKind,
    Header,
    encode_group,
    encode_header,
    header_of,
)
from fencelock.transport.descriptors import SpareDescriptors

SEGMENT_SUFFIX = ".journal"
SNAPSHOT_SUFFIX = ".snapshot"
PARTIAL_SUFFIX = ".partial"

CHUNK_BYTES = 1 << 18
"""A snapshot is written and checked in groups of about this size (bytes, 256 KiB)."""

ROOM_BYTES = 1 << 18
"""Size of the room made ahead of the last group (bytes, 256 KiB): some thousand groups."""

ROOM_BYTES_MIN = ROOM_BYTES // 2
"""If less room than this is left (bytes), more is made. That takes half a millisecond, every few
hundred groups."""

LARGE_GROUP_BYTES = 1 << 16
"""Size of a group from which on the next ones are likely to be as large (bytes, 64 KiB): parts of a
checkpoint, or large values."""

LARGE_ROOM_BYTES = 1 << 20
LARGE_ROOM_BYTES_MIN = LARGE_ROOM_BYTES // 2
"""The same after a large group (bytes). To make it takes hardly longer, and every large group would
need room otherwise."""

ZEROS = bytes(LARGE_ROOM_BYTES)


class Segment:
    """One open segment: its header, its end and its room. Used by one thread."""

    __slots__ = ("descriptor", "end", "header", "path", "room_min", "size")

    def __init__(self, path: Path, descriptor: int, header: Header, end: int, size: int) -> None:
        self.path = path
        self.header = header
        self.end = end
        """The end of its last group (bytes from the start of the file)."""
        self.size = size
        """The length of the file (bytes); zeros follow ``end``."""
        self.room_min = ROOM_BYTES_MIN
        """If less room than this is left, more is made (bytes). It is more after a large group."""
        self.descriptor = descriptor

    @classmethod
    def make(cls, folder: Path, header: Header, spares: SpareDescriptors) -> Self:
        """Create the segment of ``header`` durably, with its name.

        If the process has no descriptor left, one of ``spares`` is given up for it. After an error
        of the disk, the next start removes a half-made segment.
        """
        path = segment_path(folder, header.number)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = spares.spend(lambda: os.open(path, flags, FILE_MODE))
        segment = cls(path, descriptor, header, HEADER_BYTES, HEADER_BYTES)
        try:
            write_at(descriptor, encode_header(header), 0)
            os.fsync(descriptor)
            sync_directory(folder, spares)
        except BaseException:
            segment.close()
            raise
        return segment

    @classmethod
    def reopen(cls, folder: Path, header: Header, end: int, *, torn: bool) -> Self:
        """Open a segment and continue to write at ``end``. Make its content durable first.

        If it is ``torn``, an unfinished write follows. It is cut off with the room: later groups
        must have nothing behind them but zeros.
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

    def make_room(self, limit: int) -> None:
        """Make room for the next groups if little is left, and sync it."""
        begin = max(self.size, self.end)
        if begin - self.end >= self.room_min or begin >= limit:
            return
        room = ROOM_BYTES if self.room_min == ROOM_BYTES_MIN else LARGE_ROOM_BYTES
        until = min(self.end + room, limit)
        write_at(self.descriptor, ZEROS[: until - begin], begin)
        os.fdatasync(self.descriptor)
        self.size = until

    def close(self) -> None:
        """Close the file. Calling it twice does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of the segment ``number``; names sort in the order of creation."""
    return folder / f"{number:08d}{SEGMENT_SUFFIX}"


def snapshot_path(folder: Path, number: int) -> Path:
    """Return the path of the snapshot that replaces all segments below ``number``."""
    return folder / f"{number:08d}{SNAPSHOT_SUFFIX}"


def read_header(path: Path, spares: SpareDescriptors) -> Header:
    """Return the header of the segment at ``path``, which this journal made."""
    header = header_of(spares.spend(lambda: _start_of(path)), str(path), FileKind.SEGMENT)
    if header is None:
        raise JournalDamagedError(f"{path} is damaged: its header is gone. {REJOIN}")
    return header


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEADER_BYTES)


def numbered(folder: Path, suffix: str) -> dict[int, Path]:
    """Return the files of one kind by number, in order; other files are not the journal's."""
    named = [path for path in folder.iterdir() if path.suffix == suffix]
    return {int(path.stem): path for path in sorted(named) if path.stem.isdecimal()}


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Write ``content`` whole at ``offset`` (bytes from the start of the file).

    One write may be cut short, by a signal or a disk that fills up.
    """
    written = os.pwrite(descriptor, content, offset)
    if written < len(content):
        rest = memoryview(content)
        while written < len(content):
            written += os.pwrite(descriptor, rest[written:], offset + written)


def write_snapshot(
    folder: Path, header: Header, entries: Iterable[Entry], spares: SpareDescriptors
) -> tuple[Path, int]:
    """Write a snapshot aside and name it once it is durable; return path and size.

    After an error of the disk, the next start removes what was written.
    """
    path = snapshot_path(folder, header.number)
    partial = path.with_suffix(PARTIAL_SUFFIX)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = spares.spend(lambda: os.open(partial, flags, FILE_MODE))
    try:
        write_at(descriptor, encode_header(header), 0)
        size = HEADER_BYTES
        for sequence, chunk in enumerate(_chunks(entries)):
            group = encode_group(chunk, salt=header.salt, offset=size, sequence=sequence)
            write_at(descriptor, group, size)
            size += len(group)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(partial, path)
    sync_directory(folder, spares)
    return path, size


def remove(paths: Iterable[Path]) -> None:
    """Remove files that are no longer needed. It does no harm if a crash brings them back."""
    for path in paths:
        path.unlink()


def _chunks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield ``entries`` by groups, then an empty one: without it a snapshot was cut."""
    chunk: list[Entry] = []
    chunk_bytes = 0
    for entry in entries:
        chunk.append(entry)
        assert isinstance(entry.payload, bytes), "a snapshot has records only"
        chunk_bytes += ENTRY_BYTES + len(entry.stream) + len(entry.payload)
        if chunk_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, chunk_bytes = [], 0
    if chunk:
        yield chunk
    yield []
