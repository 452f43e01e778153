"""Disks that are lost and old copies that come back: one group, and no vote without memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace
from support.judged import BelievesOne, clean, is_violated, votes_as_registered
from support.log_workload import CounterJudge, logbook

from fencelock.actors.bootstrap import Bootstrap, bootstrap_of
from fencelock.actors.bootstrap_message import Founding, Join, JoinAck, Start
from fencelock.actors.effect import Effect, Effects, Send, Spawn
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.verification.simulation import bakery_run
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.network import Cut
from fencelock.verification.simulation.paxos_run import LogSubject, run_log_seed
from fencelock.verification.simulation.plan import LogPlan, RunPlan, draw_log_plan
from fencelock.verification.simulation.planting import Change, in_place, planted
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.world import World

NAMES = ("n1", "n2", "n3")
SEEDS = 6
MUTANT_SEEDS = 40
FOUNDING_SEEDS = 100
FOUNDING_RARE = 216
"""The first seed of the search for a group founded by a majority, which keeps it short."""
ROUNDS = 12


def unchanged(spawn: Spawn) -> Spawn:
    return spawn


class ComparesNoIncarnation(Bootstrap):
    """Confirms every start of a registered journal."""

    def _on_join(self, member: str, join: Join, now: Instant) -> Effects:
        self.starts.pop(member, None)
        return super()._on_join(member, join, now)


class FoundsByMajority(BelievesOne):
    """Founds a group as soon as a majority follows; a missing member may vote when it comes."""

    def _found(self, now: Instant) -> list[Effect]:
        enough = len(self.members) // 2
        if self.group is None and len(self.followers) >= enough:
            for other in self.others:
                self.followers.setdefault(other, self.journal_to_come(other))
                self.starts.setdefault(other, self.own)
        return super()._found(now)

    def journal_to_come(self, member: str) -> int:
        """Return the last known journal, or none."""
        known = self.starts.get(member)
        return 1 if known is None else known.journal


def plan_of(seed: int) -> LogPlan:
    """Return a run of three or five members in which whole disks fail early and often."""
    plan = draw_log_plan(seed)
    disks = dataclasses.replace(
        plan.faults,
        lose_disk_every_ms=400 if seed % 2 else 0,
        old_copy_every_ms=0 if seed % 2 else 150,
        crash_every_ms=600,
        down_ms=50,
    )
    return dataclasses.replace(plan, nodes=5 if seed % 3 == 0 else 3, faults=disks)


def broken(seed: int, change: Change, judged: frozenset[str] | None = None) -> str:
    report = run_log_seed(
        seed, plan=plan_of(seed), subject=LogSubject(change=change), judged=judged
    )
    return report.violation or ""


def test_no_seed_breaks_a_promise_when_disks_are_lost_or_aged() -> None:
    seen = clean(run_log_seed(seed, plan=plan_of(seed)) for seed in range(SEEDS))
    assert seen["loses its disk"] > 0
    assert seen["is given an old copy of its disk"] > 0
    assert seen["bootstrap.unregistered_journal"] > 0
    assert seen["bootstrap.old_copy"] > 0


@pytest.mark.parametrize("seed", [4, 11])
def test_a_majority_of_the_members_keeps_its_disks_beside_nodes_that_are_none(seed: int) -> None:
    report = run_log_seed(seed, plan=dataclasses.replace(plan_of(seed), spares=2))
    assert report.violation is None
    assert {"loses its disk", "is given an old copy of its disk"} & set(report.faults)


@pytest.mark.parametrize(
    "judges",
    [
        "lost-journals-do-not-vote",
        "one-batch-a-slot promises-kept decisions-stay slots-in-order one-outcome",
    ],
    ids=["vote", "harm"],
)
@pytest.mark.parametrize(
    "change", [votes_as_registered, in_place(ComparesNoIncarnation)], ids=["unregistered", "old"]
)
def test_a_journal_that_forgot_and_votes_is_caught(change: Change, judges: str) -> None:
    judged = frozenset(judges.split())
    assert any(broken(seed, change, judged) for seed in range(MUTANT_SEEDS))


def found(seed: int, change: Change) -> Counter[str]:
    """Let three members meet for the first time while up to two of them lose their disks.

    Only that nothing is decided twice is judged, not that clients are served.
    """
    random = Random(f"{seed}/founding")
    world = World(seed, Faults(loss_per_mille=100, reordering=True))
    world.founds_once = (
        False  # An operator who repeats it, since the first may lose what it founded.
    )
    for name in NAMES:
        world.add(name, planted(logbook(every_ms=20), change), member=True)
    world.judges.append(CounterJudge(drift_ppm=1_000))
    lost: set[str] = set()
    for _ in range(ROUNDS):
        for name in NAMES:
            if world.nodes[name].up and random.random() < 1 / 3:
                world.crash(name)
            may_be_lost = name in lost or len(lost) < len(NAMES) - 1
            if not world.nodes[name].up and may_be_lost and random.random() < 1 / 4:
                world.nodes[name].disk.lose()
                lost.add(name)
            if random.random() < 1 / 2:
                world.power_on(name)
        one, other = random.sample(NAMES, 2)
        until = world.time + random.randrange(1_000) * NS_PER_MS
        world.network.cut([(one, other), (other, one)], Cut(until, holds=False))
        world.run_for(random.choice((10, 300, 1_500)))
    return world.marks


def test_a_group_is_founded_once_whatever_happens_to_its_members_meanwhile() -> None:
    marks: Counter[str] = Counter()
    for seed in range(FOUNDING_SEEDS // 8):
        marks.update(found(seed, unchanged))
    assert marks["bootstrap.founded"] > 0
    assert marks["bootstrap.non_voting"] > 0
    assert marks["bootstrap.unregistered_journal"] > 0


def test_a_group_that_a_majority_founds_is_caught() -> None:
    change = in_place(FoundsByMajority)
    seeds = range(FOUNDING_RARE, FOUNDING_RARE + FOUNDING_SEEDS)
    assert any(is_violated(partial(found, seed, change)) for seed in seeds)


GROUP_SEEDS = 2
KINDS = {
    "all founders lost their disks",
    "all founders lost their disks, cut off",
    "some founders lost their disks",
    "some founders lost their disks, cut off",
}


def paxos(seed: int, change: Change = unchanged) -> RunReport:
    plan = LogPlan(
        nodes=3,
        spares=2,
        clients=1,
        proposers=1,
        change_every_ms=100,
        chaos_ms=6_000,
        lose_founders=True,
    )
    return run_log_seed(seed, plan=plan, subject=LogSubject(change=change))


def bakery(seed: int, change: Change = unchanged) -> RunReport:
    plan = RunPlan(nodes=5, clients=2, locks=1, chaos_ms=8_000, safety_only=True)
    members = bakery_run.MembersPlan(plan, 3, 200)
    return bakery_run.run_members_seed(seed, plan=members, change=change)


Run = Callable[[int, Change], RunReport]


@pytest.mark.parametrize("run", [paxos, bakery])
def test_founders_that_lost_their_disks_found_no_second_group(run: Run) -> None:
    seen = clean(run(seed, unchanged) for seed in range(GROUP_SEEDS))
    assert {kind for kind in seen if kind in KINDS}


def founds_by_itself(spawn: Spawn) -> Spawn:
    """Take every start for an act of an operator."""
    if spawn.role is not Bootstrap:
        return spawn
    return replace(spawn, arguments={**spawn.arguments, "founding": Founding.NEW})


class FollowsBesidesItsGroup(Bootstrap):
    """Follows the first member instead of naming the group that it knows."""

    def _on_join(self, member: str, join: Join, now: Instant) -> Effects:
        if self.group is None or member != self.members[0]:
            return super()._on_join(member, join, now)
        follows = JoinAck(to=join.start.boot, start=self.own, follows=True)
        return [Send(bootstrap_of(member), follows)]


class FoundsWithoutAll(Bootstrap):
    """Founds a group with those that follow, and counts on the others to follow later."""

    def _found(self, now: Instant) -> list[Effect]:
        if self.may_found(now) and len(self.followers) + 1 > len(self.members) // 2:
            for member in self.others:
                self.followers.setdefault(member, 1)
                self.starts.setdefault(member, Start(1, 1, 1))
        return super()._found(now)


@pytest.mark.parametrize(
    ("run", "change", "seed"),
    [
        (paxos, founds_by_itself, 6),
        (bakery, founds_by_itself, 6),
        (paxos, in_place(FollowsBesidesItsGroup), 11),
        (bakery, in_place(FollowsBesidesItsGroup), 59),
        (paxos, in_place(FoundsWithoutAll), 27),
        (bakery, in_place(FoundsWithoutAll), 27),
    ],
)
def test_a_second_group_is_caught(run: Run, change: Change, seed: int) -> None:
    assert "one-group" in (run(seed, change).violation or "")
