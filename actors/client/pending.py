"""One question of a client's user without an answer, and one wait that must be undone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.actors.lock.message import Acquire, Describe, Inspect, Release
from holdfast.actors.message import NS_PER_MS, Address, Instant, ms_between

RETRY_MS = 250
"""The first pause before a request is repeated (ms); it doubles from there."""


class Claim(NamedTuple):
    """Which owner wants or has which lock."""

    lock: str
    owner: str


class Debt(NamedTuple):
    """Which gate owes a `Cancelled` for which claim."""

    gate: Address
    claim: Claim


Question = Acquire | Release | Inspect | Describe


@dataclass(slots=True)
class Pending:
    """A question of a user that has no answer yet."""

    number: int
    user: Address | None
    """None for a release that nobody waits for."""
    asked: Question
    """As the user said it."""
    gate: Address
    asked_at: Instant
    ends_at: Instant | None
    """An `Acquire`: when its wait is over. Others: when the user is told of the silence."""
    resend_at: Instant
    step_ms: int = RETRY_MS
    was_sent: bool = False
    survey: int = 0
    """The survey it belongs to; such a question stays at its gate."""


@dataclass(slots=True)
class Withdrawal:
    """A wait that was sent to a gate under ``number`` and must not be granted any more."""

    number: int
    resend_at: Instant
    step_ms: int = RETRY_MS


def later(now: Instant, after_ms: int) -> Instant:
    """Return the instant ``after_ms`` milliseconds after ``now``."""
    return Instant(now + after_ms * NS_PER_MS)


def left_ms(pending: Pending, now: Instant) -> int | None:
    """Return what is left of the limit of ``pending``; None if it has none."""
    if pending.ends_at is None:
        return None
    return ms_between(now, pending.ends_at)


def moves(pending: Pending) -> bool:
    """Whether another gate can answer: a hold lives at one gate, and so does its release."""
    return not isinstance(pending.asked, Release) and not pending.survey
