from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fencelock.cluster.node.storage.directory import (
    LOCK_NAME,
    FolderBusyError,
    JournalDamagedError,
    JournalFailedError,
)
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.storage.record import GROUP_BYTES, HEADER_BYTES, Entry
from fencelock.cluster.node.storage.segment import segment_path

PATIENCE_S = 60


def entries(*payloads: bytes) -> list[Entry]:
    return [Entry("role", payload) for payload in payloads]


def keep(folder: Path, *payloads: bytes) -> Path:
    with closing(Journal.open(folder)) as journal:
        journal.append(entries(*payloads))
        journal.sync()
        return journal.path


def kept(folder: Path) -> list[bytes]:
    with closing(Journal.open(folder)) as journal:
        return journal.take_records().get("role", [])


def python(program: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-c", textwrap.dedent(program), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def descriptors() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("descriptors")
def test_what_was_appended_is_there_when_the_journal_is_opened_again(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet" / "there"
    keep(folder, b"a", b"b")
    keep(folder, b"c")
    assert kept(folder) == [b"a", b"b", b"c"]


def test_a_new_journal_is_empty_and_nothing_was_cut(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        assert (journal.take_records(), journal.torn_bytes) == ({}, 0)
        journal.append([])
        journal.sync()
    assert kept(tmp_path) == []


def test_each_role_gets_its_own_records_once(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        journal.append([Entry("a", b"1"), Entry("b", b"2"), Entry("a", b"3")])
        journal.sync()
    with closing(Journal.open(tmp_path)) as journal:
        assert journal.take_records() == {"a": [b"1", b"3"], "b": [b"2"]}
        assert journal.take_records() == {}


def test_a_role_that_forgets_keeps_what_it_says_after_and_others_keep_theirs(
    tmp_path: Path,
) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        journal.append([Entry("a", b"1"), Entry("b", b"2")])
        journal.sync()
        journal.append([Entry("a", b"3"), Entry("a", None), Entry("a", b"4"), Entry("b", b"5")])
        journal.sync()
        journal.append([Entry("a", b"6"), Entry("c", b"7"), Entry("c", None)])
        journal.sync()
    with closing(Journal.open(tmp_path)) as journal:
        assert journal.take_records() == {"a": [b"4", b"6"], "b": [b"2", b"5"]}


def test_any_cut_and_any_flipped_byte_of_the_last_group_is_cut_and_the_journal_goes_on(
    tmp_path: Path,
) -> None:
    path = keep(tmp_path, b"a", b"b")
    before = path.stat().st_size
    with closing(Journal.open(tmp_path)) as journal:  # Makes the records that it found durable.
        assert path.stat().st_size == before + GROUP_BYTES
        journal.append([*entries(b"the last"), Entry("role", None), *entries(b"records")])
        journal.sync()
    whole = path.read_bytes()
    last = before + GROUP_BYTES
    cuts = [whole[:size] for size in range(last + 1, len(whole))]
    flips = [
        whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in range(last, len(whole))
    ]
    for content in cuts + flips:
        path.write_bytes(content)
        with closing(Journal.open(tmp_path)) as journal:
            assert journal.take_records() == {"role": [b"a", b"b"]}
            assert journal.torn_bytes == len(content[last:].rstrip(b"\0"))
            journal.append(entries(b"c"))
            journal.sync()
        assert kept(tmp_path) == [b"a", b"b", b"c"]


def test_any_flipped_byte_of_what_a_start_relied_on_refuses(tmp_path: Path) -> None:
    path = keep(tmp_path, b"a", b"b")
    end = path.stat().st_size
    assert kept(tmp_path) == [b"a", b"b"]
    whole = path.read_bytes()
    for at in range(end):
        content = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        path.write_bytes(content)
        with pytest.raises(JournalDamagedError, match="is damaged at byte"):
            Journal.open(tmp_path)
        assert path.read_bytes() == content


def test_starting_again_and_again_writes_nothing_more(tmp_path: Path) -> None:
    path = keep(tmp_path, b"a")
    sizes: set[int] = set()
    for _ in range(3):
        assert kept(tmp_path) == [b"a"]
        sizes.add(path.stat().st_size)
    assert len(sizes) == 1


def test_a_journal_whose_making_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    header = keep(tmp_path, b"a").read_bytes()[:HEADER_BYTES]
    for content in (*(header[:size] for size in range(HEADER_BYTES)), bytes(HEADER_BYTES)):
        segment_path(tmp_path, 1).write_bytes(content)
        keep(tmp_path, b"a")
        assert kept(tmp_path) == [b"a"]


@pytest.mark.usefixtures("descriptors")
def test_damage_before_the_tail_refuses_and_changes_nothing(tmp_path: Path) -> None:
    path = keep(tmp_path, b"first")
    keep(tmp_path, b"second")
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES + 10] ^= 1
    path.write_bytes(content)
    for _ in range(2):  # The second time shows that the folder was also released.
        with pytest.raises(JournalDamagedError, match=r"1\.journal is damaged at byte 56"):
            Journal.open(tmp_path)
    assert path.read_bytes() == content


def test_a_journal_of_the_first_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    first = bytes.fromhex("66656e63656c6f6701000000a645e889020000003a5a50236162")
    segment_path(tmp_path, 1).write_bytes(first)
    with pytest.raises(JournalDamagedError, match="has journal format 1, of a development version"):
        Journal.open(tmp_path)
    assert segment_path(tmp_path, 1).read_bytes() == first


def test_a_second_append_before_the_sync_is_a_bug_of_ours(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        journal.append(entries(b"a"))
        with pytest.raises(AssertionError, match="one-append-one-sync"):
            journal.append(entries(b"b"))
        with pytest.raises(AssertionError, match="not durable"):
            journal.trim()


def test_a_second_journal_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        with pytest.raises(FolderBusyError) as caught:
            Journal.open(tmp_path)
        assert f"{tmp_path} is in use by process {os.getpid()}" in str(caught.value)
        journal.append(entries(b"a"))  # The refusal did no harm to the first one.
        journal.sync()
    assert kept(tmp_path) == [b"a"]


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    holding = """
        import sys, pathlib
        from fencelock.cluster.node.storage.journal import Journal
        journal = Journal.open(pathlib.Path(sys.argv[1]))
        print("open")
        sys.stdin.read()
    """
    with python(holding, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(FolderBusyError, match=f"in use by process {process.pid}:"):
            Journal.open(tmp_path)
        process.kill()
        process.wait(PATIENCE_S)
    assert kept(tmp_path) == []


def test_a_holder_that_cannot_be_named_is_unknown(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)):
        (tmp_path / LOCK_NAME).write_bytes(b"\xff\xfe")
        with pytest.raises(FolderBusyError, match="in use by process unknown"):
            Journal.open(tmp_path)


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite

    def write_three(descriptor: int, content: memoryview, offset: int) -> int:
        return write(descriptor, content[:3], offset)

    with closing(Journal.open(tmp_path)) as journal:
        monkeypatch.setattr(os, "pwrite", write_three)
        journal.append(entries(b"a long record", b"and another"))
        journal.sync()
    monkeypatch.undo()
    assert kept(tmp_path) == [b"a long record", b"and another"]


def test_a_record_out_of_its_limits_writes_nothing(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        with pytest.raises(ValueError, match="1 to 1048576 bytes, not 0"):
            journal.append(entries(b"fine", b""))
        journal.append(entries(b"after"))
        journal.sync()
    assert kept(tmp_path) == [b"after"]


def test_a_closed_journal_refuses_and_may_be_closed_again(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="is closed"):
        journal.append(entries(b"a"))


@pytest.mark.usefixtures("descriptors")
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(JournalFailedError, match=r"file/n1 cannot be opened"):
        Journal.open(tmp_path / "file" / "n1")
