"""The roles with which a host begins."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.effect import Send, Spawn


@dataclass(frozen=True, slots=True)
class RoleSet:
    """The roles of a node at its start, and the first messages to them (from ``node/node``)."""

    roles: tuple[Spawn, ...]
    openings: tuple[Send, ...] = ()
