"""A journal at every step of which the disk fails or the process is killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fencelock.cluster.node.storage.directory import JournalFailedError
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.storage.record import Entry

PATIENCE_S = 60
CHANGES = ("open", "pwrite", "ftruncate", "fsync", "fdatasync", "rename", "unlink")
"""Every call by which a journal changes the disk."""

SMALL = 700
"""Length of a segment here (bytes)."""


class Killed(BaseException):
    """The process is gone at this very step."""


class Fate:
    """Lets one call to the disk go wrong, and counts them all."""

    def __init__(self, error: BaseException, at: int, *, halves: bool = False) -> None:
        self.error = error
        self.at = at
        self.halves = halves
        self.calls: list[str] = []

    @contextmanager
    def strikes(self) -> Generator[None, None, None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CHANGES:
                patch.setattr(os, name, self._fated(name, getattr(os, name)))
            yield

    def _fated(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) - 1 != self.at:
                return real(*arguments, **named)
            if self.halves and name == "pwrite":
                descriptor, content, offset = arguments
                real(descriptor, content[: len(content) // 2], offset)
            raise self.error

        return call


class Diary:
    """Writes two streams; one begins anew every few steps. Remembers the confirmed records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.promised: dict[str, list[bytes]] = {}
        self.possible: dict[str, list[bytes]] = {}
        """The records if the last append, which was not confirmed, reached the disk."""

    def write(self, steps: int) -> None:
        with closing(Journal.open(self.folder, segment_bytes_max=SMALL)) as journal:
            for number in range(steps):
                self._step(journal, number)

    def _step(self, journal: Journal, number: int) -> None:
        entries = [Entry("steady", b"%d" % number)] if number % 3 == 0 else []
        entries += [Entry("fickle", None)] if number % 5 == 0 else []
        entries.append(Entry("fickle", b"%d " % number * 30))
        for stream, payload in entries:
            if payload is None:
                self.possible.pop(stream, None)
            elif isinstance(payload, bytes):
                self.possible[stream] = [*self.possible.get(stream, []), payload]
        try:
            journal.append(entries)
            journal.sync()
            self.promised = dict(self.possible)
            journal.trim()
        except JournalFailedError:
            check_refuses_everything(journal)
            raise

    def check(self) -> None:
        with closing(Journal.open(self.folder, segment_bytes_max=SMALL)) as journal:
            found = journal.take_records()
        assert found in (self.promised, self.possible)
        self.promised = self.possible = found


def check_refuses_everything(journal: Journal) -> None:
    before = {path: path.stat().st_size for path in journal.folder.iterdir()}
    fate = Fate(AssertionError(), at=-1)
    with fate.strikes():
        append = partial(journal.append, [Entry("r", b"z")])
        for refused in (append, journal.sync, journal.trim):
            with pytest.raises(JournalFailedError, match="and takes nothing more: start the node"):
                refused()
    assert fate.calls == []
    assert {path: path.stat().st_size for path in journal.folder.iterdir()} == before


def calls_of_a_diary(folder: Path) -> list[str]:
    fate = Fate(AssertionError(), at=-1)
    with fate.strikes():
        Diary(folder).write(STEPS)
    return fate.calls


STEPS = 24
"""Enough for some segments and two snapshots."""


def test_a_diary_does_everything_that_a_journal_does(tmp_path: Path) -> None:
    calls = calls_of_a_diary(tmp_path)
    assert calls.count("rename") >= 2
    assert set(calls) == set(CHANGES)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_after_any_call_that_the_disk_refuses_nothing_more_is_done_and_nothing_promised_is_lost(
    tmp_path: Path, code: int
) -> None:
    for at, name in enumerate(calls_of_a_diary(tmp_path / "all")):
        diary = Diary(tmp_path / f"{at}")
        fate = Fate(OSError(code, os.strerror(code)), at, halves=True)
        with fate.strikes(), pytest.raises(JournalFailedError, match=os.strerror(code)):
            diary.write(STEPS)
        assert fate.calls[at + 1 :] == [], f"something was done after {name}, call {at}"
        diary.check()
        diary.write(STEPS)
        diary.check()


@pytest.mark.parametrize("halves", [False, True])
def test_a_process_killed_before_any_step_loses_nothing_promised(
    tmp_path: Path, halves: bool
) -> None:
    for at in range(len(calls_of_a_diary(tmp_path / "all"))):
        diary = Diary(tmp_path / f"{at}")
        with Fate(Killed(), at, halves=halves).strikes(), suppress(Killed):
            diary.write(STEPS)
        diary.check()


def test_a_process_killed_at_any_step_of_a_start_may_start_again(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    with suppress(Killed), Fate(Killed(), 80, halves=True).strikes():
        diary.write(STEPS)
    for at in range(20):
        last = sorted(tmp_path.glob("*.journal"))[-1]
        with last.open("ab") as file:
            file.write(b"half a group")
        (tmp_path / "00000009.partial").write_bytes(b"half a snapshot")
        with suppress(Killed), Fate(Killed(), at, halves=True).strikes():
            Journal.open(tmp_path).close()
        diary.check()


def python(program: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-c", textwrap.dedent(program), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_process_had_synced_is_all_there(tmp_path: Path) -> None:
    """A counter that is written whole every 7 steps, and the additions since."""
    counting = """
        import sys, pathlib
        from fencelock.cluster.node.storage.journal import Journal
        from fencelock.cluster.node.storage.record import Entry
        journal = Journal.open(pathlib.Path(sys.argv[1]), segment_bytes_max=2000)
        records = journal.take_records().get("count", [b"0"])
        number = int(records[-1])
        while True:
            number += 1
            anew = [Entry("count", None)] if number % 7 == 0 else []
            journal.append([*anew, Entry("count", b"%d" % number), Entry("once", None)] +
                [Entry("once", b"x" * 50)] * 3)
            journal.sync()
            print(number)
            journal.trim()
    """
    promised = 0
    for _ in range(8):
        with python(counting, tmp_path) as process:
            assert process.stdout is not None
            for _ in range(60):
                promised = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                if line.endswith("\n"):
                    promised = int(line)
            process.wait(PATIENCE_S)
        with closing(Journal.open(tmp_path)) as journal:
            found = journal.take_records()
        last = int(found["count"][-1])
        assert last >= promised
        assert found["count"] == [b"%d" % number for number in range(last - last % 7, last + 1)]
        assert found["once"] == [b"x" * 50] * 3
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6_000
    assert promised >= 8 * 60


def test_a_full_disk_ends_the_journal_and_nothing_is_half_read_later(tmp_path: Path) -> None:
    filling = """
        import pathlib, resource, signal, sys
        from fencelock.cluster.node.storage.directory import JournalFailedError
        from fencelock.cluster.node.storage.journal import Journal
        from fencelock.cluster.node.storage.record import Entry
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_007, 10_007))
        journal = Journal.open(pathlib.Path(sys.argv[1]))
        synced = 0
        try:
            while True:
                journal.append([Entry("role", b"x" * 300), Entry("role", b"y" * 300)])
                journal.sync()
                synced += 2
        except JournalFailedError as error:
            print(synced, error)
        for refused in (lambda: journal.append([Entry("role", b"z")]), journal.sync, journal.trim):
            try:
                refused()
            except JournalFailedError as error:
                print(error)
        journal.close()
    """
    with python(filling, tmp_path) as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
    first, *refusals = out.splitlines()
    synced = int(first.split()[0])
    assert "could not be written: File too large" in first
    assert len(refusals) == 3
    assert all("failed before (File too large) and takes nothing more" in line for line in refusals)
    with closing(Journal.open(tmp_path)) as journal:
        assert journal.take_records() == {"role": [b"x" * 300, b"y" * 300] * (synced // 2)}
        assert journal.torn_bytes > 0
        journal.append([Entry("role", b"z")])
        journal.sync()
