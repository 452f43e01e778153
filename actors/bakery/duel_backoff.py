"""How two coordinators that do not hear each other keep from undoing what the other did. Pure.

Each is the smallest member that it sees, and misses the other among the leaders. All the rest hear
both: whatever one of them proposes is promised, and the other one replaces it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencelock.actors.bakery.config import later
from fencelock.actors.bakery.leader_selection import living
from fencelock.actors.message import Instant, ms_between

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from fencelock.actors.bakery.event import Member
    from fencelock.actors.bakery.message import Seating

BACKOFF_MS = 300
"""Over how long coordinators that outbid each other spread their next proposals (ms)."""

OVERRULED_MS_MAX = 1_600
"""The longest pause, in the mean, of who is overruled again and again and stays deaf (ms).

At most half as long again: then whoever it does not hear may be lost, and is replaced. Until then
each replaces the other's leaders about as often, for less than a tenth of a second each time.
"""

CALM_MS = 10_000
"""Who was not overruled for so long pauses shortly again (ms)."""


class DuelBackoff:
    """The pauses of one coordinator.

    Args:
        random: spreads them.

    """

    def __init__(self, random: Random) -> None:
        self.mine = 0
        """The epoch of the last seating that this coordinator had installed."""
        self.pause_ms = BACKOFF_MS
        self.until = Instant(0)
        """Nothing is proposed earlier, unless every leader is heard meanwhile."""
        self.overruled_at = Instant(0)
        self._random = random

    def hear(self, seating: Seating, members: Sequence[Member]) -> None:
        """End the pause if every leader is heard, which leaves nothing to be undone.

        A leader that is lost from now on is replaced at once.
        """
        if len(living(seating, members)) == len(seating.leaders):
            self.until = Instant(0)

    def spread_ms(self) -> int:
        """Return how long to wait after another's proposal was promised (ms)."""
        return int(self._random.random() * BACKOFF_MS)

    def learn(self, before: int, epoch: int, now: Instant) -> None:
        """Take note that ``epoch`` follows ``before``: propose nothing before ``until``.

        The pause doubles each time that this coordinator's own seating is replaced by
        another's, and is short again when the last one was over long ago.
        """
        if before != self.mine or epoch == before:
            return
        if ms_between(self.overruled_at, now) > CALM_MS:
            self.pause_ms = BACKOFF_MS
        self.until = later(now, self.pause_ms // 2 + int(self._random.random() * self.pause_ms))
        self.overruled_at = now
        self.pause_ms = min(2 * self.pause_ms, OVERRULED_MS_MAX)
