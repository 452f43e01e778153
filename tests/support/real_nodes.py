"""Real nodes in the process of the test, on loopback."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fencelock.cluster.node.config import Config, parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports

NODES = ("n1", "n2", "n3")
LONG_S = 30.0
"""Patience with a node (s)."""


def loopback_addresses(count: int = 3) -> dict[str, str]:
    """Return an address with a free port for each of the nodes ``n1`` to ``n<count>``."""
    return {f"n{n}": f"tcp://127.0.0.1:{port}" for n, port in enumerate(free_ports(count), 1)}


@contextmanager
def running_nodes(folder: Path, protocol: str = "paxos") -> Generator[dict[str, Node], None, None]:
    """Run `NODES`, as `running` does."""
    config = parse(starting_config(loopback_addresses(), protocol=protocol), folder)
    with running(config) as nodes:
        yield nodes


@contextmanager
def running(config: Config) -> Generator[dict[str, Node], None, None]:
    """Run all nodes of ``config``; stop them afterwards and check that none of them failed."""
    nodes = {node: Node.start(config, node, new=True) for node in config.nodes}
    yield nodes
    for node in nodes.values():
        assert node.stop(LONG_S)
        assert node.failure is None


def ask(node: Node, message: Any) -> Any:
    """Send a request as a caller inside the node's process; return the reply."""
    return node.proxy.ask(message, timeout=2 * LONG_S)


def free_row(count: int) -> int:
    """Return the first of so many ports in a row that nobody uses."""
    while True:
        (port,) = free_ports(1)
        with ExitStack() as stack, suppress(OSError):
            for number in range(port, port + count):
                taken = stack.enter_context(socket.socket())
                taken.bind(("127.0.0.1", number))
            return port
