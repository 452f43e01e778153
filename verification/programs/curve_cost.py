"""The cost of keys: a pair and the throughput with CURVE on every link, beside those without.

Two clusters of three members of `paxos` as processes, one with keys and one without. Slices of load
on the one and on the other alternate, so that other work on the machine concerns both. The idle
cluster costs a few heartbeats. Figures are medians over the slices.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from beside import Pairs
from rich.console import Console
from rich.table import Table

import fencelock
from fencelock.verification.bench.members import NodeProcesses

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.real_nodes import KeyedProcesses

WARM_S = 1.0

SLICE_S = 2.0

THREADS = 16
"""Threads for the throughput."""

WITHOUT, WITH = KINDS = ("without", "with")


def pairs(client: fencelock.Client, threads: int, seconds: float) -> list[float]:
    """Return how long each pair of ``threads`` threads took (s), each on a lock of its own."""
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(Pairs(client.lock(f"measured-{number}")))
            for number in range(threads)
        ]
        time.sleep(seconds)
    return [took for one in crowd for took in one.took()]


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Return p50 and p99 of a lone pair (us), and pairs a second of many threads."""
    for kind in KINDS:
        (folder / kind).mkdir()
    with (
        NodeProcesses(folder / WITHOUT, "paxos", 3, durable=True) as plain,
        KeyedProcesses(folder / WITH, "paxos", 3, durable=True) as keyed,
        plain.ready_client() as open_client,
        keyed.ready_client() as secure_client,
    ):
        clients = {WITHOUT: open_client, WITH: secure_client}
        lone: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for client in clients.values():
            pairs(client, THREADS, WARM_S)
        for number in range(rounds):
            for kind in KINDS if number % 2 else reversed(KINDS):
                lone[kind].append(pairs(clients[kind], 1, SLICE_S))
                rates[kind].append(len(pairs(clients[kind], THREADS, SLICE_S)) / SLICE_S)
    found: dict[str, float] = {}
    for kind in KINDS:
        cuts = [statistics.quantiles(times, n=100) for times in lone[kind]]
        found[f"{kind}_p50_us"] = statistics.median(cut[49] for cut in cuts) * 1e6
        found[f"{kind}_p99_us"] = statistics.median(cut[98] for cut in cuts) * 1e6
        found[f"{kind}_pairs_per_s"] = statistics.median(rates[kind])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=8, help="slices of each kind")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), rounds)
    slower = found["with_p50_us"] / found["without_p50_us"]
    rate = found["with_pairs_per_s"] / found["without_pairs_per_s"]
    title = f"CURVE: p50 {slower:.2f} times as high, throughput {rate:.2f} of that without"
    shown = Table("keys", "p50", "p99", f"pairs/s of {THREADS} threads", title=title)
    for kind in KINDS:
        p50, p99 = found[f"{kind}_p50_us"], found[f"{kind}_p99_us"]
        per_s = found[f"{kind}_pairs_per_s"]
        shown.add_row(kind, f"{p50:.0f} us", f"{p99:.0f} us", f"{per_s:.0f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
