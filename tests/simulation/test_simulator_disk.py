"""The disk of a simulated node, its crashes and its lives."""

from __future__ import annotations

from typing import Any

import pytest
from support.simulator_scene import N2, SECOND, Tock, only, world_of

from fencelock.actors.api.message import Alive, KeepAlive
from fencelock.actors.effect import Effects, Persist, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.role import Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import NodeContext
from fencelock.transport.codec import encode
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.nemesis import Nemesis
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.world import World


def kept(number: int) -> Alive:
    return Alive(session="kept", node="n1", request=number)


class NumberWriter(Role[Tock]):
    """Persists a number, then sends it."""

    peer = N2
    says_first = False

    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.number = 0

    def begin(self, now: Instant) -> Effects:
        return [Wake(3, Tock())]

    def handle(self, sender: Address, event: Tock, now: Instant) -> Effects:
        self.number += 1
        keep = Persist(kept(self.number))
        say = Send(self.peer, KeepAlive(session="s", request=self.number))
        return [say, keep, Wake(3, Tock())] if self.says_first else [keep, say, Wake(3, Tock())]


class SilentReader(Role[KeepAlive]):
    def handle(self, sender: Address, event: KeepAlive, now: Instant) -> Effects:
        return ()


class HastyWriter(NumberWriter):
    says_first = True


class DurabilityJudge:
    """Checks that numbers which a peer received in this life of the writer are on its disk."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard = 0

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event, writer = delivered.event, self.world.nodes["n1"]
        if type(event) is KeepAlive and delivered.boot == writer.boot:
            self.heard += 1
            if encode(kept(event.request)) not in writer.disk.durable[-20:]:
                raise ViolationError(f"{event.request} was said and not kept")

    def crashed(self, node: str, boot: int) -> None:
        del node, boot


def write_under_crashes(writer: type[Role[Any]], seed: int) -> World:
    slow_disk = Faults(
        crash_in_sync_per_mille=50, crash_every_ms=500, tail_lost=True, sync_us=2_000, down_ms=20
    )
    world = World(seed, slow_disk)
    world.add("n1", only(writer), member=True)
    world.add("n2", only(SilentReader), member=True)
    world.may_die_in_sync = frozenset({"n1"})
    judge = DurabilityJudge(world)
    world.judges.append(judge)
    world.power_on_all()
    Nemesis(world, ("n1",)).begin()
    world.run(3 * SECOND)
    assert judge.heard > 20
    return world


def test_what_follows_a_persist_leaves_only_when_the_record_is_durable() -> None:
    worlds = [write_under_crashes(NumberWriter, seed) for seed in range(10)]

    assert sum(world.fault_counts["crash in sync"] for world in worlds) > 20
    assert sum(world.fault_counts["records lost"] for world in worlds) > 5


def test_a_role_that_speaks_before_it_persists_is_caught() -> None:
    with pytest.raises(ViolationError, match="was said and not kept"):
        write_under_crashes(HastyWriter, seed=0)


def test_a_node_begins_its_next_life_with_what_its_disk_kept_and_a_new_boot() -> None:
    seats: list[NodeContext] = []

    def make_roles(context: NodeContext) -> RoleSet:
        seats.append(context)
        return only(NumberWriter)(context)

    world = world_of(make_roles, only(SilentReader))
    world.run(SECOND)
    world.crash("n1")
    world.power_on("n1")

    first, second = seats
    assert first.records == ()
    assert len(second.records) > 50
    assert first.boot != second.boot
    assert first.random.random() != second.random.random()


def test_a_crash_loses_a_random_part_of_the_unsynced_records_or_none() -> None:
    def lost(*, tail_lost: bool) -> set[int]:
        found: set[int] = set()
        for seed in range(30):
            faults = Faults(sync_us=100_000, tail_lost=tail_lost)
            world = world_of(only(NumberWriter), only(SilentReader), seed=seed, faults=faults)
            world.run(4 * NS_PER_MS)
            world.crash("n1")
            found.add(world.fault_counts["records lost"])
        return found

    assert lost(tail_lost=True) == {0, 1}
    assert lost(tail_lost=False) == {0}
