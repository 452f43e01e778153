"""Runs that a judge ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from fencelock.verification.simulation.paxos_plan import Focus, LogPlan, draw_log_plan
from fencelock.verification.simulation.paxos_run import LogSubject, run_log_seed
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.violation import ViolationError


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
    subject: LogSubject, focus: Focus | None, provoke: Callable[[LogPlan], LogPlan] | None = None
) -> Callable[[int, frozenset[str]], RunReport]:
    """Return a function that runs a seed of the log, for `assert_seen`.

    Args:
        subject: the log, perhaps with a bug.
        focus: the main subject of the plans, or None to draw it.
        provoke: changes the plan of each seed so that more seeds meet a bug.

    """

    def run(seed: int, judged: frozenset[str]) -> RunReport:
        drawn = draw_log_plan(seed, focus)
        plan = provoke(drawn) if provoke else drawn
        return run_log_seed(seed, plan=plan, subject=subject, judged=judged)

    return run
