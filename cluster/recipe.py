"""Which roles make up a node, for each protocol: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from holdfast.actors.effect import Send, Spawn
from holdfast.actors.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator may choose for a protocol; see ``cluster/config.py`` for the file."""

    central_server: str = ""
    """`central`: the node that runs the lock server; empty for the first by name."""
    central_journal: bool = False
    """`central`: keep the server's table on disk, so that a restarted server goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a node knows when its roles are made."""

    node: str
    nodes: tuple[str, ...]
    """All members, this one too, sorted."""
    boot: int
    """Drawn anew at each start, 63 bits: tells this life of the node from earlier ones."""
    random: Random
    first_stamp: int = 0
    """Where the logical clock begins."""
    settings: Settings = Settings()
    records: tuple[Message, ...] = ()
    """What the journal of this node holds, oldest first."""


@dataclass(frozen=True, slots=True)
class Cast:
    """The roles a node begins with, and the first words said to them (by ``node/node``)."""

    roles: tuple[Spawn, ...]
    openings: tuple[Send, ...] = ()


Recipe = Callable[[Seat], Cast]
"""How a protocol seats its roles on one node."""
