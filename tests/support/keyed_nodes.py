"""Nodes with keys: in the process of the test, or as processes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fencelock
from fencelock.actors.proxy.access import CLIENT, OPERATOR, Rights
from fencelock.cluster.keys import add_key, make_folder
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.verification.bench.members import NodeProcesses
from support.real_nodes import NODES, loopback_addresses, running

LONG_S = 30.0
KEYS_LINE = 'keys = "./keys"'


class KeyedNodes:
    """Running nodes with the folder of their keys: ``alice`` is an operator, ``shop`` a client.

    Attributes:
        nodes: the nodes by id.
        keys: the folder of the keys.

    """

    def __init__(self, nodes: dict[str, Node], keys: Path) -> None:
        self.nodes = nodes
        self.keys = keys

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    def connect(self, key: str | None, **options: Any) -> fencelock.Client:
        """Return a client with the key of that name, or with none."""
        path = None if key is None else self.keys / f"{key}.key"
        options = {"connect_timeout": LONG_S, **options}
        return fencelock.connect(self.addresses, key=path, **options)

    def count(self, counter: str) -> int:
        """Return how often the nodes together counted something."""
        with self.connect("alice") as operator:
            statuses = operator.survey().statuses
        return sum(
            one.times for status in statuses for one in status.counters if one.name == counter
        )

    def reload(self) -> None:
        for node in self.nodes.values():
            node.reload_keys()


def make_keys(folder: Path, nodes: tuple[str, ...] = NODES) -> None:
    """Make the keys of nodes, of the operator ``alice`` and of the client ``shop``."""
    make_folder(folder, nodes)
    add_key(folder, Rights("alice", OPERATOR))
    add_key(folder, Rights("shop", CLIENT, ("orders/",)))


@contextmanager
def keyed_nodes(
    folder: Path, protocol: str = "paxos", count: int = 3
) -> Generator[KeyedNodes, None, None]:
    """Run nodes with keys; stop them afterwards and check that none of them failed."""
    addresses = loopback_addresses(count)
    make_keys(folder / "keys", tuple(addresses))
    text = starting_config(addresses, protocol=protocol).replace(f"# {KEYS_LINE}", KEYS_LINE)
    config = parse(text, folder)
    assert config.keys is not None
    with running(config) as nodes:
        yield KeyedNodes(nodes, config.keys)


class KeyedProcesses(NodeProcesses):
    """Processes of nodes with keys, see `make_keys`."""

    def __init__(self, folder: Path, protocol: str, nodes: int, *, durable: bool) -> None:
        super().__init__(folder, protocol, nodes, durable=durable)
        make_keys(folder / "keys", self.names)
        with (folder / "cluster.toml").open("a", encoding="utf-8") as file:
            file.write(f"[security]\n{KEYS_LINE}\n")

    def client(self, key: str) -> fencelock.Client:
        """Return a client with the key of that name."""
        path = self.folder / "keys" / f"{key}.key"
        return fencelock.connect(
            self.connect, cluster=self.cluster, key=path, connect_timeout=LONG_S
        )
