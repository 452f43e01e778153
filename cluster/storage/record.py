"""How records lie in a file, and what of a file can be trusted after a crash. Pure.

A file is a header and then groups, one after the other, all integers little-endian::

    header   8 bytes "holdfast", u32 format version, u32 CRC-32 of the 12 bytes before,
             u32 kind, u64 number, u64 first, 8 bytes salt, 8 bytes previous,
             u32 CRC-32 of the 48 bytes before
    group    8 bytes salt, u64 offset, u64 sequence, u32 length of the body,
             u32 CRC-32 of the body, u32 CRC-32 of the 32 bytes before, body
    body     entries: u8 length of the stream's name, u32 length of the payload (0: forget what
             the stream held before), name, payload

A group is what one append wrote, and the journal begins an append only when the one before
is synced. So the bytes below a group's ``offset`` (which is where it lies) were on disk
before any of its own: whoever finds a group knows that all before it was once durable. A
crash can cut, spoil or punch holes into the last group only, of which nobody was told
yet, and in whatever order its pages reached the disk, what is spoilt has no other group
behind it. Such a tail is dropped. A spoilt group with another behind it was once synced
and spoken of; a node that forgot it could break its word, so the file is refused.

The salt is drawn for each file and begins each of its groups. It makes a group easy to find
behind a damaged one, and nothing that a client had recorded can pass for a group.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from holdfast.cluster.storage.error import JournalDamagedError

FORMAT_VERSION = 2
"""Raised with any change of the layout; a file of another version is refused."""

RECORD_BYTES_MAX = 1 << 20
"""A record is one message, and no message is larger than a frame (bytes, 1 MiB)."""

GROUP_BYTES_MAX = 1 << 30
"""The body of a group, which is read as one piece (bytes, 1 GiB)."""

STREAM_BYTES_MAX = 255
"""The name of a stream is that of a role, and its length is one byte."""

SALT_BYTES = 8
MAGIC = b"holdfast"
_VERSIONED = struct.Struct("<8sI")
_CHECKSUM = struct.Struct("<I")
_FILED = struct.Struct("<IQQ8s8s")
_GROUP = struct.Struct("<8sQQII")
_ENTRY = struct.Struct("<BI")

PREAMBLE_BYTES = _VERSIONED.size + _CHECKSUM.size
HEADER_BYTES = PREAMBLE_BYTES + _FILED.size + _CHECKSUM.size
GROUP_BYTES = _GROUP.size + _CHECKSUM.size
ENTRY_BYTES = _ENTRY.size

REJOIN = (
    "The node must not start from it: it could break promises it has forgotten. "
    "Move the folder aside and start the node as a new one, with an empty folder"
)
"""What an operator does with a damaged journal."""


class Kind(IntEnum):
    """What a file is."""

    SEGMENT = 1
    SNAPSHOT = 2


class Header(NamedTuple):
    """What the first bytes of a file say."""

    kind: Kind
    number: int
    """Of a segment: its own. Of a snapshot: that of the segment after it."""
    first: int
    """The sequence of the first group of the segment of that number."""
    salt: bytes
    previous: bytes
    """The salt of the segment before that one, zeros for none: a missing one is noticed."""


class Entry(NamedTuple):
    """One record of one stream. A stream is what one role wrote."""

    stream: str
    payload: bytes | None
    """None: the stream's earlier records are forgotten."""


class Group(NamedTuple):
    """A sound group of a file."""

    sequence: int
    offset: int
    begin: int
    """Where its body begins (bytes from the start of the file)."""
    end: int
    checksum: int
    """CRC-32 of the body."""


class Scan(NamedTuple):
    """What of a file can be trusted."""

    header: Header | None
    """None when the file was never finished being made: there was nothing in it."""
    groups: list[Group]
    end: int
    """Where the last good group ends (bytes from the start of the file)."""
    torn: int
    """How many bytes after that are the unfinished end of a write, to be cut."""


def encode_header(header: Header) -> bytes:
    """Return the first bytes of a file."""
    versioned = _VERSIONED.pack(MAGIC, FORMAT_VERSION)
    filed = versioned + _CHECKSUM.pack(zlib.crc32(versioned)) + _FILED.pack(*header)
    return filed + _CHECKSUM.pack(zlib.crc32(filed))


def header_of(content: bytes, name: str, kind: Kind) -> Header | None:
    """Read the header of a file, None where it was never finished being made.

    Raises:
        JournalDamagedError: it is not that of such a file, or of another version.

    """
    _check_version(content, name)
    filed = content[: HEADER_BYTES - _CHECKSUM.size]
    whole = content[:HEADER_BYTES] == filed + _CHECKSUM.pack(zlib.crc32(filed))
    if len(content) < HEADER_BYTES or not whole:
        if len(content) <= HEADER_BYTES:
            return None  # A crash while the file was made: nothing was in it.
        raise _damaged(name, 0, f"it does not begin as a {kind.name.lower()} does")
    found, *rest = _FILED.unpack_from(content, PREAMBLE_BYTES)
    if found != kind:
        raise _damaged(name, 0, f"it is no {kind.name.lower()}")
    return Header(kind, *rest)


def encode_group(entries: Sequence[Entry], *, salt: bytes, offset: int, sequence: int) -> bytes:
    """Return ``entries`` as they lie at ``offset`` of the file with that ``salt``.

    Args:
        entries: payloads of 1 byte to `RECORD_BYTES_MAX` each, or None; no more than
            `GROUP_BYTES_MAX` bytes in all.
        salt: the file's.
        offset: where the group will lie; everything before it is synced.
        sequence: the group's place among all groups of the journal.

    Raises:
        ValueError: a payload is empty or too long, a name is, or all together are.

    """
    body = b"".join(_encoded(entries))
    if len(body) > GROUP_BYTES_MAX:
        raise ValueError(f"one append has at most {GROUP_BYTES_MAX} bytes, not {len(body)}")
    prefix = _GROUP.pack(salt, offset, sequence, len(body), zlib.crc32(body))
    return b"".join((prefix, _CHECKSUM.pack(zlib.crc32(prefix)), body))


def entries_of(content: bytes, group: Group) -> Iterator[Entry]:
    """Read the entries of a sound group of ``content``."""
    at = group.begin
    while at < group.end:
        name_bytes, payload_bytes = _ENTRY.unpack_from(content, at)
        name_end = at + ENTRY_BYTES + name_bytes
        stream = content[at + ENTRY_BYTES : name_end].decode()
        at = name_end + payload_bytes
        yield Entry(stream, content[name_end:at] if payload_bytes else None)
    assert at == group.end, "the checksum was right, so the body is what was written"


def scan(content: bytes, name: str, kind: Kind) -> Scan:
    """Read a file, and find where what can be trusted ends.

    Args:
        content: the whole file.
        name: what to call the file in errors.
        kind: what it should be.

    Raises:
        JournalDamagedError: the header is not ours, or a group is spoilt although it was
            once synced; the text names file, offset and what to do.

    """
    header = header_of(content, name, kind)
    if header is None:
        return Scan(None, [], 0, len(content))
    first = header.first if kind is Kind.SEGMENT else 0
    groups = scan_groups(content, name, salt=header.salt, offset=HEADER_BYTES, sequence=first)
    end = groups[-1].end if groups else HEADER_BYTES
    return Scan(header, groups, end, len(content) - end)


def scan_groups(
    content: bytes, name: str, *, salt: bytes, offset: int, sequence: int
) -> list[Group]:
    """Return the sound groups from ``offset`` on, of which the first has that ``sequence``.

    Raises:
        JournalDamagedError: a group is spoilt although it was once synced.

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
    if group is not None and group.end < len(content):
        raise _damaged(
            name, offset, f"group {sequence} cannot be read, yet the file goes on after it"
        )
    found = _next_group(content, salt, offset + 1)
    if found is not None:
        why = f"group {sequence} cannot be read, yet another follows at byte {found}"
        raise _damaged(name, offset, why)
    return groups


def _encoded(entries: Sequence[Entry]) -> Iterator[bytes]:
    for stream, payload in entries:
        name = stream.encode()
        if not 1 <= len(name) <= STREAM_BYTES_MAX:
            raise ValueError(f"a stream's name has 1 to {STREAM_BYTES_MAX} bytes, not {len(name)}")
        if payload is not None and not 1 <= len(payload) <= RECORD_BYTES_MAX:
            raise ValueError(f"a record has 1 to {RECORD_BYTES_MAX} bytes, not {len(payload)}")
        yield _ENTRY.pack(len(name), len(payload or b""))
        yield name
        yield payload or b""


def _check_version(content: bytes, name: str) -> None:
    if len(content) < PREAMBLE_BYTES:
        return
    magic, version = _VERSIONED.unpack_from(content)
    (checksum,) = _CHECKSUM.unpack_from(content, _VERSIONED.size)
    if magic != MAGIC or checksum != zlib.crc32(content[: _VERSIONED.size]):
        return
    if version < FORMAT_VERSION:
        raise JournalDamagedError(
            f"{name} has journal format {version}, of a development version of holdfast, and this "
            f"release reads {FORMAT_VERSION}: move the folder aside and start the node as a new one"
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
    found, lies_at, sequence, length, checksum = _GROUP.unpack_from(content, offset)
    if found != salt or lies_at != offset:
        return None
    prefix_end = begin - _CHECKSUM.size
    if content[prefix_end:begin] != _CHECKSUM.pack(zlib.crc32(content[offset:prefix_end])):
        return None
    return Group(sequence, offset, begin, begin + length, checksum)


def _next_group(content: bytes, salt: bytes, offset: int) -> int | None:
    """Return where the first group at or after ``offset`` begins, whole or not.

    The damage may be in a length, so it is looked for by its salt.
    """
    while (offset := content.find(salt, offset)) >= 0:
        if _group_at(content, salt, offset) is not None:
            return offset
        offset += 1
    return None


def _damaged(name: str, offset: int, why: str) -> JournalDamagedError:
    return JournalDamagedError(f"{name} is damaged at byte {offset}: {why}. {REJOIN}")
