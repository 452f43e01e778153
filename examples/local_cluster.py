"""The nodes of examples/cluster.py: processes that are started, watched, killed and stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import fencelock
from fencelock import NodeStatus, UnavailableError
from fencelock.cluster.node.config import starting_config
from fencelock.cluster.testing.ports import free_ports
from fencelock.verification.bench.members import described, leader_among

READY_S = 60.0
"""Time limit for the start of nodes and clients (s); a busy machine needs many seconds."""

CONNECT_S = 2.0
"""Timeout of one attempt to reach a node (s); between two, ended nodes are noticed."""

STOP_S = 10.0
LOGGED_MAX = 2_000
"""Characters of a log that are shown: the folder is removed at the end."""


class ClusterFailedError(RuntimeError):
    """A process of the cluster did not start; the text says which and why."""


class LocalCluster:
    """Nodes on loopback ports of this machine, one ``fencelock serve`` process each.

    Args:
        folder: where configuration, journals and logs go.
        protocol: who grants the locks.
        nodes: how many.
        journal: `central`: whether the server keeps its table on disk.

    """

    name = "local"

    def __init__(self, folder: Path, protocol: str, nodes: int, *, journal: bool = False) -> None:
        self.folder = folder
        self.addresses = {
            f"n{number}": f"tcp://127.0.0.1:{port}"
            for number, port in enumerate(free_ports(nodes), 1)
        }
        self.server = self.nodes[0] if protocol == "central" else ""
        text = starting_config(self.addresses, cluster=self.name, protocol=protocol)
        if journal:
            text = text.replace("journal = false", "journal = true")
        (folder / "cluster.toml").write_text(text, encoding="utf-8")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def nodes(self) -> list[str]:
        """The ids of the nodes."""
        return list(self.addresses)

    @property
    def connect(self) -> str:
        """The addresses of all nodes, separated by commas."""
        return ",".join(self.addresses.values())

    @property
    def endpoints(self) -> list[str]:
        """The addresses to which clients connect.

        With `central`, clients do not use the server's node, if there are others: it may be
        killed here.
        """
        others = [at for node, at in self.addresses.items() if node != self.server]
        return others or list(self.addresses.values())

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self.start(node, "--found")  # A new cluster, begun once.
        except BaseException:
            stop_all(list(self.processes.values()))
            raise
        return self

    def __exit__(self, *error: object) -> None:
        stop_all(list(self.processes.values()))

    def start(self, node: str, *options: str) -> None:
        """Start the process of ``node``."""
        command = [sys.executable, "-m", "fencelock", "serve"]
        with (self.folder / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                [*command, "--config", str(self.folder / "cluster.toml"), "--id", node, *options],
                stdout=log,
                stderr=log,
            )

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

    def kill(self, node: str) -> None:
        """Kill ``node`` with SIGKILL: it cannot send or write anything more."""
        self.processes[node].kill()
        self.processes[node].wait()

    def ended(self) -> str:
        """Return a node whose process has ended, empty if all run."""
        return next((node for node in self.nodes if self.processes[node].poll() is not None), "")

    def log_of(self, node: str) -> str:
        """Return the end of what ``node`` logged."""
        log = (self.folder / f"{node}.log").read_text(encoding="utf-8", errors="replace")
        return log[-LOGGED_MAX:]

    def watcher(self) -> fencelock.Client:
        """Return a client once a node answers; a busy machine takes a while to start them.

        Raises:
            ClusterFailedError: a node ended, or none answers in `READY_S`.

        """
        ends = time.monotonic() + READY_S
        while True:
            try:
                return fencelock.connect(self.connect, cluster=self.name, connect_timeout=CONNECT_S)
            except UnavailableError:
                self._check_starting(ends)

    def wait_until_ready(self, watcher: fencelock.Client) -> None:
        """Return once every node reports that it can serve.

        Raises:
            ClusterFailedError: one of them ended, or is not ready in `READY_S`.

        """
        ends = time.monotonic() + READY_S
        while True:
            ready = {status.node for status in described(watcher) if status.ready}
            if ready == set(self.nodes):
                return
            self._check_starting(ends)
            time.sleep(0.05)

    def _check_starting(self, ends: float) -> None:
        """Raise ClusterFailedError if a node has ended, or if it is too late by now."""
        for node, process in self.processes.items():
            if process.poll() is not None or time.monotonic() > ends:
                raise ClusterFailedError(f"node {node} is not ready:\n{self.log_of(node)}")

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
    told = [status.elected for status in statuses if status.elected is not None]
    if told:
        return max(told, key=lambda elected: elected.epoch).leaders
    leader = leader_among(statuses)
    return (leader,) if leader else ()


def stop_all(processes: list[subprocess.Popen[Any]]) -> None:
    """Ask every process to end, and kill those that do not."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
