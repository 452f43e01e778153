"""Runs that a judge ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from fencelock.cluster.simulation.paxos_plan import Focus, draw_log_plan
from fencelock.cluster.simulation.paxos_run import LogSubject, run_log_seed
from fencelock.cluster.simulation.report import RunReport
from fencelock.cluster.simulation.violation import ViolationError


def is_violated(run: Callable[[], object]) -> bool:
    """Return whether a judge finds a violation in ``run``."""
    try:
        run()
    except ViolationError:
        return True
    return False


def assert_seen(
    judge: str, seeds: Iterable[int], run: Callable[[int, frozenset[str]], RunReport]
) -> None:
    """Fail unless ``judge``, with no other judge, finds a violation in the run of some seed."""
    for seed in seeds:
        if f": {judge}, " in (run(seed, frozenset({judge})).violation or ""):
            return
    pytest.fail(f"not seen by {judge} in the seeds {seeds}")


def log_runs(
    subject: LogSubject, focus: Focus | None
) -> Callable[[int, frozenset[str]], RunReport]:
    """Return a function that runs a seed of the log, for `assert_seen`."""

    def run(seed: int, judged: frozenset[str]) -> RunReport:
        plan = draw_log_plan(seed, focus)
        return run_log_seed(seed, plan=plan, subject=subject, judged=judged)

    return run
