"""Reads of a log under faults, judged by who knows everything; planted bugs are caught."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from support.judged import is_violated
from support.log_workload import CounterJudge, run_under_faults

from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.paxos.event import Fresh
from fencelock.actors.paxos.message import Heartbeat
from fencelock.actors.paxos.reads import Freshness, ReadIndexes, Reads, StalenessBound
from fencelock.cluster.simulation.faults import FaultKind, Faults, draw_faults
from fencelock.cluster.simulation.world import World

SEEDS = 8
SEEDS_FOR_A_MUTANT = 25


def run(seed: int, marks: Counter[str]) -> None:
    """Let scribes write and read under faults; judges know what anybody knew."""
    random = Random(f"{seed}/reads")
    fate = draw_faults(
        random, frozenset(FaultKind) - {FaultKind.JUMP}
    )  # A lease is over by a jump.
    world = World(seed, replace(fate, drift_ppm=1_000))
    play(world, random.choice((1, 3, 3, 5)), random.choice((5, 20, 60)))
    marks.update(world.marks)


def play(world: World, members: int, every_ms: int) -> None:
    names = tuple(f"n{number}" for number in range(1, members + 1))
    judge = CounterJudge(drift_ppm=1_000)
    run_under_faults(world, names, judge, every_ms=every_ms, journal_bytes=2_000, log_max=50)
    before = world.marks["logbook.read"]
    world.run(5_000 * NS_PER_MS)
    assert world.marks["logbook.read"] > before + 5 * members, "reads come again after the end"


def test_no_read_is_staler_than_it_says_under_any_fault() -> None:
    marks: Counter[str] = Counter()
    for seed in range(SEEDS):
        run(seed, marks)
    met = ("logbook.read", "logbook.refused", "paxos.read_index_ignored", "paxos.restored")
    assert [name for name in met if not marks[name]] == []


LAX = Faults(cut_every_ms=700, cut_ms=900, pause_every_ms=900, pause_ms=700, cut_one_way=True)


def is_caught() -> bool:
    runs = (partial(play, World(seed, LAX), 3, 5) for seed in range(SEEDS_FOR_A_MUTANT))
    return any(is_violated(run) for run in runs)


def test_a_lease_that_is_believed_too_long_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_sure(self: Reads, now: Instant) -> bool:
        del now
        return self.settled

    monkeypatch.setattr(Reads, "_is_sure", is_sure)

    assert is_caught()


def test_a_barrier_that_is_not_waited_for_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def pop(self: ReadIndexes, applied: int) -> list[object]:
        ready, self.reached = self.reached, []
        return [read for _, read in ready]

    monkeypatch.setattr(ReadIndexes, "pop", pop)

    assert is_caught()


def test_an_age_that_is_guessed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def guess(self: StalenessBound, beat: Heartbeat, now: Instant) -> Fresh | None:
        return Fresh(since=now, slot=beat.committed)

    monkeypatch.setattr(StalenessBound, "take", guess)

    assert is_caught()


def test_a_proof_that_is_not_waited_for_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: Freshness, fresh: Fresh, applied: int) -> None:
        self.since = fresh.since

    monkeypatch.setattr(Freshness, "take", take)

    assert is_caught()
