"""Bugs planted in the roles of a node, also in those that it adds once its group is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from fencelock.actors.bootstrap import Bootstrap
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.effect import Spawn
from fencelock.actors.message import Address
from fencelock.actors.role import Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext

Change = Callable[[Spawn], Spawn]
"""Returns the role to use in place of a role."""


def changed(spawn: Spawn, change: Change) -> Spawn:
    """Return ``spawn`` after ``change``, also of the roles that a `Bootstrap` adds."""
    spawn = change(spawn)
    if not issubclass(spawn.role, Bootstrap):
        return spawn
    make_roles = spawn.arguments["make_roles"]

    def changed_roles(
        group: GroupConfig, votes: bool, voters: Mapping[Address, int]
    ) -> tuple[Spawn, ...]:
        return tuple(change(one) for one in make_roles(group, votes, voters))

    return replace(spawn, arguments={**spawn.arguments, "make_roles": changed_roles})


def in_place(role: type[Role[Any]]) -> Change:
    """Return the change that runs ``role`` in the place of its own base class."""
    return lambda spawn: replace(spawn, role=role) if issubclass(role, spawn.role) else spawn


def planted(make_roles: MakeRoles, change: Change) -> MakeRoles:
    """Return ``make_roles`` with ``change`` applied to every role of every node."""

    def broken(context: NodeContext) -> RoleSet:
        role_set = make_roles(context)
        return dataclasses.replace(
            role_set, roles=tuple(changed(spawn, change) for spawn in role_set.roles)
        )

    return broken
