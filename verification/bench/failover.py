"""The time without grants after the leader dies under load, by kind of death."""

from __future__ import annotations

import statistics
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fencelock.cluster.client.client import Client
from fencelock.verification.bench.deaths import LeaderDeath, RelayedMembers
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.members import (
    BenchFailedError,
    NodeProcesses,
    described,
    leader_among,
)
from fencelock.verification.bench.report import NotedFigure
from fencelock.verification.bench.workers import started

PROCESSES = 2
THREADS = 4

SETTLE_S = 1.0
"""Time under load with all nodes up, before a kill (s)."""

DOWN_S = 2.0
"""Downtime of a killed node (s); the others serve again well before."""

SILENT_S = 6.0
"""Downtime of a leader that dies silently (s): longer than any such failover took."""


@dataclass(frozen=True, slots=True)
class Failover:
    """The effects of the kills.

    Attributes:
        gaps_ms: for each kill the longest time without any grant (ms).
        client_gaps_ms: for each kill: the longest gap of the client process that was hit hardest
            (ms).
        errors: how often clients' calls raised each error, by its name.

    """

    gaps_ms: tuple[int, ...]
    client_gaps_ms: tuple[int, ...]
    errors: dict[str, int]

    @property
    def gap_ms(self) -> float:
        return statistics.median(self.gaps_ms)

    @property
    def client_gap_ms(self) -> float:
        return statistics.median(self.client_gaps_ms)


def failover(
    members: NodeProcesses, watcher: Client, kills: int, say: Callable[[str], None]
) -> Failover:
    """Kill the leader ``kills`` times (1 or more) while clients take locks; return the effects."""

    def strike(number: int) -> int:
        say(f"measuring failover, kill {number + 1} of {kills}")
        return _kill_leader(members, watcher)

    return _struck(members, watcher, kills, strike)


def _struck(
    members: NodeProcesses, watcher: Client, times: int, strike: Callable[[int], int]
) -> Failover:
    """Run ``strike`` under load; return the clients' measurements and its times (ms)."""
    job = Job(kind=JobKind.WATCH, address=members.connect, cluster=members.cluster, at_once=THREADS)
    with ExitStack() as stack:
        clients = [
            started(stack, replace(job, lock=f"failover-{n}"), members.folder, f"watch-{n}")
            for n in range(PROCESSES)
        ]
        for client in clients:
            client.wait_until_ready()
        for client in clients:
            client.tell()
        struck_ms = [strike(number) for number in range(times)]
        members.wait_until_ready(watcher)
        ended_ms = _now_ms()
        for client in clients:
            client.tell()
        results = [client.result() for client in clients]
    return _judged(results, [*struck_ms, ended_ms])


def measure_deaths(
    kinds: Sequence[LeaderDeath],
    nodes: int,
    times: int,
    say: Callable[[str], None],
    one_way_ms: int = 0,
) -> list[NotedFigure]:
    """Start ``nodes`` nodes for each of ``kinds``, and let the leader die ``times`` times.

    Every message takes ``one_way_ms``, and the nodes are configured for such round trips.
    """
    readings: list[NotedFigure] = []
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name, ExitStack() as stack:
            members = stack.enter_context(
                RelayedMembers(Path(name), "paxos", nodes, one_way_ms=one_way_ms)
            )
            watcher = members.ready_client()
            stack.enter_context(watcher)
            seen = deaths(members, watcher, kind, times, say)
        met = ", ".join(f"{count} {error}" for error, count in seen.errors.items()) or "no error"
        key = f"{kind.value.replace('-', '_')}_gap_ms"
        note = f"median of {times}, worst client {seen.client_gap_ms:.0f} ms; {met}"
        readings.append(NotedFigure(key, kind.value, seen.gap_ms, "ms", note, seen.gaps_ms))
    return readings


def deaths(
    members: RelayedMembers,
    watcher: Client,
    death: LeaderDeath,
    times: int,
    say: Callable[[str], None],
) -> Failover:
    """Let the leader die ``times`` times (1 or more) of ``death``; return the effects."""

    def strike(number: int) -> int:
        say(f"measuring {death.value}, {number + 1} of {times}")
        members.wait_until_ready(watcher)
        time.sleep(SETTLE_S)
        at, undo = members.strike(leader_seen_by(watcher), death)
        time.sleep(SILENT_S)
        undo()
        return int(at * 1000)

    return _struck(members, watcher, times, strike)


def longest_gap_ms(grants_ms: Sequence[int], since_ms: int, until_ms: int) -> int:
    """Return the longest time without a grant that touches a span of time.

    Args:
        grants_ms: the times of grants, rising.
        since_ms: the begin of the span: the last grant before it counts as the first of it.
        until_ms: its end: a gap that is still open then counts up to here.

    """
    before = grants_ms[: bisect_right(grants_ms, since_ms)]
    within = grants_ms[len(before) : bisect_left(grants_ms, until_ms)]
    points = [before[-1] if before else since_ms, *within, until_ms]
    return max(later - earlier for earlier, later in pairwise(points))


def _kill_leader(members: NodeProcesses, watcher: Client) -> int:
    members.wait_until_ready(watcher)
    time.sleep(SETTLE_S)
    leader = leader_seen_by(watcher)
    killed_at = members.kill(leader)
    time.sleep(DOWN_S)
    members.start(leader)
    return int(killed_at * 1000)


def leader_seen_by(watcher: Client) -> str:
    """Return the node that most nodes report as leader."""
    leader = leader_among(described(watcher))
    if not leader:
        raise BenchFailedError("no node says who leads")
    return leader


def _judged(results: Sequence[dict[str, Any]], edges_ms: Sequence[int]) -> Failover:
    by_client: list[list[int]] = [result["grants_ms"] for result in results]
    anybody = sorted({grant for grants in by_client for grant in grants})
    spans = list(pairwise(edges_ms))
    errors: Counter[str] = sum(
        (Counter[str](result["errors"]) for result in results), Counter[str]()
    )
    return Failover(
        gaps_ms=tuple(longest_gap_ms(anybody, *span) for span in spans),
        client_gaps_ms=tuple(
            max(longest_gap_ms(grants, *span) for grants in by_client) for span in spans
        ),
        errors=dict(sorted(errors.items())),
    )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
