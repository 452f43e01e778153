"""Deciding which part of a file can be trusted after a crash. Pure.

The journal begins an append only when the one before is synced. So all bytes below a group's
``offset`` (which is where it lies) were durable before any of its own were written. A crash can
cut, spoil or punch holes into the last group only, which nothing has depended on yet. Its
sectors may reach the disk in any order, but no other group follows it, only the zeros that were
there before. Such a tail is dropped. A spoilt group that is followed by another, or by anything
but zeros, was once synced, and the node has acted on it. A node that forgot it could break its
promises, so the file is refused.

Zeros after the last group mean nothing: they are room that was made and not yet used, or a group
of which nothing reached the disk. Anything else is cut off before the journal goes on, so that
no remainder of it ever lies behind a later group.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from fencelock.cluster.storage.error import JournalDamagedError
from fencelock.cluster.storage.record import (
    CHECKSUM,
    ENTRY,
    ENTRY_BYTES,
    FILED,
    FORMAT_VERSION,
    GROUP,
    GROUP_BYTES,
    HEADER_BYTES,
    MAGIC,
    PREAMBLE_BYTES,
    REJOIN,
    VERSIONED,
    Entry,
    Header,
    Kind,
)


class Group(NamedTuple):
    """A sound group of a file."""

    sequence: int
    offset: int
    begin: int
    """The begin of its body (bytes from the start of the file)."""
    end: int
    checksum: int
    """CRC-32 of the body."""


class Scan(NamedTuple):
    """The part of a file that can be trusted."""

    header: Header | None
    """None when the file was never completely created; then it had no records."""
    groups: list[Group]
    end: int
    """The end of the last good group (bytes from the start of the file)."""
    torn: int
    """Bytes after that which are an unfinished write, to be cut. The zeros at the end of a segment
    do
    not count; a snapshot has none."""


def header_of(content: bytes, name: str, kind: Kind) -> Header | None:
    """Read the header of a file, None where it was never completely created.

    Raises:
        JournalDamagedError: it is not the header of such a file, or is of another version.

    """
    _check_version(content, name)
    filed = content[: HEADER_BYTES - CHECKSUM.size]
    whole = content[:HEADER_BYTES] == filed + CHECKSUM.pack(zlib.crc32(filed))
    if len(content) < HEADER_BYTES or not whole:
        if len(content) <= HEADER_BYTES:
            return None  # A crash while the file was created: it had no records.
        raise _damaged(name, 0, f"it does not begin as a {kind.name.lower()} does")
    found, *rest = FILED.unpack_from(content, PREAMBLE_BYTES)
    if found != kind:
        raise _damaged(name, 0, f"it is no {kind.name.lower()}")
    return Header(kind, *rest)


def entries_of(content: bytes, group: Group) -> Iterator[Entry]:
    """Read the entries of a sound group of ``content``."""
    at = group.begin
    while at < group.end:
        name_bytes, payload_bytes = ENTRY.unpack_from(content, at)
        name_end = at + ENTRY_BYTES + name_bytes
        stream = content[at + ENTRY_BYTES : name_end].decode()
        at = name_end + payload_bytes
        yield Entry(stream, content[name_end:at] if payload_bytes else None)
    assert at == group.end, "the checksum was right, so the body is what was written"


def scan(content: bytes, name: str, kind: Kind) -> Scan:
    """Read a file, and find the end of the part that can be trusted.

    Args:
        content: the whole file.
        name: what to call the file in errors.
        kind: its expected kind.

    Raises:
        JournalDamagedError: the header is not ours, or a group is spoilt that was once
            synced; the text names file, offset and what to do.

    """
    header = header_of(content, name, kind)
    if header is None:
        return Scan(None, [], 0, len(content))
    first = header.first if kind is Kind.SEGMENT else 0
    groups = scan_groups(content, name, salt=header.salt, offset=HEADER_BYTES, sequence=first)
    end = groups[-1].end if groups else HEADER_BYTES
    rest = content[end:] if kind is Kind.SNAPSHOT else content[end:].rstrip(b"\0")
    return Scan(header, groups, end, len(rest))


def scan_groups(
    content: bytes, name: str, *, salt: bytes, offset: int, sequence: int
) -> list[Group]:
    """Return the sound groups from ``offset`` on, the first of which has that ``sequence``.

    Raises:
        JournalDamagedError: a group is spoilt that was once synced.

    """
    groups: list[Group] = []
    view = memoryview(content)
    while (group := _group_at(content, salt, offset)) is not None:
        if group.sequence != sequence:
            raise _damaged(name, offset, f"group {group.sequence} lies where {sequence} belongs")
        if group.end > len(content) or zlib.crc32(view[group.begin : group.end]) != group.checksum:
            break
        groups.append(group)
        offset, sequence = group.end, sequence + 1
    if group is not None and content[group.end :].strip(b"\0"):
        raise _damaged(
            name, offset, f"group {sequence} cannot be read, yet the file goes on after it"
        )
    found = _next_group(content, salt, offset + 1)
    if found is not None:
        why = f"group {sequence} cannot be read, yet another follows at byte {found}"
        raise _damaged(name, offset, why)
    return groups


def _check_version(content: bytes, name: str) -> None:
    if len(content) < PREAMBLE_BYTES:
        return
    magic, version = VERSIONED.unpack_from(content)
    (checksum,) = CHECKSUM.unpack_from(content, VERSIONED.size)
    if magic != MAGIC or checksum != zlib.crc32(content[: VERSIONED.size]):
        return
    if version < FORMAT_VERSION:
        raise JournalDamagedError(
            f"{name} has journal format {version}, of a development version of fencelock, and this "
            f"release reads {FORMAT_VERSION}. Stop all nodes, move the data folder of every node "
            "aside, and start them all: a new cluster begins, without the locks of the old one"
        )
    if version > FORMAT_VERSION:
        raise JournalDamagedError(
            f"{name} has journal format {version}, and this release reads {FORMAT_VERSION}: "
            "start the node with the release that wrote it"
        )


def _group_at(content: bytes, salt: bytes, offset: int) -> Group | None:
    """Return the group whose sound prefix lies at ``offset``; its body is not yet read."""
    begin = offset + GROUP_BYTES
    if begin > len(content):
        return None
    found, lies_at, sequence, length, checksum = GROUP.unpack_from(content, offset)
    if found != salt or lies_at != offset:
        return None
    prefix_end = begin - CHECKSUM.size
    if content[prefix_end:begin] != CHECKSUM.pack(zlib.crc32(content[offset:prefix_end])):
        return None
    return Group(sequence, offset, begin, begin + length, checksum)


def _next_group(content: bytes, salt: bytes, offset: int) -> int | None:
    """Return the begin of the first group at or after ``offset``, whole or not.

    The damage may be in a length, so groups are found by their salt.
    """
    while (offset := content.find(salt, offset)) >= 0:
        if _group_at(content, salt, offset) is not None:
            return offset
        offset += 1
    return None


def _damaged(name: str, offset: int, why: str) -> JournalDamagedError:
    return JournalDamagedError(f"{name} is damaged at byte {offset}: {why}. {REJOIN}")
