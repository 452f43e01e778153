"""The file of a backup; restoring: its refusals, and the folders that it makes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only, present
from support.samples import HEADER, flipped

from fencelock.actors.api.changes import ReadChanges
from fencelock.actors.api.lock_message import Acquire, Granted
from fencelock.actors.api.map import EntryChanged, PutEntry
from fencelock.actors.api.name import INT_MAX
from fencelock.actors.api.session_message import Open, Opened
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.error import ConfigError
from fencelock.actors.membership import Member, Membership
from fencelock.actors.paxos.config import Term, log_part
from fencelock.actors.paxos.journal import recover
from fencelock.actors.paxos.wire import NO_BALLOT
from fencelock.actors.table.report import read_changes
from fencelock.actors.table.session import DEPARTED
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import FENCE_FLOOR_MAX
from fencelock.cluster.node import restore as restoring
from fencelock.cluster.node.config import Config, parse, starting_config
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.cluster.node.node import Node, identity_of
from fencelock.cluster.node.restore import (
    FENCE_MARGIN,
    check_parts,
    check_target,
    occupied,
    restore,
)
from fencelock.cluster.node.storage.backup import (
    DIGEST_BYTES,
    HEADER_BYTES_MAX,
    LENGTH,
    START,
    BackupDamagedError,
    BackupWriter,
    read_backup,
)
from fencelock.cluster.node.storage.directory import FolderBusyError
from fencelock.cluster.node.storage.journal import STREAM, Journal, claim
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.transport.codec import decode, encode


def table() -> LockTable:
    """Return a table with three locks held and one waiter."""
    table = LockTable()
    opened = only(Opened, table.apply(1, Open(session="ann", ttl_ms=60_000)))
    for number, lock in enumerate("abc", 1):
        acquire = Acquire(lock=lock, session=opened.assigned, owner="o", request=number)
        only(Granted, table.apply(1, acquire))
    table.apply(1, Acquire(lock="a", session=opened.assigned, owner="p", request=1))
    return table


PARTS = tuple(encode(part) for part in table().snapshot())


def config_in(folder: Path, cluster: str = "orders-2", protocol: str = "paxos") -> Config:
    addresses = {f"n{n}": f"tcp://127.0.0.1:{4040 + n}" for n in (1, 2, 3)}
    return parse(starting_config(addresses, cluster=cluster, protocol=protocol), folder)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_in(tmp_path)


def test_a_restored_table_differs_in_its_fences_only() -> None:
    machine = LockMachine()

    machine.restore(check_parts(HEADER, PARTS))

    expected = table()
    expected.fence += FENCE_MARGIN
    assert machine.digest() == expected.digest()


def test_versions_of_the_new_cluster_are_above_those_of_the_old_one() -> None:
    old = table()
    put = PutEntry(map="m", entry_key="k", value=b"v", session="ann.1", owner="m", request=1)
    before = only(EntryChanged, old.apply(1, put))
    machine = LockMachine()

    machine.restore(check_parts(HEADER, tuple(encode(part) for part in old.snapshot())))

    assert machine.table.maps.find("m", "k") is not None
    after = only(EntryChanged, machine.table.apply(1, replace(put, request=2)))
    assert after.version > before.version + FENCE_MARGIN
    query = ReadChanges(lock="election\x1fe", after=before.version)
    assert read_changes(machine.table, query).resync


def test_the_members_of_the_old_cluster_are_not_taken_over() -> None:
    terms = [Term(9, Membership(4, (Member("n7", "tcp://10.0.0.7:4040", 5),)))]
    members = log_part(terms, NO_BALLOT)

    assert check_parts(HEADER, (*PARTS, members)) == check_parts(HEADER, PARTS)


def test_each_folder_is_a_journal_of_the_new_cluster_that_votes(config: Config) -> None:
    assert restore(HEADER, check_parts(HEADER, PARTS), config) == {}

    groups: list[object] = []
    for node in config.nodes:
        with closing(Journal.open(present(config.folder_of(node)))) as journal:
            found = journal.take_records()
            journal_id = claim(journal, found, identity_of(config, node)).id
        records = {
            role: [decode(record) for record in records]
            for role, records in found.items()
            if role != STREAM
        }
        group = only(GroupConfig, records["bootstrap"])
        assert dict(group.voters)[node] == journal_id
        groups.append(group)
        recovered = recover(records["replica"])
        assert recovered.base is not None
        assert (recovered.base.slot, recovered.base.time_ms) == (54, 1859)
    assert groups == groups[:1] * 3
    assert config.data is not None
    assert sorted(path.name for path in config.data.iterdir()) == ["n1", "n2", "n3"]


def test_two_restorations_never_form_one_cluster(tmp_path: Path) -> None:
    voters: list[object] = []
    for name in ("first", "second"):
        config = config_in(tmp_path / name)
        restore(HEADER, check_parts(HEADER, PARTS), config)
        with closing(Journal.open(present(config.folder_of("n1")))) as journal:
            (record,) = journal.take_records()["bootstrap"]
        voters.append(decode(record))
    assert voters[0] != voters[1]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cluster": "orders"}, "orders-2"),
        ({"protocol": "lamport"}, "lamport"),
        ({"data": None}, "data: missing"),
        ({"settings": ProtocolSettings(paxos_memory=True)}, "durability"),
    ],
    ids=["the old id", "another protocol", "no folder", "no disk"],
)
def test_a_configuration_that_cannot_be_used_is_refused(
    config: Config, fields: dict[str, Any], why: str
) -> None:
    check_target(HEADER, config)
    with pytest.raises(ConfigError, match=why):
        check_target(HEADER, dataclasses.replace(config, **fields))


def test_bytes_that_are_no_table_are_refused() -> None:
    for parts in ((), (b"?",), PARTS * 2, (encode(Open(session="a", ttl_ms=9)),)):
        with pytest.raises(BackupDamagedError, match="Nothing was restored"):
            check_parts(HEADER, parts)


def test_a_header_of_another_table_is_refused() -> None:
    with pytest.raises(BackupDamagedError, match="fences up to 3, and its header says 4"):
        check_parts(dataclasses.replace(HEADER, fence=4), PARTS)


def changed(**fields: Any) -> tuple[bytes, ...]:
    (part,) = table().snapshot()
    return (encode(replace(part, **fields)),)


def test_a_table_in_which_an_ended_session_waits_is_refused() -> None:
    (part,) = table().snapshot()
    with pytest.raises(BackupDamagedError, match=r"wrong wait for lock 'a'.*Nothing was restored"):
        check_parts(HEADER, changed(sessions=(part.sessions[0]._replace(deadline_ms=DEPARTED),)))


def test_a_table_whose_fences_or_versions_are_nearly_used_up_is_refused() -> None:
    (part,) = table().snapshot()
    last = FENCE_FLOOR_MAX - FENCE_MARGIN + 1
    with pytest.raises(BackupDamagedError, match=f"fences above {last}"):
        check_parts(
            dataclasses.replace(HEADER, fence=last), changed(head=part.head._replace(fence=last))
        )
    with pytest.raises(BackupDamagedError, match=f"versions above {last}"):
        check_parts(HEADER, changed(head=part.head._replace(version=last)))
    with pytest.raises(BackupDamagedError, match="wrong counters"):
        check_parts(HEADER, changed(head=part.head._replace(version=INT_MAX)))


def test_a_table_that_raises_when_something_falls_due_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a")

    monkeypatch.setattr(LockTable, "close", fail)
    with pytest.raises(BackupDamagedError, match=r"log time 60001 ms, it raises KeyError\('a'\)"):
        check_parts(HEADER, PARTS)


def test_a_table_in_which_something_stays_due_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def do_nothing(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(LockTable, "advance", do_nothing)
    with pytest.raises(BackupDamagedError, match="falls due at log time 60001 ms again and again"):
        check_parts(HEADER, PARTS)


def test_folders_with_content_are_named_and_moved_aside(config: Config, tmp_path: Path) -> None:
    old = config_in(tmp_path, cluster="orders")
    restore(HEADER, check_parts(HEADER, PARTS), old)
    folder = present(old.folder_of("n1"))
    before = (folder / "00000001.journal").read_bytes()
    assert occupied(config)[folder] == 'the journal of node n1 of cluster "orders"'
    folder.with_name("n1.replaced-1").mkdir()  # Of an earlier restoration.

    aside = restore(HEADER, check_parts(HEADER, PARTS), config)

    assert aside[folder] == folder.with_name("n1.replaced-2")
    assert (aside[folder] / "00000001.journal").read_bytes() == before
    assert (folder / "00000001.journal").read_bytes() != before


def test_the_id_of_a_restored_cluster_is_not_used_twice(config: Config) -> None:
    restore(HEADER, check_parts(HEADER, PARTS), config)
    with pytest.raises(ConfigError, match="another id"):
        occupied(config)


def test_an_empty_folder_is_used(config: Config) -> None:
    folder = present(config.folder_of("n1"))
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    assert occupied(config) == {}

    assert restore(HEADER, check_parts(HEADER, PARTS), config) == {}


def test_the_folder_of_a_running_node_is_not_replaced(tmp_path: Path) -> None:
    old = config_in(tmp_path, cluster="orders")
    new = config_in(tmp_path)
    with Node.start(old, "n2", found=True), pytest.raises(FolderBusyError):
        restore(HEADER, check_parts(HEADER, PARTS), new)
    assert [path.name for path in present(old.folder_of("n2")).parent.iterdir()] == ["n2"]


def test_a_failed_restoration_changes_no_folder(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(journal: Journal, *_: object) -> None:
        if journal.folder.name.startswith("n3"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(restoring, "_write", fail)
    with pytest.raises(OSError, match="No space"):
        restore(HEADER, check_parts(HEADER, PARTS), config)
    assert occupied(config) == {}


# The file of a backup


FILE_PARTS = (b"the first part", b"", b"the third part" * 3)
ORDERS = dataclasses.replace(HEADER, fence=51, parts=len(FILE_PARTS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "orders.backup"
    with BackupWriter(path, ORDERS) as writer:
        for part in FILE_PARTS:
            writer.add(part)
        writer.finish()
    return path


def test_a_backup_is_read_as_it_was_written(path: Path) -> None:
    assert read_backup(path) == (ORDERS, FILE_PARTS)


ORDERS_FIELDS = dataclasses.asdict(ORDERS)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"5",
        b"\xff\xfe",
        json.dumps({**ORDERS_FIELDS, "cluster": 5}).encode(),
        json.dumps({**ORDERS_FIELDS, "slot": "x"}).encode(),
        json.dumps({**ORDERS_FIELDS, "slot": -1}).encode(),
        json.dumps({**ORDERS_FIELDS, "time_ms": 10**4000}).encode(),
        json.dumps({**ORDERS_FIELDS, "parts": [3]}).encode(),
        json.dumps({**ORDERS_FIELDS, "fence": float("nan")}).encode(),
        json.dumps({"cluster": "orders"}).encode(),
    ],
    ids=lambda header: header[:20].decode(errors="replace"),
)
def test_a_header_of_other_facts_is_refused_in_words(tmp_path: Path, header: bytes) -> None:
    """Its digest is right: whoever changes a header computes it again."""
    path = tmp_path / "orders.backup"
    first = hashlib.blake2b(START, digest_size=DIGEST_BYTES).digest()
    digest = hashlib.blake2b(first + header, digest_size=DIGEST_BYTES)
    path.write_bytes(START + LENGTH.pack(len(header)) + digest.digest() + header)
    with pytest.raises(BackupDamagedError, match="has no header of a backup"):
        read_backup(path)


def test_a_backup_is_private_and_describes_itself(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    start, header = path.read_bytes().split(b"\n")[:2]
    assert start == b"fencelock backup 1"
    assert json.loads(header[header.index(b"{") :])["cluster"] == "orders"
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_backup_that_is_cut_off_or_changed_anywhere_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at])
        with pytest.raises(BackupDamagedError, match=r"cut off|no backup|no header"):
            read_backup(path)
        path.write_bytes(flipped(content, at, 1))
        with pytest.raises(BackupDamagedError, match=r"damaged|no backup|another format"):
            read_backup(path)


def test_the_damaged_part_is_named(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"the first part", b"the fIrst part"))
    with pytest.raises(BackupDamagedError, match=r"damaged or cut off in part 1, at byte \d+"):
        read_backup(path)


def test_parts_cannot_change_places(path: Path) -> None:
    content = path.read_bytes()
    at = content.index(FILE_PARTS[0]) - LENGTH.size - 32
    first = content[at : at + LENGTH.size + 32 + len(FILE_PARTS[0])]
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
        BackupWriter(path, ORDERS)
    assert path.read_bytes() == before


def test_a_backup_that_was_not_finished_leaves_no_file(tmp_path: Path) -> None:
    with BackupWriter(tmp_path / "a", ORDERS) as writer:
        writer.add(FILE_PARTS[0])
    assert list(tmp_path.iterdir()) == []
