"""Founders lose their disks after the members changed: no second group is founded (one-group)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fencelock.actors.bootstrap import Bootstrap, bootstrap_of
from fencelock.actors.bootstrap_message import Founding, Join, JoinAck, Start
from fencelock.actors.effect import Effect, Effects, Send, Spawn
from fencelock.actors.message import Instant
from fencelock.verification.simulation import bakery_run
from fencelock.verification.simulation.paxos_plan import LogPlan
from fencelock.verification.simulation.paxos_run import LogSubject, run_log_seed
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.planting import Change
from fencelock.verification.simulation.report import RunReport

SEEDS = 4
KINDS = {
    "all founders lost their disks",
    "all founders lost their disks, cut off",
    "some founders lost their disks",
    "some founders lost their disks, cut off",
}


def unchanged(spawn: Spawn) -> Spawn:
    return spawn


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
    faults: Counter[str] = Counter()
    for seed in range(SEEDS):
        report = run(seed, unchanged)
        assert report.violation is None, (seed, report.violation)
        faults.update(report.faults)
    assert {kind for kind in faults if kind in KINDS}


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


def instead(role: type[Bootstrap]) -> Change:
    return lambda spawn: replace(spawn, role=role) if spawn.role is Bootstrap else spawn


@pytest.mark.parametrize(
    ("run", "change", "seed"),
    [
        (paxos, founds_by_itself, 6),
        (bakery, founds_by_itself, 6),
        (paxos, instead(FollowsBesidesItsGroup), 11),
        (bakery, instead(FollowsBesidesItsGroup), 59),
        (paxos, instead(FoundsWithoutAll), 27),
        (bakery, instead(FoundsWithoutAll), 27),
    ],
)
def test_a_second_group_is_caught(run: Run, change: Change, seed: int) -> None:
    assert "one-group" in (run(seed, change).violation or "")
