"""The cost of a node that has nothing to do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from fencelock.cluster.node.config import parse
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports

IDLE_CLUSTER = """
cluster = "idle"
protocol = "lamport"
[nodes.n1]
address = "tcp://127.0.0.1:{0}"
[nodes.n2]
address = "tcp://127.0.0.1:{1}"
"""

SETTLE_S = 1.0
"""Time for two nodes to connect (s); they need far less."""


def share_of_a_core(seconds: float) -> float:
    """Return the share of one core (0 to 1) that one of two connected, idle nodes uses.

    Args:
        seconds: how long to watch them.

    """
    text = IDLE_CLUSTER.format(*free_ports(2))
    config = parse(text, Path())
    nothing = threading.Event()
    with Node.start(config, "n1", found=True), Node.start(config, "n2", found=True):
        nothing.wait(SETTLE_S)
        cpu, wall = time.process_time(), time.perf_counter()
        nothing.wait(seconds)
        used = time.process_time() - cpu
        return used / (time.perf_counter() - wall) / 2
