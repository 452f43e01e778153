"""How two coordinators that do not hear each other keep from undoing what the other did. Pure.

Each is the smallest member that it sees, and misses the other among the leaders. All the rest hear
both: whatever one of them proposes is promised, and the other one replaces it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.actors.bakery.config import later
from holdfast.actors.message import Instant, ms_between

if TYPE_CHECKING:
    from random import Random

BACKOFF_MS = 300
"""Over how long coordinators that outbid each other spread their next proposals (ms)."""

OVERRULED_MS_MAX = 20_000
"""The longest pause of a coordinator whose seatings are replaced again and again (ms)."""


class Rivalry:
    """The pauses of one coordinator.

    Args:
        random: spreads them.

    """

    def __init__(self, random: Random) -> None:
        self.mine = 0
        """The epoch of the last seating that this coordinator had installed."""
        self.pause_ms = BACKOFF_MS
        self.until = Instant(0)
        self._random = random

    def spread_ms(self) -> int:
        """Return how long to wait after another's proposal was promised (ms)."""
        return int(self._random.random() * BACKOFF_MS)

    def learn(self, before: int, epoch: int, now: Instant) -> Instant:
        """Take note that ``epoch`` follows ``before``; return when to propose at the earliest.

        The pause doubles each time that this coordinator's own seating is replaced by
        another's, and is short again when the last one was over long ago.
        """
        if before != self.mine or epoch == before:
            return self.until
        if ms_between(self.until, now) > OVERRULED_MS_MAX:
            self.pause_ms = BACKOFF_MS
        self.until = later(now, self.pause_ms // 2 + int(self._random.random() * self.pause_ms))
        self.pause_ms = min(2 * self.pause_ms, OVERRULED_MS_MAX)
        return self.until
