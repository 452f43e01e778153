"""The room of a segment ahead of its groups, and its content after a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from random import Random

import pytest

from fencelock.cluster.node.storage.directory import JournalDamagedError, JournalFailedError
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.storage.record import Entry
from fencelock.cluster.node.storage.segment import ROOM_BYTES, ROOM_BYTES_MIN, segment_path

SECTOR = 512
"""Size of the blocks that a disk writes whole or not at all (bytes)."""

SMALL = 8_000
"""Length of a segment here (bytes)."""


def opened(folder: Path, size: int = SMALL) -> closing[Journal]:
    return closing(Journal.open(folder, segment_bytes_max=size))


def write(journal: Journal, *payloads: bytes) -> None:
    """Write a group as a node does, which makes room after it."""
    journal.append([Entry("role", payload) for payload in payloads])
    journal.sync()
    journal.trim()


def kept(folder: Path) -> list[bytes]:
    with opened(folder) as journal:
        return journal.take_records().get("role", [])


def last_of(folder: Path) -> Path:
    return max(folder.glob("*.journal"))


def noise(seed: int, size: int) -> bytes:
    return Random(seed).randbytes(size)


def crashes(before: bytes, after: bytes, picks: Iterator[tuple[bool, ...]]) -> Iterator[bytes]:
    """Yield the possible contents after a crash in a write: any of its sectors are written, no
    others."""
    changed = [
        at
        for at in range(0, len(after), SECTOR)
        if before[at : at + SECTOR] != after[at : at + SECTOR]
    ]
    for picked in picks:
        content = bytearray(before.ljust(len(after), b"\0"))
        for at, reached in zip(changed, picked, strict=False):
            if reached:
                content[at : at + SECTOR] = after[at : at + SECTOR]
        yield bytes(content)


def written_once_more(folder: Path, *payloads: bytes) -> tuple[bytes, bytes]:
    """Append one more group; return the segment before and after."""
    with opened(folder) as journal:
        before = journal.path.read_bytes()
        journal.append([Entry("role", payload) for payload in payloads])
        after = journal.path.read_bytes()
        assert (len(before), len(after)) == (SMALL, SMALL)
    return before, after


def test_room_is_made_after_the_first_group_and_again_when_little_is_left(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        assert journal.path.stat().st_size < 100
        sizes: list[int] = []
        for _ in range(30):
            write(journal, b"x" * 50_000)
            size = journal.path.stat().st_size
            if size not in sizes:
                assert size == journal.disk_bytes + ROOM_BYTES
                sizes.append(size)
            assert size - journal.disk_bytes >= ROOM_BYTES_MIN
        size = journal.disk_bytes
        assert size // ROOM_BYTES < len(sizes) <= 1 + size // ROOM_BYTES_MIN
        assert journal.path.read_bytes()[journal.disk_bytes :].strip(b"\0") == b""


def test_room_ends_where_the_segment_does_and_a_full_one_has_none(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        while journal.path == segment_path(tmp_path, 1):
            write(journal, b"x" * 300)
            assert journal.path.stat().st_size == SMALL or journal.disk_bytes > SMALL
        full = segment_path(tmp_path, 1)
        assert SMALL < full.stat().st_size < SMALL + 400
        assert full.read_bytes()[-300:] == b"x" * 300


def test_a_start_goes_on_in_the_room_that_is_there(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, b"a")
    for number in range(3):
        with opened(tmp_path) as journal:
            assert journal.torn_bytes == 0
            write(journal, b"%d" % number)
        assert last_of(tmp_path).stat().st_size == SMALL
    assert kept(tmp_path) == [b"a", b"0", b"1", b"2"]


def test_a_group_larger_than_the_room_makes_the_file_longer(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, b"a")
        write(journal, b"x" * 3 * SMALL)
        write(journal, b"b")
    assert kept(tmp_path) == [b"a", b"x" * 3 * SMALL, b"b"]


def test_of_a_write_into_the_room_any_sectors_may_have_reached_the_disk(tmp_path: Path) -> None:
    """Every choice of sectors: the rest of one write is never taken for a part of the next."""
    with opened(tmp_path) as journal:
        write(journal, b"a", b"b")
    with opened(tmp_path):
        pass  # Says that the above was durable.
    before, after = written_once_more(tmp_path, noise(1, 700), bytes(600), noise(2, 900))
    path = last_of(tmp_path)
    found: set[int] = set()
    for content in crashes(before, after, product([False, True], repeat=6)):
        path.write_bytes(content)
        with opened(tmp_path) as journal:
            records = journal.take_records()["role"]
            assert records == [b"a", b"b"] or content == after
            assert (journal.torn_bytes == 0) == (content in {before, after})
            found.add(len(records))
            write(journal, b"c")
        with opened(tmp_path) as journal:
            assert journal.take_records()["role"] == [*records, b"c"]
            assert journal.torn_bytes == 0
    assert found == {2, 5}


def test_of_a_write_into_the_room_any_bytes_from_its_begin_may_have_reached_the_disk(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as journal:
        write(journal, b"a", b"b")
        end = journal.disk_bytes
    before, after = written_once_more(tmp_path, b"the last", b"group")
    path = last_of(tmp_path)
    for at in range(end, len(after.rstrip(b"\0"))):
        path.write_bytes(after[:at] + before[at:])
        with opened(tmp_path) as journal:
            assert journal.take_records()["role"] == [b"a", b"b"]
            write(journal, b"c")
        assert kept(tmp_path) == [b"a", b"b", b"c"]


def test_crash_after_crash_leaves_what_was_promised_and_nothing_of_what_was_not(
    tmp_path: Path,
) -> None:
    """Each crash tears a write at the place where others were torn before it."""
    random = Random(7)
    promised: list[bytes] = []
    with opened(tmp_path) as journal:
        write(journal)
    torn = 0
    for number in range(120):
        with opened(tmp_path) as journal:
            found = journal.take_records().get("role", [])
            assert found[: len(promised)] == promised
            assert len(found) in {len(promised), len(promised) + 1}
            torn += journal.torn_bytes > 0
            promised = found
            if number % 3 == 0:
                write(journal, b"kept %d" % number)
                promised = [*promised, b"kept %d" % number]
            path, before = journal.path, journal.path.read_bytes()
            journal.append([Entry("role", noise(number, random.randrange(1, 2_000)))])
            if journal.path != path:
                path, before = journal.path, b""
            after = path.read_bytes()
        if before:
            picks = iter([tuple(random.random() < 0.6 for _ in range(6))])
            path.write_bytes(next(crashes(before, after, picks)))
    assert torn > 20
    assert int(last_of(tmp_path).stem) > 3


def test_a_crash_while_room_is_made_leaves_any_part_of_it(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, b"a")
        end = journal.disk_bytes
        whole = journal.path.read_bytes()
    for size in (end, end + 1, end + SECTOR, SMALL - 1):
        last_of(tmp_path).write_bytes(whole[:size])
        with opened(tmp_path) as journal:
            assert journal.take_records() == {"role": [b"a"]}
            assert journal.torn_bytes == 0
            write(journal, b"b")
        assert kept(tmp_path) == [b"a", b"b"]


def test_a_spoilt_group_with_anything_but_zeros_behind_it_was_synced(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, b"a")
        write(journal, noise(1, 300))
        end = journal.disk_bytes
    whole = last_of(tmp_path).read_bytes()
    for behind in (end, end + 1, end + SECTOR, SMALL - 1):
        content = bytearray(whole)
        content[end - 10] ^= 1
        content[behind] = 1
        last_of(tmp_path).write_bytes(content)
        with pytest.raises(JournalDamagedError, match="yet the file continues after it"):
            Journal.open(tmp_path)
        assert last_of(tmp_path).read_bytes() == content


def test_any_flipped_byte_of_what_was_synced_refuses_with_room_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, b"a", b"b")
        end = journal.disk_bytes
        write(journal, b"c")
    whole = last_of(tmp_path).read_bytes()
    for at in range(end):
        content = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        last_of(tmp_path).write_bytes(content)
        with pytest.raises(JournalDamagedError, match="is damaged at byte"):
            Journal.open(tmp_path)


def test_an_older_segment_that_lost_its_last_group_to_zeros_is_noticed(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        while journal.path == segment_path(tmp_path, 1):
            write(journal, b"x" * 300)
    full = segment_path(tmp_path, 1)
    whole = full.read_bytes()
    full.write_bytes(whole[:-350] + bytes(350))
    with pytest.raises(JournalDamagedError, match=r"damaged at byte|go on where the file before"):
        Journal.open(tmp_path)
    full.write_bytes(whole + bytes(1000))  # Room alone is nothing that anybody wrote.
    assert set(kept(tmp_path)) == {b"x" * 300}


def test_a_disk_without_room_ends_the_journal_and_what_was_promised_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def full(descriptor: int, content: bytes, offset: int) -> int:
        if any(content):
            return pwrite(descriptor, content, offset)
        if len(content) > SECTOR:
            return pwrite(descriptor, content[:SECTOR], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path) as journal:
        journal.append([Entry("role", b"a")])
        journal.sync()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(JournalFailedError, match="No space left on device"):
                journal.trim()
        with pytest.raises(JournalFailedError, match="takes nothing more"):
            journal.append([Entry("role", b"b")])
    assert kept(tmp_path) == [b"a"]
