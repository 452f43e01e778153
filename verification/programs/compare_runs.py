"""Workloads of the comparison: client processes against servers that run already."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compare_client import MARK_BYTES, ClientTask
from peers.peer import ComparedPeer, ReplicatedPeer
from peers.servers import bound_to_us

from fencelock.verification.bench.members import BenchFailedError
from fencelock.verification.bench.report import p50_p99
from fencelock.verification.bench.workers import WorkerProcess, launched, together

CLIENT = Path(__file__).with_name("compare_client.py")
PATIENCE_S = 60.0
"""Time that clients may take beyond their jobs' times (s)."""
SETTLE_S = 2.0
"""Load before each kill (s)."""
WATCH_S = 8.0
"""Time for which a killed server stays down (s): longer than any peer's failover."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Workload:
    """The job of client processes."""

    name: str
    processes: int
    threads: int
    one_lock: bool = False
    fresh: bool = False
    """Whether each pair is of a lock with a new name."""


PAIR = Workload("pair", 1, 1)
FRESH = Workload("fresh", 1, 1, fresh=True)
DISTINCT = Workload("distinct", 2, 64)
HANDOVER = Workload("handover", 2, 4, one_lock=True)
PING_PONG = Workload("ping-pong", 2, 1, one_lock=True)
FAILOVER = Workload("failover", 2, 8)


def clients(
    stack: ExitStack, peer: ComparedPeer, workload: Workload, folder: Path, seconds: float
) -> list[WorkerProcess]:
    """Start the client processes of a workload, which end with ``stack``."""
    return [
        launched(
            stack,
            bound_to_us([sys.executable, str(CLIENT), json.dumps(task)]),
            peer.warm_s + seconds + PATIENCE_S,
            folder,
            f"client-{number}",
        )
        for number, task in enumerate(_tasks(peer, workload, folder, seconds))
    ]


def measure(peer: ComparedPeer, workload: Workload, folder: Path, seconds: float) -> Figures:
    """Run ``workload`` for ``seconds`` after a warm-up.

    Returns:
        ``pairs_per_s``, ``p50_us``, ``p99_us`` and ``longest_ms`` of a pair; of one lock also
        ``handovers_per_s``,
        pairs whose lock another thread or process held before, and ``overlaps``, how often
        a holder met another.

    """
    with ExitStack() as stack:
        results = together(clients(stack, peer, workload, folder, seconds))
    durations = sorted(ns for result in results for ns in result["durations"])
    if len(durations) < 2:
        raise BenchFailedError(f"{len(durations)} pairs in {seconds:g} s are no measurement")
    p50, p99 = p50_p99(durations)
    figures = {
        "pairs_per_s": len(durations) / seconds,
        "p50_us": p50 / 1000,
        "p99_us": p99 / 1000,
        "longest_ms": durations[-1] / 1e6,
    }
    if workload.one_lock:
        figures["handovers_per_s"] = sum(result["handovers"] for result in results) / seconds
        figures["overlaps"] = sum(result["overlaps"] for result in results)
    return figures


def measure_failover(peer: ReplicatedPeer, folder: Path, kills: int) -> Iterator[Figures]:
    """Kill the leader under load, ``kills`` times; then yield the effects.

    Yields:
        ``gap_s``: the longest time without any grant, from a kill to the server's restart;
        ``errors``: what clients were told meanwhile, on the last one of all kills.

    """
    windows: list[tuple[int, int]] = []
    with ExitStack() as stack:
        workers = clients(stack, peer, FAILOVER, folder, 0)
        for worker in workers:
            worker.wait_until_ready()
        for worker in workers:
            worker.tell()
        for _ in range(kills):
            time.sleep(SETTLE_S)
            leader = peer.leader()
            if leader is None:
                raise BenchFailedError(f"{peer.name}: no server says that it leads")
            began = _now_ms()
            peer.kill(leader)
            time.sleep(WATCH_S)
            windows.append((began, _now_ms()))
            peer.restart(leader)
        time.sleep(SETTLE_S)
        for worker in workers:
            worker.tell()
        results = [worker.result() for worker in workers]
    grants = sorted({ms for result in results for ms in result["granted_ms"]})
    errors = sum(result["errors"] for result in results)
    for number, (began, ended) in enumerate(windows, start=1):
        inside = [began, *(ms for ms in grants if began < ms < ended), ended]
        gap = max(later - sooner for sooner, later in itertools.pairwise(inside))
        yield {"gap_s": gap / 1000, "errors": errors if number == kills else 0}


def _tasks(
    peer: ComparedPeer, workload: Workload, folder: Path, seconds: float
) -> list[dict[str, Any]]:
    spec = {**peer.spec(), "failover": seconds == 0}
    mark: Path | None = None
    if workload.one_lock:
        mark = folder / "mark"
        mark.write_bytes(bytes(MARK_BYTES))
    return [
        asdict(
            ClientTask(
                peer=peer.name,
                spec=spec,
                client=client,
                threads=workload.threads,
                lock="the-one" if workload.one_lock else None,
                fresh=workload.fresh,
                warm_s=peer.warm_s,
                seconds=seconds,
                mark=None if mark is None else str(mark),
            )
        )
        for client in range(workload.processes)
    ]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
