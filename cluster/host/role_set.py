"""The roles with which a host begins, and how it ends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fencelock.actors.effect import Send, Spawn
from fencelock.actors.message import Address, Local


class Closing(NamedTuple):
    """A message to a role of a node that stops in order."""

    to: Address
    message: Local
    within_ms: int
    """Longest wait for the role's answer (ms)."""


@dataclass(frozen=True, slots=True)
class RoleSet:
    """The roles a node begins with, and the first and the last messages sent to them."""

    roles: tuple[Spawn, ...]
    openings: tuple[Send, ...] = ()
    """Sent by ``node/node`` when every role had its first turn."""
    closings: tuple[Closing, ...] = ()
    """Sent one after the other, each when the one before was answered or took too long."""
