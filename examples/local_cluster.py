"""The nodes of examples/cluster.py: processes that are started, watched, killed and stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import fencelock
from fencelock import NodeStatus
from fencelock.cluster.testing.ports import free_ports
from fencelock.verification.bench.members import NodeProcesses, described, leader_among, stop_all


class LocalCluster(NodeProcesses):
    """Nodes on loopback ports of this machine, which may join and leave while they run.

    Args:
        folder: where configuration, journals and logs go.
        protocol: who grants the locks.
        nodes: how many.
        journal: `central`: whether the server keeps its table on disk.

    """

    cluster = "local"

    def __init__(self, folder: Path, protocol: str, nodes: int, *, journal: bool = False) -> None:
        super().__init__(folder, protocol, nodes, durable=journal or protocol != "central")
        self.server = self.names[0] if protocol == "central" else ""

    @property
    def endpoints(self) -> list[str]:
        """The addresses to which clients connect.

        With `central`, clients do not use the server's node, if there are others: it may be
        killed here.
        """
        others = [at for node, at in self.addresses.items() if node != self.server]
        return others or list(self.addresses.values())

    def add(self, node: str) -> None:
        """Start a node that is in no file: it learns the cluster from one that runs."""
        (port,) = free_ports(1)
        seed, at = next(iter(self.addresses.values())), f"tcp://127.0.0.1:{port}"
        self.addresses[node] = at
        data = str(self.folder / "data")
        self.start(node, "--join", seed, "--address", at, "--data", data)

    def stop(self, node: str) -> None:
        """Stop a node in order, for good."""
        stop_all([self.processes.pop(node)])
        del self.addresses[node]

    def ended(self) -> str:
        """Return a node whose process has ended, empty if all run."""
        return next((node for node in self.names if self.processes[node].poll() is not None), "")

    def messages_per_entry(self, watcher: fencelock.Client, grants: int) -> float | None:
        """Return the protocol messages sent for each entry, for a protocol that counts them."""
        counted: Counter[str] = Counter()
        for status in described(watcher):
            counted.update({counter.name: counter.times for counter in status.counters})
        kinds = ("lamport.request", "lamport.acknowledge", "lamport.release")
        sent = sum(counted[kind] for kind in kinds)
        return sent / grants if sent and grants else None


def leaders_of(statuses: Sequence[NodeStatus]) -> tuple[str, ...]:
    """Return the nodes that lead, as far as is known; several only where they are elected."""
    known = [status.elected for status in statuses if status.elected is not None]
    if known:
        return max(known, key=lambda elected: elected.epoch).leaders
    leader = leader_among(statuses)
    return (leader,) if leader else ()
