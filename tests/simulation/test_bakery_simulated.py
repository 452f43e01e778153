"""`bakery` under every fault it survives, and calm clusters of every size."""

from __future__ import annotations

from collections import Counter

import pytest

from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed

SEEDS = 16
SEEDS_MOST = 60
RARE = (
    "bakery.election_given_up",
    "bakery.ceded",
    "bakery.lease_over",
    "bakery.round_lost",
    "bakery.unlocking",
    "bakery.untrusted",
    "client.wait_renewed",
)
"""Counters that a sweep of seeds must reach, or its faults were too few."""


def calm(nodes: int, seed: int = 1) -> RunReport:
    plan = RunPlan(nodes=nodes, clients=3, owners=2, locks=2, chaos_ms=2_000)
    return run_seed("bakery", seed, plan=plan)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_clusters_of_every_size_serve_everybody(nodes: int) -> None:
    report = calm(nodes)
    assert report.violation is None
    assert report.grants >= 8


def test_a_calm_cluster_elects_once() -> None:
    marks = calm(5).marks
    assert (marks["bakery.election_begun"], marks["bakery.installed"]) == (1, 1)


@pytest.mark.parametrize("part", range(4))
def test_every_seed_is_clean(part: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        report = run_seed("bakery", seed)
        assert report.violation is None, f"seed {seed}: {report.violation}"
        assert not report.marks.get("notice.error"), f"seed {seed} accuses a member"
        seen.update(report.marks)
    assert seen["bakery.granted"] > 5 * SEEDS // 4


def test_the_seeds_meet_what_seldom_happens() -> None:
    seen: Counter[str] = Counter()
    missing = list(RARE)
    for seed in range(300, 300 + SEEDS_MOST):
        report = run_seed("bakery", seed)
        assert report.violation is None, f"seed {seed}: {report.violation}"
        seen.update(report.marks)
        missing = [mark for mark in missing if not seen[mark]]
        if not missing:
            break
    assert missing == []


def test_a_seed_is_the_same_run_each_time() -> None:
    assert run_seed("bakery", 11).trace() == run_seed("bakery", 11).trace()
