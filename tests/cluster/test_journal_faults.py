"""Journals of which a step fails, that belong to another node, or that grow."""

from __future__ import annotations

import errno
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.expect import PATIENCE_S, only, present
from support.programs import Child, run_to_end
from support.real_nodes import config_in, loopback_addresses
from support.role_harness import HOST, T0, hub_without_peers

from fencelock.actors.central.server import SERVER_RECORDS_MAX, LockServer
from fencelock.actors.central.wire import Freed, Held, Numbered, Probe, Release, Request
from fencelock.actors.effect import Checkpoint, Effects, Persist, Spawn
from fencelock.actors.message import Address, Message, address_of
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.config import load, starting_config
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.storage.directory import JournalFailedError, JournalForeignError
from fencelock.cluster.node.storage.journal import STREAM, Journal, claim
from fencelock.cluster.node.storage.record import Entry
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.transport.codec import decode

CHANGES = ("open", "pwrite", "ftruncate", "fsync", "fdatasync", "rename", "unlink")
"""Every call by which a journal changes the disk."""

SMALL = 700
"""Length of a segment here (bytes)."""


class Killed(BaseException):
    """The process dies at this very step."""


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
def test_nothing_more_is_done_and_nothing_promised_is_lost_after_any_call_that_the_disk_refuses(
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
def test_a_process_killed_before_a_step_loses_nothing_it_sent(tmp_path: Path, halves: bool) -> None:
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


def test_records_that_a_killed_process_had_synced_are_all_there(tmp_path: Path) -> None:
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
        with Child("-u", "-c", textwrap.dedent(counting), str(tmp_path)) as process:
            for _ in range(60):
                promised = int(process.line())
            process.send_signal(signal.SIGKILL)
            for line in process.lines:
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
    command = [sys.executable, "-c", textwrap.dedent(filling), str(tmp_path)]
    first, *refusals = run_to_end(command, timeout=PATIENCE_S).stdout.splitlines()
    synced = int(first.split()[0])
    assert "could not be written: File too large" in first
    assert len(refusals) == 3
    assert all("failed before (File too large) and takes nothing more" in line for line in refusals)
    with closing(Journal.open(tmp_path)) as journal:
        assert journal.take_records() == {"role": [b"x" * 300, b"y" * 300] * (synced // 2)}
        assert journal.torn_bytes > 0
        journal.append([Entry("role", b"z")])
        journal.sync()


def test_a_disk_without_room_for_later_records_is_named_as_such(tmp_path: Path) -> None:
    """Most often a disk becomes full so: the journal asks for room ahead of its records."""
    asking = """
        import pathlib, resource, signal, sys
        from fencelock.cluster.node.storage.directory import JournalFailedError
        from fencelock.cluster.node.storage.journal import Journal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_007, 10_007))
        try:
            Journal.open(pathlib.Path(sys.argv[1])).trim()
        except JournalFailedError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(asking), str(tmp_path)]
    line = run_to_end(command, timeout=PATIENCE_S).stdout
    assert "00000001.journal could not be given more room: File too large. What was not" in line


MINE = {"cluster": "shop", "node": "n1", "members": "n1, n2, n3"}


def start(folder: Path, identity: dict[str, str]) -> dict[str, list[bytes]]:
    """Open the journal as a node does, and return its records."""
    with closing(Journal.open(folder)) as journal:
        found = journal.take_records()
        claim(journal, found, identity)
    return found


def test_a_new_journal_belongs_to_the_node_that_opens_it_first(tmp_path: Path) -> None:
    assert start(tmp_path, MINE) == {}
    assert list(start(tmp_path, MINE)) == [STREAM]
    assert list(start(tmp_path, MINE)) == [STREAM]


def test_the_id_of_a_journal_is_one_that_messages_can_carry_and_never_zero(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        drawn = claim(journal, journal.take_records(), MINE)
    assert 1 <= drawn.id <= 1 << 62


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"node": "n2"}, "node 'n1' and not 'n2'"),
        ({"cluster": "test"}, "cluster 'shop' and not 'test'"),
        ({"members": "n1, n4, n5"}, "members 'n1, n2, n3' and not 'n1, n4, n5'"),
    ],
)
def test_anothers_journal_is_refused_by_name_and_left_as_it_was(
    tmp_path: Path, other: dict[str, str], words: str
) -> None:
    start(tmp_path, MINE)
    before = {path.name for path in tmp_path.iterdir()}

    with pytest.raises(JournalForeignError, match=words):
        start(tmp_path, MINE | other)

    assert {path.name for path in tmp_path.iterdir()} == before
    assert list(start(tmp_path, MINE)) == [STREAM]


def test_a_journal_without_an_owner_is_nobodys(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        journal.append([Entry("acceptor", b"x")])
        journal.sync()
    with pytest.raises(JournalForeignError, match="'unknown'"):
        start(tmp_path, MINE)


def test_a_node_that_is_given_anothers_folder_reports_it_and_exits(tmp_path: Path) -> None:
    addresses = loopback_addresses(2)
    file = tmp_path / "cluster.toml"
    file.write_text(starting_config({"n1": addresses["n1"]}))
    Node.start(load(file), "n1", found=True).stop()
    file.write_text(starting_config(addresses))
    (tmp_path / "data" / "n1").rename(tmp_path / "data" / "n2")

    serve = [sys.executable, "-m", "fencelock", "serve", "--found", "--config", str(file)]
    ended = run_to_end([*serve, "--id", "n2"])

    assert ended.returncode != 0
    assert "node 'n1' and not 'n2'" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


SERVER = address_of("n1", "server")
CLIENT = Address("n1/clients-1-1")
GRANTS = 60_000
FOLDER_BYTES_MAX = 300 << 10
"""Far less than what is written for all grants."""


def request(lock: str) -> Request:
    return Request(lock=lock, client=CLIENT, session="s", owner="o")


def replayed(records: Sequence[Message]) -> LockServer:
    return LockServer(SERVER, HOST, journal=True, records=tuple(records))


def test_a_server_begins_its_journal_anew_with_its_count_and_its_table() -> None:
    server = replayed(())
    records: list[Message] = []
    longest = 0

    def keep(effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Checkpoint):
                records[:] = effect.records
            elif isinstance(effect, Persist):
                records.append(effect.record)

    for number in range(1, 2 * SERVER_RECORDS_MAX):
        keep(server.handle(CLIENT, request(f"{number % 7}"), T0))
        if number % 7:
            last = server.held[f"{number % 7}"].number
            release = Release(lock=f"{number % 7}", client=CLIENT, sequence=last)
            keep(server.handle(CLIENT, release, T0))
        longest = max(longest, len(records))
        again = replayed(records)
        if number % 100 == 0:
            assert (again.granted, again.held) == (server.granted, server.held)
    assert SERVER_RECORDS_MAX <= longest <= SERVER_RECORDS_MAX + 2


def test_a_large_table_is_not_written_at_every_step() -> None:
    server = replayed(())
    written = anew = 0
    for number in range(20_000):
        for effect in server.handle(CLIENT, request(f"{number}"), T0):
            if isinstance(effect, Checkpoint):
                anew += 1
                written += len(effect.records)
    assert anew < 20
    assert written < 20_000


def test_the_first_record_of_a_journal_begun_anew_is_the_count_even_of_an_empty_table() -> None:
    server = replayed(())
    server.recorded = SERVER_RECORDS_MAX - 1
    held, freed = (
        server.handle(CLIENT, request("l"), T0),
        server.handle(CLIENT, Release(lock="l", client=CLIENT, sequence=1), T0),
    )
    assert isinstance(held[0], Persist)
    assert Checkpoint((Numbered(number=1),)) in freed
    assert not any(isinstance(effect, Persist) for effect in freed)
    assert replayed([Numbered(number=1)]).granted == 1


def opened(folder: Path) -> Journal:
    # What is written, and room ahead for up to one segment more, stay below the bound.
    return Journal.open(folder, segment_bytes_max=FOLDER_BYTES_MAX // 3)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_many_grants_leave_a_folder_below_a_bound_and_a_restart_goes_on(tmp_path: Path) -> None:
    dispatcher = Dispatcher("n1", hub_without_peers(), journal=opened(tmp_path))
    dispatcher.start(RoleSet((Spawn(SERVER, LockServer, {"journal": True}),)))
    server = dispatcher.ref(SERVER)
    most = 0
    for number in range(1, GRANTS + 1):
        lock = f"orders/{number % 1_000}" if number % 1_000 else f"kept/{number}"
        server.tell(request(lock))
        if number % 1_000:
            server.tell(Release(lock=lock, client=CLIENT, sequence=number))
        else:
            server.ask(Probe(), timeout=PATIENCE_S)  # Not more at once than a node lets in.
            # On the thread that renames files: elsewhere, one could be gone before it is measured.
            most = max(most, dispatcher.read(lambda _: size(tmp_path), PATIENCE_S))
    assert dispatcher.stop(PATIENCE_S)
    assert dispatcher.failure is None
    assert FOLDER_BYTES_MAX // 4 < most < FOLDER_BYTES_MAX
    began = time.monotonic()
    with closing(opened(tmp_path)) as journal:
        (records,) = journal.take_records().values()
    again = replayed([decode(record) for record in records])
    assert time.monotonic() - began < PATIENCE_S
    assert again.granted == GRANTS
    assert list(again.held) == [f"kept/{number}" for number in range(1_000, GRANTS + 1, 1_000)]
    assert len(records) < 2 * SERVER_RECORDS_MAX


def test_a_node_hands_its_server_its_journal(tmp_path: Path) -> None:
    settings = ProtocolSettings(central_journal=True)
    config = replace(config_in(tmp_path, "central", nodes=1), settings=settings)
    folder = present(config.folder_of("n1"))
    with closing(Journal.open(folder)):
        pass
    with Node.start(config, "n1", found=True) as node:
        node.ref("server").tell(request("l"))
        node.ref("server").ask(Probe(), timeout=PATIENCE_S)
    with closing(Journal.open(folder)) as journal:
        found = journal.take_records()
    assert list(found) == ["identity", "server"]
    records = found["server"]
    held = only(Held, [decode(record) for record in records])
    with Node.start(config, "n1", found=True) as node:
        node.ref("server").tell(Release(lock="l", client=held.client, sequence=held.number))
        node.ref("server").ask(Probe(), timeout=PATIENCE_S)
    with closing(Journal.open(folder)) as journal:
        records = journal.take_records()["server"]
    assert [decode(record) for record in records] == [held, Freed(lock="l", number=held.number)]
