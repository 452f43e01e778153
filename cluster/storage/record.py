"""How records lie in a journal file, and what of a file can be trusted after a crash. Pure.

A file is a header and then records, one after the other, all integers little-endian::

    header   8 bytes "holdfast", u32 format version, u32 CRC-32 of the 12 bytes before
    record   u32 length of the payload, u32 CRC-32 of length and payload, payload

A crash may cut or spoil what was written last, which nobody was told of yet: such a tail
is dropped. Anything spoilt before that was once synced and spoken of, and a node that
forgot it could break its word, so the file is refused. The two are told apart by what
comes after the first bad byte: a further record that can be read means damage.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.cluster.storage.error import JournalDamagedError

FORMAT_VERSION = 1
"""Raised with any change of the layout; a file of another version is refused."""

RECORD_BYTES_MAX = 1 << 20
"""A record is one message, and no message is larger than a frame (bytes, 1 MiB)."""

MAGIC = b"holdfast"
_VERSIONED = struct.Struct("<8sI")
_CHECKSUM = struct.Struct("<I")
_PREFIX = struct.Struct("<II")

HEADER_BYTES = _VERSIONED.size + _CHECKSUM.size
PREFIX_BYTES = _PREFIX.size

REJOIN = (
    "The node must not start from it: it could break promises it has forgotten. "
    "Move the folder aside and start the node as a new one, with an empty folder"
)
"""What an operator does with a damaged journal."""


class Scan(NamedTuple):
    """What of a file can be trusted."""

    records: list[bytes]
    """The payloads, oldest first."""
    end: int
    """Where the last good record ends (bytes from the start of the file)."""
    torn: int
    """How many bytes after that are the unfinished end of a write, to be cut."""


def header() -> bytes:
    """Return the first bytes of a journal file."""
    versioned = _VERSIONED.pack(MAGIC, FORMAT_VERSION)
    return versioned + _CHECKSUM.pack(zlib.crc32(versioned))


def encode_records(payloads: Sequence[bytes]) -> bytes:
    """Return ``payloads`` as they lie in a file, one after the other.

    Args:
        payloads: 1 byte to `RECORD_BYTES_MAX` each.

    Raises:
        ValueError: a payload is empty or too long.

    """
    parts: list[bytes] = []
    for payload in payloads:
        if not 1 <= len(payload) <= RECORD_BYTES_MAX:
            raise ValueError(f"a record has 1 to {RECORD_BYTES_MAX} bytes, not {len(payload)}")
        length = _CHECKSUM.pack(len(payload))
        checksum = zlib.crc32(payload, zlib.crc32(length))
        parts += (_PREFIX.pack(len(payload), checksum), payload)
    return b"".join(parts)


def scan(content: bytes, name: str) -> Scan:
    """Read a journal file, and find where what can be trusted ends.

    Args:
        content: the whole file.
        name: what to call the file in errors.

    Raises:
        JournalDamagedError: the header is not ours, or a record is spoilt although
            records after it are whole; the text names file, offset and what to do.

    """
    if len(content) < HEADER_BYTES and header().startswith(content):
        return Scan([], 0, len(content))  # A crash while the file was made: nothing was in it.
    _check_header(content, name)
    view = memoryview(content)
    records: list[bytes] = []
    offset = HEADER_BYTES
    while (length := _length_of_record(view, offset)) is not None:
        begin = offset + PREFIX_BYTES
        records.append(content[begin : begin + length])
        offset = begin + length
    found = _next_record(view, offset + 1)
    if found is not None:
        raise JournalDamagedError(
            f"{name} is damaged at byte {offset}: record {len(records) + 1} cannot be read, "
            f"yet a whole record follows at byte {found}, so this is no unfinished write. {REJOIN}"
        )
    return Scan(records, offset, len(content) - offset)


def _check_header(content: bytes, name: str) -> None:
    if content[:HEADER_BYTES] == header():
        return
    if len(content) >= HEADER_BYTES:
        magic, version = _VERSIONED.unpack_from(content)
        (checksum,) = _CHECKSUM.unpack_from(content, _VERSIONED.size)
        if magic == MAGIC and checksum == zlib.crc32(content[: _VERSIONED.size]):
            raise JournalDamagedError(
                f"{name} has journal format {version}, and this release reads {FORMAT_VERSION}: "
                "start the node with the release that wrote it"
            )
    raise JournalDamagedError(
        f"{name} is damaged at byte 0: it does not begin as a journal does. {REJOIN}"
    )


def _length_of_record(view: memoryview, offset: int) -> int | None:
    """Return how long the payload of the record at ``offset`` is, None if no sound one is there."""
    if len(view) - offset < PREFIX_BYTES:
        return None
    length, checksum = _PREFIX.unpack_from(view, offset)
    begin = offset + PREFIX_BYTES
    if not 1 <= length <= min(RECORD_BYTES_MAX, len(view) - begin):
        return None
    actual = zlib.crc32(view[begin : begin + length], zlib.crc32(view[offset : offset + 4]))
    return length if actual == checksum else None


def _next_record(view: memoryview, offset: int) -> int | None:
    """Return where the first sound record at or after ``offset`` begins.

    The damage may be in a length, so every byte is tried; that a place that is no
    record passes for one has a chance of one in four billion, and errs to the safe side.
    """
    for start in range(offset, len(view) - PREFIX_BYTES):
        if _length_of_record(view, start) is not None:
            return start
    return None
