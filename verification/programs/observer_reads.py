"""Reads with an age bound, spread over three members and 0, 1 and 2 observers.

Nodes and clients are processes. Each node serves one client process, and all of them read at the
same time. The table also has the processor time that the leader uses while nobody asks for
anything, since observers ask it how old its state is. Run it as
``python verification/programs/observer_reads.py``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from catch_up import processor_ms
from options import options_of
from rich.console import Console
from rich.table import Table

import fencelock
from fencelock.cluster.testing.ports import free_ports
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.members import (
    NodeProcesses,
    configuration,
    described,
    leader_among,
)
from fencelock.verification.bench.reads import LOCAL_AGE_MS
from fencelock.verification.bench.workers import started

MEMBERS = 3
OBSERVERS = (0, 1, 2)
LOCK = "seen"
LONG_S = 60.0


class ObservedProcesses(NodeProcesses):
    """Three members, and observers whose configuration lists them all."""

    def __init__(self, folder: Path, observers: int) -> None:
        super().__init__(folder, "paxos", MEMBERS, durable=True)
        for number, port in enumerate(free_ports(observers), start=MEMBERS + 1):
            self.addresses[f"n{number}"] = f"tcp://127.0.0.1:{port}"
        text = configuration(self.cluster, "paxos", self.addresses, durable=True)
        (folder / "observer.toml").write_text(text, encoding="utf-8")

    def configuration_of(self, node: str) -> Path:
        """Return the file that ``node`` is started with."""
        own = self.folder / "observer.toml"
        return own if int(node[1:]) > MEMBERS else super().configuration_of(node)

    def used_ms(self) -> dict[str, float]:
        """Return the processor time that each node has used (ms)."""
        return {node: processor_ms(process.pid) for node, process in self.processes.items()}


def measure(folder: Path, observers: int, seconds: float, threads: int) -> dict[str, object]:
    """Return the reads of each node a second, its processor time a read, and the leader's rest."""
    with (
        ObservedProcesses(folder, observers) as nodes,
        fencelock.connect(nodes.connect, cluster=nodes.cluster, connect_timeout=LONG_S) as watcher,
        ExitStack() as stack,
    ):
        leader = leader_among(nodes.wait_until_ready(watcher))
        stack.enter_context(watcher.lock(LOCK))
        before = nodes.used_ms()
        time.sleep(seconds)
        idle = (nodes.used_ms()[leader] - before[leader]) / seconds
        jobs = {
            node: Job(
                kind=JobKind.READ,
                address=nodes.addresses[node],
                cluster=nodes.cluster,
                seconds=seconds,
                at_once=threads,
                lock=LOCK,
                shared=True,
                age_ms=LOCAL_AGE_MS,
            )
            for node in nodes.names
        }
        readers = {node: started(stack, job, folder, f"at-{node}") for node, job in jobs.items()}
        for reader in readers.values():
            reader.wait_until_ready()
        before = nodes.used_ms()
        for reader in readers.values():
            reader.tell()
        read = {node: reader.result() for node, reader in readers.items()}
        after = nodes.used_ms()
        assert leader_among(described(watcher)) == leader, "another node leads now: repeat it"
    return {
        "leader": leader,
        "reads_per_s": {node: one["times"] / one["seconds"] for node, one in read.items()},
        "us_per_read": {
            node: 1_000 * (after[node] - before[node]) / one["times"] for node, one in read.items()
        },
        "idle_leader_ms_per_s": idle,
    }


def row(found: Mapping[str, object]) -> list[str]:
    """Return the cells of one run."""
    rates: Mapping[str, float] = found["reads_per_s"]  # type: ignore[assignment]
    costs: Mapping[str, float] = found["us_per_read"]  # type: ignore[assignment]
    followers = [node for node in rates if int(node[1:]) <= MEMBERS and node != found["leader"]]
    observers = [node for node in rates if int(node[1:]) > MEMBERS]
    cells = [f"{len(observers)}", f"{sum(rates.values()):.0f}"]
    for group in ([str(found["leader"])], followers, observers):
        shown = [f"{costs[node]:.0f}" for node in group]
        cells += [f"{sum(rates[node] for node in group):.0f}", " ".join(shown) or "-"]
    return [*cells, f"{found['idle_leader_ms_per_s']:.1f}"]


def main() -> int:
    options = options_of(
        __doc__, seconds=(10.0, "length of each measurement"), threads=(16, "readers at each node")
    )
    found: dict[int, dict[str, object]] = {}
    for observers in OBSERVERS:
        with tempfile.TemporaryDirectory() as folder:
            found[observers] = measure(Path(folder), observers, options.seconds, options.threads)
    if options.json:
        print(json.dumps(found))
        return 0
    title = f"Local reads, at most {LOCAL_AGE_MS} ms old: reads/s, and processor time a read (us)"
    heads = ("observers", "all", "leader", "us", "followers", "us", "observers", "us", "idle ms/s")
    caption = "idle: the leader's processor time while nobody reads"
    shown = Table(*heads, title=title, caption=caption)
    for one in found.values():
        shown.add_row(*row(one))
    Console(width=100).print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
