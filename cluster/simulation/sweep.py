"""Runs of many seeds, one after the other or in several processes, reported in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from fencelock.cluster.simulation.report import RunReport
from fencelock.cluster.simulation.run import LOCKS, Workload, run_seed
from fencelock.cluster.topology import ProtocolSettings

CHUNK = 8
"""Seeds handed to a process at a time."""


def sweep(
    protocol: str,
    seeds: Iterable[int],
    *,
    settings: ProtocolSettings,
    workers: int = 1,
    workload: Workload = LOCKS,
) -> Generator[RunReport, None, None]:
    """Run ``seeds`` and yield the report of each, in their order.

    Args:
        protocol: its name.
        seeds: the seeds.
        settings: for the protocol's recipe.
        workers: the number of processes, at least 1. It changes no report.
        workload: see `run_seed`.

    """
    run = partial(run_seed, protocol, settings=settings, workload=workload)
    return reports(run, seeds, workers)


def reports(
    run: Callable[[int], RunReport], seeds: Iterable[int], workers: int
) -> Generator[RunReport, None, None]:
    """Run each of ``seeds``, in so many processes, and yield its report, in order."""
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
    return run(seed).without_trace()
