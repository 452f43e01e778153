"""Reads of a log under faults, with judges that see everything; planted bugs are caught."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace
from support.judged import is_violated
from support.log_workload import CounterJudge, run_under_faults

from fencelock.actors.effect import Send
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.paxos.event import Fresh
from fencelock.actors.paxos.locator import Locator
from fencelock.actors.paxos.message import Heartbeat, Located
from fencelock.actors.paxos.reads import Freshness, ReadIndexes, Reads, StalenessBound
from fencelock.verification.simulation.faults import FaultKind, Faults, draw_faults
from fencelock.verification.simulation.world import World

SEEDS = 4
SEEDS_FOR_A_MUTANT = 25


def run(seed: int, marks: Counter[str], observers: int = 0) -> None:
    """Let scribes write and read under faults; judges know what anybody knew."""
    random = Random(f"{seed}/reads")
    fate = draw_faults(
        random, frozenset(FaultKind) - {FaultKind.JUMP}
    )  # A lease is over by a jump.
    world = World(seed, dataclasses.replace(fate, drift_ppm=1_000))
    play(world, random.choice((1, 3, 3, 5)), random.choice((5, 20, 60)), observers)
    marks.update(world.marks)


def play(world: World, members: int, every_ms: int, observers: int = 0) -> None:
    names = tuple(f"n{number}" for number in range(1, members + observers + 1))
    judge = CounterJudge(drift_ppm=1_000)
    options = {"every_ms": every_ms, "journal_bytes": 2_000, "log_max": 50}
    run_under_faults(world, names, judge, founders=names[:members], **options)
    before = world.marks["logbook.read"]
    aged = Counter(judge.aged)
    world.run(5_000 * NS_PER_MS)
    assert world.marks["logbook.read"] > before + 5 * members, "reads come again after the end"
    silent = [name for name in names[members:] if judge.aged[name] == aged[name]]
    assert silent == [], "observers that answer no read with an age bound"


def test_no_read_is_staler_than_it_says_under_any_fault() -> None:
    marks: Counter[str] = Counter()
    for seed in range(SEEDS):
        run(seed, marks)
    met = ("logbook.read", "logbook.refused", "paxos.read_index_ignored", "paxos.restored")
    assert [name for name in met if not marks[name]] == []


def test_no_observer_answers_with_an_older_state_than_it_says() -> None:
    marks: Counter[str] = Counter()
    for seed in range(SEEDS):
        run(seed, marks, observers=2)
    met = ("logbook.read", "logbook.refused", "paxos.restored", "paxos.slots_fetched")
    assert [name for name in met if not marks[name]] == []


LAX = Faults(cut_every_ms=700, cut_ms=900, pause_every_ms=900, pause_ms=700, cut_one_way=True)


def is_caught(observers: int = 0, *, first: int = 0) -> bool:
    """Return whether a judge finds the bug in some seed, searched from ``first`` on."""
    seeds = range(first, first + SEEDS_FOR_A_MUTANT)
    runs = (partial(play, World(seed, LAX), 3, 5, observers) for seed in seeds)
    return any(is_violated(run) for run in runs)


def test_a_lease_that_is_believed_too_long_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_sure(self: Reads, now: Instant) -> bool:
        del now
        return self.settled

    monkeypatch.setattr(Reads, "_is_sure", is_sure)

    assert is_caught(first=24)


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


RIGHT_PROOF: Callable[..., list[Send]] = vars(Locator)["_prove"]


def proof_from_arrival(locator: Locator, located: Located) -> list[Send]:
    """Take the answer for one to a request of the instant at which the last one was sent."""
    last = {located.number: locator.requests[locator.number]} if located.number else {}
    locator.requests = locator.requests | last
    return RIGHT_PROOF(locator, located)


def proof_of_age_0(locator: Locator, located: Located) -> list[Send]:
    """Take the state of the other node for current."""
    return RIGHT_PROOF(locator, replace(located, age_ms=0))


def proof_at_once(locator: Locator, located: Located) -> list[Send]:
    """Claim the age of the other node's state before that is applied here."""
    return RIGHT_PROOF(locator, replace(located, applied=1))


RARE = {proof_from_arrival: 6}
"""The first seed of the search, which keeps the search short."""


@pytest.mark.parametrize("bug", [proof_from_arrival, proof_of_age_0, proof_at_once])
def test_an_age_that_an_observer_guesses_is_caught(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[..., list[Send]]
) -> None:
    monkeypatch.setattr(Locator, "_prove", bug)

    assert is_caught(observers=1, first=RARE.get(bug, 0))


def test_an_observer_that_claims_to_be_current_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Reads.age_ms

    def age_ms(self: Reads, now: Instant) -> int:
        return right(self, now) if self.node in self.config.members else 0

    monkeypatch.setattr(Reads, "age_ms", age_ms)

    assert is_caught(observers=1)
