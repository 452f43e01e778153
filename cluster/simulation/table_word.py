"""The parts of the model of the table, as plain tuples: outcomes, claims and requests."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, cast

from fencelock.actors.api.session_message import Evicted
from fencelock.actors.table.message import Result

Word = tuple[Any, ...]
"""An outcome: its name, then its fields."""


UNTOLD = ("detail", "label", "node", "master", "hold_ms", "grace_ms")
"""Fields that the model does not have: texts, and those for proxies and other protocols."""


def word_of(outcome: Result) -> Word:
    """Return an outcome as a tuple, without the fields that the model does not have."""
    told = [
        getattr(outcome, one.name) for one in fields(cast("Any", outcome)) if one.name not in UNTOLD
    ]
    if isinstance(outcome, Evicted):
        told[2] = outcome.holder.owner, outcome.holder.times
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
