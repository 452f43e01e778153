"""The file format of records, the index of live ones, and the parts to trust after a crash. Pure.

A file is a header and then groups, one after the other, all integers little-endian::

    header   8 bytes "fencelog", u32 format version, u32 CRC-32 of the 12 bytes before,
             u32 kind, u64 number, u64 first, 8 bytes salt, 8 bytes previous,
             u32 CRC-32 of the 48 bytes before
    group    8 bytes salt, u64 offset, u64 sequence, u32 length of the body,
             u32 CRC-32 of the body, u32 CRC-32 of the 32 bytes before, body
    body     entries: u8 length of the stream's name, u32 length of the payload (0: forget what
             the stream held before; or the value of a `Mark`), name, payload

A segment may end with zeros after its last group: room made before it is needed (``segment.py``).
They are not a group, since a group states its offset. The header of `journal.py` argues what a
crash can leave behind the last group, which is cut off, and what is damage, which is refused.

The salt is drawn for each file and begins each of its groups. It makes a group easy to find
behind a damaged one, and nothing that a client had recorded can pass for a group.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from fencelock.cluster.node.storage.directory import JournalDamagedError

FORMAT_VERSION = 5
"""Raised with any change of the layout, or of the messages in the records. A file of another
version is refused."""

RECORD_BYTES_MAX = 1 << 20
"""Limit of a record (bytes, 1 MiB): it is one message, and none is larger than a frame."""

GROUP_BYTES_MAX = 1 << 30
"""Limit of the body of a group, which is read in one piece (bytes, 1 GiB)."""

STREAM_BYTES_MAX = 255
"""Limit of a stream's name, which is a role's name; its length is one byte."""

SALT_BYTES = 8
GROUP_OFFSET_BYTES = 8
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
    "and start the node with an empty one. It will serve and learn, and not vote until you run "
    '"fencelock replace" with its id. If no majority is left without it, restore the folder from '
    "the disk it lay on: nodes that all have empty folders grant nothing until an operator begins "
    "a new cluster, in which all locks, sessions and fences are lost"
)

NO_ENTRY = "the group there has the right checksum, but no entry that a journal writes"

BLOCK_BITS = 16
"""A search for a group looks at the offsets of one block at a time, which differ in these bits."""


class FileKind(IntEnum):
    """The kinds of files."""

    SEGMENT = 1
    SNAPSHOT = 2


class Header(NamedTuple):
    """The header of a file."""

    kind: FileKind
    number: int
    """A segment's own number; for a snapshot, the number of the segment after it."""
    first: int
    """The sequence number of the first group of the segment of that number."""
    salt: bytes
    previous: bytes
    """The salt of the segment before that one, zeros for none; reveals a missing segment."""


class Mark(IntEnum):
    """The begin or the end of a checkpoint that is written in parts.

    Each takes the place of a payload's length. When a checkpoint ends, its stream forgets the
    groups before the one in which the checkpoint began. Of several begins the last counts.
    """

    BEGIN = 0xFFFF_FFFE
    END = 0xFFFF_FFFF


class Entry(NamedTuple):
    """One record of one stream. A stream has the records of one role."""

    stream: str
    payload: bytes | Mark | None
    """The record; None forgets the stream's earlier ones."""


EntryItems = tuple[str, bytes | Mark | None]
"""An `Entry` as a plain tuple: the path of every record makes none of the class."""


class Place(NamedTuple):
    """The place of a group; places sort in the order of writing."""

    sequence: int
    number: int
    """The segment, 0 for the snapshot: its records are older than any segment's."""
    offset: int


@dataclass(slots=True)
class Extent:
    """The live records of one stream."""

    begins: Place
    """The first live group; records of the stream before it are forgotten."""
    live_bytes: Counter[int] = field(default_factory=Counter[int])
    """Approximate size of the live records in each segment, by its number (bytes)."""
    checkpoint: Place | None = None
    """The group in which a checkpoint began that has not ended."""


class Index:
    """The live records of every stream of a journal, updated group by group."""

    def __init__(self) -> None:
        self.extents: dict[str, Extent] = {}

    def note(self, sequence: int, number: int, offset: int, entries: Iterable[EntryItems]) -> None:
        """Add a group by its place (`Place`), which comes after all others."""
        extents = self.extents
        for stream, payload in entries:
            if payload is None:
                extents.pop(stream, None)
                continue
            extent = extents.get(stream)
            if extent is None:
                extent = extents[stream] = Extent(Place(sequence, number, offset))
            if isinstance(payload, Mark):
                _note_mark(extent, payload, Place(sequence, number, offset))
            else:
                extent.live_bytes[number] += ENTRY_BYTES + len(stream) + len(payload)

    def counts(self, stream: str, sequence: int) -> bool:
        """Return whether the records of ``stream`` in the group ``sequence`` are live."""
        extent = self.extents.get(stream)
        return extent is not None and extent.begins.sequence <= sequence

    def in_segments(self) -> Counter[int]:
        """Return the size of the live records in each segment, 0 for the snapshot (bytes)."""
        total: Counter[int] = Counter()
        for extent in self.extents.values():
            total.update(extent.live_bytes)
        return total

    def movable(self) -> int | None:
        """Return the first segment whose records must stay where they are, None if all may move.

        The place at which an unfinished checkpoint began would be lost in a snapshot.
        """
        places = (extent.checkpoint for extent in self.extents.values())
        return min((place.number for place in places if place is not None), default=None)

    def move(self, number: int, place: Place) -> None:
        """Record that the live records below segment ``number`` moved to the snapshot ``place``."""
        for extent in self.extents.values():
            if extent.begins.number < number:
                extent.begins = place
                moved = [each for each in extent.live_bytes if each < number]
                extent.live_bytes[place.number] = sum(map(extent.live_bytes.pop, moved))


def _note_mark(extent: Extent, mark: Mark, place: Place) -> None:
    """Note ``mark`` in the group at ``place``; the end of a checkpoint forgets what it replaces."""
    if mark is Mark.BEGIN:
        extent.checkpoint = place
    elif extent.checkpoint is not None:
        extent.begins, extent.checkpoint = extent.checkpoint, None
        for number in [one for one in extent.live_bytes if one < extent.begins.number]:
            del extent.live_bytes[number]


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
    do not count; a snapshot has none."""


def encode_header(header: Header) -> bytes:
    versioned = VERSIONED.pack(MAGIC, FORMAT_VERSION)
    filed = versioned + CHECKSUM.pack(zlib.crc32(versioned)) + FILED.pack(*header)
    return filed + CHECKSUM.pack(zlib.crc32(filed))


def encode_group(
    entries: Sequence[EntryItems], *, salt: bytes, offset: int, sequence: int
) -> bytes:
    """Return ``entries`` as the group at ``offset`` of the file with that ``salt``.

    ``sequence`` is the group's place among all groups of the journal. Everything before ``offset``
    must be synced.
    """
    parts: list[bytes] = []
    for stream, payload in entries:
        name = _name_of(stream)
        if payload is None or isinstance(payload, Mark):
            parts += (ENTRY.pack(len(name), payload or 0), name)
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


def header_of(content: bytes, name: str, kind: FileKind) -> Header | None:
    """Read the header of a file, None where it was never completely created."""
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


def entries_of(content: bytes, group: Group, name: str) -> Iterator[Entry]:
    """Yield the entries of a group of the file ``name``.

    Raises:
        JournalDamagedError: the body is no sequence of entries. Its checksum was right, so this is
            no damage by a disk: something other than a journal wrote it.

    """
    at = group.begin
    while at < group.end:
        begin = at
        try:
            name_bytes, payload_bytes = ENTRY.unpack_from(content, at)
            name_end = at + ENTRY_BYTES + name_bytes
            stream = content[at + ENTRY_BYTES : name_end].decode()
            mark = Mark(payload_bytes) if payload_bytes > RECORD_BYTES_MAX else None
        except (struct.error, ValueError) as error:
            raise _damaged(name, begin, f"{NO_ENTRY} ({error})") from error
        at = name_end if mark else name_end + payload_bytes
        if at > group.end:
            raise _damaged(name, begin, f"{NO_ENTRY} (it ends behind its group)")
        yield Entry(stream, mark or (content[name_end:at] if payload_bytes else None))


def scan(content: bytes, name: str, kind: FileKind) -> Scan:
    """Read a whole file, and find the end of the part that can be trusted.

    If this returns, what follows the sound groups is an unfinished write. If the prefix of a group
    cannot be read, its length is unknown, and bytes behind it may be its body: only a later group
    is a proof of damage.

    Raises:
        JournalDamagedError: the header is not ours, something was written after a group that cannot
            be read, or a group has another sequence than its place demands; the text calls the
            file ``name``.

    """
    header = header_of(content, name, kind)
    if header is None:
        return Scan(None, [], 0, len(content))
    groups: list[Group] = []
    offset, sequence = HEADER_BYTES, header.first if kind is FileKind.SEGMENT else 0
    view = memoryview(content)
    while (group := _group_at(content, header.salt, offset)) is not None:
        if group.sequence != sequence:
            raise _damaged(name, offset, f"group {group.sequence} lies where {sequence} belongs")
        if group.end > len(content) or zlib.crc32(view[group.begin : group.end]) != group.checksum:
            break
        groups.append(group)
        offset, sequence = group.end, sequence + 1
    if group is not None and content[group.end :].strip(b"\0"):
        raise _damaged(
            name, offset, f"group {sequence} cannot be read, yet the file continues after it"
        )
    found = _next_group(content, header.salt, offset + 1)
    if found is not None:
        why = f"group {sequence} cannot be read, yet another follows at byte {found}"
        raise _damaged(name, offset, why)
    rest = content[offset:] if kind is FileKind.SNAPSHOT else content[offset:].rstrip(b"\0")
    return Scan(header, groups, offset, len(rest))


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

    The damage may be in a length, so groups are found by their salt. What lies there is not always
    damage of a disk: a crafted file may repeat its salt everywhere. So the rest of the search also
    looks for the bytes of a group's offset that are the same in a block, and passes over the rest.
    """
    while (offset := content.find(salt, offset)) >= 0:
        block = offset >> BLOCK_BITS
        same = block.to_bytes(GROUP_OFFSET_BYTES - BLOCK_BITS // 8, "little")
        begins = re.compile(b"(?=%b..%b)" % (re.escape(salt), re.escape(same)), re.DOTALL)
        after = (block + 1) << BLOCK_BITS
        for found in begins.finditer(content, offset, after + SALT_BYTES + GROUP_OFFSET_BYTES - 1):
            if _group_at(content, salt, found.start()) is not None:
                return found.start()
        offset = after
    return None


def _damaged(name: str, offset: int, why: str) -> JournalDamagedError:
    return JournalDamagedError(f"{name} is damaged at byte {offset}: {why}. {REJOIN}")


def without_forgotten(entries: Sequence[EntryItems]) -> Sequence[EntryItems]:
    """Return ``entries`` without those that a later one forgets.

    So within a group nothing precedes the entry that forgets it, and a group is live or
    forgotten as a whole for each stream.
    """
    begun = {stream: number for number, (stream, payload) in enumerate(entries) if payload is None}
    return [entry for number, entry in enumerate(entries) if number >= begun.get(entry[0], 0)]
