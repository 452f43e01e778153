"""Journals that are cut all the time, while nodes crash; planted bugs are caught."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import NamedTuple

import pytest
from msgspec.structs import replace
from support.judged import is_violated
from support.log_workload import CounterJudge, LogCounter, run_under_faults

from fencelock.actors.effect import CheckpointPart
from fencelock.actors.message import NS_PER_MS
from fencelock.actors.paxos.config import replica_of
from fencelock.actors.paxos.machine import Part
from fencelock.actors.paxos.message import SnapshotChunk
from fencelock.actors.paxos.snapshots import CheckpointWriter
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.world import World

SEEDS = 6
SEEDS_FOR_A_MUTANT = 30


def play(seed: int, marks: Counter[str], every_ms: int = 15) -> None:
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
    ends = {world.role_at(replica_of(name)).log.next for name in names}
    if len(ends) == 1 and len(digests) > 1:
        raise ViolationError("slots-in-order: replicas that applied as much differ")
    marks.update(world.marks)
    for node in world.nodes.values():
        marks["longest"] = max(marks["longest"], sum(map(len, node.disk.durable)))


def test_crashes_around_the_cut_lose_nothing_and_the_journal_stays_small() -> None:
    marks: Counter[str] = Counter()
    for seed in range(SEEDS):
        play(seed, marks)
    assert marks["paxos.trimmed"] > 20 * SEEDS
    assert marks["paxos.restored"] > 0
    assert marks["longest"] < 30_000


def is_caught() -> bool:
    runs = (partial(play, seed, Counter(), every_ms=5) for seed in range(SEEDS_FOR_A_MUTANT))
    return any(is_violated(run) for run in runs)


def parts_without(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[CheckpointPart], CheckpointPart]
) -> None:
    """Let replicas write parts of their checkpoints as ``change`` returns them."""
    step = CheckpointWriter.step
    monkeypatch.setattr(CheckpointWriter, "step", lambda self: change(step(self)))


def test_a_cut_without_a_durable_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    parts_without(monkeypatch, lambda part: replace(part, records=()))

    assert is_caught()


def test_what_came_since_the_snapshot_and_is_not_kept_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_since(part: CheckpointPart) -> CheckpointPart:
        kept = tuple(one for one in part.records if isinstance(one, SnapshotChunk))
        return replace(part, records=kept)

    parts_without(monkeypatch, without_since)

    assert is_caught()


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

    assert is_caught()
