"""The events of a run, and the reports of judges about broken promises and invariants.

Events are kept as tuples, in order, and turned into text only when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeVar

from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import NS_PER_MS, Address, Event

M = TypeVar("M", bound=Event)


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


def sent(effects: Effects, kind: type[M]) -> list[M]:
    """Return the messages of this kind that ``effects`` send, in order."""
    return [
        effect.message
        for effect in effects
        if type(effect) is Send and isinstance(effect.message, kind)
    ]


class ViolationError(Exception):
    """A promise was broken; the text names it, the node and the time."""


class Judge(Protocol):
    """An observer from outside, at true time; raises `ViolationError`."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        """Record that a role handled ``delivered``; ``effects`` are not yet performed."""

    def crashed(self, node: str, boot: int) -> None:
        """Record that ``node`` died in its life ``boot``."""
        return


class ViolationReport:
    """Raises a violation, if its invariant is judged in this run.

    Args:
        invariants: the meaning of each invariant, by its name.
        judged: the invariants to judge, by name, or None for all. Leaving some out shows what the
            others detect by themselves.

    """

    def __init__(self, invariants: Mapping[str, str], judged: frozenset[str] | None = None) -> None:
        assert judged is None or judged <= invariants.keys()
        self.invariants = invariants
        self.judged = judged

    def __call__(self, name: str, text: str) -> None:
        """Report that the invariant ``name`` is broken."""
        assert name in self.invariants, name
        if self.judged is None or name in self.judged:
            raise ViolationError(f"{name}, {self.invariants[name]}: {text}")
