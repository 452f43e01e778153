"""The view that a judge has of a run, and its reports of broken promises and invariants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Event
from fencelock.verification.simulation.trace import Delivery

M = TypeVar("M", bound=Event)


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
