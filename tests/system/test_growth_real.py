"""Clients and nodes of two versions of the messages in one cluster, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.expect import PATIENCE_S
from support.paths import EXAMPLES, SUPPORT
from support.programs import run_to_end

import fencelock
from fencelock.verification.bench.members import NodeProcesses

pytestmark = pytest.mark.long

LAUNCHER = str(SUPPORT / "two_versions.py")
RAW_CLIENT = EXAMPLES / "raw_zmq_client.py"
NEWER = "wire.newer_message"
TIMES = 3
Finished = subprocess.CompletedProcess[str]


class Mixed(NodeProcesses):
    """A cluster of `paxos` whose nodes have the ``versions``, in the order n1, n2, n3."""

    def __init__(self, folder: Path, *versions: str) -> None:
        super().__init__(folder, "paxos", len(versions), durable=False)
        self.version = dict(zip(self.names, versions, strict=True))

    def start(self, node: str, *options: str) -> None:
        self.program = (LAUNCHER, self.version[node])
        super().start(node, *options)

    def client(self, version: str, patience_s: float, *nodes: str) -> Finished:
        """Run a client of ``version`` that acquires and releases at each of ``nodes``."""
        addresses = [self.addresses[node] for node in nodes]
        arguments = [version, "lock", self.cluster, str(patience_s), str(TIMES), *addresses]
        return run_to_end([sys.executable, LAUNCHER, *arguments], timeout=3 * PATIENCE_S)

    def lock_from(self, version: str) -> dict[str, Any]:
        """Acquire and release at every node; return the client's output."""
        done = self.client(version, PATIENCE_S, *self.names)
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report


@contextmanager
def ready(cluster: Mixed) -> Generator[Mixed]:
    with cluster, cluster.ready_client():
        yield cluster


def judge(report: dict[str, Any]) -> None:
    """Every node granted the lock, fences rise, and nothing was malformed."""
    fences = report["fences"]
    assert len(fences) == 3 * TIMES
    assert fences == sorted(set(fences))
    assert set(report["nodes"]) == {"n1", "n2", "n3"}
    for counters in (report["client"], *report["nodes"].values()):
        assert "wire.malformed" not in counters


def test_clients_of_two_versions_lock_at_old_nodes(tmp_path: Path) -> None:
    with ready(Mixed(tmp_path, "old", "old", "old")) as cluster:
        old = cluster.lock_from("old")
        judge(old)
        assert not any(NEWER in counters for counters in old["nodes"].values())
        new = cluster.lock_from("new")
        judge(new)
        for counters in new["nodes"].values():
            assert counters[NEWER] >= 3  # Describe, once for each address.
        assert NEWER not in new["client"]
        assert new["fences"][0] > old["fences"][-1]


def test_clients_of_two_versions_and_a_raw_client_lock_at_new_nodes(tmp_path: Path) -> None:
    with ready(Mixed(tmp_path, "new", "new", "new")) as cluster:
        old, new = cluster.lock_from("old"), cluster.lock_from("new")
        judge(old)
        judge(new)
        assert old["client"][NEWER] >= 9  # NodeStatus, of each node, once for each address.
        assert NEWER not in new["client"]
        for report in (old, new):
            assert not any(NEWER in counters for counters in report["nodes"].values())
        arguments = ["--node", cluster.addresses["n1"], "--cluster", cluster.cluster]
        command = [sys.executable, str(RAW_CLIENT), *arguments]
        done = run_to_end(command)
        assert (done.returncode, done.stderr) == (0, "")


def test_clients_of_two_versions_lock_at_nodes_of_two_versions(tmp_path: Path) -> None:
    with ready(Mixed(tmp_path, "old", "new", "old")) as cluster:
        for version in ("old", "new"):
            report = cluster.lock_from(version)
            judge(report)
            nodes = report["nodes"]
            # n2 leads and sends heartbeats to both, or it answers the leader's heartbeats.
            assert NEWER in nodes["n1"] or NEWER in nodes["n3"]
            assert NEWER not in nodes["n2"]
            assert (NEWER in report["client"]) == (version == "old")


def test_a_planted_bug_that_refuses_longer_messages_shows(tmp_path: Path) -> None:
    with ready(Mixed(tmp_path, "old", "refusing", "old")) as cluster:
        assert cluster.client("old", PATIENCE_S, "n2").returncode == 0
        done = cluster.client("new", 2.0, "n2")
        assert done.returncode != 0
        assert "UnavailableError" in done.stderr
        with fencelock.connect(cluster.connect, cluster=cluster.cluster) as watcher:
            (n2,) = [status for status in watcher.describe() if status.node == "n2"]
        assert "wire.malformed" in {counter.name for counter in n2.counters}
