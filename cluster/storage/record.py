"""The file format of records. Pure.

A file is a header and then groups, one after the other, all integers little-endian::

    header   8 bytes "fencelog", u32 format version, u32 CRC-32 of the 12 bytes before,
             u32 kind, u64 number, u64 first, 8 bytes salt, 8 bytes previous,
             u32 CRC-32 of the 48 bytes before
    group    8 bytes salt, u64 offset, u64 sequence, u32 length of the body,
             u32 CRC-32 of the body, u32 CRC-32 of the 32 bytes before, body
    body     entries: u8 length of the stream's name, u32 length of the payload (0: forget what
             the stream held before), name, payload

A segment may end with zeros after its last group: room made before it is needed
(``segment.py``). They are not a group, since a group states its offset.

A group is what one append wrote, and the journal begins an append only when the one before
is synced. ``scan.py`` explains what that proves of a file after a crash.

The salt is drawn for each file and begins each of its groups. It makes a group easy to find
behind a damaged one, and nothing that a client had recorded can pass for a group.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

FORMAT_VERSION = 4
"""Raised with any change of the layout, or of the messages in the records. A file of another
version is refused."""

RECORD_BYTES_MAX = 1 << 20
"""Limit of a record (bytes, 1 MiB): it is one message, and none is larger than a frame."""

GROUP_BYTES_MAX = 1 << 30
"""Limit of the body of a group, which is read in one piece (bytes, 1 GiB)."""

STREAM_BYTES_MAX = 255
"""Limit of a stream's name, which is a role's name; its length is one byte."""

SALT_BYTES = 8
MAGIC = b"fencelog"
VERSIONED = struct.Struct("<8sI")
CHECKSUM = struct.Struct("<I")
FILED = struct.Struct("<IQQ8s8s")
GROUP = struct.Struct("<8sQQII")
ENTRY = struct.Struct("<BI")

PREAMBLE_BYTES = VERSIONED.size + CHECKSUM.size
HEADER_BYTES = PREAMBLE_BYTES + FILED.size + CHECKSUM.size
GROUP_BYTES = GROUP.size + CHECKSUM.size
ENTRY_BYTES = ENTRY.size

REJOIN = (
    "The node does not start from it, since it could break promises that it has forgotten. "
    "If a majority of the other members is running, nothing is lost: move the folder aside "
    "and start the node with an empty one. It will serve and learn, and not vote. If no "
    "majority is left without it, restore the folder from the disk it lay on: with an empty "
    "one on every node a new cluster begins, and all locks, sessions and fences are lost"
)
"""Advice to the operator of a damaged journal."""


class Kind(IntEnum):
    """The kinds of files."""

    SEGMENT = 1
    SNAPSHOT = 2


class Header(NamedTuple):
    """The header of a file."""

    kind: Kind
    number: int
    """A segment's own number; for a snapshot, that of the segment after it."""
    first: int
    """The sequence number of the first group of the segment of that number."""
    salt: bytes
    previous: bytes
    """The salt of the segment before that one, zeros for none; reveals a missing segment."""


class Entry(NamedTuple):
    """One record of one stream. A stream has the records of one role."""

    stream: str
    payload: bytes | None
    """The record; None forgets the stream's earlier ones."""


def encode_header(header: Header) -> bytes:
    """Return the first bytes of a file."""
    versioned = VERSIONED.pack(MAGIC, FORMAT_VERSION)
    filed = versioned + CHECKSUM.pack(zlib.crc32(versioned)) + FILED.pack(*header)
    return filed + CHECKSUM.pack(zlib.crc32(filed))


def encode_group(entries: Sequence[Entry], *, salt: bytes, offset: int, sequence: int) -> bytes:
    """Return ``entries`` as the group at ``offset`` of the file with that ``salt``.

    Args:
        entries: payloads of 1 byte to `RECORD_BYTES_MAX` each, or None; no more than
            `GROUP_BYTES_MAX` bytes in all.
        salt: the file's.
        offset: where the group will lie; everything before it is synced.
        sequence: the group's place among all groups of the journal.

    Raises:
        ValueError: a payload is empty or too long, a name is, or all together are.

    """
    parts: list[bytes] = []
    for stream, payload in entries:
        name = _name_of(stream)
        if payload is None:
            parts += (ENTRY.pack(len(name), 0), name)
            continue
        if not 1 <= len(payload) <= RECORD_BYTES_MAX:
            raise ValueError(f"a record has 1 to {RECORD_BYTES_MAX} bytes, not {len(payload)}")
        parts += (ENTRY.pack(len(name), len(payload)), name, payload)
    body = b"".join(parts)
    if len(body) > GROUP_BYTES_MAX:
        raise ValueError(f"one append has at most {GROUP_BYTES_MAX} bytes, not {len(body)}")
    prefix = GROUP.pack(salt, offset, sequence, len(body), zlib.crc32(body))
    return b"".join((prefix, CHECKSUM.pack(zlib.crc32(prefix)), body))


@lru_cache(maxsize=256)
def _name_of(stream: str) -> bytes:
    """Return the encoded name of a stream; a node has a handful of them."""
    name = stream.encode()
    if not 1 <= len(name) <= STREAM_BYTES_MAX:
        raise ValueError(f"a stream's name has 1 to {STREAM_BYTES_MAX} bytes, not {len(name)}")
    return name
