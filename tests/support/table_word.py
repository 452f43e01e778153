"""The parts of the model of the table, as plain tuples: outcomes, claims and requests."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from fencelock.actors.table.outcome import Outcome

Word = tuple[Any, ...]
"""An outcome: its name, then its fields."""


def word_of(outcome: Outcome) -> Word:
    """Return an outcome as a tuple, without its texts and version numbers."""
    untold = ("detail", "version", "label")
    told = [getattr(outcome, one.name) for one in fields(outcome) if one.name not in untold]
    return (type(outcome).__name__, *told)


@dataclass(eq=False)
class Claim:
    """A hold if it has a fence, else a wait."""

    session: str
    owner: str
    lock: str
    request: int
    due: float
    fence: int = 0
    levels: list[int] = field(default_factory=list[int])
    place: int = 0


@dataclass(eq=False)
class Request:
    """One owner's request for one lock, and its outcome, None while it waits."""

    number: int
    kind: type
    answer: Word | None = None
    at: int = 0


Who = tuple[str, str, str]
"""A session, an owner in it, and a lock."""
