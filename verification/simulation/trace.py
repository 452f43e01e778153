"""The events of a run, in order: kept as tuples, turned into text only when they are read."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.message import NS_PER_MS, Address, Event


class Delivery(NamedTuple):
    """A delivery: ``event`` reached the role ``to``."""

    time: int
    """True time since the run began (ns)."""
    node: str
    sender: Address
    to: Address
    event: Event
    boot: int
    """The boot of the node that sent it, when it was sent, or 0 if no node sent it."""


class Mishap(NamedTuple):
    """A fault or another change of ``node``, caused by the simulation."""

    time: int
    node: str
    what: str


class Trace:
    """The lines of a run.

    Two runs of one seed have equal traces, in every process.
    """

    def __init__(self) -> None:
        self.entries: list[Delivery | Mishap] = []

    def lines(self) -> list[str]:
        """Return ``time node sender->to event`` for each delivery, time in milliseconds."""
        return [_line(entry) for entry in self.entries]


def _line(entry: Delivery | Mishap) -> str:
    ms, rest = divmod(entry.time, NS_PER_MS)
    match entry:
        case Delivery():
            text = f"{entry.sender}->{entry.to} {entry.event!r}"
        case Mishap():
            text = f"** {entry.what}"
    return f"{ms}.{rest:06d} {entry.node} {text}"
