"""Real nodes, one of which has a slow disk: pairs of acquire and release a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.collected import Collected
from support.paths import SUPPORT
from support.slow_disk_node import slow_file

import fencelock
from fencelock.verification.bench.members import NodeProcesses, described, leader_among

pytestmark = pytest.mark.long

CLIENTS = 4
SYNC_S = "0.3"
BACK_WITHIN_S = 3.0
MEASURED_S = 2.0


class LoadedCluster:
    """Three nodes with journals, and clients that acquire and release locks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members = NodeProcesses(folder, "paxos", 3, durable=True)
        self.members.program = (str(SUPPORT / "slow_disk_node.py"),)
        self.pairs = Collected[float]()
        """The times at which pairs ended (monotonic, s)."""
        self.over = False

    def client(self) -> fencelock.Client:
        return self.members.connected(ttl=15.0)

    def work(self, number: int) -> None:
        with self.client() as client:
            while not self.over:
                with client.lock(f"lock-{number}"):
                    pass
                self.pairs.add(time.monotonic())

    def pairs_within(self, since: float, seconds: float) -> int:
        """Wait until ``seconds`` after ``since``, and return the pairs that ended meanwhile."""
        ended = self.pairs.wait_for(
            lambda pairs: [*pairs] if time.monotonic() >= since + seconds else None
        )
        return sum(since <= at < since + seconds for at in ended)

    def make_slow(self, node: str) -> float:
        slow = slow_file(self.folder, node)
        aside = slow.with_suffix(".new")
        aside.write_text(SYNC_S, encoding="ascii")
        aside.rename(slow)  # At once: the node may read it at any time.
        return time.monotonic()

    def log_of(self, node: str) -> str:
        return (self.folder / f"{node}.log").read_text(encoding="utf-8")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LoadedCluster]:
    cluster = LoadedCluster(tmp_path)
    with ExitStack() as stack:
        stack.enter_context(cluster.members)
        stack.enter_context(cluster.members.ready_client())
        workers = [threading.Thread(target=cluster.work, args=(n,)) for n in range(CLIENTS)]
        for worker in workers:
            worker.start()
        try:
            cluster.pairs.wait_for_more(200)
            yield cluster
        finally:
            cluster.over = True
            for worker in workers:
                worker.join()


def leader_of(cluster: LoadedCluster) -> str:
    with cluster.client() as watcher:
        return leader_among(described(watcher))


def test_throughput_is_back_soon_after_the_leaders_disk_became_slow(cluster: LoadedCluster) -> None:
    leader = leader_of(cluster)
    before = cluster.pairs_within(time.monotonic(), MEASURED_S) / MEASURED_S

    struck = cluster.make_slow(leader)
    meanwhile = cluster.pairs_within(struck, BACK_WITHIN_S) / BACK_WITHIN_S
    after = cluster.pairs_within(struck + BACK_WITHIN_S, MEASURED_S) / MEASURED_S

    print(f"pairs/s: {before:.0f} before, {meanwhile:.0f} in {BACK_WITHIN_S} s, {after:.0f} after")
    assert after > before / 3
    assert leader_of(cluster) != leader
    assert cluster.log_of(leader).count("hands over to") == 1


def test_no_leader_hands_over_while_all_disks_are_slow_alike(cluster: LoadedCluster) -> None:
    leader = leader_of(cluster)
    for node in cluster.members.names:
        cluster.make_slow(node)
    cluster.pairs.wait_for_more(3 * CLIENTS)

    logs = "".join(map(cluster.log_of, cluster.members.names))
    assert "hands over" not in logs
    assert leader_of(cluster) == leader, logs
