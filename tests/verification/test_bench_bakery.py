"""The comparison of `bakery` with `paxos`: its count of a lock's messages, and its report."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fencelock.verification.bench import bakery
from fencelock.verification.bench.bakery import (
    COPIES_RATIO_MAX,
    PAIR_RATIO_MAX,
    STEPS,
    compare,
    steps_table,
)
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.load import WARM_PAIRS
from fencelock.verification.bench.locks import PROCESSES, RIVALS
from fencelock.verification.bench.machine import MachineInfo
from fencelock.verification.bench.members import BenchFailedError

PAIRS = 100


class CountedCluster:
    """Nodes that count the jobs of clients that they are given; none of them runs."""

    cluster = "bench"
    connect = "tcp://127.0.0.1:1"

    def __init__(self, folder: Path, protocol: str) -> None:
        assert folder.is_dir()
        self.protocol = protocol
        self.counted: Counter[str] = Counter()

    def __enter__(self) -> CountedCluster:
        return self

    def __exit__(self, *error: object) -> None:
        del error

    def wait_until_ready(self, watcher: object) -> list[Any]:
        class CountedMessages:
            def __init__(self, name: str, times: int) -> None:
                self.name, self.times = name, times

        class Status:
            counters = tuple(CountedMessages(name, times) for name, times in self.counted.items())

        return [Status()]


class ClusterStage:
    """Started by `compare` instead of processes."""

    def __init__(self) -> None:
        self.sides: dict[str, CountedCluster] = {}
        self.jobs: list[tuple[str, Job]] = []
        self.p50_us = {
            "bakery": iter((300.0, 100.0, 200.0)),
            "paxos": iter((200.0, 100.0, 100.0)),
            "with copies": iter((130.0, 130.0, 200.0)),
            "without copies": iter((100.0, 100.0, 100.0)),
        }
        self.rates = {"bakery": 40.0, "paxos": 50.0, "with copies": 30.0, "without copies": 40.0}
        self.served = 7

    def connect(self, addresses: str, *, cluster: str, connect_timeout: float) -> ExitStack:
        assert (addresses, cluster) == (CountedCluster.connect, CountedCluster.cluster)
        assert connect_timeout > 0
        return ExitStack()

    def machine(self, folder: Path) -> MachineInfo:
        assert folder.is_dir()
        return MachineInfo(2, "a processor", "a system", "a Python", 0.0, 1.0)

    def members(
        self, folder: Path, protocol: str, nodes: int, *, durable: bool, copies: bool
    ) -> CountedCluster:
        five = folder.name in ("with copies", "without copies")
        assert (nodes, durable, copies) == (5 if five else 3, False, folder.name[:7] != "without")
        self.sides[folder.name] = CountedCluster(folder, protocol)
        return self.sides[folder.name]

    def measured(self, folder: Path, jobs: list[Job]) -> list[dict[str, float]]:
        """Do the jobs: `bakery` sends its messages, each of a step so often in a pair."""
        protocol, job = folder.name, jobs[0]
        self.jobs += [(protocol, one) for one in jobs]
        if job.kind is JobKind.PAIR:
            for number, step in enumerate(STEPS, 1):
                for name in step.ours:
                    self.sides[protocol].counted[name] += number * (PAIRS + WARM_PAIRS)
            return [{"times": PAIRS, "p50_us": next(self.p50_us[protocol])}]
        return [{"times": self.served, "seconds": self.served / self.rates[protocol]}] * len(jobs)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> ClusterStage:
    stage = ClusterStage()
    monkeypatch.setattr(bakery, "NodeProcesses", stage.members)
    monkeypatch.setattr(bakery, "measured", stage.measured)
    monkeypatch.setattr(bakery, "connect", stage.connect)
    monkeypatch.setattr(bakery, "this_machine", stage.machine)
    return stage


def test_the_medians_of_all_rounds_count_and_the_ratio_of_each_round(stage: ClusterStage) -> None:
    comparison = compare(3, 1.0, lambda _: None)
    pair, turns = comparison.figures
    assert (pair.ours, pair.other) == (200.0, 100.0)
    assert pair.ratio == 1.5  # Of the rounds' 1.5, 1 and 2.
    assert (pair.bar, pair.met) == (f"<= {PAIR_RATIO_MAX}x", True)
    assert turns.ours == pytest.approx(40.0 * PROCESSES)
    assert turns.other == pytest.approx(50.0 * PROCESSES)
    assert turns.ratio == pytest.approx(0.8)
    assert comparison.met  # There is no bar for turns.
    copies, _ = comparison.copied
    assert (copies.ratio, copies.bar) == (1.3, f"<= {COPIES_RATIO_MAX}x")
    assert set(stage.sides) == {"bakery", "paxos", "with copies", "without copies"}


@pytest.mark.parametrize("side", ["bakery", "with copies"])
def test_one_slow_round_does_not_miss_the_bar_and_two_do(stage: ClusterStage, side: str) -> None:
    stage.p50_us[side] = iter((151.0, 151.0, 100.0))
    stage.p50_us["paxos"] = iter((100.0, 100.0, 100.0))
    assert not compare(3, 1.0, lambda _: None).met


def test_the_bar_of_a_pair_is_met_at_the_bar(stage: ClusterStage) -> None:
    stage.p50_us["bakery"] = iter((150.0, 150.0, 100.0))
    stage.p50_us["paxos"] = iter((100.0, 100.0, 100.0))
    assert compare(3, 1.0, lambda _: None).met


def test_messages_of_a_pair_are_counted_by_step_and_warm_pairs_are_pairs(
    stage: ClusterStage,
) -> None:
    per_lock = compare(1, 1.0, lambda _: None).per_lock
    assert per_lock == tuple(float(number * len(step.ours)) for number, step in enumerate(STEPS, 1))
    assert next(job.kind for side, job in stage.jobs if side == "bakery") is JobKind.PAIR


def test_messages_before_a_measurement_are_not_counted(
    stage: ClusterStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = stage.members

    def busy(folder: Path, protocol: str, nodes: int, **options: bool) -> CountedCluster:
        cluster = members(folder, protocol, nodes, **options)
        cluster.counted["bakery.lock"] = 1_000_000
        return cluster

    monkeypatch.setattr(bakery, "NodeProcesses", busy)
    assert compare(1, 1.0, lambda _: None).per_lock[0] == 1.0


def test_rivals_of_several_processes_share_one_lock(stage: ClusterStage) -> None:
    compare(1, 5.0, lambda _: None)
    jobs = [job for _, job in stage.jobs if job.kind is JobKind.RATE]
    assert len(jobs) == 4 * PROCESSES
    assert {(job.lock, job.shared, job.at_once, job.warm_s) for job in jobs} == {
        ("one", True, RIVALS, 1.0)
    }


def test_a_client_that_was_never_served_fails_the_measurement(stage: ClusterStage) -> None:
    stage.served = 0
    stage.rates = dict.fromkeys(stage.rates, 1.0)
    with pytest.raises(BenchFailedError, match="not served even once"):
        compare(1, 1.0, lambda _: None)


def test_each_counter_belongs_to_one_step() -> None:
    names = [name for step in STEPS for name in step.ours]
    assert len(names) == len(set(names))


def test_the_table_and_the_document_have_the_sources_steps_beside_ours(stage: ClusterStage) -> None:
    comparison = compare(1, 1.0, lambda _: None)
    plain = comparison.as_plain()
    assert plain["messages"][0] == {"step": "LOCK, forwarded", "source": 1, "ours": 1.0}
    assert plain["machine"]["processor"] == "a processor"
    assert [figure["name"] for figure in plain["figures"]] == ["pair, p50", "hand-over"]
    console = Console(width=160, record=True, file=StringIO())
    console.print(steps_table(comparison.per_lock))
    text = console.export_text()
    together = next(line for line in text.splitlines() if "together" in line)
    assert [cell.strip() for cell in together.split("│")[1:4]] == [
        "together",
        str(sum(step.theirs for step in STEPS)),
        f"{sum(comparison.per_lock):.2f}",
    ]
