"""The files of a journal's folder: their names, their creation and their removal."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fencelock.cluster.storage.directory import sync_directory
from fencelock.cluster.storage.record import (
    ENTRY_BYTES,
    HEADER_BYTES,
    Entry,
    Header,
    encode_group,
    encode_header,
)
from fencelock.transport.descriptors import NO_RESERVE, Reserve

SEGMENT_SUFFIX = ".journal"
SNAPSHOT_SUFFIX = ".snapshot"
PARTIAL_SUFFIX = ".partial"

CHUNK_BYTES = 1 << 18
"""A snapshot is written and checked in groups of about this size (bytes, 256 KiB)."""


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of the segment ``number``; names sort in the order of creation."""
    return folder / f"{number:08d}{SEGMENT_SUFFIX}"


def snapshot_path(folder: Path, number: int) -> Path:
    """Return the path of the snapshot that replaces all segments below ``number``."""
    return folder / f"{number:08d}{SNAPSHOT_SUFFIX}"


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
    folder: Path, header: Header, entries: Iterable[Entry], reserve: Reserve = NO_RESERVE
) -> tuple[Path, int]:
    """Write a snapshot aside and name it once it is durable; return path and size.

    An empty group ends it, so that a snapshot cut short between groups is noticed.

    Raises:
        OSError: the disk refuses. The next start removes what was written.

    """
    path = snapshot_path(folder, header.number)
    partial = path.with_suffix(PARTIAL_SUFFIX)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = reserve.spend(lambda: os.open(partial, flags, 0o644))
    try:
        write_at(descriptor, encode_header(header), 0)
        size = _write_groups(descriptor, header.salt, entries)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(partial, path)
    sync_directory(folder, reserve)
    return path, size


def remove(paths: Iterable[Path]) -> None:
    """Remove files that are no longer needed. It does no harm if a crash brings them back."""
    for path in paths:
        path.unlink()


def _write_groups(descriptor: int, salt: bytes, entries: Iterable[Entry]) -> int:
    offset, sequence = HEADER_BYTES, 0
    chunk: list[Entry] = []
    chunk_bytes = 0
    for entry in entries:
        chunk.append(entry)
        chunk_bytes += ENTRY_BYTES + len(entry.stream) + len(entry.payload or b"")
        if chunk_bytes >= CHUNK_BYTES:
            group = encode_group(chunk, salt=salt, offset=offset, sequence=sequence)
            write_at(descriptor, group, offset)
            offset, sequence = offset + len(group), sequence + 1
            chunk, chunk_bytes = [], 0
    for rest in ([chunk] if chunk else []) + [[]]:
        group = encode_group(rest, salt=salt, offset=offset, sequence=sequence)
        write_at(descriptor, group, offset)
        offset, sequence = offset + len(group), sequence + 1
    return offset
