"""A node with a Redis door in the process of the test, and raw connections to a door or a Redis."""

from __future__ import annotations

import socket as tcp
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fencelock.cluster.client.settings import DEFAULT_CLUSTER
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.cluster.testing.ports import free_ports

WAIT_S = 20.0


@contextmanager
def door_node(keys: Path | None = None) -> Generator[Node]:
    """Run a node of its own, in memory, that serves clients of Redis at a free port."""
    config = Config(
        cluster=DEFAULT_CLUSTER,
        protocol="paxos",
        nodes={"n1": f"tcp://127.0.0.1:{free_ports(1)[0]}"},
        settings=ProtocolSettings(paxos_memory=True),
        redis={"n1": "tcp://127.0.0.1:0"},
        keys=keys,
    )
    node = Node.start(config, "n1", found=True)
    try:
        yield node
    finally:
        node.stop()


def port_of(node: Node) -> int:
    return int(node.redis.rpartition(":")[2])


class RawClient:
    """A connection that sends bytes and returns the bytes of replies, one at a time."""

    def __init__(self, where: str | int) -> None:
        if isinstance(where, int):
            self.socket = tcp.create_connection(("127.0.0.1", where), WAIT_S)
        else:
            self.socket = tcp.socket(tcp.AF_UNIX)
            self.socket.settimeout(WAIT_S)
            self.socket.connect(where)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, *arguments: bytes) -> bytes:
        """Send a command, and return its reply as it came."""
        self.send(
            b"*%d\r\n" % len(arguments)
            + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in arguments)
        )
        return self.reply()

    def reply(self) -> bytes:
        """Return one whole reply; empty if the connection was closed."""
        line = self._file.readline()
        kind, rest = line[:1], line[1:].strip()
        if kind == b"$" and rest != b"-1":
            return line + self._file.read(int(rest) + 2)
        if kind in (b"*", b"%", b">") and rest != b"-1":
            count = int(rest) * (2 if kind == b"%" else 1)
            return line + b"".join(self.reply() for _ in range(count))
        return line

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
