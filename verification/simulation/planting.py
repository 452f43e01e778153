"""Bugs planted in the roles of a node, also in those that it adds once its group is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from fencelock.actors.bootstrap import Bootstrap
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.effect import Spawn
from fencelock.actors.message import Address
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import NodeContext, Recipe

Change = Callable[[Spawn], Spawn]
"""Returns the role to use in place of a role."""


def changed(spawn: Spawn, change: Change) -> Spawn:
    """Return ``spawn`` after ``change``, also of the roles that a `Bootstrap` adds."""
    spawn = change(spawn)
    if not issubclass(spawn.role, Bootstrap):
        return spawn
    seat = spawn.arguments["seat"]

    def seat_changed(
        group: GroupConfig, votes: bool, voters: Mapping[Address, int]
    ) -> tuple[Spawn, ...]:
        return tuple(change(one) for one in seat(group, votes, voters))

    return replace(spawn, arguments={**spawn.arguments, "seat": seat_changed})


def planted(recipe: Recipe, change: Change) -> Recipe:
    """Return ``recipe`` with ``change`` applied to every role of every node."""

    def broken(seat: NodeContext) -> RoleSet:
        cast = recipe(seat)
        return dataclasses.replace(
            cast, roles=tuple(changed(spawn, change) for spawn in cast.roles)
        )

    return broken
