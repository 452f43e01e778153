"""Pauses of two coordinators that would replace each other's leaders forever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fencelock.actors.bakery.config import later
from fencelock.actors.bakery.leader_selection import living
from fencelock.actors.message import Instant, ms_between

if TYPE_CHECKING:
    from random import Random

    from fencelock.actors.bakery.electorate import Electorate
    from fencelock.actors.bakery.event import Member
    from fencelock.actors.bakery.message import Seating

OVERRULED_MS_MAX = 1_600
"""Longest mean pause of a coordinator that is overruled again and again (ms).

It pauses at most half as long again. Then a leader that it cannot reach may be lost, and is
replaced. Until then each replaces the other's leaders about as often, for less than a tenth of a
second each time.
"""

CALM_MS = 10_000
"""Time without being overruled after which pauses are short again (ms)."""


class DuelBackoff:
    """The pauses of one coordinator.

    Args:
        random: spreads them.
        range_ms: the range of the first ones (ms).

    """

    def __init__(self, random: Random, range_ms: int) -> None:
        self._range_ms = range_ms
        self.mine = 0
        """The epoch of the last seating that this coordinator had installed."""
        self.pause_ms = self._range_ms
        self.until = Instant(0)
        """Time before which nothing is proposed, unless every leader is connected meanwhile."""
        self.overruled_at = Instant(0)
        self._random = random

    def hear(self, seating: Seating, members: Sequence[Member], electorate: Electorate) -> None:
        """End the pause if every leader is connected, since nothing needs to be undone then.

        A leader that is lost from now on is replaced at once.
        """
        if len(living(seating, members, electorate)) == len(seating.leaders):
            self.until = Instant(0)

    def spread_ms(self) -> int:
        """Return the pause after a proposal of another was promised (ms)."""
        return int(self._random.random() * self._range_ms)

    def learn(self, before: int, epoch: int, now: Instant) -> None:
        """Note that ``epoch`` follows ``before``: propose nothing before ``until``.

        The pause doubles each time that this coordinator's own seating is replaced by
        another's, and is short again after a long time without that.
        """
        if before != self.mine or epoch == before:
            return
        if ms_between(self.overruled_at, now) > CALM_MS:
            self.pause_ms = self._range_ms
        self.until = later(now, self.pause_ms // 2 + int(self._random.random() * self.pause_ms))
        self.overruled_at = now
        self.pause_ms = min(2 * self.pause_ms, max(OVERRULED_MS_MAX, self._range_ms))
