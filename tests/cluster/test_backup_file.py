"""The file of a backup: the files that a reader accepts, and its errors for damaged ones."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from support.samples import HEADER as EXAMPLE

from fencelock.cluster.node.storage.backup import (
    HEADER_BYTES_MAX,
    LENGTH,
    START,
    BackupDamagedError,
    BackupWriter,
    read_backup,
)

PARTS = (b"the first part", b"", b"the third part" * 3)
HEADER = replace(EXAMPLE, fence=51, parts=len(PARTS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "orders.backup"
    with BackupWriter(path, HEADER) as writer:
        for part in PARTS:
            writer.add(part)
        writer.finish()
    return path


def test_a_backup_is_read_as_it_was_written(path: Path) -> None:
    assert read_backup(path) == (HEADER, PARTS)


def test_a_backup_is_private_and_says_what_it_is(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    start, header = path.read_bytes().split(b"\n")[:2]
    assert start == b"fencelock backup 1"
    assert json.loads(header[header.index(b"{") :])["cluster"] == "orders"
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_backup_that_is_cut_off_anywhere_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(BackupDamagedError, match=r"cut off|no backup|no header"):
            read_backup(path)


def test_a_backup_with_a_changed_byte_anywhere_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(BackupDamagedError, match=r"damaged|no backup|another format"):
            read_backup(path)


def test_the_damaged_part_is_named(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"the first part", b"the fIrst part"))
    with pytest.raises(BackupDamagedError, match=r"damaged or cut off in part 1, at byte \d+"):
        read_backup(path)


def test_parts_cannot_change_places(path: Path) -> None:
    content = path.read_bytes()
    at = content.index(PARTS[0]) - LENGTH.size - 32
    first = content[at : at + LENGTH.size + 32 + len(PARTS[0])]
    second = content[at + len(first) : at + len(first) + LENGTH.size + 32]
    path.write_bytes(content.replace(first + second, second + first))
    with pytest.raises(BackupDamagedError, match="in part 1"):
        read_backup(path)


def test_parts_after_the_last_one_are_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BackupDamagedError, match="in part 4"):
        read_backup(path)


def test_a_later_format_is_refused_with_what_to_do(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(START, b"fencelock backup 2\n"))
    with pytest.raises(BackupDamagedError, match="use the release that wrote it"):
        read_backup(path)


def test_an_absurd_length_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "absurd"
    path.write_bytes(START + LENGTH.pack(0xFFFFFFFF) + bytes(32) + bytes(HEADER_BYTES_MAX))
    with pytest.raises(BackupDamagedError, match="in its header"):
        read_backup(path)


def test_a_backup_replaces_no_file(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        BackupWriter(path, HEADER)
    assert path.read_bytes() == before


def test_a_backup_that_was_not_finished_leaves_no_file(tmp_path: Path) -> None:
    with BackupWriter(tmp_path / "a", HEADER) as writer:
        writer.add(PARTS[0])
    assert list(tmp_path.iterdir()) == []
