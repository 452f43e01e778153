"""The files of a journal's folder: segments and snapshots, how they are written and read again.

To sync a write that makes a file longer, a file system must also write its own journal. So the
journal writes and syncs zeros ahead of the groups while no caller waits; a group that replaces some
of them needs no more than its own blocks on the disk. Reserving blocks would not be enough: the
first write to each reserved block costs the file system's journal again. PostgreSQL prepares its
log in the same way (``wal_init_zero``).

`recover` reads and checks a folder, and changes nothing in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from fencelock.cluster.node.storage.directory import FILE_MODE, JournalDamagedError, sync_directory
from fencelock.cluster.node.storage.record import (
    ENTRY_BYTES,
    GROUP_BYTES_MAX,
    HEADER_BYTES,
    REJOIN,
    SALT_BYTES,
    Entry,
    FileKind,
    Group,
    Header,
    Index,
    Mark,
    Place,
    Scan,
    encode_group,
    encode_header,
    entries_of,
    header_of,
    scan,
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

SEGMENT_FILE_BYTES_MAX = GROUP_BYTES_MAX + (1 << 26)
"""Limit of the size of a segment (bytes): one group follows when it is almost full, with 16 MiB."""

NO_SALT = bytes(SALT_BYTES)
"""The previous salt in the header of the first segment."""


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


@dataclass
class RecoveredFiles:
    """The result of a recovery."""

    records: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])
    """The live records, by stream, oldest first."""
    checkpoints: dict[str, int] = field(default_factory=dict[str, int])
    """The number of records before the group in which an unfinished checkpoint began, by stream."""
    index: Index = field(default_factory=Index)
    files: dict[Path, int] = field(default_factory=dict[Path, int])
    """The files in use, oldest first, and the end of the written data in each (bytes)."""
    last: Header | None = None
    """The header of the segment to continue, or None when one must be made."""
    sequence: int = 1
    """The sequence number of the next group."""
    marked: bool = True
    """Whether the last group is an empty one, which marks everything before it as synced."""
    torn: int = 0
    """The size of an unfinished write at the end (bytes)."""
    torn_path: Path | None = None
    doomed: list[Path] = field(default_factory=list[Path])
    """Files that an interrupted step left behind, to be removed."""


def recover(folder: Path) -> RecoveredFiles:
    """Read the journal in ``folder``.

    The newest snapshot and the segments after it are used. If that snapshot is damaged but
    the files it replaces are all still there (they were not removed yet), these are used.

    Raises:
        JournalDamagedError: records that were once synced cannot be read.
        OSError: the disk refuses.

    """
    segments = numbered(folder, SEGMENT_SUFFIX)
    snapshots = numbered(folder, SNAPSHOT_SUFFIX)
    newest = max(snapshots, default=1)
    if snapshots and newest not in segments:
        raise _missing(folder, newest)
    try:
        found = _read_from(folder, newest, segments, snapshots)
    except JournalDamagedError:
        older = [number for number in (1, *snapshots) if number < newest]
        fallback = _read_older(folder, older, segments, snapshots)
        if fallback is None:
            raise
        found = fallback
    used = {*found.files}
    files = (*segments.values(), *snapshots.values())
    found.doomed += [path for path in files if path not in used]
    found.doomed += sorted(folder.glob(f"*{PARTIAL_SUFFIX}"))
    return found


def _read_older(
    folder: Path, numbers: list[int], segments: dict[int, Path], snapshots: dict[int, Path]
) -> RecoveredFiles | None:
    """Read from the newest of ``numbers`` whose files are all present and sound."""
    for number in reversed(numbers):
        try:
            if number in segments:
                return _read_from(folder, number, segments, snapshots)
        except JournalDamagedError:
            continue
    return None


def _read_from(
    folder: Path, number: int, segments: dict[int, Path], snapshots: dict[int, Path]
) -> RecoveredFiles:
    """Read the snapshot ``number``, if there is one, and every segment from ``number`` on."""
    found = RecoveredFiles()
    before: Header | None = None
    if number in snapshots:
        before = _read_snapshot(found, snapshots[number])
        found.sequence = before.first
    newest = max(segments, default=0)
    for expected in range(number, newest + 1):
        if expected not in segments:
            raise _missing(folder, expected)
        _read_segment(found, segments[expected], expected, before, last=expected == newest)
        before = None
    return found


def _content_of(path: Path) -> bytes:
    """Read a whole file of the journal; its size is checked before it takes memory."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise JournalDamagedError(
            f"{path} is no regular file, as all files of a journal are: something else made it. "
            f"{REJOIN}"
        )
    if path.suffix == SEGMENT_SUFFIX and status.st_size > SEGMENT_FILE_BYTES_MAX:
        raise JournalDamagedError(
            f"{path} has {status.st_size} bytes, and a segment has at most "
            f"{SEGMENT_FILE_BYTES_MAX}: something other than a journal wrote it. {REJOIN}"
        )
    return path.read_bytes()


def _read_snapshot(found: RecoveredFiles, path: Path) -> Header:
    content = _content_of(path)
    read = scan(content, str(path), FileKind.SNAPSHOT)
    ended = read.groups and read.groups[-1].begin == read.groups[-1].end
    if read.header is None or read.torn or not ended:
        raise JournalDamagedError(
            f"{path} is damaged: it cannot be read from byte {read.end} on, and was whole. {REJOIN}"
        )
    place = Place(read.header.first - 1, 0, 0)
    for group in read.groups:
        _take(found, place, content, group, path)
    found.files[path] = len(content)
    return read.header


def _read_segment(
    found: RecoveredFiles, path: Path, number: int, snapshot: Header | None, *, last: bool
) -> None:
    content = _content_of(path)
    read = scan(content, str(path), FileKind.SEGMENT)
    if read.header is None and last and snapshot is None:
        found.torn, found.torn_path = len(content), path  # Not in use: to be removed.
        return
    _check_whole(read, path, last=last)
    header = read.header
    assert header is not None, "checked above"
    _check_chain(found, header, path, number, snapshot)
    for group in read.groups:
        _take(found, Place(group.sequence, number, group.offset), content, group, path)
    found.files[path] = read.end
    found.last, found.sequence = header, header.first + len(read.groups)
    found.marked = not read.groups or read.groups[-1].begin == read.groups[-1].end
    if read.torn:
        found.torn, found.torn_path = read.torn, path


def _check_whole(read: Scan, path: Path, *, last: bool) -> None:
    """Check that only the last segment ends in an unfinished write."""
    if read.header is None or (read.torn and not last):
        raise JournalDamagedError(
            f"{path} is damaged at byte {read.end}: it cannot be read from there on, yet what "
            f"came after it was written. {REJOIN}"
        )


def _check_chain(
    found: RecoveredFiles, header: Header, path: Path, number: int, snapshot: Header | None
) -> None:
    """Check that the segment continues where the file before it ends."""
    if snapshot is not None:
        previous = snapshot.previous
    else:
        previous = NO_SALT if found.last is None else found.last.salt
    if (header.number, header.first, header.previous) != (number, found.sequence, previous):
        raise JournalDamagedError(
            f"{path} does not go on where the file before it ends: it is the segment "
            f"{header.number} from group {header.first} on, and {number} from group "
            f"{found.sequence} on is expected. {REJOIN}"
        )


def _take(found: RecoveredFiles, place: Place, content: bytes, group: Group, path: Path) -> None:
    entries = list(entries_of(content, group, str(path)))
    found.index.note(*place, entries)
    marked = any(isinstance(payload, Mark) for _, payload in entries)
    before = {stream: len(records) for stream, records in found.records.items()} if marked else {}
    for stream, payload in entries:
        if payload is None:
            found.records.pop(stream, None)
            found.checkpoints.pop(stream, None)
            before.pop(stream, None)
        elif payload is Mark.BEGIN:
            found.checkpoints[stream] = before.get(stream, 0)
        elif payload is Mark.END:
            begun = found.checkpoints.pop(stream, 0)
            before[stream] = max(0, before.get(stream, 0) - begun)
            if left := found.records.pop(stream, [])[begun:]:
                found.records[stream] = left
        else:
            found.records.setdefault(stream, []).append(payload)


def _missing(folder: Path, number: int) -> JournalDamagedError:
    path = segment_path(folder, number)
    return JournalDamagedError(f"{path} is missing, and was there. {REJOIN}")


def live_entries(
    files: Mapping[Path, int], index: Index, spares: SpareDescriptors
) -> Iterator[Entry]:
    """Read the live records of ``files``, which are in the order in which they were written.

    Each file comes with the number of bytes written, since empty room may follow them. A file
    without live records is not read at all.
    """
    live = index.in_segments()
    for path, size in files.items():
        snapshot = path.suffix == SNAPSHOT_SUFFIX
        if not live[0 if snapshot else int(path.stem)]:
            continue
        content = spares.spend(partial(_content_of, path))
        read = scan(content, str(path), FileKind.SNAPSHOT if snapshot else FileKind.SEGMENT)
        if read.header is None:
            raise JournalDamagedError(f"{path} is damaged: its header is gone. {REJOIN}")
        if read.end != size:
            raise JournalDamagedError(f"{path} is damaged: its end is gone. {REJOIN}")
        for group in read.groups:
            written = read.header.first - 1 if snapshot else group.sequence
            for entry in entries_of(content, group, str(path)):
                if isinstance(entry.payload, bytes) and index.counts(entry.stream, written):
                    yield entry
