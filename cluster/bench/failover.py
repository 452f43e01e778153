"""How long nobody is granted a lock when the master is killed with -9 under load."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from holdfast.cluster.bench.job import Job, Kind
from holdfast.cluster.bench.members import BenchFailedError, Members, described, master_of
from holdfast.cluster.bench.workers import started
from holdfast.cluster.client import Client

PROCESSES = 2
THREADS = 4

SETTLE_S = 1.0
"""Under load with all nodes up, before a kill."""

DOWN_S = 2.0
"""How long a killed node stays down; the others go on well before."""


@dataclass(frozen=True, slots=True)
class Failover:
    """What the kills did.

    Attributes:
        gaps_ms: for each kill the longest time without a grant to anybody (ms).
        client_gaps_ms: for each kill the longest time without a grant to one of the client
            processes, whichever was hit hardest (ms).
        errors: what clients' calls ended in, by name of the error, and how often.

    """

    gaps_ms: tuple[int, ...]
    client_gaps_ms: tuple[int, ...]
    errors: dict[str, int]

    @property
    def gap_ms(self) -> float:
        """The median of `gaps_ms`."""
        return statistics.median(self.gaps_ms)

    @property
    def client_gap_ms(self) -> float:
        """The median of `client_gaps_ms`."""
        return statistics.median(self.client_gaps_ms)


def failover(members: Members, watcher: Client, kills: int, say: Callable[[str], None]) -> Failover:
    """Kill the master ``kills`` times (1 or more) while clients take locks; return what it did.

    Raises:
        BenchFailedError: a node did not come back, a client ended, or nobody leads.

    """
    job = Job(kind=Kind.WATCH, address=members.connect, cluster=members.cluster, at_once=THREADS)
    with ExitStack() as stack:
        clients = [
            started(stack, replace(job, lock=f"failover-{n}"), members.folder, f"watch-{n}")
            for n in range(PROCESSES)
        ]
        for client in clients:
            client.wait_until_ready()
        for client in clients:
            client.tell()
        killed_ms: list[int] = []
        for number in range(kills):
            say(f"measuring failover, kill {number + 1} of {kills}")
            killed_ms.append(_kill_master(members, watcher))
        members.wait_until_ready(watcher)
        ended_ms = _now_ms()
        for client in clients:
            client.tell()
        results = [client.result() for client in clients]
    return _judged(results, [*killed_ms, ended_ms])


def longest_gap_ms(grants_ms: Sequence[int], since_ms: int, until_ms: int) -> int:
    """Return the longest time without a grant that touches a span of time.

    Args:
        grants_ms: when there were grants, rising.
        since_ms: where the span begins: the last grant before it counts as the first of it.
        until_ms: where it ends: what nobody has ended by then counts so far.

    """
    before = grants_ms[: bisect_right(grants_ms, since_ms)]
    within = grants_ms[len(before) : bisect_left(grants_ms, until_ms)]
    points = [before[-1] if before else since_ms, *within, until_ms]
    return max(later - earlier for earlier, later in pairwise(points))


def _kill_master(members: Members, watcher: Client) -> int:
    members.wait_until_ready(watcher)
    time.sleep(SETTLE_S)
    master = master_of(described(watcher))
    if not master:
        raise BenchFailedError("no node says who is master")
    killed_at = members.kill(master)
    time.sleep(DOWN_S)
    members.start(master)
    return int(killed_at * 1000)


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
