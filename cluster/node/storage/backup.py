r"""The file of a backup: a description of its content, and the parts of a table.

A file is a line of text and then blocks::

    line     "fencelock backup 1\n"; the number is the version of the format
    block    u32 length (little-endian), 32 bytes BLAKE2b of the digest before and the content,
             content

The first block is the `BackupHeader` as JSON, so that ``head`` shows it. Each further block is one
part of the table. As each digest covers the previous one, blocks can neither be exchanged nor come
from another file. The header has the number of parts, so a file that was cut off is noticed.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, BinaryIO, Self

from msgspec import Meta, MsgspecError
from msgspec.json import decode

from fencelock.actors.api.name import INT_MAX
from fencelock.actors.paxos.wire import CHUNK_BYTES_MAX, CHUNKS_MAX
from fencelock.cluster.node.storage.directory import StorageError, sync_directory

BACKUP_NAME = b"fencelock backup "
VERSION = 1
START = BACKUP_NAME + b"%d\n" % VERSION
LENGTH = struct.Struct("<I")
DIGEST_BYTES = 32
HEADER_BYTES_MAX = 1 << 16
PARTIAL_SUFFIX = ".partial"


Count = Annotated[int, Meta(ge=0, le=INT_MAX)]


class BackupDamagedError(StorageError):
    """A file is not a whole backup; the text says where it differs. Nothing was changed."""


class BackupFailedError(StorageError):
    """The disk refuses to read or write a backup, or a restored folder; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupHeader:
    """Facts about a backup, for people and for ``restore``."""

    cluster: str
    protocol: str
    node: str
    """The node that sent it."""
    date: str
    """The date at which it was requested, by the clock of the client (ISO 8601, UTC)."""
    slot: Count
    """It has the state after all slots before this one."""
    time_ms: Count
    """The log time of that state."""
    fence: Count
    """The highest fence that was issued by then."""
    parts: Count
    release: str
    """The version of fencelock that wrote the file."""


class BackupWriter:
    """Writes a backup aside; `finish` makes it durable and gives it its name.

    A file that is not finished is removed at the end of the ``with`` block. Only the user who runs
    this can read it. A ``path`` that exists is refused.
    """

    def __init__(self, path: Path, header: BackupHeader) -> None:
        self.path = path
        self.bytes = len(START)
        self._partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
        if path.exists():
            raise FileExistsError(errno.EEXIST, "it exists already", str(path))
        self._left = header.parts
        self._digest = blake2b(START, digest_size=DIGEST_BYTES).digest()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._partial, flags, 0o600), "wb")
        self._file.write(START)
        self._write(json.dumps(asdict(header)).encode() + b"\n")

    def add(self, part: bytes) -> None:
        assert self._left > 0
        self._left -= 1
        self._write(part)

    def finish(self) -> None:
        """Make the file durable under its name."""
        assert self._left == 0
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.rename(self.path)
        sync_directory(self.path.parent)

    def _write(self, content: bytes) -> None:
        self._digest = _digest_of(self._digest, content)
        self._file.write(LENGTH.pack(len(content)) + self._digest + content)
        self.bytes += LENGTH.size + DIGEST_BYTES + len(content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._file.closed:
            self._file.close()
        self._partial.unlink(missing_ok=True)


def read_backup(path: Path) -> tuple[BackupHeader, tuple[bytes, ...]]:
    """Return the header and the parts of the backup at ``path``, all checked."""
    with path.open("rb") as file:
        start = file.read(len(START))
        if start != START:
            raise BackupDamagedError(f"{path} {_why_not(start)}")
        blocks = _blocks(path, file)
        header = _header(path, next(blocks, b""))
        parts = tuple(blocks)
    if len(parts) != header.parts:
        raise BackupDamagedError(
            f"{path} was cut off: it has {len(parts)} of {header.parts} parts. Nothing was restored"
        )
    return header, parts


def _blocks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield the contents of the blocks that follow, each checked."""
    digest = blake2b(START, digest_size=DIGEST_BYTES).digest()
    most = HEADER_BYTES_MAX
    for number in range(CHUNKS_MAX + 2):
        at = file.tell()
        head = file.read(LENGTH.size + DIGEST_BYTES)
        if not head:
            return
        length = LENGTH.unpack_from(head)[0] if len(head) == LENGTH.size + DIGEST_BYTES else 0
        content = file.read(min(length, most))
        digest = _digest_of(digest, content)
        if number > CHUNKS_MAX or len(content) != length or head[LENGTH.size :] != digest:
            what = "its header" if number == 0 else f"part {number}"
            raise BackupDamagedError(
                f"{path} is damaged or cut off in {what}, at byte {at}. Nothing was restored; "
                "use another copy of the file, or an older backup"
            )
        yield content
        most = CHUNK_BYTES_MAX


def _header(path: Path, content: bytes) -> BackupHeader:
    """Read the first block; its digest was right, so some release wrote it."""
    try:
        return decode(content, type=BackupHeader)
    except (MsgspecError, ValueError, RecursionError) as error:
        raise BackupDamagedError(f"{path} has no header of a backup: {error!r}") from error


def _why_not(start: bytes) -> str:
    if START.startswith(start):
        return "was cut off: it ends in its first line"
    if not start.startswith(BACKUP_NAME):
        return "is no backup of fencelock: it does not begin as one"
    return (
        f"has another format than this release, which reads version {VERSION}: use the release "
        "that wrote it"
    )


def _digest_of(before: bytes, content: bytes) -> bytes:
    return blake2b(before + content, digest_size=DIGEST_BYTES).digest()
