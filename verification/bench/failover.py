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


Die = Callable[[str], tuple[float, Callable[[], None]]]
"""Lets a node die; returns the monotonic time of it (s), and what undoes it."""


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

    def in_words(self) -> str:
        """Return the errors that clients met."""
        return ", ".join(f"{count} {name}" for name, count in self.errors.items()) or "no error"


def failover(
    members: NodeProcesses,
    watcher: Client,
    times: int,
    die: Die,
    down_s: float,
    say: Callable[[int], None],
) -> Failover:
    """Let the leader die ``times`` times (1 or more) while clients take locks.

    Args:
        members: the nodes.
        watcher: a client that is told which node leads.
        times: how often the leader dies.
        die: lets it die.
        down_s: how long it stays dead.
        say: called before each death, with its number from 1 on.

    """
    job = Job(kind=JobKind.WATCH, address=members.connect, cluster=members.cluster, at_once=THREADS)
    edges_ms: list[int] = []
    with ExitStack() as stack:
        clients = [
            started(stack, replace(job, lock=f"failover-{n}"), members.folder, f"watch-{n}")
            for n in range(PROCESSES)
        ]
        for client in clients:
            client.wait_until_ready()
        for client in clients:
            client.tell()
        for number in range(1, times + 1):
            say(number)
            members.wait_until_ready(watcher)
            time.sleep(SETTLE_S)
            died_at, undo = die(leader_seen_by(watcher))
            edges_ms.append(int(died_at * 1000))
            time.sleep(down_s)
            undo()
        members.wait_until_ready(watcher)
        edges_ms.append(time.monotonic_ns() // 1_000_000)
        for client in clients:
            client.tell()
        results = [client.result() for client in clients]
    return _judged(results, edges_ms)


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

    def measured(kind: LeaderDeath) -> NotedFigure:
        with (
            tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name,
            RelayedMembers(Path(name), "paxos", nodes, one_way_ms=one_way_ms) as members,
            members.ready_client() as watcher,
        ):
            seen = failover(
                members,
                watcher,
                times,
                lambda leader: members.strike(leader, kind),
                SILENT_S,
                lambda number: say(f"measuring {kind.value}, {number} of {times}"),
            )
        key = f"{kind.value.replace('-', '_')}_gap_ms"
        note = f"median of {times}, worst client {seen.client_gap_ms:.0f} ms; {seen.in_words()}"
        return NotedFigure(key, kind.value, seen.gap_ms, "ms", note, seen.gaps_ms)

    return [measured(kind) for kind in kinds]


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
