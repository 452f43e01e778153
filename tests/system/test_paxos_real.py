"""`paxos` with real processes, sockets and disks: members are killed and come back."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.holds import fence_of
from support.real_nodes import loopback_addresses

import fencelock
from fencelock.cluster.config import starting_config

LONG_S = 60.0
NODES = ("n1", "n2", "n3")


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
        command = [sys.executable, "-m", "fencelock", "serve", "--id", node]
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


@pytest.fixture
def members(tmp_path: Path) -> Iterator[PaxosProcesses]:
    members = PaxosProcesses(tmp_path)
    for node in NODES:
        members.start(node)
    yield members
    for node, process in members.processes.items():
        assert process.poll() is None, (members.folder / f"{node}.log").read_text()
        process.kill()
        process.wait(LONG_S)


def test_whichever_member_is_killed_the_others_grant_and_fences_rise(
    members: PaxosProcesses,
) -> None:
    fences: list[int] = []
    with fencelock.connect(members.connect, connect_timeout=LONG_S) as client:
        for round_number in range(2):
            for node in NODES:
                with client.lock(f"before-{node}-{round_number}", timeout=LONG_S) as lock:
                    assert lock.fence is not None
                    fences.append(lock.fence)
                members.kill(node)
                after = client.lock(f"after-{node}-{round_number}")
                fences.append(fence_of(after.acquire(timeout=LONG_S)))
                members.start(node)
    assert fences == sorted(set(fences))


def test_a_hold_outlives_every_member_it_was_granted_by(members: PaxosProcesses) -> None:
    with (
        fencelock.connect(members.connect, connect_timeout=LONG_S) as client,
        fencelock.connect(members.connect, connect_timeout=LONG_S) as other,
    ):
        lock = client.lock("a")
        fence = fence_of(lock.acquire(timeout=LONG_S))
        for node in NODES:
            members.kill(node)
            assert other.lock("a").acquire(timeout=1.0) is None
            members.start(node)
            wait_until_ready(client, node)  # Or the next kill leaves no majority.
            assert lock.fence == fence
        lock.release()
        after = fence_of(other.lock("a").acquire(timeout=LONG_S))
        assert after is not None
        assert fence is not None
        assert after > fence


def test_no_fence_comes_again_when_every_member_was_killed(members: PaxosProcesses) -> None:
    with fencelock.connect(members.connect, connect_timeout=LONG_S) as client:
        before = fence_of(client.lock("a").acquire(timeout=LONG_S))
        assert before is not None
        for node in NODES:
            members.kill(node)
        for node in NODES:
            members.start(node)
        after = fence_of(client.lock("b").acquire(timeout=LONG_S))
        assert after is not None
        assert after > before
