"""Members without a disk that crash and come back, simulated and real; a planted bug is caught."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from support.expect import only
from support.judged import BelievesOne, is_violated, votes_as_registered
from support.log_workload import CounterJudge, LogWriter, logbook

import fencelock
from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.effect import Spawn
from fencelock.actors.message import NS_PER_MS, address_of
from fencelock.actors.paxos.member import SLOTS
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.verification.simulation.faults import CALM, FaultKind, Faults, draw_faults
from fencelock.verification.simulation.nemesis import Nemesis
from fencelock.verification.simulation.network import Cut
from fencelock.verification.simulation.planting import Change, in_place, planted
from fencelock.verification.simulation.world import World

LONG_S = 30.0
SEEDS = 4
NAMES = ("n1", "n2", "n3")


def unchanged(spawn: Spawn) -> Spawn:
    return spawn


def world_of(
    seed: int, faults: Faults = CALM, every_ms: int = 10, change: Change = unchanged
) -> World:
    world = World(seed, faults)
    world.founds_once = False
    for name in NAMES:
        make_roles = planted(logbook(every_ms=every_ms, log_max=50, memory=True), change)
        world.add(name, make_roles, member=True)
    world.judges.append(CounterJudge(drift_ppm=1_000))
    world.power_on_all()
    return world


def votes(world: World) -> list[bool | None]:
    scribes = [world.role_at(address_of(name, "scribe")) for name in NAMES]
    return [scribe.votes for scribe in scribes if isinstance(scribe, LogWriter)]


def decided(world: World) -> int:
    judge = only(CounterJudge, world.judges)
    return len(judge.slots)


def test_members_that_crash_and_come_back_never_vote_and_nothing_is_lost() -> None:
    marks: Counter[str] = Counter()
    for seed in range(SEEDS):
        fate = draw_faults(Random(f"{seed}/memory"), frozenset(FaultKind) - {FaultKind.JUMP})
        world = world_of(seed, replace(fate, drift_ppm=1_000, crash_every_ms=700))
        world.run_for(400 * (seed % 3))  # From some on the first crash may come too early.
        nemesis = Nemesis(world, (NAMES[seed % 3],))
        nemesis.begin()
        world.run_for(3_000)
        nemesis.heal()
        world.run_for(2_000)
        before = decided(world)
        world.run_for(1_000)
        assert decided(world) > before + 10
        assert votes(world).count(None) == 0
        marks.update(world.marks)
    assert marks["bootstrap.non_voting"] > 0
    assert marks["paxos.non_voter_asked"] > 0


def cut_off(world: World, name: str) -> None:
    """Let nothing pass between a member and the others for a minute."""
    links = [link for other in NAMES if other != name for link in ((name, other), (other, name))]
    world.network.cut(links, Cut(world.time + 60_000 * NS_PER_MS, holds=False))


def split(seed: int, change: Change = unchanged) -> World:
    """Let n2 forget its decisions with n1, and then connect it only with n3, which missed them."""
    world = world_of(seed, change=change)
    world.run_for(1_500)
    cut_off(world, "n3")
    world.run_for(2_000)
    world.crash("n2")
    world.network.mend()
    cut_off(world, "n1")
    world.power_on("n2")
    world.run_for(4_000)
    return world


def test_a_member_that_forgot_does_not_help_to_decide_again() -> None:
    for seed in range(3):
        assert votes(split(seed)) == [True, False, True]


def believes_and_votes(spawn: Spawn) -> Spawn:
    """Let a node that forgot learn from one other of the group, and vote in it."""
    return votes_as_registered(in_place(BelievesOne)(spawn))


def test_one_that_came_back_and_votes_is_caught() -> None:
    assert any(is_violated(partial(split, seed, believes_and_votes)) for seed in range(10))


def test_a_group_that_was_restarted_as_a_whole_begins_anew_far_above() -> None:
    world = world_of(1)
    world.run_for(1_500)
    before = decided(world)
    for name in NAMES:
        world.crash(name)
    world.run_for(10)
    world.power_on_all()
    world.run_for(1_500)

    assert votes(world) == [True, True, True]
    judge = only(CounterJudge, world.judges)
    slots = sorted(judge.slots)
    assert len(slots) > before + 10
    assert slots[before] - slots[before - 1] > SLOTS


def test_real_members_without_a_disk(
    addresses: dict[str, str], nodes: dict[str, Node], tmp_path: Path
) -> None:
    text = starting_config(addresses, protocol="paxos").replace('"fsync"', '"memory"')
    config = parse(text, tmp_path)
    nodes.update((name, Node.start(config, name, found=True)) for name in NAMES)
    fences: list[int] = []

    def hold(proxy: str, lock: str) -> None:
        with (
            fencelock.connect(addresses[proxy], connect_timeout=LONG_S) as client,
            client.lock(lock, timeout=LONG_S) as held,
        ):
            assert held.fence is not None
            fences.append(held.fence)

    hold("n1", "a")
    nodes["n2"].stop()
    nodes["n2"] = Node.start(config, "n2", found=True)
    hold("n2", "a")  # It serves, although it has forgotten.
    status = nodes["n2"].proxy.ask(Describe(), timeout=LONG_S)
    assert "was restarted without its memory" in status.detail
    for node in nodes.values():
        node.stop()
    nodes.update((name, Node.start(config, name, found=True)) for name in NAMES)
    hold("n3", "a")

    assert fences == sorted(set(fences))
    assert list(tmp_path.iterdir()) == []
