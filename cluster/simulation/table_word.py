"""What the model of the table is made of: outcomes, claims and requests, as plain words."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from fencelock.actors.lock.outcome import Outcome

Word = tuple[Any, ...]
"""An outcome: its name, then its fields."""


def word_of(outcome: Outcome) -> Word:
    """Return an outcome as a tuple, without what only words it or numbers versions."""
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
    """What one owner once asked of one lock, and what came of it, None while it waits."""

    number: int
    kind: type
    answer: Word | None = None
    at: int = 0


Who = tuple[str, str, str]
"""A session, an owner in it, and a lock."""
