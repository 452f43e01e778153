"""Pauses of a session before it sends something again, and its timeouts."""

from __future__ import annotations

from typing import Protocol

from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.timing import TIMING

RETRY_MS = TIMING.probe_ms
"""First pause before a request is repeated (ms); it doubles from there."""

RETRY_MS_MAX = 4_000
"""Longest such pause (ms): a restarted endpoint learns of a wait this late at most."""

WITHDRAWAL_MS_MAX = 15_000
"""Longest pause between two cancels of one wait (ms): no user waits for it any more."""

MARGIN_MS = 4_500
"""Delay after which the session ends a wait itself, if the proxy did not at its timeout (ms).

It is long enough to leave a silent endpoint (`SILENCE_MS`) and to get a reply from the next.
"""

ANSWER_MS = 10_000
"""Timeout of a release or a query, after which the user is refused (ms)."""

JITTER = 0.5
"""Range of a pause as a fraction of it, so that clients do not repeat in step."""


_LEAST = 1 - JITTER / 2
"""The shortest pause, as a fraction of the usual one."""


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
    """Return an instant about ``step_ms`` from ``now``, randomly sooner or later."""
    vary = _LEAST + JITTER * random.random()
    return Instant(now + int(step_ms * vary) * NS_PER_MS)
