"""A leader whose disk becomes slow, in virtual time; planted bugs that this reveals."""

from __future__ import annotations

import pytest
from support.log_workload import LogWriter, logbook
from support.planted_bugs import plant, returning

from fencelock.actors.message import NS_PER_MS, address_of
from fencelock.actors.paxos import failure_detector, slow_disk
from fencelock.actors.paxos.slow_disk import DiskComparison
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.nemesis import SLOW_SYNC_US
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.world import World

pytestmark = pytest.mark.long

MEMBERS = ("n1", "n2", "n3")
BACK_WITHIN_MS = 3_000
MEASURED_MS = 1_000
WATCHED_MS = 20_000
HAND_OVERS = "paxos.handed_over_for_disk"


def world_of_three() -> World:
    world = World(0, Faults(delay_us=500, sync_us=2_000))
    for name in MEMBERS:
        world.add(name, logbook(every_ms=2), member=True)
    world.power_on_all()
    world.run(2_000 * NS_PER_MS)
    return world


def writers(world: World) -> list[LogWriter]:
    return [world.role_at(address_of(name, "scribe")) for name in MEMBERS]


def decided_in(world: World, ms: int) -> int:
    """Return the number of commands that are decided in the next ``ms``."""
    before = max(len(writer.received) for writer in writers(world))
    world.run_for(ms)
    return max(len(writer.received) for writer in writers(world)) - before


def leader_of(world: World) -> str:
    leaders = {writer.leader for writer in writers(world)}
    if len(leaders) > 1:
        raise ViolationError(f"members follow {', '.join(sorted(leaders))}")
    return leaders.pop()


def judge_slow_leader() -> None:
    """Make the leader's disk slow; demand that another leads soon, and that it stays so."""
    world = world_of_three()
    leader, before = leader_of(world), decided_in(world, MEASURED_MS)
    world.slow_disks[leader] = SLOW_SYNC_US
    world.run_for(BACK_WITHIN_MS)
    after = decided_in(world, MEASURED_MS)
    if after < before // 2:
        raise ViolationError(f"{before} commands a second before, {after} after")
    if leader_of(world) == leader:
        raise ViolationError(f"{leader} leads with a slow disk")
    world.run_for(WATCHED_MS)
    if world.marks[HAND_OVERS] != 1:
        raise ViolationError(f"{world.marks[HAND_OVERS]} hand-overs for one slow disk")


def judge_slow_in_turn() -> None:
    """Make the disk of each leader slow and the others' quick; demand that few hand over."""
    world = world_of_three()
    for _ in range(WATCHED_MS // BACK_WITHIN_MS):
        world.slow_disks = {leader_of(world): SLOW_SYNC_US}
        world.run_for(BACK_WITHIN_MS)
    if world.marks[HAND_OVERS] > len(MEMBERS):
        raise ViolationError(f"{world.marks[HAND_OVERS]} hand-overs in {WATCHED_MS} ms")


def test_commands_are_decided_quickly_again_soon_after_the_leaders_disk_became_slow() -> None:
    judge_slow_leader()


def test_the_leader_changes_at_most_once_a_member_if_disks_become_slow_in_turn() -> None:
    judge_slow_in_turn()


def test_nothing_changes_while_all_disks_are_slow_alike() -> None:
    world = world_of_three()
    leader = leader_of(world)
    world.slow_disks = dict.fromkeys(MEMBERS, SLOW_SYNC_US)

    world.run_for(WATCHED_MS)

    assert world.marks[HAND_OVERS] == 0
    assert leader_of(world) == leader


def test_a_leader_that_never_hands_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_disk, "SLOW_FACTOR", 1 << 40)
    with pytest.raises(ViolationError, match="commands a second before"):
        judge_slow_leader()


def test_leaders_that_hand_over_again_and_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_detector, "REST_MS", 0)
    with pytest.raises(ViolationError, match="hand-overs in"):
        judge_slow_in_turn()


def test_a_leader_that_compares_with_no_other_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, DiskComparison, "is_slow", returning(True))
    with pytest.raises(ViolationError, match=r"commands a second before|members follow"):
        judge_slow_leader()
