"""What judges, nodes and roles of a simulation see of what they stand on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from fencelock.actors.effect import Effects
from fencelock.actors.message import Instant
from fencelock.cluster.simulation.disk import Disk
from fencelock.cluster.simulation.streams import Streams
from fencelock.cluster.simulation.trace import Delivered


class Judge(Protocol):
    """Watches from outside, at true time; raises `ViolationError`."""

    def handled(self, delivered: Delivered, effects: Effects) -> None:
        """Take note that a role handled ``delivered`` and wants ``effects``, not yet performed."""
        ...

    def crashed(self, node: str, boot: int) -> None:
        """Take note that ``node`` died in its life ``boot``."""
        ...


class Environment(Protocol):
    """What a node needs of its world."""

    time: int
    streams: Streams
    marks: Counter[str]
    faults: Counter[str]
    judges: list[Judge]
    members: tuple[str, ...]

    def at(self, time: int, action: Callable[..., None], *arguments: Any) -> None:
        """Put ``action`` on the agenda for true ``time`` (ns)."""
        ...

    def after(self, ns: int, action: Callable[..., None], *arguments: Any) -> None:
        """Put ``action`` on the agenda, ``ns`` nanoseconds from now."""
        ...

    def carry(self, source: str, boot: int, to: str, frame: bytes) -> None:
        """Let ``frame`` travel from ``source`` in its life ``boot``, if it is lucky."""
        ...

    def sync_time(self, node: str, boot: int) -> int:
        """Return how long the disk of ``node`` takes to sync (ns)."""
        ...

    def lateness(self) -> int:
        """Return by how much the next timer is late (ns)."""
        ...

    def date_us(self) -> int:
        """Return the date (us since 1970)."""
        ...

    def record(self, delivered: Delivered) -> None:
        """Write a delivery into the trace."""
        ...

    def mishap(self, node: str, what: str) -> None:
        """Write what happened to a node into the trace."""
        ...


class Machine(Protocol):
    """What the roles of a node need of it."""

    name: str
    boot: int
    disk: Disk

    @property
    def world(self) -> Environment:
        """Where it lives."""
        ...

    def now(self) -> Instant:
        """Read its clock."""
        ...
