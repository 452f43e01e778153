"""What happened in a run, in order: kept as tuples, put into words only when somebody reads it."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.message import NS_PER_MS, Address, Event


class Delivered(NamedTuple):
    """``event`` reached the role ``to``."""

    time: int
    """True time since the run began (ns)."""
    node: str
    sender: Address
    to: Address
    event: Event
    boot: int
    """Of the node that sent it, when it sent it: 0 for what no node sent."""


class Mishap(NamedTuple):
    """Something was done to ``node``, or by the one who runs the simulation."""

    time: int
    node: str
    what: str


class Trace:
    """The lines of a run.

    Two runs of one seed have equal traces, in every process.
    """

    def __init__(self) -> None:
        self.entries: list[Delivered | Mishap] = []

    def lines(self) -> list[str]:
        """Return ``time node sender->to event`` for each delivery, time in milliseconds."""
        return [_line(entry) for entry in self.entries]


def _line(entry: Delivered | Mishap) -> str:
    ms, rest = divmod(entry.time, NS_PER_MS)
    match entry:
        case Delivered():
            told = f"{entry.sender}->{entry.to} {entry.event!r}"
        case Mishap():
            told = f"** {entry.what}"
    return f"{ms}.{rest:06d} {entry.node} {told}"
