"""Simulated nodes of one role each, made for tests of the simulator itself."""

from __future__ import annotations

from typing import Any

from fencelock.actors.clock import Clock
from fencelock.actors.effect import Spawn
from fencelock.actors.message import NS_PER_MS, Address, Timer
from fencelock.actors.role import Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.world import World

N1, N2 = Address("n1/role"), Address("n2/role")
SECOND = 1_000 * NS_PER_MS


class Tock(Timer):
    """A timer of such a role."""

    number: int = 0


def only(role: type[Role[Any]]) -> MakeRoles:
    """Return a function that makes a node with ``role`` and a clock."""

    def make_roles(context: NodeContext) -> RoleSet:
        clock = Spawn(Address(f"{context.node}/clock"), Clock)
        return RoleSet((clock, Spawn(Address(f"{context.node}/role"), role)))

    return make_roles


def world_of(*makers: MakeRoles, seed: int = 1, faults: Faults | None = None) -> World:
    """Return a world in which a node of each kind runs."""
    world = World(seed, faults or Faults())
    for number, make_roles in enumerate(makers, start=1):
        world.add(f"n{number}", make_roles, member=True)
    world.power_on_all()
    return world
