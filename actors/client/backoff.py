"""How long a session pauses before it says something again."""

from __future__ import annotations

from typing import Protocol

from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.timing import TIMING

RETRY_MS = TIMING.probe_ms
"""The first pause before a request is repeated (ms); it doubles from there."""

RETRY_MS_MAX = 4_000
"""The longest: how late a gate that restarted may hear of a wait (ms)."""

WITHDRAWAL_MS_MAX = 15_000
"""The longest pause between two cancels of one wait: nobody waits for it any more (ms)."""

MARGIN_MS = 4_500
"""A wait's own time is judged by the proxy; so much later the session ends it itself (ms).

Long enough to leave a gate that fell silent (`SILENCE_MS`) and to be answered by the next.
"""

ANSWER_MS = 10_000
"""How long a release or a question may go unanswered before the user is told (ms)."""

JITTER = 0.5
"""Pauses vary by this part of themselves, so that clients do not repeat in step."""


_LEAST = 1 - JITTER / 2
"""The shortest pause, as a part of the usual one."""


class RandomSource(Protocol):
    """The part of ``random.Random`` that a session draws from."""

    def random(self) -> float:
        """Return a number from 0 to less than 1."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to less than ``stop``."""
        ...


def later(now: Instant, after_ms: int) -> Instant:
    """Return the instant ``after_ms`` milliseconds after ``now``."""
    return Instant(now + after_ms * NS_PER_MS)


def paused(random: RandomSource, step_ms: int, now: Instant) -> Instant:
    """Return an instant about ``step_ms`` from ``now``, by chance sooner or later."""
    vary = _LEAST + JITTER * random.random()
    return Instant(now + int(step_ms * vary) * NS_PER_MS)
