"""Runs of many seeds, one after the other or in several processes, reported in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from fencelock.verification.simulation.report import RunReport

CHUNK = 8
"""Seeds handed to a process at a time."""


def reports(
    run: Callable[[int], RunReport], seeds: Iterable[int], workers: int
) -> Generator[RunReport, None, None]:
    """Run each of ``seeds`` and yield its report, in their order.

    Args:
        run: runs one seed.
        seeds: the seeds.
        workers: the number of processes, at least 1. It changes no report.

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
    return run(seed).without_trace()
