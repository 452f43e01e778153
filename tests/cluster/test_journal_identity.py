"""A folder belongs to one node: any other node that gets it by mistake does not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fencelock.cluster.node.storage.directory import JournalForeignError
from fencelock.cluster.node.storage.journal import STREAM, Journal, claim
from fencelock.cluster.node.storage.record import Entry
from fencelock.cluster.testing.ports import free_ports

MINE = {"cluster": "shop", "node": "n1", "members": "n1, n2, n3"}


def start(folder: Path, identity: dict[str, str]) -> dict[str, list[bytes]]:
    """Open the journal as a node does, and return its records."""
    journal = Journal.open(folder)
    try:
        found = journal.take_records()
        claim(journal, found, identity)
    finally:
        journal.close()
    return found


def test_a_new_journal_is_of_whoever_opens_it_first_and_stays_so(tmp_path: Path) -> None:
    assert start(tmp_path, MINE) == {}
    assert list(start(tmp_path, MINE)) == [STREAM]
    assert list(start(tmp_path, MINE)) == [STREAM]


def test_the_id_of_a_journal_is_one_that_messages_can_carry_and_never_zero(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    drawn = claim(journal, journal.take_records(), MINE)
    journal.close()

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
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    with pytest.raises(JournalForeignError, match=words):
        start(tmp_path, MINE | other)

    after = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert {path: len(content) for path, content in before.items()}.keys() == after.keys()
    assert list(start(tmp_path, MINE)) == [STREAM]


def test_a_journal_without_an_owner_is_nobodys(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.append([Entry("acceptor", b"x")])
    journal.sync()
    journal.close()

    with pytest.raises(JournalForeignError, match="'unknown'"):
        start(tmp_path, MINE)


def test_a_node_that_is_given_anothers_folder_says_so_and_exits(tmp_path: Path) -> None:
    one, two = free_ports(2)
    alone = f"""
cluster = "shop"
protocol = "paxos"
data = "data"
[nodes]
n1 = {{ address = "tcp://127.0.0.1:{one}" }}
"""
    config = tmp_path / "cluster.toml"
    config.write_text(alone)
    first = subprocess.run(
        [sys.executable, "-c", START, str(config)], env=os.environ, capture_output=True, check=False
    )
    assert first.returncode == 0, first.stderr
    config.write_text(f'{alone}n2 = {{ address = "tcp://127.0.0.1:{two}" }}\n')
    (tmp_path / "data" / "n1").rename(tmp_path / "data" / "n2")

    serve = [
        sys.executable,
        "-m",
        "fencelock",
        "serve",
        "--found",
        "--config",
        str(config),
        "--id",
        "n2",
    ]
    second = subprocess.run(serve, capture_output=True, check=False, timeout=60)

    assert second.returncode != 0
    assert b"node 'n1' and not 'n2'" in second.stdout + second.stderr
    assert b"Traceback" not in second.stdout + second.stderr


START = """
import sys
from pathlib import Path
from fencelock.cluster.node.config import load
from fencelock.cluster.node.node import Node
Node.start(load(Path(sys.argv[1])), "n1", found=True).stop()
"""
