from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.cluster.storage.directory import LOCK_NAME
from holdfast.cluster.storage.error import (
    FolderBusyError,
    JournalDamagedError,
    JournalFailedError,
)
from holdfast.cluster.storage.journal import SEGMENT_NAME, Journal
from holdfast.cluster.storage.record import encode_records, header

PATIENCE_S = 60


def keep(folder: Path, *payloads: bytes) -> Path:
    with closing(Journal.open(folder)) as journal:
        journal.append(payloads)
        journal.sync()
        return journal.path


def kept(folder: Path) -> list[bytes]:
    with closing(Journal.open(folder)) as journal:
        return journal.records


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
        assert (journal.records, journal.torn_bytes) == ([], 0)
        journal.append([])
        journal.sync()
    assert kept(tmp_path) == []


def test_a_tail_torn_at_any_byte_is_cut_and_the_journal_goes_on(tmp_path: Path) -> None:
    last = encode_records([b"the last record"])
    content = keep(tmp_path, b"a", b"b").read_bytes()
    for size in range(1, len(last)):
        (tmp_path / SEGMENT_NAME).write_bytes(content + last[:size])
        with closing(Journal.open(tmp_path)) as journal:
            assert (journal.records, journal.torn_bytes) == ([b"a", b"b"], size)
            journal.append([b"c"])
            journal.sync()
        assert kept(tmp_path) == [b"a", b"b", b"c"]


def test_a_journal_whose_making_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    for size in range(len(header())):
        (tmp_path / SEGMENT_NAME).write_bytes(header()[:size])
        keep(tmp_path, b"a")
        assert kept(tmp_path) == [b"a"]


@pytest.mark.usefixtures("descriptors")
def test_damage_before_the_tail_refuses_and_changes_nothing(tmp_path: Path) -> None:
    path = keep(tmp_path, b"first", b"second")
    content = bytearray(path.read_bytes())
    content[len(header()) + 10] ^= 1
    path.write_bytes(content)
    for _ in range(2):  # The second time shows that the folder was let go, too.
        with pytest.raises(JournalDamagedError, match=f"{SEGMENT_NAME} is damaged at byte 16"):
            Journal.open(tmp_path)
    assert path.read_bytes() == content


def test_a_second_journal_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        with pytest.raises(FolderBusyError) as caught:
            Journal.open(tmp_path)
        assert f"{tmp_path} is in use by process {os.getpid()}" in str(caught.value)
        journal.append([b"a"])  # The refusal did no harm to who was first.
        journal.sync()
    assert kept(tmp_path) == [b"a"]


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    holding = """
        import sys, pathlib
        from holdfast.cluster.storage.journal import Journal
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


def test_what_a_killed_process_had_synced_is_all_there(tmp_path: Path) -> None:
    appending = """
        import sys, pathlib
        from holdfast.cluster.storage.journal import Journal
        journal = Journal.open(pathlib.Path(sys.argv[1]))
        number = len(journal.records)
        while True:
            journal.append([b"%d" % n for n in range(number, number + 3)])
            journal.sync()
            number += 3
            print(number)
    """
    promised = 0
    for _ in range(3):
        with python(appending, tmp_path) as process:
            assert process.stdout is not None
            for _ in range(20):
                promised = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                if line.endswith("\n"):
                    promised = int(line)
            process.wait(PATIENCE_S)
        records = kept(tmp_path)
        assert len(records) >= promised
        assert records == [b"%d" % number for number in range(len(records))]
    assert promised >= 3 * 60


def test_a_full_disk_ends_the_journal_and_nothing_is_half_read_later(tmp_path: Path) -> None:
    filling = """
        import pathlib, resource, signal, sys
        from holdfast.cluster.storage.error import JournalFailedError
        from holdfast.cluster.storage.journal import Journal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_007, 10_007))
        journal = Journal.open(pathlib.Path(sys.argv[1]))
        synced = 0
        try:
            while True:
                journal.append([b"x" * 300, b"y" * 300])
                journal.sync()
                synced += 2
        except JournalFailedError as error:
            print(synced, error)
        for refused in (lambda: journal.append([b"z"]), journal.sync):
            try:
                refused()
            except JournalFailedError as error:
                print(error)
        journal.close()
    """
    with python(filling, tmp_path) as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
    first, second, third = out.splitlines()
    synced = int(first.split()[0])
    assert "could not be written: File too large" in first
    assert "failed before (File too large) and takes nothing more" in second
    assert second == third
    records = kept(tmp_path)
    assert synced <= len(records) < synced + 2
    assert records == ([b"x" * 300, b"y" * 300] * len(records))[: len(records)]
    keep(tmp_path, b"z")
    assert kept(tmp_path) == [*records, b"z"]


def test_a_failed_sync_is_never_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def fail(descriptor: int) -> None:
        tried.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with closing(Journal.open(tmp_path)) as journal:
        monkeypatch.setattr(os, "fdatasync", fail)
        journal.append([b"a"])
        with pytest.raises(JournalFailedError, match="could not be synced: Input/output error"):
            journal.sync()
        with pytest.raises(JournalFailedError, match="takes nothing more"):
            journal.sync()
        with pytest.raises(JournalFailedError, match="takes nothing more"):
            journal.append([b"b"])
    assert len(tried) == 1


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def write_three(descriptor: int, content: memoryview) -> int:
        return write(descriptor, content[:3])

    with closing(Journal.open(tmp_path)) as journal:
        monkeypatch.setattr(os, "write", write_three)
        journal.append([b"a long record", b"and another"])
        journal.sync()
    monkeypatch.undo()
    assert kept(tmp_path) == [b"a long record", b"and another"]


def test_a_record_out_of_its_limits_writes_nothing(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        with pytest.raises(ValueError, match="1 to 1048576 bytes, not 0"):
            journal.append([b"fine", b""])
        journal.append([b"after"])
        journal.sync()
    assert kept(tmp_path) == [b"after"]


def test_a_closed_journal_refuses_and_may_be_closed_again(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="is closed"):
        journal.append([b"a"])


@pytest.mark.usefixtures("descriptors")
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(JournalFailedError, match=r"file/n1/00000001\.journal cannot be opened"):
        Journal.open(tmp_path / "file" / "n1")
