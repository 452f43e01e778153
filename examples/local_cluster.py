"""The processes of examples/cluster.py: nodes and clients, started, watched and stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import holdfast
from holdfast.cluster.config import starting_config
from holdfast.cluster.ports import free_ports

HERE = Path(__file__).resolve().parent
READY_S = 30.0
STOP_S = 10.0
SAID_MAX = 500
"""How much of what a client said at its end is shown, in characters: the logs are removed."""


class ClusterFailedError(RuntimeError):
    """A process of the cluster did not start; the text says which and why."""


class LocalCluster:
    """Nodes on loopback ports of this machine, one ``holdfast serve`` process each."""

    name = "local"

    def __init__(self, folder: Path, protocol: str, nodes: int) -> None:
        self.folder = folder
        self.ports = free_ports(nodes)
        self.connect = ",".join(f"tcp://127.0.0.1:{port}" for port in self.ports)
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.config = folder / "cluster.toml"
        addresses = dict(zip(self.nodes, self.connect.split(","), strict=True))
        text = starting_config(addresses, cluster=self.name, protocol=protocol)
        self.config.write_text(text, encoding="utf-8")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self.start(node)
        except BaseException:
            stop_all(list(self.processes.values()))
            raise
        return self

    def __exit__(self, *error: object) -> None:
        stop_all(list(self.processes.values()))

    def start(self, node: str) -> None:
        """Start the process of ``node``."""
        command = [sys.executable, "-m", "holdfast", "serve"]
        with (self.folder / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                [*command, "--config", str(self.config), "--id", node], stdout=log, stderr=log
            )

    def wait_until_ready(self, watcher: holdfast.Client) -> None:
        """Return when every node says that it can serve.

        Raises:
            ClusterFailedError: one of them ended, or is not ready in `READY_S`.

        """
        ends = time.monotonic() + READY_S
        while True:
            ready = {status.node for status in watcher.describe() if status.ready}
            if ready == set(self.nodes):
                return
            for node, process in self.processes.items():
                if process.poll() is not None or time.monotonic() > ends:
                    log = (self.folder / f"{node}.log").read_text(encoding="utf-8")
                    raise ClusterFailedError(f"node {node} is not ready:\n{log[-2000:]}")
            time.sleep(0.05)

    def messages_per_entry(self, watcher: holdfast.Client, grants: int) -> float | None:
        """Return the protocol messages sent for each entry, for a protocol that counts them."""
        counted: Counter[str] = Counter()
        for status in watcher.describe():
            counted.update({counter.name: counter.times for counter in status.counters})
        kinds = ("lamport.request", "lamport.acknowledge", "lamport.release")
        sent = sum(counted[kind] for kind in kinds)
        return sent / grants if sent and grants else None


class Contenders:
    """Client processes, and what they said so far."""

    def __init__(
        self, cluster: LocalCluster, folder: Path, *, clients: int, locks: int, seconds: float
    ) -> None:
        self.names = [f"c{number + 1}" for number in range(clients)]
        self.grants: Counter[str] = Counter(dict.fromkeys(self.names, 0))
        self.waits_ms: list[float] = []
        self.done: dict[str, dict[str, Any]] = {}
        self.problems: list[str] = []
        self._over = threading.Event()
        self._ready = threading.Semaphore(0)
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        self._folder = folder
        self._addresses = cluster.connect.split(",")
        self._options = ["--cluster", cluster.name, "--folder", str(folder)]
        self._options += ["--locks", str(locks), "--seconds", str(seconds)]

    def _start(self, name: str, connect: str) -> None:
        command = [sys.executable, str(HERE / "contender.py"), *self._options]
        command += ["--name", name, "--connect", connect]
        with self._log_of(name).open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._processes[name] = process
        reader = threading.Thread(target=self._read, args=(name, process), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said: dict[str, Any] = json.loads(line)
            if said["event"] == "granted":
                self.grants[name] += 1
                self.waits_ms.append(said["waited_ms"])
            elif said["event"] == "ready":
                self._ready.release()
            else:
                self.done[name] = said
        if not self.alive():
            self._over.set()

    def _log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def __enter__(self) -> Self:
        try:
            for number, name in enumerate(self.names):
                first = number % len(self._addresses)  # Each begins at another node.
                connect = ",".join(self._addresses[first:] + self._addresses[:first])
                self._start(name, connect)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        stop_all(list(self._processes.values()))
        for reader in self._readers:
            reader.join(STOP_S)
        for process in self._processes.values():
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def begin(self) -> None:
        """Let all clients begin together, once each is connected.

        Raises:
            ClusterFailedError: one of them is not ready within `READY_S`.

        """
        for _ in self.names:
            if not self._ready.acquire(timeout=READY_S):
                raise ClusterFailedError(f"a client is not ready after {READY_S} s; see its log")
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.write("begin\n")
            process.stdin.flush()

    def alive(self) -> bool:
        """Return whether any client still runs."""
        return any(process.poll() is None for process in self._processes.values())

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until every client has ended."""
        self._over.wait(seconds)

    def finish(self, grace_s: float) -> bool:
        """Wait for every client to end by itself; return whether all ended well."""
        ends = time.monotonic() + grace_s
        for name, process in self._processes.items():
            try:
                code = process.wait(max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.problems.append(f"client {name} did not finish in {grace_s} s")
                continue
            if code != 0:
                said = self._log_of(name).read_text(encoding="utf-8", errors="replace").strip()
                self.problems.append(f"client {name} ended with {code}: {said[-SAID_MAX:]}")
        for reader in self._readers:
            reader.join(STOP_S)
        return not self.problems


def stop_all(processes: list[subprocess.Popen[Any]]) -> None:
    """Ask every process to end, and end those that do not listen."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
