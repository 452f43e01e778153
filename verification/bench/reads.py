"""Reads of one held lock: the rate at the leader and at a follower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fencelock.cluster.client.client import Client
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.members import NodeProcesses, described, leader_among
from fencelock.verification.bench.report import NotedFigure
from fencelock.verification.bench.workers import measured, per_s

PROCESSES = 2
READERS = 64
"""Threads of each process that ask for the status of one lock: as many as make the pairs that
reads are compared with."""

LOCAL_AGE_MS = 1_000
"""The greatest age of a local read (ms): the default of the client."""


def reads(
    members: NodeProcesses,
    watcher: Client,
    job: Job,
    pairs_per_s: float | None,
    say: Callable[[str], None],
) -> list[NotedFigure]:
    """Measure linearizable reads at the leader, then local ones there and at a follower.

    Args:
        members: nodes that are ready.
        watcher: holds the lock.
        job: sets the cluster, the duration, and the time to warm up.
        pairs_per_s: of many threads, for comparison, or None if it was not measured.
        say: called with the next step.

    Raises:
        BenchFailedError: a client process failed, or was not served at all.

    """
    leader = leader_among(described(watcher))
    others = [node for node in members.names if node != leader]
    kinds: list[tuple[str, str, str, int | None]] = [
        ("reads_linearizable_per_s", "linearizable reads", leader, None),
        ("reads_local_leader_per_s", "local reads, leader", leader, LOCAL_AGE_MS),
    ]
    if others:
        kinds.append(("reads_local_per_s", "local reads, follower", others[0], LOCAL_AGE_MS))
    rates: dict[str, float] = {}
    readings: list[NotedFigure] = []
    with watcher.lock("seen"):
        for key, what, node, age_ms in kinds:
            say(f"measuring {what}")
            one = replace(
                job,
                kind=JobKind.READ,
                address=members.addresses[node],
                at_once=READERS,
                lock="seen",
                shared=True,
                age_ms=age_ms,
            )
            rates[key] = per_s(measured(members.folder, [one] * PROCESSES))
            note = f"{PROCESSES} processes x {READERS} threads, at {node}"
            note += _beside(key, rates, pairs_per_s)
            readings.append(NotedFigure(key, what, rates[key], "reads/s", note))
    return readings


def _beside(key: str, rates: dict[str, float], pairs_per_s: float | None) -> str:
    if key == "reads_linearizable_per_s" and pairs_per_s:
        return f", {rates[key] / pairs_per_s:.1f}x the pairs of the throughput"
    if key == "reads_local_per_s":
        return f", {rates[key] / rates['reads_local_leader_per_s']:.2f}x the leader's"
    return ""
