"""The cost of keys: a pair and the throughput with CURVE on every link, beside those without.

Two clusters of three members of `paxos` as processes, one with keys and one without. Slices of load
on the one and on the other alternate, so that other work on the machine concerns both. The idle
cluster costs a few heartbeats. Figures are medians over the slices.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from beside import Pairs, options_of, reported

import fencelock
from fencelock.verification.bench.members import NodeProcesses
from fencelock.verification.bench.report import BarFigure, compared_times, higher_is_better

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


def measure(folder: Path, rounds: int) -> list[BarFigure]:
    """Compare p50 and p99 of a lone pair, and the pairs a second of many threads."""
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
    many = f"pairs of {THREADS} threads"
    return [
        *compared_times("pair", lone[WITH], lone[WITHOUT], None, None),
        higher_is_better(many, "1/s", rates[WITH], rates[WITHOUT], None),
    ]


def main() -> int:
    options = options_of(__doc__, rounds=(8, "slices of each kind"))
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.rounds)
    return reported("CURVE", "with keys", "without", figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
