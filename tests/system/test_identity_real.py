"""Real nodes that meet for the first time, lose their journals, or get old copies of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.real_nodes import loopback_addresses

import fencelock
from fencelock.actors.api.message import Describe, NodeStatus
from fencelock.actors.error import UnavailableError
from fencelock.cluster.node.config import Config, parse, starting_config
from fencelock.cluster.node.node import Node

NAMES = ("n1", "n2", "n3")
LONG_S = 30.0


class IdentityCluster:
    """Three members of `paxos`, each with a folder of its own."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.nodes: dict[str, Node] = {}

    def start(self, *names: str) -> None:
        self.nodes.update((name, Node.start(self.config, name, found=True)) for name in names)

    def stop(self, *names: str) -> None:
        for name in names:
            self.nodes.pop(name).stop()

    def folder(self, name: str) -> Path:
        folder = self.config.folder_of(name)
        assert folder is not None
        return folder

    def lock(self, name: str, through: str, timeout: float = LONG_S) -> int | None:
        """Take a lock through one node, and keep it; return its fence, None without a majority."""
        client = fencelock.connect(self.config.nodes[through], connect_timeout=LONG_S, ttl=60)
        self.clients.append(client)
        try:
            hold = client.lock(name).acquire(timeout=timeout)
        except UnavailableError:
            return None
        return None if hold is None else hold.fence

    def status(self, name: str) -> NodeStatus:
        status = self.nodes[name].proxy.ask(Describe(), timeout=LONG_S)
        assert isinstance(status, NodeStatus)
        return status

    def wait_until(self, name: str, is_so: Callable[[NodeStatus], bool]) -> None:
        for _ in range(2_000):  # Each question waits for the node's answer.
            if is_so(self.status(name)):
                return
        pytest.fail(f"{name} said last: {self.status(name)}")

    clients: list[fencelock.Client]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[IdentityCluster]:
    addresses = loopback_addresses()
    cluster = IdentityCluster(parse(starting_config(addresses, protocol="paxos"), tmp_path))
    cluster.clients = []
    yield cluster
    for client in cluster.clients:
        client.close()
    cluster.stop(*tuple(cluster.nodes))


def test_a_new_cluster_waits_for_all_its_members_and_says_for_whom(
    cluster: IdentityCluster,
) -> None:
    cluster.start("n1", "n2")
    cluster.wait_until("n1", lambda status: "waiting for n3: a new cluster" in status.detail)
    assert cluster.lock("a", "n1", timeout=0.2) is None

    cluster.start("n3")

    assert cluster.lock("a", "n2") is not None


def test_a_lock_is_not_granted_twice_when_a_member_lost_its_journal(
    cluster: IdentityCluster,
) -> None:
    cluster.start(*NAMES)
    cluster.lock("warm", "n3")
    cluster.stop("n3")
    assert cluster.lock("a", "n1") is not None
    cluster.stop("n1", "n2")

    shutil.rmtree(cluster.folder("n2"))
    cluster.start("n2", "n3")

    assert cluster.lock("a", "n3", timeout=1) is None
    cluster.wait_until("n2", lambda status: "n2 lost its journal" in status.detail)
    cluster.start("n1")
    assert cluster.lock("b", "n2") is not None  # It serves, and the other two decide.
    assert "does not vote" in cluster.status("n2").detail


def test_an_old_copy_of_a_journal_does_not_vote(cluster: IdentityCluster, tmp_path: Path) -> None:
    cluster.start(*NAMES)
    cluster.lock("warm", "n1")
    cluster.stop("n2")
    copy = tmp_path / "copy"
    shutil.copytree(cluster.folder("n2"), copy)
    cluster.start("n2")
    fence = cluster.lock("a", "n2")
    cluster.wait_until("n2", lambda status: "does not vote" not in status.detail)
    cluster.stop("n2")

    shutil.rmtree(cluster.folder("n2"))
    shutil.copytree(copy, cluster.folder("n2"))
    cluster.start("n2")

    cluster.wait_until("n2", lambda status: "old copy of its journal" in status.detail)
    later = cluster.lock("b", "n2")
    assert fence is not None
    assert later is not None
    assert later > fence
