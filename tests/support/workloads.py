"""Runs of a workload of the simulator that must be clean, and runs that must find a bug."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from fencelock.verification.simulation.run import Workload, run_seed

LOSSES = (
    "contender.lost",
    "client.holds_lost",
    "client.session_lost",
    "client.request_moved",
)
"""Events that the seeds of every workload must reach."""

UNHELD = (
    "contender.refused_timed_out",
    "contender.refused_session_expired",
    "contender.refused_unavailable",
    "client.session_lost",
    "client.request_moved",
)
"""Events that the seeds of a workload without holds must reach."""

SEEDS = 6
SEEDS_MAX = 40
SEEDS_FOR_A_MUTANT = 40


def demand_clean(workload: Workload, met: Iterable[str], seeds: int = SEEDS) -> None:
    """Run seeds, which must be clean. All of ``met`` must occur; a few more seeds may be run."""
    marks: Counter[str] = Counter()
    missing = list(met)
    for seed in range(SEEDS_MAX):
        if seed >= seeds and not missing:
            break
        report = run_seed("paxos", seed, workload=workload)
        assert report.violation is None, (seed, report.violation)
        marks.update(report.marks)
        missing = [name for name in missing if not marks[name]]
    assert missing == []


def demand_caught(
    monkeypatch: pytest.MonkeyPatch,
    workload: Workload,
    plants: Mapping[tuple[object, str], object],
    judge: str,
    first: int = 0,
) -> None:
    """Plant bugs at attributes, and run seeds, from ``first`` on, until the judge finds one."""
    for (place, name), bug in plants.items():
        monkeypatch.setattr(place, name, bug)
    seeds = range(first, first + SEEDS_FOR_A_MUTANT)
    reports = (run_seed("paxos", seed, workload=workload) for seed in seeds)
    assert any(report.violation and judge in report.violation for report in reports)
