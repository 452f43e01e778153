"""The clients of examples/cluster.py: processes that compete for locks, and their output."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

from contender import OVER
from contests import CONTESTS
from local_cluster import LocalCluster

from fencelock.verification.bench.members import STOP_S, BenchFailedError, stop_all

READY_S = 60.0
"""Time limit for clients to connect, and for a change of the members (s); they need seconds."""

HERE = Path(__file__).resolve().parent
LOG_MAX = 500
"""Characters of a client's last output that are shown: the logs are removed."""


class Contenders:
    """Client processes, and their output so far.

    Attributes:
        grants: the number of grants to each client.
        grants_by_kind: with --objects, the number of grants of each kind of object.
        objects: with --objects, the objects to compete for, as people name them.
        waits_ms: the time that each acquire took (ms).
        longest_gap_ms: the longest time without a grant to any client, from `begin` on.
        kills_ms: the times at which a node was killed.
        unserved: the kills, and changes of the members, since which there was no grant.

    """

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        clients: int,
        locks: int,
        seconds: float,
        *,
        objects: bool,
    ) -> None:
        self.names = [f"c{number + 1}" for number in range(clients)]
        self.grants: Counter[str] = Counter(dict.fromkeys(self.names, 0))
        self.grants_by_kind: Counter[str] = Counter()
        self.objects = [name for one in CONTESTS if objects for name in one.names]
        self.waits_ms: list[float] = []
        self.longest_gap_ms = 0
        self.kills_ms: list[int] = []
        self.unserved: list[int] = []
        self._last_grant_ms = 0
        self.done: dict[str, dict[str, Any]] = {}
        self.problems: list[str] = []
        self._counting = threading.Lock()
        self._over = threading.Event()
        self._ready = threading.Semaphore(0)
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        self._folder = folder
        self._addresses = cluster.endpoints
        self._options = ["--cluster", cluster.cluster, "--folder", str(folder)]
        self._options += ["--locks", str(locks), "--seconds", str(seconds)]
        self._options += ["--objects"] if objects else []

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
            record: dict[str, Any] = json.loads(line)
            if record["event"] == "granted":
                self._count(name, record)
            elif record["event"] == "ready":
                self._ready.release()
            else:
                self.done[name] = record
        if not self.alive():
            self._over.set()

    def _count(self, name: str, record: dict[str, Any]) -> None:
        with self._counting:
            self.grants[name] += 1
            self.grants_by_kind[record["kind"]] += 1
            self.waits_ms.append(record["waited_ms"])
            self._pass(record["at_ms"])
            self.unserved = [kill for kill in self.unserved if kill >= record["at_ms"]]

    def _pass(self, at_ms: int) -> None:
        self.longest_gap_ms = max(self.longest_gap_ms, at_ms - self._last_grant_ms)
        self._last_grant_ms = max(self._last_grant_ms, at_ms)

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
        """Start all clients together, once each is connected.

        Raises:
            BenchFailedError: one of them is not ready within `READY_S`.

        """
        for _ in self.names:
            if not self._ready.acquire(timeout=READY_S):
                raise BenchFailedError(f"a client is not ready after {READY_S} s; see its log")
        self._last_grant_ms = now_ms()
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.write("begin\n")
            process.stdin.flush()

    def killed(self) -> None:
        """Record that a node is killed now."""
        with self._counting:
            self.kills_ms.append(now_ms())
            self.unserved.append(self.kills_ms[-1])

    def changed(self) -> None:
        """Record that the members changed now: somebody must be served since then."""
        with self._counting:
            self.unserved.append(now_ms())

    def stop(self) -> None:
        """Let the clients stop before their time is over."""
        (self._folder / OVER).touch()

    def over(self) -> None:
        """Record that the time is over: clients served later do not count for the gap."""
        with self._counting:
            self._pass(now_ms())

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
                log = self._log_of(name).read_text(encoding="utf-8", errors="replace").strip()
                self.problems.append(f"client {name} ended with {code}: {log[-LOG_MAX:]}")
        for reader in self._readers:
            reader.join(STOP_S)
        return not self.problems


def now_ms() -> int:
    """Return the monotonic clock of this machine (ms), the same in every process."""
    return time.monotonic_ns() // 1_000_000
