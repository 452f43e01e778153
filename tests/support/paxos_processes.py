"""Three members of `paxos` in separate processes, which a test can kill and start again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import fencelock
from fencelock.cluster.node.config import starting_config
from support.real_nodes import NODES, loopback_addresses

LONG_S = 60.0


class PaxosProcesses:
    """Three `fencelock serve` processes with journals in a folder."""

    def __init__(self, folder: Path) -> None:
        addresses = loopback_addresses()
        self.connect = ",".join(addresses.values())
        self.config = folder / "cluster.toml"
        self.config.write_text(starting_config(addresses, protocol="paxos"), encoding="utf-8")
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str) -> None:
        command = [sys.executable, "-m", "fencelock", "serve", "--found", "--id", node]
        with (self.folder / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                [*command, "--config", str(self.config)], stdout=log, stderr=log
            )

    def kill(self, node: str) -> None:
        self.processes[node].kill()
        self.processes[node].wait(LONG_S)


def wait_until_ready(client: fencelock.Client, node: str) -> None:
    ends = time.monotonic() + LONG_S
    while node not in {status.node for status in client.describe() if status.ready}:
        assert time.monotonic() < ends, f"{node} is not ready"
        time.sleep(0.05)


@contextmanager
def running_members(folder: Path) -> Generator[PaxosProcesses]:
    """Run three members; afterwards check that all of them still run, and kill them."""
    members = PaxosProcesses(folder)
    for node in NODES:
        members.start(node)
    yield members
    for node, process in members.processes.items():
        assert process.poll() is None, (members.folder / f"{node}.log").read_text()
        process.kill()
        process.wait(LONG_S)
