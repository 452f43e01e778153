"""The sockets at which a node listens: for nodes and clients, for clients of Redis, for metrics."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from struct import unpack_from

import psutil
import pytest
from support.real_nodes import config_in, measured

from fencelock.cluster.node.node import Node
from fencelock.transport.sockets import LISTEN_BACKLOG

LIMIT = Path("/proc/sys/net/core/somaxconn")
"""The largest backlog that the kernel allows."""

TCP_INFO_BYTES, MOST_AT = 104, 28
"""Size of the kernel's description of a socket, and the place of its backlog (bytes)."""


def backlog_of(port: int) -> int:
    """Return how many connections the kernel keeps for a socket of this process (Linux)."""
    (descriptor,) = [
        one.fd
        for one in psutil.Process().net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    ]
    with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as copy:
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    most: int = unpack_from("=I", info, MOST_AT)[0]
    return most


@pytest.mark.skipif(not LIMIT.exists(), reason="only Linux shows the backlog of a socket")
def test_a_crowd_that_connects_at_once_finds_room(tmp_path: Path) -> None:
    """The kernel drops what a full backlog has no room for; a client tries again after 1 s."""
    config = replace(measured(config_in(tmp_path, nodes=1)), redis={"n1": "tcp://127.0.0.1:0"})
    with Node.start(config, "n1", found=True) as node:
        found = {
            at: backlog_of(int(at.rpartition(":")[2]))
            for at in (node.address, node.redis, node.metrics)
        }
    assert set(found.values()) == {min(LISTEN_BACKLOG, int(LIMIT.read_text()))}
