"""Nodes as processes of their own on loopback, for measurements that kill some of them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.error import FencelockError, UnavailableError
from fencelock.actors.timing import ROUND_TRIP_MS
from fencelock.cluster.client.client import Client, connect
from fencelock.cluster.node.config import parse
from fencelock.cluster.testing.ports import free_ports

READY_S = 30.0
"""Timeout for a node to be ready (s). It needs a second, on a loaded machine some more."""

CONNECT_S = 60.0
"""Timeout for the first reply of a node (s)."""

STOP_S = 10.0
"""Time for a process to end in order before it is killed (s)."""

LOOK_AGAIN_S = 0.02
NO_DOORS: Mapping[str, int] = {}
MEMBERS, OBSERVERS = "cluster.toml", "observers.toml"
"""The configurations of members and of observers, whose own also lists themselves."""
MARKED = ("-m", "fencelock.verification.bench.profile_marks")
"""The program that runs a node with marks; its first argument is their file."""
LOG_CHARACTERS = 2_000
"""Characters of a log that are shown when its node is not ready: the folder is removed later."""


class BenchFailedError(FencelockError):
    """A measurement failed; the text names the process that failed, and shows its output."""


class NodeProcesses:
    """A cluster of ``fencelock serve`` processes, all of which end with the ``with`` block.

    Args:
        folder: for configuration, journals and logs.
        protocol: the protocol of the nodes.
        nodes: their number, 1 or more: n1, n2 and so on.
        durable: whether promises survive kill -9 (on disk), where the protocol leaves the
            choice: `paxos` and `central`.
        observers: the number of further nodes, which only read; `paxos` only.
        copies: whether members of `bakery` that do not lead keep copies.
        marks: whether nodes write marks of their steps when they end (`marks_of`).
        redis: whether each node serves clients of Redis, at its port of `doors`.

    Raises:
        fencelock.ConfigError: there is no such protocol, or it cannot run so.

    """

    cluster = "bench"
    program: Sequence[str] = ("-m", "fencelock")
    """The arguments of Python that run a node, before those of ``fencelock``."""

    def __init__(
        self,
        folder: Path,
        protocol: str,
        nodes: int,
        *,
        durable: bool,
        observers: int = 0,
        copies: bool = True,
        marks: bool = False,
        redis: bool = False,
    ) -> None:
        self.folder = folder
        self._marks = marks
        count = nodes + observers
        names = [f"n{number + 1}" for number in range(count)]
        ports = free_ports(2 * count if redis else count)
        self.addresses = {
            name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, ports[:count], strict=True)
        }
        self.doors = dict(zip(names, ports[count:], strict=False))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._members = names[:nodes]
        for file, known in ((MEMBERS, self._members), (OBSERVERS, names)):
            addresses = {name: self.addresses[name] for name in known}
            text = configuration(
                self.cluster,
                protocol,
                addresses,
                durable=durable,
                copies=copies,
                doors=self.doors,
            )
            parse(text, folder)  # Refuse here, with a text, what nodes would refuse.
            (folder / file).write_text(text, encoding="utf-8")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.addresses)

    @property
    def connect(self) -> str:
        """All addresses, as an address list for clients."""
        return ",".join(self.addresses.values())

    def __enter__(self) -> Self:
        try:
            for node in self.names:
                self.start(node, "--found")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        stop_all(list(self.processes.values()))

    def start(self, node: str, *options: str) -> None:
        """Start the process of ``node``; it continues from its journal on disk."""
        program = [*MARKED, str(self.marks_of(node))] if self._marks else self.program
        command = [self.python_of(node), *program, "serve", *options, "--id", node]
        with self._log_of(node).open("ab") as log, uninterrupted():
            self.processes[node] = subprocess.Popen(
                [*command, "--config", str(self.configuration_of(node))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def python_of(self, node: str) -> str:
        return sys.executable

    def configuration_of(self, node: str) -> Path:
        return self.folder / (MEMBERS if node in self._members else OBSERVERS)

    def marks_of(self, node: str) -> Path:
        return self.folder / f"{node}.marks"

    def kill(self, node: str) -> float:
        """Kill ``node`` with SIGKILL; return the monotonic time of it (s)."""
        process = self.processes[node]
        at = time.monotonic()
        process.kill()
        process.wait()
        return at

    def connected(self, ttl: float) -> Client:
        """Return a client, once a node replied."""
        return connect(self.connect, cluster=self.cluster, ttl=ttl, connect_timeout=CONNECT_S)

    def ready_client(self, *, ttl: float = 15.0) -> Client:
        """Return a client, once each node reports that it can serve."""
        client = self.connected(ttl)
        try:
            self.wait_until_ready(client)
        except BaseException:
            client.close()
            raise
        return client

    def wait_until_ready(self, watcher: Client) -> tuple[NodeStatus, ...]:
        """Return the status of all nodes, once each reports that it can serve.

        Raises:
            BenchFailedError: one ended, or is not ready within `READY_S`.

        """
        ends = time.monotonic() + READY_S
        while True:
            statuses = described(watcher)
            ready = {status.node for status in statuses if status.ready}
            if ready == set(self.names):
                return statuses
            for node in self.names:
                if self.processes[node].poll() is not None:
                    raise BenchFailedError(f"node {node} ended:\n{self.log_of(node)}")
            if time.monotonic() > ends:
                missing = ", ".join(sorted(set(self.names) - ready))
                logs = "\n".join(self.log_of(node) for node in sorted(set(self.names) - ready))
                raise BenchFailedError(f"not ready after {READY_S:g} s: {missing}\n{logs}")
            time.sleep(LOOK_AGAIN_S)

    def _log_of(self, node: str) -> Path:
        return self.folder / f"{node}.log"

    def log_of(self, node: str) -> str:
        """Return the end of what ``node`` logged."""
        return self._log_of(node).read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]


def configuration(
    cluster: str,
    protocol: str,
    addresses: dict[str, str],
    *,
    durable: bool,
    copies: bool = True,
    round_trip_ms: int = ROUND_TRIP_MS,
    doors: Mapping[str, int] = NO_DOORS,
) -> str:
    lines = [f'cluster = "{cluster}"', f'protocol = "{protocol}"', 'data = "data"']
    for node, address in addresses.items():
        lines += [f"[nodes.{node}]", f'address = "{address}"']
        if node in doors:
            lines.append(f'redis = "tcp://127.0.0.1:{doors[node]}"')
    if protocol == "bakery":
        lines += ["[bakery]", 'obtention = "unlimited"', f"copies = {str(copies).lower()}"]
    if protocol == "central":
        lines += ["[central]", f"journal = {str(durable).lower()}"]
    if protocol == "paxos":
        lines += ["[paxos]", f'durability = "{"fsync" if durable else "memory"}"']
        lines += [f"round_trip_ms = {round_trip_ms}"]
    return "\n".join([*lines, ""])


def described(watcher: Client) -> tuple[NodeStatus, ...]:
    """Return the status of each node that can be reached; empty if none can be."""
    try:
        return watcher.describe()
    except UnavailableError:
        return ()


def leader_among(statuses: Sequence[NodeStatus]) -> str:
    """Return the node that most of ``statuses`` call leader; empty if none does."""
    leaders = Counter(status.leader for status in statuses if status.leader)
    return max(sorted(leaders), key=lambda node: leaders[node], default="")


@contextlib.contextmanager
def uninterrupted() -> Generator[None]:
    """Defer SIGINT and SIGTERM while a process is started: nothing could stop it yet."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals are handled by the main thread alone.
        return
    came: list[int] = []

    def later(number: int, frame: object) -> None:
        came.append(number)

    before = {each: signal.signal(each, later) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, former in before.items():
            signal.signal(each, former)
        for number in came[:1]:
            signal.raise_signal(number)


def stop_all(processes: Collection[subprocess.Popen[Any]]) -> None:
    """Ask every process to end, and kill those that do not in `STOP_S`, or when interrupted."""
    try:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        ends = time.monotonic() + STOP_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends - time.monotonic()))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
