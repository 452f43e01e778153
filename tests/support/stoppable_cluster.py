"""A cluster of nodes in the process of the test that stop and start again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from fencelock.cluster.client.client import Client, connect
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports

PATIENCE_S = 60
CLUSTER = "test"


class Cluster:
    """Nodes in this process that can be stopped and started again."""

    def __init__(self, protocol: str, nodes: int, data: Path) -> None:
        at = {f"n{n}": f"tcp://127.0.0.1:{port}" for n, port in enumerate(free_ports(nodes), 1)}
        self.config = Config(cluster=CLUSTER, protocol=protocol, nodes=at, data=data)
        self.running: dict[str, Node] = {}
        self.clients = ExitStack()

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self.running[node] = Node.start(self.config, node, found=True)

    def stop(self, node: str) -> None:
        assert self.running.pop(node).stop(PATIENCE_S)

    def addresses(self, *nodes: str) -> str:
        return ",".join(self.config.nodes[node] for node in nodes)

    def connect(self, *nodes: str) -> Client:
        addresses = self.addresses(*(nodes or self.config.nodes))
        return self.clients.enter_context(
            connect(addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S)
        )

    def close(self) -> None:
        self.clients.close()
        for node in list(self.running):
            self.stop(node)


def started(cluster: Cluster) -> Iterator[Cluster]:
    """Start the nodes of ``cluster``; stop it afterwards, and check that no thread is left."""
    before = threads()
    try:
        cluster.start(*cluster.config.nodes)
        yield cluster
    finally:
        cluster.close()
    assert threads() == before


def threads() -> list[str]:
    """Return the names of the threads of nodes and clients."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("fencelock"))
