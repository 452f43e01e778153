"""Backups and repairs on the command line."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, checked, present
from support.real_nodes import loopback_addresses
from support.samples import HEADER
from typer.testing import CliRunner, Result

import fencelock
from fencelock.actors.bakery.wire import (
    EPOCH_MAX,
    BoundStatement,
    Chosen,
    Install,
    Propose,
    Seating,
)
from fencelock.actors.error import ConfigError, FencelockError
from fencelock.actors.message import Message
from fencelock.actors.paxos.config import leader_of
from fencelock.actors.paxos.wire import Accept, Ballot, Batch, Pledge, Pledged, Slots, SnapshotChunk
from fencelock.actors.table.table import LockTable
from fencelock.cluster.cli import backup as cli
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.config import load, loopback, starting_config
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.restore import folders_of
from fencelock.cluster.node.storage.backup import (
    BackupDamagedError,
    BackupFailedError,
    BackupWriter,
)
from fencelock.cluster.node.storage.directory import JournalDamagedError
from fencelock.cluster.node.storage.journal import Journal
from fencelock.transport.codec import encode


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.backup"
    with BackupWriter(path, replace(HEADER, fence=0)) as writer:
        for part in LockTable().snapshot():
            writer.add(encode(part))
        writer.finish()
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, "orders-2")


IN_WORDS = 'cluster "orders" before slot 54, as of 2025-11-22T13:47:33+00:00, fences up to 0'
"""The backup of the fixture `file`."""


def write_config(folder: Path, cluster: str) -> Path:
    path = folder / f"{cluster}.toml"
    path.write_text(starting_config(loopback(3), cluster=cluster), encoding="utf-8")
    return path


def run(*arguments: str | Path, answer: str = "", status: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)), input=answer)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def refusal(*arguments: str | Path) -> FencelockError:
    return checked(FencelockError, run(*arguments, status=1).exception)


def test_a_file_is_checked_without_a_configuration(file: Path) -> None:
    out = run("restore", file, "--check").output
    assert out == f"{file} is complete: {IN_WORDS}, 1 part.\n"


def test_a_damaged_file_is_refused_with_the_part_and_the_byte(file: Path, config: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"!")
    error = checked(BackupDamagedError, refusal("restore", file, "--config", config))
    assert "damaged or cut off in part 1, at byte" in str(error)
    assert not (config.parent / "data").exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    error = checked(BackupFailedError, refusal("restore", missing, "--check"))
    assert str(error) == f"{missing} cannot be read: No such file or directory: {missing}"


def test_the_restored_folders_and_the_next_steps_are_printed(file: Path, config: Path) -> None:
    out = run("restore", file, "--config", config).output
    assert out == (
        f'Restored cluster "orders-2" from {IN_WORDS}. Its fences begin above {1 << 40}.\n'
        "Move each folder to its machine, keep no copy, and start all nodes:\n\n"
    ) + "".join(
        f"  fencelock serve --config {config} --id {node}    # its data: {folder}\n"
        for node, folder in folders_of(load(config)).items()
    )


def test_the_id_of_the_old_cluster_is_refused_with_another_one(file: Path, tmp_path: Path) -> None:
    error = refusal("restore", file, "--config", write_config(tmp_path, "orders"))
    assert isinstance(error, ConfigError)
    assert 'such as "orders-2"' in str(error)


def occupy(config: Path) -> Path:
    folder = config.parent / "data" / "n1"
    folder.mkdir(parents=True)
    (folder / "precious").write_text("kept")
    return folder


def test_folders_with_content_are_refused_without_force(file: Path, config: Path) -> None:
    folder = occupy(config)
    error = refusal("restore", file, "--config", config)
    assert str(error) == (
        f"these folders are not empty:\n  {folder}: files that are no journal\nName another data "
        f"folder in {config}, or use --force to move these aside"
    )


def test_force_prints_what_may_be_lost_before_it_asks(
    file: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = occupy(config)
    monkeypatch.setattr(cli, "at_terminal", lambda: True)
    arguments = ("restore", file, "--config", config, "--force")

    out = run(*arguments, answer="n\n", status=ExitStatus.DECLINED).output

    assert out.index("What may be lost") < out.index("Replace the folders?")
    aside = f"--force moves these folders aside:\n  {folder}: files that are no journal\n\n"
    assert out.startswith(f"{aside}The backup: {IN_WORDS}.\nWhat may be lost")
    assert "Nothing was changed." in out
    assert (folder / "precious").read_text() == "kept"
    former = folder.with_name("n1.replaced-1")
    assert f"{folder} was moved to {former}\n" in run(*arguments, answer="y\n").output
    assert (former / "precious").read_text() == "kept"


def test_force_needs_a_terminal_or_yes(file: Path, config: Path) -> None:
    folder = occupy(config)
    assert "add --yes" in str(refusal("restore", file, "--config", config, "--force"))
    assert "What may be lost" in run("restore", file, "--config", config, "--force", "--yes").output
    assert not (folder / "precious").exists()


def test_a_backup_replaces_no_file_and_needs_its_folder(file: Path, tmp_path: Path) -> None:
    where = ("--connect", "tcp://127.0.0.1:9")
    taken, lone = refusal("backup", file, *where), tmp_path / "no" / "a"
    assert str(taken) == f"{file} exists already: a backup never replaces a file"
    missing = refusal("backup", lone, *where)
    assert str(missing) == f"{lone}: there is no folder {lone.parent}"


class LoneMember:
    """The only member of a cluster, which was served, and is stopped."""

    def __init__(self, folder: Path, protocol: str = "paxos") -> None:
        (self.address,) = loopback_addresses(1).values()
        self.file = folder / "cluster.toml"
        text = starting_config({"n1": self.address}, protocol=protocol)
        self.file.write_text(text, encoding="utf-8")
        self.folder = present(load(self.file).folder_of("n1"))
        self.first = self.fence()

    def fence(self) -> int:
        with (
            Node.start(load(self.file), "n1", found=True),
            fencelock.connect(self.address, connect_timeout=PATIENCE_S) as client,
            client.lock("a", timeout=PATIENCE_S) as held,
        ):
            return present(held.fence)

    def append(self, stream: str, record: Message) -> None:
        with closing(Journal.open(self.folder)) as journal:
            journal.append([(stream, encode(record))])
            journal.sync()

    def start(self) -> None:
        Node.start(load(self.file), "n1").stop(PATIENCE_S)

    def repair(self, *options: str, answer: str = "") -> Result:
        arguments = ["repair", "--id", "n1", "--config", str(self.file), *options]
        return CliRunner().invoke(app, arguments, input=answer)


ABOVE = Ballot(1 << 61, leader_of("n1"))


def vote(slot: int, time_ms: int = 0) -> Accept:
    batch = Batch(time_ms=time_ms, commands=())
    return Accept(ballot=Ballot(1, leader_of("n1")), slot=slot, batch=batch, committed=1)


@pytest.mark.parametrize(
    ("stream", "record", "words"),
    [
        ("acceptor", vote(100 + (1 << 61)), f"slot {100 + (1 << 61)}"),
        ("acceptor", vote(200_100), "slot 200100"),
        ("acceptor", vote(103, (1 << 62) - 1), "slot 103"),
        ("acceptor", Pledged(pledge=Pledge.LEASE, ballot=ABOVE), str(1 << 61)),
        ("acceptor", Pledged(pledge=Pledge.APPLIED, ballot=ABOVE), str(1 << 61)),
    ],
    ids=["far slot", "next slots", "late", "lease", "applied"],
)
def test_a_file_that_no_member_of_paxos_can_have_is_mended(
    tmp_path: Path, stream: str, record: Message, words: str
) -> None:
    member = LoneMember(tmp_path)
    member.append(stream, record)

    with pytest.raises(JournalDamagedError, match="fencelock repair --id n1"):
        member.start()
    assert member.repair(answer="n\n").exit_code != 0
    done, again = member.repair("--yes"), member.repair()

    copy = member.folder.with_name("n1.before-repair-1")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("The journal of n1 has 1 vote that no honest member can have:")
    assert done.output.endswith(f"1 removed. The folder as it was: {copy}. Start n1 now.\n")
    assert words in done.output
    assert "They are not chosen" in done.output or isinstance(record, Pledged)
    assert copy.is_dir()
    assert again.output == "The journal of n1 has no vote that an honest member cannot have.\n"
    assert member.fence() > member.first


def test_a_slot_is_skipped_on_a_stopped_node_by_its_operator(tmp_path: Path) -> None:
    member = LoneMember(tmp_path)

    done = member.repair("--skip", "7", "--operator", "alice")
    again = member.repair("--skip", "7")

    assert done.exit_code == 0, done.output
    assert "n1: slot 7 is skipped, by alice." in done.output
    assert "Run this for every member before you start any" in done.output
    assert "slot 7 is skipped already; nothing was changed" in again.output
    assert member.fence() > member.first


ALONE = (Chosen("n1", 1),)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            Install(seating=Seating(50, ALONE, 1_000), statements=(BoundStatement("n9", 1, 5),)),
            "statement 1 of n9",
        ),
        (Install(seating=Seating(50, ALONE, 1 << 40)), "leases of 1099511627776 ms"),
    ],
    ids=["statement", "lease"],
)
def test_a_lease_that_no_member_of_bakery_can_have_is_mended(
    tmp_path: Path, record: Message, words: str
) -> None:
    member = LoneMember(tmp_path, "bakery")
    member.append("election", record)

    with pytest.raises(JournalDamagedError, match="fencelock repair --id n1"):
        member.start()
    done, again = member.repair("--yes"), member.repair("--yes")

    assert done.exit_code == 0, done.output
    assert words in done.output
    assert "No honest leader votes for such leases" in done.output
    assert "has no vote that an honest member cannot have" in again.output
    member.start()


def must_be_replaced(member: LoneMember) -> None:
    done = member.repair("--yes")
    assert isinstance(done.exception, JournalDamagedError)
    assert "then run: fencelock replace n1" in str(done.exception)


@pytest.mark.parametrize(
    ("epoch", "starts"), [(EPOCH_MAX + 1, False), (EPOCH_MAX, True)], ids=["beyond", "implausible"]
)
def test_a_journal_of_bakery_with_an_impossible_epoch_must_be_replaced(
    tmp_path: Path, epoch: int, *, starts: bool
) -> None:
    """A node with an epoch that is only implausible starts: the clock here may be wrong."""
    member = LoneMember(tmp_path, "bakery")
    member.append("election", Propose(epoch=epoch, leaders=ALONE))

    if starts:
        member.start()
    else:
        with pytest.raises(JournalDamagedError, match="then run: fencelock replace n1"):
            member.start()
    must_be_replaced(member)


FAR = Ballot(1 << 62 | 1 << 61 | 1, leader_of("n1"))


@pytest.mark.parametrize(
    ("stream", "record"),
    [
        ("leader", Pledged(pledge=Pledge.LED, ballot=FAR)),
        ("acceptor", Pledged(pledge=Pledge.PROMISED, ballot=FAR)),
        ("acceptor", Accept(ballot=FAR, slot=9, batch=Batch(time_ms=0, commands=()), committed=9)),
        ("catchup", Slots(first=9, batches=(Batch(time_ms=(1 << 62) - 1, commands=()),))),
        ("catchup", Slots(first=0, batches=(Batch(time_ms=0, commands=()),))),
        ("replica", SnapshotChunk(slot=9, time_ms=1 << 61, chunk=0, count=1, content=b"")),
        ("replica", SnapshotChunk(slot=9, time_ms=0, chunk=1, count=2, content=b"")),
        ("replica", SnapshotChunk(slot=-9, time_ms=0, chunk=0, count=1, content=b"")),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Message) else one,
)
def test_a_journal_beyond_repair_is_named_with_the_next_step(
    tmp_path: Path, stream: str, record: Message
) -> None:
    member = LoneMember(tmp_path)
    member.append(stream, record)

    with pytest.raises(JournalDamagedError, match="then run: fencelock replace n1"):
        member.start()
    must_be_replaced(member)
