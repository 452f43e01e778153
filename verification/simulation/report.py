"""The result of a run; runs of many seeds, in order, and their sum."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context

from fencelock.actors.message import NS_PER_MS
from fencelock.verification.simulation.plan import LogPlan, RunPlan
from fencelock.verification.simulation.trace import Trace
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The result of a run."""

    seed: int
    plan: RunPlan | LogPlan
    violation: str | None
    """The broken promise or invariant, or None if there is none."""
    deliveries: int
    grants: int
    """Number of grants; of answered requests in a run of the log alone."""
    chosen: int = 0
    """Number of slots for which a batch was chosen, in a run of the log alone."""
    virtual_ms: int
    marks: Mapping[str, int]
    """Counts of the roles' observations, by name."""
    faults: Mapping[str, int]
    """Counts of the faults that happened, by name."""
    recorded: Trace | None = field(repr=False)
    """None in a report from a sweep, which keeps no traces."""

    def trace(self) -> list[str]:
        """Return the run, line by line: the same for a seed, always and everywhere."""
        return [] if self.recorded is None else self.recorded.lines()


def report_of(
    world: World,
    seed: int,
    plan: RunPlan | LogPlan,
    play: Callable[[], None],
    *,
    grants: Callable[[], int],
    chosen: Callable[[], int] = lambda: 0,
) -> RunReport:
    """Execute a run in ``world`` until its end or a violation; return its report."""
    violation: str | None = None
    gc.disable()  # It would search the growing trace again and again.
    try:
        play()
    except ViolationError as error:
        violation = f"{world.time / NS_PER_MS:.3f} ms: {error}"
    finally:
        gc.enable()
    return RunReport(
        seed=seed,
        plan=plan,
        violation=violation,
        deliveries=world.deliveries,
        grants=grants(),
        chosen=chosen(),
        virtual_ms=world.time // NS_PER_MS,
        marks=dict(sorted(world.marks.items())),
        faults=dict(sorted(world.fault_counts.items())),
        recorded=world.trace,
    )


@dataclass(slots=True)
class Total:
    """The reports of many seeds, added up."""

    seeds: int = 0
    deliveries: int = 0
    grants: int = 0
    virtual_ms: int = 0
    marks: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])

    def add(self, report: RunReport) -> None:
        self.seeds += 1
        self.deliveries += report.deliveries
        self.grants += report.grants
        self.virtual_ms += report.virtual_ms
        self.marks.update(report.marks)
        self.faults.update(report.faults)


CHUNK = 8
"""Seeds handed to a process at a time."""


def reports(
    run: Callable[[int], RunReport], seeds: Iterable[int], workers: int
) -> Generator[RunReport, None, None]:
    """Run each of ``seeds`` and yield its report, in their order.

    The number of processes, ``workers``, is at least 1, and changes no report.
    """
    traceless = partial(_without_trace, run)
    if workers == 1:
        yield from map(traceless, seeds)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(traceless, seeds, chunksize=CHUNK)
        finally:
            pool.shutdown(cancel_futures=True)


def _without_trace(run: Callable[[int], RunReport], seed: int) -> RunReport:
    """Run a seed; traces are too large for another process."""
    return replace(run(seed), recorded=None)
