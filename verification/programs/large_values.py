"""The cost of many large values in maps: pairs of a lock, memory, journal, restart.

    python verification/programs/large_values.py              # 256 MiB of values
    python verification/programs/large_values.py --mib 64     # fewer
    python verification/programs/large_values.py --json       # one JSON object

Three nodes that sync their journals run as processes, and beside them a control: three nodes of a
cluster that stays all but empty. A process of its own acquires and releases a lock all the time, in
turns of `TURN_S` on one cluster and on the other. So each figure has the control's next to it,
measured in the same seconds: with both tables empty, while values are put, with all of them in the
table, while they are replaced (which makes every member write a snapshot), and while a client lists
pages that it does not read. While values are replaced, the same values are put into the control in
its turns, under few keys.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attackers import DEAF, attacker, frame
from beside import journal_bytes, parser_of

import fencelock
from fencelock.cluster.client.client import Client, connect
from fencelock.verification.bench.members import NodeProcesses, leader_among
from fencelock.verification.bench.report import p50_p99

VALUE_BYTES = 65_000
"""Size of a value; a key and the name of the map come on top."""

PUTTERS = 4
"""Threads that put values."""

CONNECT_S = 60.0
"""Timeout for connecting (s)."""

TURN_S = 0.5
"""Length of a turn of a cluster (s)."""

TURN_BEGINS_S = 0.1
"""Pairs of the first part of a turn are left out (s): puts of the turn before may be queued."""

CONTROL_KEYS = 8
"""Keys under which values are put into the control."""

READERS, UNREAD_LISTS = 8, 250
"""Connections to each node, and the pages that each requests at once and does not read."""

LIST_ENTRIES = 0x76


def turn_at(now: float) -> tuple[int, bool]:
    """Return whose turn it is, 0 for the large table and 1 for the control, and whether it counts.

    All processes of a machine agree on it: they share the monotonic clock.
    """
    number, since = divmod(now, TURN_S)
    return int(number) % 2, since >= TURN_BEGINS_S


def probe(addresses: Sequence[str], into: Path) -> None:
    """Acquire and release a lock until the process is killed; write the begin and end of each."""
    with ExitStack() as stack, into.open("w", encoding="utf-8", buffering=1) as file:
        clients = [
            stack.enter_context(
                connect(address, cluster=NodeProcesses.cluster, connect_timeout=CONNECT_S)
            )
            for address in addresses
        ]
        locks = [client.lock("probe") for client in clients]
        while True:
            began = time.monotonic()
            turn, counts = turn_at(began)
            try:
                locks[turn].acquire()
                locks[turn].release()
            except fencelock.FencelockError as error:
                print(f"probe: {error}", file=sys.stderr)
                continue
            if counts:
                file.write(f"{turn} {began} {time.monotonic()}\n")


@contextmanager
def probing(addresses: Sequence[str], into: Path) -> Generator[None]:
    process = subprocess.Popen([sys.executable, __file__, "--probe", str(into), *addresses])
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Phases:
    """The pairs of each phase, taken from what the probe has written."""

    def __init__(self, pairs: Path, nodes: NodeProcesses) -> None:
        self.pairs = pairs
        self.nodes = nodes
        self.found: dict[str, dict[str, float]] = {}

    def run(self, name: str, work: Callable[[], object]) -> None:
        began = time.monotonic()
        work()
        ended = time.monotonic()
        lines = [line.split() for line in self.pairs.read_text().splitlines()]
        found = [(int(one[0]), float(one[1]), float(one[2])) for one in lines if len(one) == 3]
        took: list[list[float]] = [[], []]
        for turn, start, end in found:
            if began <= end <= ended:
                took[turn].append(1_000 * (end - start))
        (p50, p99), (control_p50, control_p99) = map(p50_p99, took)
        self.found[name] = {
            "seconds": ended - began,
            "load": os.getloadavg()[0],
            "pairs": len(took[0]),
            "p50_ms": p50,
            "p99_ms": p99,
            "longest_ms": max(took[0], default=0.0),
            "control_pairs": len(took[1]),
            "control_p50_ms": control_p50,
            "control_p99_ms": control_p99,
            "control_longest_ms": max(took[1], default=0.0),
            "p99_ratio": p99 / control_p99 if control_p99 else 0.0,
            "peak_mib": max(map(self._peak_mib, self.nodes.names)),
            "journal_mib": max(journal_bytes(self.nodes).values(), default=0.0) / (1 << 20),
        }
        shown = ", ".join(f"{key} {value:.4g}" for key, value in self.found[name].items())
        print(f"{name}: {shown}", file=sys.stderr, flush=True)

    def _peak_mib(self, node: str) -> float:
        status = Path(f"/proc/{self.nodes.processes[node].pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024


def put_all(client: Client, count: int, fill: int, control: Client | None = None) -> None:
    """Put ``count`` values; with ``control`` also put into that one, in its turns."""
    value = bytes([fill]) * VALUE_BYTES
    entries = client.map("large")
    few = None if control is None else control.map("large")

    def put(number: int) -> None:
        while True:
            try:
                if few is not None and turn_at(time.monotonic())[0]:
                    few.put(f"key-{number % CONTROL_KEYS:06}", value)
                    continue
                entries.put(f"key-{number:06}", value)
            except (fencelock.UnavailableError, fencelock.OverloadedError) as error:
                print(f"put: {error}", file=sys.stderr)
            else:
                return

    with ThreadPoolExecutor(PUTTERS) as threads:
        list(threads.map(put, range(count)))


def unread_lists(addresses: Sequence[str], seconds: float) -> None:
    """Request pages of the map from each node at once, and read no reply."""
    kept: list[object] = []
    for reader in range(READERS * len(addresses)):
        name = f"reader-{reader}"
        dealer = attacker(addresses[reader % len(addresses)], name, DEAF)
        kept.append(dealer)
        for first in range(0, UNREAD_LISTS, 50):
            envelopes = [
                ("*/proxy", f"{name}/x", [LIST_ENTRIES, "large", "", "", 1000, name, number + 1])
                for number in range(first, first + 50)
            ]
            dealer.send(frame(*envelopes, cluster=NodeProcesses.cluster))
    time.sleep(seconds)


def measure(mib: int, seconds: float) -> dict[str, dict[str, float]]:
    count = (mib << 20) // (VALUE_BYTES + 64)
    with tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name:
        folder, control_folder = Path(name) / "large", Path(name) / "control"
        folder.mkdir()
        control_folder.mkdir()
        with (
            NodeProcesses(folder, "paxos", 3, durable=True) as nodes,
            NodeProcesses(control_folder, "paxos", 3, durable=True) as few,
            nodes.ready_client() as client,
            few.ready_client() as control,
        ):
            phases = Phases(folder / "pairs", nodes)
            with probing([nodes.connect, few.connect], folder / "pairs"):
                time.sleep(2.0)
                phases.run("empty", lambda: time.sleep(seconds))
                phases.run("filling", lambda: put_all(client, count, 1))
                phases.run("settling", lambda: time.sleep(30))
                phases.run("full", lambda: time.sleep(seconds))
                phases.run("replacing", lambda: put_all(client, count, 2, control))
                phases.run("settling again", lambda: time.sleep(30))
                addresses = list(nodes.addresses.values())
                phases.run("2,000 unread lists", lambda: unread_lists(addresses, 20.0))
                phases.run("after them", lambda: time.sleep(seconds))
            found = phases.found
            follower = next(
                one for one in nodes.names if one != leader_among(nodes.wait_until_ready(client))
            )
            found["restart of one"] = {"seconds": restarted(nodes, client, [follower])}
            found["restart of all"] = {"seconds": restarted(nodes, client, nodes.names)}
            found["restart of all"]["peak_mib"] = max(map(phases._peak_mib, nodes.names))
        for node in nodes.names:
            log = (folder / f"{node}.log").read_text(errors="replace")
            slow = [line for line in log.splitlines() if "WARNING" in line or "ERROR" in line]
            print(node, *slow[-12:], sep="\n  ", file=sys.stderr)
    return found


def restarted(nodes: NodeProcesses, client: Client, names: Sequence[str]) -> float:
    """Kill nodes and start them; return the time until all are ready (s)."""
    for node in names:
        nodes.kill(node)
    began = time.monotonic()
    for node in names:
        nodes.start(node)
    threading.Event().wait(0.5)
    while True:
        try:
            nodes.wait_until_ready(client)
        except fencelock.FencelockError as error:
            if time.monotonic() - began > 150:
                print(error, file=sys.stderr)
                return float("nan")
        else:
            return time.monotonic() - began


def main() -> int:
    parser = parser_of(
        __doc__, mib=(256, "size of all values (MiB)"), seconds=(10.0, "of each quiet phase (s)")
    )
    parser.add_argument("--probe", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.probe:
            probe(options.probe[1:], Path(options.probe[0]))
        found = measure(options.mib, options.seconds)
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        for name, figures in found.items():
            shown = "  ".join(f"{key} {value:9.4g}" for key, value in figures.items())
            print(f"{name:20} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
