"""`paxos` under every fault that it survives: the log alone, its reads, its journal, and locks."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from support.judged import clean, is_violated, seen_in
from support.log_workload import CounterJudge, LogCounter, run_under_faults
from support.planted_bugs import Patch, as_plant, instead, plant

from fencelock.actors.effect import CheckpointPart
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.paxos.config import replica_of
from fencelock.actors.paxos.event import Fresh
from fencelock.actors.paxos.locator import Locator
from fencelock.actors.paxos.machine import Part
from fencelock.actors.paxos.reads import Freshness, ReadIndexes, Reads, StalenessBound
from fencelock.actors.paxos.snapshots import CheckpointWriter
from fencelock.actors.paxos.wire import Heartbeat, Located, SnapshotChunk
from fencelock.actors.table.state import TableState
from fencelock.actors.table.table import LockTable
from fencelock.verification.simulation.faults import FaultKind, Faults, draw_faults
from fencelock.verification.simulation.paxos_run import run_log_seed, run_members_seed
from fencelock.verification.simulation.plan import Focus, LogPlan, draw_log_plan
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.world import World

SEEDS = 8
SEEDS_FOR_A_MUTANT = 20
MET = (
    "paxos.leadership_begun",
    "paxos.preempted",
    "paxos.votes_adopted",
    "paxos.lease_kept",
    "paxos.slots_fetched",
    "client.request_moved",
    "client.leader_preferred",
    "client.holds_lost",
    "client.session_lost",
    "contender.enters_again",
)


def run(seed: int) -> RunReport:
    return run_seed("paxos", seed)


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    seen = clean(map(run, range(SEEDS)))
    assert [name for name in MET if not seen[name]] == []


@as_plant
def fences_start_over(sound: Any, table: TableState, *grant: Any) -> None:
    """Draw the first fences again and again."""
    table.fence %= 3
    sound(table, *grant)


@as_plant
def everybody_holds(sound: Any, table: TableState, time_ms: int, command: Any) -> Any:
    """Grant an acquire that should be queued."""
    table.resources.pop(getattr(command, "lock", ""), None)
    return sound(table, time_ms, command)


@pytest.mark.parametrize(
    ("patch", "judge"),
    [
        ((TableState, "grant", fences_start_over), "fences"),
        ((LockTable, "apply", everybody_holds), ""),
    ],
    ids=["fences", "all"],
)
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, patch: Patch, judge: str) -> None:
    plant(monkeypatch, *patch)
    assert seen_in(judge, map(run, range(SEEDS_FOR_A_MUTANT)))


JUDGED_SEEDS = {Focus.SWARM: 7, Focus.DUELS: 3, Focus.LEASES: 2, Focus.MIXED_LEASES: 1}
MARKS = {
    "paxos.leadership_begun": 20,
    "paxos.preempted": 10,
    "paxos.votes_adopted": 100,
    "paxos.holes": 1,
    "paxos.lease_kept": 20,
    "paxos.leader_must_learn": 4,
    "paxos.restored": 10,
    "paxos.slots_fetched": 40,
    "paxos.ticked": 20,
}
"""Events that all seeds together must reach, and how often."""
FAULTS = (
    "clock drift", "crash", "crash at a ballot", "crash in sync", "cut off", "held by a cut",
    "lost",
    "one-way partition", "overtaken", "partial proposal", "partition", "pause", "records lost",
    "repeated", "very late",
)  # fmt: skip


def test_no_seed_breaks_an_invariant_and_what_is_rare_was_met() -> None:
    seen: Counter[str] = Counter()
    for focus, seeds in JUDGED_SEEDS.items():
        for seed in range(seeds):
            one = clean([run_log_seed(seed, plan=draw_log_plan(seed, focus))])
            assert one["grants"] > 0
            seen += one
    assert {name: seen[name] for name in MARKS if seen[name] < MARKS[name]} == {}
    assert [name for name in FAULTS if not seen[name]] == []


REPEATED_PREPARE = 8_120_617
"""A request of a scout arrives twice, and the second reply is from a later slot on: it must count
neither for the scout, which has that acceptor's votes, nor for the judge."""


def test_a_reply_that_the_scout_ignores_does_not_count_for_the_judge() -> None:
    assert run_members_seed(REPEATED_PREPARE).violation is None


OVERTAKEN = 9_310_835
"""A leader needs votes on slots that both other members have applied. They have restarted from a
snapshot after a change of members, and vote on none of these slots."""


def test_a_leader_that_needs_votes_on_slots_that_others_have_applied_hands_over() -> None:
    report = run_members_seed(OVERTAKEN)
    assert report.violation is None
    assert report.marks["paxos.handed_over_overtaken"] > 0


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


READS_SEEDS = 5
READS_MUTANT_SEEDS = 25


def run_reads(seed: int, marks: Counter[str], observers: int) -> None:
    """Let scribes write and read under faults; judges know what any node knew."""
    random = Random(f"{seed}/reads")
    fate = draw_faults(
        random, frozenset(FaultKind) - {FaultKind.JUMP}
    )  # A lease is over by a jump.
    world = World(seed, dataclasses.replace(fate, drift_ppm=1_000))
    play_reads(world, random.choice((1, 3, 3, 5)), random.choice((5, 20, 60)), observers)
    marks.update(world.marks)


def play_reads(world: World, members: int, every_ms: int, observers: int = 0) -> None:
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


@pytest.mark.parametrize(
    ("observers", "met"),
    [
        (0, "paxos.read_index_ignored"),
        pytest.param(2, "paxos.slots_fetched", marks=pytest.mark.long),
    ],
)
def test_no_read_is_staler_than_it_reports_under_any_fault(observers: int, met: str) -> None:
    marks: Counter[str] = Counter()
    for seed in range(READS_SEEDS):
        run_reads(seed, marks, observers)
    events = ("logbook.read", "logbook.refused", "paxos.restored", met)
    assert [name for name in events if not marks[name]] == []


LAX = Faults(cut_every_ms=700, cut_ms=900, pause_every_ms=900, pause_ms=700, cut_one_way=True)


def sure_forever(reads: Reads, now: Instant) -> bool:
    """Believe in a lease for too long."""
    return reads.settled


def at_once(indexes: ReadIndexes, applied: int) -> list[object]:
    """Do not wait until what a read may see is applied."""
    ready, indexes.reached = indexes.reached, []
    return [read for _, read in ready]


def guessed(bound: StalenessBound, beat: Heartbeat, now: Instant) -> Fresh | None:
    """Take the state of a heartbeat for current."""
    return Fresh(since=now, slot=beat.committed)


def before_it_is_applied(freshness: Freshness, fresh: Fresh, applied: int) -> None:
    """Do not wait for what a proof is about."""
    freshness.since = fresh.since


@as_plant
def always_current(sound: Any, reads: Reads, now: Instant) -> Any:
    """Let an observer take its state for current."""
    return sound(reads, now) if reads.node in reads.config.members else 0


@as_plant
def proof_from_arrival(sound: Any, locator: Locator, located: Located) -> Any:
    """Take the answer for one to a request of the instant at which the last one was sent."""
    last = {located.number: locator.requests[locator.number]} if located.number else {}
    locator.requests = locator.requests | last
    return sound(locator, located)


@as_plant
def proof_of_age_0(sound: Any, locator: Locator, located: Located) -> Any:
    """Take the state of the other node for current."""
    return sound(locator, replace(located, age_ms=0))


@as_plant
def proof_at_once(sound: Any, locator: Locator, located: Located) -> Any:
    """Claim the age of the other node's state before that is applied here."""
    return sound(locator, replace(located, applied=1))


READ_BUGS: dict[str, tuple[Patch, int, int]] = {
    "a lease is believed too long": ((Reads, "_is_sure", instead(sure_forever)), 0, 24),
    "a barrier is not waited for": ((ReadIndexes, "pop", instead(at_once)), 0, 0),
    "an age is guessed": ((StalenessBound, "take", instead(guessed)), 0, 0),
    "a proof is not waited for": ((Freshness, "take", instead(before_it_is_applied)), 0, 0),
    "an observer claims to be current": ((Reads, "age_ms", always_current), 1, 0),
    "an observer counts from an arrival": ((Locator, "_prove", proof_from_arrival), 1, 6),
    "an observer takes others for current": ((Locator, "_prove", proof_of_age_0), 1, 0),
    "an observer claims an age too early": ((Locator, "_prove", proof_at_once), 1, 0),
}
"""Bugs, the number of observers, and the first seed of the search, which keeps it short."""


@pytest.mark.parametrize("bug", READ_BUGS)
def test_a_bug_in_reads_is_caught(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    patch, observers, first = READ_BUGS[bug]
    plant(monkeypatch, *patch)
    seeds = range(first, first + READS_MUTANT_SEEDS)
    runs = (partial(play_reads, World(seed, LAX), 3, 5, observers) for seed in seeds)
    assert any(is_violated(run) for run in runs)


TRIM_SEEDS = 6
TRIM_MUTANT_SEEDS = 30


def play_trims(seed: int, marks: Counter[str], every_ms: int = 15) -> None:
    """Trim journals all the time, with crashes that lose unsynced data, also during a sync."""
    random = Random(f"{seed}/trim")
    fate = Faults(
        crash_every_ms=random.choice((300, 1_000)),
        crash_in_sync_per_mille=random.choice((10, 50)),
        tail_lost=True,
        down_ms=random.choice((5, 200)),
        sync_us=random.choice((500, 10_000)),
        cut_every_ms=random.choice((0, 1_500)),
    )
    world = World(seed, fate)
    names = ("n1", "n2", "n3")
    judge = CounterJudge()
    run_under_faults(world, names, judge, every_ms=every_ms, journal_bytes=1_500, log_max=30)
    world.run(4_500 * NS_PER_MS)
    digests = {world.role_at(replica_of(name)).log.machine.digest() for name in names}
    ends = {world.role_at(replica_of(name)).decided.next for name in names}
    if len(ends) == 1 and len(digests) > 1:
        raise ViolationError("slots-in-order: replicas that applied as much differ")
    marks.update(world.marks)
    for node in world.nodes.values():
        marks["longest"] = max(marks["longest"], sum(map(len, node.disk.durable)))


def test_crashes_around_the_cut_lose_nothing_and_the_journal_stays_small() -> None:
    marks: Counter[str] = Counter()
    for seed in range(TRIM_SEEDS):
        play_trims(seed, marks)
    assert marks["paxos.trimmed"] > 20 * TRIM_SEEDS
    assert marks["paxos.restored"] > 0
    assert marks["longest"] < 30_000


def trims_are_caught() -> bool:
    runs = (partial(play_trims, seed, Counter(), every_ms=5) for seed in range(TRIM_MUTANT_SEEDS))
    return any(is_violated(run) for run in runs)


def parts_without(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[CheckpointPart], CheckpointPart]
) -> None:
    """Let replicas write parts of their checkpoints as ``change`` returns them."""
    step = CheckpointWriter.step
    monkeypatch.setattr(CheckpointWriter, "step", lambda self: change(step(self)))


def test_a_cut_without_a_durable_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    parts_without(monkeypatch, lambda part: replace(part, records=()))

    assert trims_are_caught()


def test_slots_since_the_snapshot_that_are_not_kept_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_since(part: CheckpointPart) -> CheckpointPart:
        kept = tuple(one for one in part.records if isinstance(one, SnapshotChunk))
        return replace(part, records=kept)

    parts_without(monkeypatch, without_since)

    assert trims_are_caught()


class LatePart(NamedTuple):
    """A part with the state at the time at which it is encoded."""

    tally: LogCounter
    number: int

    def encoded(self) -> bytes:
        return [part.encoded() for part in PARTS_OF(self.tally) if part is not None][self.number]


PARTS_OF = LogCounter.snapshot


def test_a_part_that_changes_while_a_snapshot_is_written_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(self: LogCounter) -> Iterator[Part | None]:
        count = sum(part is not None for part in PARTS_OF(self))
        return iter([None, *(LatePart(self, number) for number in range(count))])

    monkeypatch.setattr(LogCounter, "snapshot", late)

    assert trims_are_caught()
