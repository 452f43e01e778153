"""Semaphores, read/write locks and other objects, each measured beside locks, in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from fencelock.cluster.bench.job import Job, JobKind
from fencelock.cluster.bench.load import CONNECT_S
from fencelock.cluster.bench.machine import MachineInfo, this_machine
from fencelock.cluster.bench.members import BenchFailedError, NodeProcesses
from fencelock.cluster.bench.object_costs import costs
from fencelock.cluster.bench.report import BarFigure, higher_is_better
from fencelock.cluster.bench.uses import Use
from fencelock.cluster.bench.workers import measured
from fencelock.cluster.client import connect

PROCESSES = 2
THREADS = 50
"""Threads of each process, each with its own object; together 100 readers of one."""

RATIO_MIN = 0.9
"""Bar: pairs of an object, as a share of those of the lock beside it."""

NODES = 3


class ObjectPart(StrEnum):
    """One of the measurements."""

    PAIRS = "pairs"
    COST = "cost"


class Comparison(NamedTuple):
    """Two uses that are measured in turns; the second is the reference."""

    name: str
    unit: str
    use: Use
    beside: Use
    at_least: float | None


COMPARED = (
    Comparison("semaphore", "pairs/s", Use.SEMAPHORE, Use.LOCK, RATIO_MIN),
    Comparison("rwlock, read", "pairs/s", Use.READ, Use.LOCK, RATIO_MIN),
    Comparison("rwlock, write", "pairs/s", Use.WRITE, Use.LOCK, RATIO_MIN),
    Comparison("lock_all of 2", "pairs/s", Use.LOCK_ALL, Use.TWO_LOCKS, RATIO_MIN),
    Comparison("100 readers of one", "grants/s", Use.READ_ONE, Use.READ, None),
    Comparison("map, get 100 B", "reads/s", Use.MAP_READ, Use.LOCK, None),
    Comparison("map, put 100 B", "writes/s", Use.MAP_WRITE, Use.LOCK, None),
    Comparison("map, get 10 KiB", "reads/s", Use.MAP_READ_LARGE, Use.LOCK, None),
    Comparison("map, put 10 KiB", "writes/s", Use.MAP_WRITE_LARGE, Use.LOCK, None),
)


@dataclass(frozen=True, slots=True)
class ObjectBenchReport:
    """All results of a run, and the machine."""

    machine: MachineInfo
    figures: tuple[BarFigure, ...]

    @property
    def met(self) -> bool:
        """Whether every bar is met."""
        return all(figure.met for figure in self.figures)

    def as_plain(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        figures = [asdict(figure) for figure in self.figures]
        return {"machine": asdict(self.machine), "figures": figures, "met": self.met}


def measure(
    parts: Sequence[ObjectPart], rounds: int, seconds: float, say: Callable[[str], None]
) -> ObjectBenchReport:
    """Start three nodes, make the measurements of ``parts``, and leave nothing running.

    Args:
        parts: the measurements.
        rounds: of each comparison, 1 or more; the medians count.
        seconds: how long each measurement of a round takes, above 0.
        say: called with the next step.

    Raises:
        BenchFailedError: a process failed, or was not served at all; the text explains it.

    """
    figures: list[BarFigure] = []
    with tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name:
        machine = this_machine(Path(name))
        if ObjectPart.PAIRS in parts:
            figures += pairs(Path(name), rounds, seconds, say)
        if ObjectPart.COST in parts:
            figures += costs(rounds, say)
    return ObjectBenchReport(machine, tuple(figures))


def pairs(folder: Path, rounds: int, seconds: float, say: Callable[[str], None]) -> list[BarFigure]:
    """Measure each kind beside its reference, in turns of ``seconds``; see `measure`."""
    say(f"starting {NODES} nodes")
    uses = tuple(dict.fromkeys(use for one in COMPARED for use in (one.beside, one.use)))
    with NodeProcesses(folder, "paxos", NODES, durable=True) as members:
        watcher = connect(members.connect, cluster=members.cluster, connect_timeout=CONNECT_S)
        with watcher:
            members.wait_until_ready(watcher)
        job = Job(
            kind=JobKind.TURNS,
            address=members.connect,
            cluster=members.cluster,
            seconds=seconds,
            rounds=rounds,
            uses=uses,
            at_once=THREADS,
        )
        say(f"measuring {', '.join(uses)} in turns, {len(uses) * rounds * seconds:.0f} s")
        counted = measured(folder, [replace(job, lock=f"own-{n}") for n in range(PROCESSES)])
    rates = {use: [sum(turn) / seconds for turn in _turns(counted, use)] for use in uses}
    return [
        higher_is_better(one.name, one.unit, rates[one.use], rates[one.beside], one.at_least)
        for one in COMPARED
    ]


def _turns(counted: Sequence[dict[str, Any]], use: Use) -> Iterable[tuple[int, ...]]:
    """Return the counts of all processes in each turn of ``use``.

    Raises:
        BenchFailedError: nobody was served in a turn.

    """
    turns = list(zip(*(one[use] for one in counted), strict=True))
    if not all(map(any, turns)):
        raise BenchFailedError(f"{use} was not served in a turn even once: measure longer")
    return turns
