"""Backups and repairs on the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, checked, present
from support.real_nodes import loopback_addresses
from support.samples import HEADER
from typer.testing import CliRunner, Result

import fencelock
from fencelock.actors.bakery.message import (
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
from fencelock.actors.paxos.message import (
    Accept,
    Ballot,
    Batch,
    Pledge,
    Pledged,
    Slots,
    SnapshotChunk,
)
from fencelock.actors.table.table import LockTable
from fencelock.cluster.cli import backup as cli
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.config import load, loopback, starting_config
from fencelock.cluster.node.node import Node
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
    assert 'is complete: cluster "orders" before slot 54, as of 2025-11-22' in out


def test_a_damaged_file_is_refused_with_the_part_and_the_byte(file: Path, config: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"!")
    error = checked(BackupDamagedError, refusal("restore", file, "--config", config))
    assert "damaged or cut off in part 1, at byte" in str(error)
    assert not (config.parent / "data").exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    error = checked(BackupFailedError, refusal("restore", tmp_path / "missing", "--check"))
    assert "missing cannot be read: No such file" in str(error)


def test_the_restored_folders_and_the_next_steps_are_printed(file: Path, config: Path) -> None:
    out = run("restore", file, "--config", config).output
    assert f"begin above {1 << 40}" in out
    assert f"fencelock serve --config {config} --id n3    # its data: {config.parent}" in out


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
    assert f"{folder}: files that are no journal" in str(error)
    assert "--force" in str(error)


def test_force_says_what_may_be_lost_before_it_asks(
    file: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = occupy(config)
    monkeypatch.setattr(cli, "at_terminal", lambda: True)
    arguments = ("restore", file, "--config", config, "--force")

    out = run(*arguments, answer="n\n", status=ExitStatus.DECLINED).output

    assert out.index("What may be lost") < out.index("Replace the folders?")
    assert str(folder) in out
    assert "Nothing was changed." in out
    assert (folder / "precious").read_text() == "kept"
    run(*arguments, answer="y\n")
    assert (folder.with_name("n1.replaced-1") / "precious").read_text() == "kept"


def test_force_needs_somebody_to_ask_or_yes(file: Path, config: Path) -> None:
    folder = occupy(config)
    assert "add --yes" in str(refusal("restore", file, "--config", config, "--force"))
    assert "What may be lost" in run("restore", file, "--config", config, "--force", "--yes").output
    assert not (folder / "precious").exists()


def test_a_backup_replaces_no_file_and_needs_its_folder(file: Path, tmp_path: Path) -> None:
    where = ("--connect", "tcp://127.0.0.1:9")
    assert "exists already" in str(refusal("backup", file, *where))
    assert "there is no folder" in str(refusal("backup", tmp_path / "no" / "a", *where))


def append(folder: Path, stream: str, record: Message) -> None:
    journal = Journal.open(folder)
    journal.append([(stream, encode(record))])
    journal.sync()
    journal.close()


def fence_of(config: Path, address: str) -> int:
    node = Node.start(load(config), "n1", found=True)
    try:
        with fencelock.connect(address, connect_timeout=PATIENCE_S) as client:
            held = present(client.lock("a").acquire(timeout=PATIENCE_S))
            assert held.fence is not None
            held.release()
            return held.fence
    finally:
        node.stop(PATIENCE_S)


@pytest.mark.parametrize(
    ("ahead", "time_ms"), [(1 << 61, 0), (200_000, 0), (3, (1 << 62) - 1)], ids=str
)
def test_a_vote_that_no_member_can_have_is_removed(
    tmp_path: Path, ahead: int, time_ms: int
) -> None:
    config, (address,) = tmp_path / "cluster.toml", loopback_addresses(1).values()
    config.write_text(starting_config({"n1": address}, protocol="paxos"), encoding="utf-8")
    first = fence_of(config, address)
    folder = present(load(config).folder_of("n1"))
    vote = Accept(
        ballot=Ballot(1, leader_of("n1")),
        slot=100 + ahead,
        batch=Batch(time_ms=time_ms, commands=()),
        committed=1,
    )
    append(folder, "acceptor", vote)
    arguments = ("repair", "--id", "n1", "--config", str(config))

    with pytest.raises(JournalDamagedError, match="fencelock repair --id n1"):
        Node.start(load(config), "n1")
    kept = CliRunner().invoke(app, arguments, input="n\n")
    assert kept.exit_code != 0
    done = CliRunner().invoke(app, [*arguments, "--yes"])
    again = CliRunner().invoke(app, arguments)

    assert done.exit_code == 0, done.output
    assert f"slot {100 + ahead}" in done.output
    assert "They are not chosen" in done.output
    assert (folder.with_name(f"{folder.name}.before-repair-1")).is_dir()
    assert "has no vote that an honest member cannot have" in again.output
    assert fence_of(config, address) > first


def test_a_slot_is_skipped_on_a_stopped_node_by_its_operator(tmp_path: Path) -> None:
    config, (address,) = tmp_path / "cluster.toml", loopback_addresses(1).values()
    config.write_text(starting_config({"n1": address}, protocol="paxos"), encoding="utf-8")
    first = fence_of(config, address)
    arguments = ["repair", "--id", "n1", "--config", str(config), "--skip", "7"]

    done = CliRunner().invoke(app, [*arguments, "--operator", "alice"])
    again = CliRunner().invoke(app, arguments)

    assert done.exit_code == 0, done.output
    assert "n1: slot 7 is skipped, by alice." in done.output
    assert "Run this for every member before you start any" in done.output
    assert "slot 7 is skipped already; nothing was changed" in again.output
    assert fence_of(config, address) > first


@pytest.mark.parametrize("pledge", [Pledge.LEASE, Pledge.APPLIED])
def test_a_pledge_that_no_member_can_have_is_mended(tmp_path: Path, pledge: Pledge) -> None:
    config, (address,) = tmp_path / "cluster.toml", loopback_addresses(1).values()
    config.write_text(starting_config({"n1": address}, protocol="paxos"), encoding="utf-8")
    first = fence_of(config, address)
    folder = present(load(config).folder_of("n1"))
    append(folder, "acceptor", Pledged(pledge=pledge, ballot=Ballot(1 << 61, leader_of("n1"))))

    with pytest.raises(JournalDamagedError, match="fencelock repair --id n1"):
        Node.start(load(config), "n1")
    done = CliRunner().invoke(app, ["repair", "--id", "n1", "--config", str(config), "--yes"])

    assert done.exit_code == 0, done.output
    assert str(1 << 61) in done.output
    assert fence_of(config, address) > first


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            Install(
                seating=Seating(50, (Chosen("n1", 1),), 1_000),
                statements=(BoundStatement("n9", 1, 5),),
            ),
            "statement 1 of n9",
        ),
        (Install(seating=Seating(50, (Chosen("n1", 1),), 1 << 40)), "leases of 1099511627776 ms"),
    ],
    ids=["statement", "lease"],
)
def test_a_lease_that_no_member_of_bakery_can_have_is_mended(
    tmp_path: Path, record: Message, words: str
) -> None:
    config, (address,) = tmp_path / "cluster.toml", loopback_addresses(1).values()
    config.write_text(starting_config({"n1": address}, protocol="bakery"), encoding="utf-8")
    fence_of(config, address)
    folder = present(load(config).folder_of("n1"))
    append(folder, "election", record)

    with pytest.raises(JournalDamagedError, match="fencelock repair --id n1"):
        Node.start(load(config), "n1")
    arguments = ["repair", "--id", "n1", "--config", str(config), "--yes"]
    done = CliRunner().invoke(app, arguments)
    again = CliRunner().invoke(app, arguments)

    assert done.exit_code == 0, done.output
    assert words in done.output
    assert "No honest leader votes for such leases" in done.output
    assert "has no vote that an honest member cannot have" in again.output
    Node.start(load(config), "n1").stop(PATIENCE_S)


@pytest.mark.parametrize(
    ("epoch", "starts"), [(EPOCH_MAX + 1, False), (EPOCH_MAX, True)], ids=["beyond", "implausible"]
)
def test_a_journal_of_bakery_with_an_impossible_epoch_must_be_replaced(
    tmp_path: Path, epoch: int, *, starts: bool
) -> None:
    """A node with an epoch that is only implausible starts: the clock here may be wrong."""
    config, (address,) = tmp_path / "cluster.toml", loopback_addresses(1).values()
    config.write_text(starting_config({"n1": address}, protocol="bakery"), encoding="utf-8")
    fence_of(config, address)
    folder = present(load(config).folder_of("n1"))
    append(folder, "election", Propose(epoch=epoch, leaders=(Chosen("n1", 1),)))

    if starts:
        Node.start(load(config), "n1").stop(PATIENCE_S)
    else:
        with pytest.raises(JournalDamagedError, match="then run: fencelock replace n1"):
            Node.start(load(config), "n1")
    done = CliRunner().invoke(app, ["repair", "--id", "n1", "--config", str(config), "--yes"])
    assert isinstance(done.exception, JournalDamagedError)
    assert "then run: fencelock replace n1" in str(done.exception)


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
def test_a_journal_that_nobody_can_mend_is_named_with_what_to_do(
    tmp_path: Path, stream: str, record: Message
) -> None:
    config, (address,) = tmp_path / "cluster.toml", loopback_addresses(1).values()
    config.write_text(starting_config({"n1": address}, protocol="paxos"), encoding="utf-8")
    fence_of(config, address)
    folder = present(load(config).folder_of("n1"))
    append(folder, stream, record)

    with pytest.raises(JournalDamagedError, match="then run: fencelock replace n1"):
        Node.start(load(config), "n1")
    done = CliRunner().invoke(app, ["repair", "--id", "n1", "--config", str(config), "--yes"])
    assert done.exit_code != 0
    assert isinstance(done.exception, JournalDamagedError)
