"""The interfaces between judges, nodes and roles of a simulation and their surroundings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from fencelock.actors.effect import Effects
from fencelock.actors.message import Address, Instant
from fencelock.verification.simulation.disk import Disk
from fencelock.verification.simulation.streams import Streams
from fencelock.verification.simulation.trace import Delivery


class Judge(Protocol):
    """An observer from outside, at true time; raises `ViolationError`."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        """Record that a role handled ``delivered``; ``effects`` are not yet performed."""
        ...

    def crashed(self, node: str, boot: int) -> None:
        """Record that ``node`` died in its life ``boot``."""
        ...


class Environment(Protocol):
    """A node's view of its world."""

    time: int
    streams: Streams
    marks: Counter[str]
    fault_counts: Counter[str]
    judges: list[Judge]
    begin_watchers: list[Callable[[Address, Effects], None]]
    members: tuple[str, ...]
    may_found: bool
    groups: dict[int, str]

    def joined(self, node: str, group: int) -> None:
        """Record that ``node`` belongs to ``group`` from now on."""
        ...

    def at(self, time: int, action: Callable[..., None], *arguments: Any) -> None:
        """Put ``action`` on the agenda for true ``time`` (ns)."""
        ...

    def after(self, ns: int, action: Callable[..., None], *arguments: Any) -> None:
        """Put ``action`` on the agenda, ``ns`` nanoseconds from now."""
        ...

    def carry(self, source: str, boot: int, to: str, frame: bytes) -> None:
        """Send ``frame`` from ``source`` in its life ``boot``; the network may lose it."""
        ...

    def sync_time(self, node: str, boot: int) -> int:
        """Return how long the disk of ``node`` takes to sync (ns)."""
        ...

    def lateness(self) -> int:
        """Return the delay of the next timer (ns)."""
        ...

    def date_us(self) -> int:
        """Return the date (us since 1970)."""
        ...

    def record(self, delivered: Delivery) -> None:
        """Write a delivery into the trace."""
        ...

    def mishap(self, node: str, what: str) -> None:
        """Write an incident of a node into the trace."""
        ...


class NodeView(Protocol):
    """The roles' view of their node."""

    name: str
    boot: int
    member: bool
    stands_in: bool
    disk: Disk

    @property
    def world(self) -> Environment:
        """The world of the node."""
        ...

    def now(self) -> Instant:
        """Read its clock."""
        ...
