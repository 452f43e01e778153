"""`fencelock.contrib.apscheduler` with real schedulers: jobs run on the leader only."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support import programs
from support.collected import Collected
from support.expect import PATIENCE_S, present
from support.real_nodes import until

from fencelock.testing import LocalCluster, lose, partition

TTL_S = 1.0
RUNS = 3


class Runs(Collected[str]):
    """The runs of a job on schedulers, in order, each by the name of its scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self._alone = threading.Lock()

    def run(self, name: str) -> None:
        alone = self._alone.acquire(blocking=False)
        self.add(name if alone else f"{name} beside another")
        if alone:
            self._alone.release()

    def until(self, name: str) -> None:
        """Wait until the scheduler ``name`` has run the job a few times more."""
        most = self.values.count(name) + RUNS
        self.wait_for(lambda names: names.count(name) >= most or None)

    def in_turn(self) -> list[str]:
        """Return the names, without those that repeat the one before."""
        before = ["", *self.values]
        return [name for name, last in zip(self.values, before, strict=False) if name != last]


class Process:
    """What would be a process: a client, a scheduler with a job, and `LeaderOnly`."""

    def __init__(self, cluster: LocalCluster, runs: Runs, name: str) -> None:
        contrib = importlib.import_module("fencelock.contrib.apscheduler")
        background = importlib.import_module("apscheduler.schedulers.background")
        self.client = cluster.connect(ttl=TTL_S)
        self.scheduler: Any = background.BackgroundScheduler(timezone="UTC")
        self.scheduler.add_job(runs.run, "interval", [name], seconds=0.02, misfire_grace_time=None)
        self.leader: Any = contrib.LeaderOnly(self.scheduler, self.client.election("jobs"), name)
        self._ends = ExitStack()
        self._ends.enter_context(self.leader)
        self.scheduler.start()

    def close(self) -> None:
        self._ends.close()


@pytest.fixture
def runs() -> Runs:
    programs.package("apscheduler", "it is in the extra 'apscheduler'")
    return Runs()


@pytest.fixture
def first(fencelock_cluster: LocalCluster, runs: Runs) -> Iterator[Process]:
    """Return the process that leads."""
    process = Process(fencelock_cluster, runs, "first")
    runs.until("first")
    yield process
    process.close()


@pytest.fixture
def second(fencelock_cluster: LocalCluster, runs: Runs, first: Process) -> Iterator[Process]:
    """Return the process that waits to lead."""
    process = Process(fencelock_cluster, runs, "second")
    runs.until("first")
    yield process
    process.close()


def test_the_other_goes_on_without_its_leader(runs: Runs, first: Process, second: Process) -> None:
    assert present(first.client.election("jobs").leader()).value == "first"
    assert second.leader.term is None
    first.close()
    assert not first.scheduler.running
    runs.until("second")
    term: Any = second.leader.term
    assert term.held
    assert runs.in_turn() == ["first", "second"]


def test_a_leader_that_is_evicted_pauses_and_leads_again_in_its_turn(
    runs: Runs, first: Process, second: Process
) -> None:
    lose(first.leader.term)
    runs.until("second")
    second.close()
    runs.until("first")
    turns = runs.in_turn()  # There are more if this machine stood still for longer than a ttl.
    assert turns[:3] == ["first", "second", "first"]
    assert set(turns) == {"first", "second"}


def test_a_leader_that_is_cut_off_pauses_before_the_other_leads(
    runs: Runs, first: Process, second: Process
) -> None:
    with partition(first.client):
        runs.until("second")
        term = first.leader.term  # The leader's thread soon clears one that was lost.
        assert term is None or not term.held
    second.close()
    runs.until("first")
    assert runs.in_turn() == ["first", "second", "first"]


def test_a_leader_whose_cluster_was_silent_for_a_moment_goes_on(runs: Runs, first: Process) -> None:
    states = importlib.import_module("apscheduler.events")
    paused, resumed = threading.Event(), threading.Event()

    def notified(event: Any) -> None:
        (paused if event.code == states.EVENT_SCHEDULER_PAUSED else resumed).set()

    both = states.EVENT_SCHEDULER_PAUSED | states.EVENT_SCHEDULER_RESUMED
    first.scheduler.add_listener(notified, both)
    term = first.leader.term
    with partition(first.client):
        assert paused.wait(PATIENCE_S)
        assert term.held
    assert resumed.wait(PATIENCE_S)
    runs.until("first")
    assert first.leader.term is term


def test_a_scheduler_that_ends_before_it_leads_leaves_the_queue(
    runs: Runs, first: Process, second: Process
) -> None:
    second.close()
    until(lambda: first.client.election("jobs").status().waiters == ())
    runs.until("first")
    assert runs.in_turn() == ["first"]


def test_a_leader_whose_client_is_closed_logs_that_it_pauses(
    first: Process, caplog: pytest.LogCaptureFixture
) -> None:
    first.client.close()
    until(lambda: "stays paused" in caplog.text, "the end is logged")
    assert first.leader.term is None
