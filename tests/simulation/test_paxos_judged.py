"""The log alone under every fault that it must survive, with judges that see everything."""

from __future__ import annotations

from collections import Counter

import pytest

from fencelock.verification.simulation.paxos_plan import Focus, LogPlan, draw_log_plan
from fencelock.verification.simulation.paxos_run import run_log_seed

SEEDS = {Focus.SWARM: 7, Focus.DUELS: 4, Focus.LEASES: 4, Focus.MIXED_LEASES: 2}
MARKS = {
    "paxos.leadership_begun": 40,
    "paxos.preempted": 20,
    "paxos.votes_adopted": 200,
    "paxos.holes": 1,
    "paxos.lease_kept": 40,
    "paxos.leader_must_learn": 8,
    "paxos.restored": 20,
    "paxos.slots_fetched": 80,
    "paxos.ticked": 40,
}
"""Events that all seeds together must reach, and how often."""
FAULTS = (
    "clock drift", "crash", "crash at a ballot", "crash in sync", "cut off", "held by a cut",
    "lost",
    "one-way partition", "overtaken", "partial proposal", "partition", "pause", "records lost",
    "repeated", "very late",
)  # fmt: skip


def test_no_seed_breaks_an_invariant_and_what_is_rare_was_met() -> None:
    marks: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for focus, seeds in SEEDS.items():
        for seed in range(seeds):
            report = run_log_seed(seed, plan=draw_log_plan(seed, focus))
            assert report.violation is None, (focus, seed, report.violation)
            assert report.grants > 0
            marks.update(report.marks)
            faults.update(report.faults)
    assert {name: marks[name] for name in MARKS if marks[name] < MARKS[name]} == {}
    assert [name for name in FAULTS if not faults[name]] == []


def test_a_seed_has_one_trace() -> None:
    first, again = run_log_seed(3), run_log_seed(3)
    assert first.trace() == again.trace()
    assert len(first.trace()) > 1_000


@pytest.mark.parametrize("nodes", range(1, 6))
def test_every_size_serves_in_calm(nodes: int) -> None:
    report = run_log_seed(1, plan=LogPlan(nodes=nodes))
    assert report.violation is None
    assert report.grants > 100
    assert not report.faults
