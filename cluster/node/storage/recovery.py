"""Recovery: reading and checking a journal's folder, without changing it."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fencelock.cluster.node.storage.directory import JournalDamagedError
from fencelock.cluster.node.storage.record import (
    GROUP_BYTES_MAX,
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
    entries_of,
    scan,
)
from fencelock.cluster.node.storage.segment import (
    PARTIAL_SUFFIX,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    numbered,
    segment_path,
)
from fencelock.transport.descriptors import SpareDescriptors

SEGMENT_FILE_BYTES_MAX = GROUP_BYTES_MAX + (1 << 26)
"""Limit of the size of a segment (bytes): one group follows when it is almost full, with 16 MiB."""

NO_SALT = bytes(SALT_BYTES)
"""The previous salt in the header of the first segment."""


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
