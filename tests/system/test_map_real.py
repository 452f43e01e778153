"""Maps on real processes: nodes are killed while clients change entries, and a client is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.paxos_processes import running_members, wait_until_ready
from support.real_nodes import NODES

import fencelock
from fencelock.actors.api.map import VALUE_BYTES_MAX

PATIENCE_S = 60
WRITERS = 3
FILLER = bytes(range(256)) * (VALUE_BYTES_MAX // 256)
MANY = 160
"""Number of values of 64 KiB. Together they exceed the size at which a journal is trimmed."""

WORKER = """
import sys
import fencelock
client = fencelock.connect(sys.argv[1], ttl=1)
print(client.map("workers").put("one", b"here", ephemeral=True), flush=True)
sys.stdin.read()
"""


def connected(addresses: str) -> fencelock.Client:
    return fencelock.connect(addresses, connect_timeout=PATIENCE_S)


@pytest.mark.long
def test_each_change_is_made_once_while_nodes_are_killed(tmp_path: Path) -> None:
    """The versions of a writer rise, all changes have different ones, and the last value stays."""
    versions: dict[int, list[int]] = {writer: [] for writer in range(WRITERS)}
    killed = threading.Event()

    def write(client: fencelock.Client, writer: int) -> None:
        kv, number, mine = client.map("registers"), 0, versions[writer]
        mine.append(kv.put(f"{writer}", b"0"))
        while not killed.is_set() or number < MANY:
            number += 1
            mine.append(kv.replace(f"{writer}", b"%d" % number, version=mine[-1]))

    with running_members(tmp_path) as members:
        clients = [connected(members.connect) for _ in range(WRITERS)]
        threads = [
            threading.Thread(target=write, args=(client, writer))
            for writer, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for node in NODES:
            members.kill(node)
            members.start(node)
            wait_until_ready(clients[0], node)
        killed.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        together = [version for mine in versions.values() for version in mine]
        assert all(mine == sorted(mine) for mine in versions.values())
        assert len(set(together)) == len(together)
        for writer, mine in versions.items():
            entry = clients[0].map("registers").get(f"{writer}")
            assert entry == (b"%d" % (len(mine) - 1), mine[-1], None, "")
        for client in clients:
            client.close()


def test_a_node_that_was_down_gets_the_large_values_that_it_missed(tmp_path: Path) -> None:
    with running_members(tmp_path) as members:
        with connected(members.connect) as client:
            wait_until_ready(client, NODES[-1])
            members.kill(NODES[-1])
            kv = client.map("large")
            last = [kv.put(f"{number % 8}", FILLER) for number in range(MANY)][-8:]
            members.start(NODES[-1])
            wait_until_ready(client, NODES[-1])
        alone = members.connect.split(",")[-1]
        with connected(alone) as client:
            for number, version in enumerate(last, MANY - 8):
                entry = client.map("large").get(f"{number % 8}", read="local", max_age=5)
                assert entry == (FILLER, version, None, "")


def test_the_ephemeral_entry_of_a_killed_process_ends(tmp_path: Path) -> None:
    with running_members(tmp_path) as members, connected(members.connect) as client:
        workers = client.map("workers")
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, members.connect],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            version = int(process.stdout.readline())
            entry = workers.get("one")
            assert entry is not None
            assert entry.version == version
            process.kill()
        while workers.get("one") is not None:
            pass
        assert workers.put_if_absent("one", b"next")
