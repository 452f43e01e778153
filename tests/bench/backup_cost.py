"""The latency of a pair while backups are read, beside that without, in one run.

Three members of `paxos` as processes. Slices alternate in which nothing else runs, this process
reads the parts of a backup, the command ``fencelock status`` runs, or ``fencelock backup``. To
start any command takes a second of one core, here of the machine that runs the nodes. So the
reading is compared with nothing, and the command with another command.
Run it as ``python tests/bench/backup_cost.py``; it exits with 1 if a p99 is more than 1.5 times as
high as the one it is compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from catch_up import load
from rich.console import Console
from rich.table import Table

import fencelock
from fencelock import aio
from fencelock.cluster.bench.members import NodeProcesses, master_of

SLOWER_MAX = 1.5
"""The bar: p99 during backups, as a multiple of that during the other command."""

CONNECT_S = 10.0
LONG_S = 60.0
QUIET_S = 1.0
AGAIN_S = 0.05


class Load(threading.Thread):
    """A thread that measures pairs on a lock of its own."""

    def __init__(self, client: fencelock.Client, number: int) -> None:
        super().__init__(daemon=True)
        self.lock = client.lock(f"measured-{number}")
        self.times: list[tuple[float, float]] = []
        """The begin and the duration of each pair (s)."""
        self.over = False

    def run(self) -> None:
        """Take and release the lock."""
        while not self.over:
            began = time.perf_counter()
            with self.lock:
                pass
            self.times.append((began, time.perf_counter() - began))


def backup(members: NodeProcesses, file: Path) -> None:
    """Make a backup as an operator does."""
    command = [sys.executable, "-m", "fencelock", "backup", str(file)]
    ended = subprocess.run(
        [*command, "--connect", members.connect, "--cluster", members.cluster],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr)


def parts(members: NodeProcesses, file: Path) -> None:
    """Read a backup from a follower, in this process."""
    del file
    with fencelock.connect(members.connect, cluster=members.cluster) as watcher:
        master = master_of(watcher.describe())
    follower = next(node for node in members.names if node != master)
    with fencelock.connect(members.addresses[follower], cluster=members.cluster) as client:
        part = client.backup_part()
        while not part.count:
            time.sleep(AGAIN_S)
            part = client.backup_part(part.slot)
        for chunk in range(1, part.count):
            client.backup_part(part.slot, chunk)


def status(members: NodeProcesses, file: Path) -> None:
    """Run a command that starts and connects as `backup` does."""
    del file
    command = [sys.executable, "-m", "fencelock", "status", "--connect", members.connect]
    subprocess.run([*command, "--cluster", members.cluster], capture_output=True, check=True)


def nothing(members: NodeProcesses, file: Path) -> None:
    """Let some time pass."""
    del members, file
    time.sleep(QUIET_S)


KINDS = {"nothing": nothing, "parts": parts, "status": status, "backup": backup}
COMPARED = {"parts": "nothing", "backup": "status"}


def measure(folder: Path, kept: int, threads: int, rounds: int) -> dict[str, float]:
    """Return p50 and p99 of a pair (us) during each kind of slice."""
    slices: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with (
        NodeProcesses(folder, "paxos", 3, durable=True) as members,
        fencelock.connect(members.connect, cluster=members.cluster, ttl=600) as client,
    ):
        members.wait_until_ready(client)
        loads = [Load(client, number) for number in range(threads)]
        asyncio.run(_keep(members, kept, lambda: _measure(members, folder, loads, rounds, slices)))
        size = max(file.stat().st_size for file in folder.glob("*.backup"))
    found: dict[str, float] = {"bytes": size}
    for what, spans in slices.items():
        times = sorted(
            took
            for one in loads
            for began, took in one.times
            if any(first <= began < last for first, last in spans)
        )
        cuts = statistics.quantiles(times, n=100)
        found |= {f"{what}_p50_us": cuts[49] * 1e6, f"{what}_p99_us": cuts[98] * 1e6}
        found[f"{what}_pairs"] = len(times)
    return found


async def _keep(members: NodeProcesses, kept: int, then: object) -> None:
    """Hold ``kept`` locks while ``then`` runs."""
    assert callable(then)
    async with aio.connect(members.connect, cluster=members.cluster, ttl=600) as client:
        await load(client, kept, 0)
        await asyncio.to_thread(then)


def _measure(
    members: NodeProcesses,
    folder: Path,
    loads: list[Load],
    rounds: int,
    slices: dict[str, list[tuple[float, float]]],
) -> None:
    for one in loads:
        one.start()
    for number in range(rounds):
        for what, work in KINDS.items():
            began = time.perf_counter()
            work(members, folder / f"{number}.backup")
            slices[what].append((began, time.perf_counter()))
    for one in loads:
        one.over = True
    for one in loads:
        one.join(LONG_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--kept", type=int, default=20_000, help="locks that are held meanwhile")
    parser.add_argument("--threads", type=int, default=4, help="clients' threads")
    parser.add_argument("--rounds", type=int, default=10, help="backups")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.kept, options.threads, options.rounds)
    slower = {
        what: found[f"{what}_p99_us"] / found[f"{other}_p99_us"] for what, other in COMPARED.items()
    }
    ok = max(slower.values()) <= SLOWER_MAX
    if options.json:
        print(json.dumps({"ok": ok, "slower": slower, **found}))
        return 0 if ok else 1
    title = f"A pair while backups of {found['bytes'] / 1e6:.1f} MB are read"
    shown = Table("meanwhile", "pairs", "p50", "p99", "compared", title=title)
    for what in KINDS:
        p50, p99 = found[f"{what}_p50_us"], found[f"{what}_p99_us"]
        times = f"{slower[what]:.2f} times {COMPARED[what]}" if what in slower else ""
        pairs = f"{found[f'{what}_pairs']:.0f}"
        shown.add_row(what, pairs, f"{p50:.0f} us", f"{p99:.0f} us", times)
    Console().print(shown)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
