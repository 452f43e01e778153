"""Runs of many seeds, one after the other or in several processes, reported in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from fencelock.cluster.simulation.run import RunReport, run_seed
from fencelock.cluster.topology import Settings

CHUNK = 8
"""Seeds handed to a process at a time."""


class SeedOutcome(NamedTuple):
    """The result of a run without its trace."""

    seed: int
    violation: str | None
    deliveries: int
    grants: int
    virtual_ms: int
    marks: dict[str, int]
    faults: dict[str, int]


@dataclass(slots=True)
class Total:
    """The outcomes of many seeds, added up."""

    seeds: int = 0
    deliveries: int = 0
    grants: int = 0
    virtual_ms: int = 0
    marks: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])

    def add(self, outcome: SeedOutcome) -> None:
        """Count one more."""
        self.seeds += 1
        self.deliveries += outcome.deliveries
        self.grants += outcome.grants
        self.virtual_ms += outcome.virtual_ms
        self.marks.update(outcome.marks)
        self.faults.update(outcome.faults)


def run_for_outcome(protocol: str, settings: Settings, seed: int) -> SeedOutcome:
    """Run one seed and drop its trace."""
    return outcome_of(run_seed(protocol, seed, settings=settings))


def outcome_of(report: RunReport) -> SeedOutcome:
    """Return a report without its trace."""
    return SeedOutcome(
        report.seed,
        report.violation,
        report.deliveries,
        report.grants,
        report.virtual_ms,
        dict(report.marks),
        dict(report.faults),
    )


def sweep(
    protocol: str, seeds: Iterable[int], *, settings: Settings, workers: int = 1
) -> Generator[SeedOutcome, None, None]:
    """Run ``seeds`` and yield the outcome of each, in their order.

    Args:
        protocol: its name.
        seeds: the seeds.
        settings: for the protocol's recipe.
        workers: the number of processes, at least 1. It changes no outcome.

    """
    return outcomes(partial(run_for_outcome, protocol, settings), seeds, workers)


def outcomes(
    run: Callable[[int], SeedOutcome], seeds: Iterable[int], workers: int
) -> Generator[SeedOutcome, None, None]:
    """Run each of ``seeds``, in so many processes, and yield its outcome, in order."""
    if workers == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(run, seeds, chunksize=CHUNK)
        finally:
            pool.shutdown(cancel_futures=True)
