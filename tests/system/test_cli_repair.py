"""``fencelock repair``: a node with an impossible vote does not start, and is mended offline."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.real_nodes import loopback_addresses
from typer.testing import CliRunner

import fencelock
from fencelock.actors.bakery.message import (
    EPOCH_MAX,
    BoundStatement,
    Chosen,
    Install,
    Propose,
    Seating,
)
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
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.config import load, starting_config
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.storage.directory import JournalDamagedError
from fencelock.cluster.node.storage.journal import Journal
from fencelock.transport.codec import encode

LONG_S = 30.0


def append(folder: Path, stream: str, record: Message) -> None:
    journal = Journal.open(folder)
    journal.append([(stream, encode(record))])
    journal.sync()
    journal.close()


def fence_of(config: Path, address: str) -> int:
    node = Node.start(load(config), "n1", found=True)
    try:
        with fencelock.connect(address, connect_timeout=LONG_S) as client:
            held = client.lock("a").acquire(timeout=LONG_S)
            assert held is not None
            assert held.fence is not None
            held.release()
            return held.fence
    finally:
        node.stop(LONG_S)


@pytest.mark.parametrize(
    ("ahead", "time_ms"), [(1 << 61, 0), (200_000, 0), (3, (1 << 62) - 1)], ids=str
)
def test_a_vote_that_no_member_can_have_is_removed(
    tmp_path: Path, ahead: int, time_ms: int
) -> None:
    config, (address,) = tmp_path / "cluster.toml", loopback_addresses(1).values()
    config.write_text(starting_config({"n1": address}, protocol="paxos"), encoding="utf-8")
    first = fence_of(config, address)
    folder = load(config).folder_of("n1")
    assert folder is not None
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
    folder = load(config).folder_of("n1")
    assert folder is not None
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
    folder = load(config).folder_of("n1")
    assert folder is not None
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
    Node.start(load(config), "n1").stop(LONG_S)


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
    folder = load(config).folder_of("n1")
    assert folder is not None
    append(folder, "election", Propose(epoch=epoch, leaders=(Chosen("n1", 1),)))

    if starts:
        Node.start(load(config), "n1").stop(LONG_S)
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
    folder = load(config).folder_of("n1")
    assert folder is not None
    append(folder, stream, record)

    with pytest.raises(JournalDamagedError, match="then run: fencelock replace n1"):
        Node.start(load(config), "n1")
    done = CliRunner().invoke(app, ["repair", "--id", "n1", "--config", str(config), "--yes"])
    assert done.exit_code != 0
    assert isinstance(done.exception, JournalDamagedError)
