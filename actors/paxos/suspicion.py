"""When a follower stands for election: after silence, and one follower after another. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencelock.actors.effect import Effect, Wake
from fencelock.actors.message import NS_PER_MS, Instant, Local, local
from fencelock.actors.paxos.timer import Watch
from fencelock.actors.timing import TIMING

if TYPE_CHECKING:
    from random import Random

SPREAD_MS = 200
"""Over how long attempts are spread where nobody led, so that seldom two stand at once (ms)."""

JITTER_MS = 20
"""The same for followers, which are ranked already (ms)."""

STALL_MS = 2 * TIMING.beat_ms
"""A timer that rings so late shows that this process stood still: what the leader sent meanwhile
may wait to be read, and perhaps the leader stood still as well, so it gets as much time again."""


@local
class Isolated(Local):
    """Monitor to the listener: whether no majority answers this leader, for some time already."""

    isolated: bool


class Suspicion:
    """The deadline at which a node stands unless it hears of a leader or candidate.

    Followers are ranked by how closely they come after the leader in the sorted list of
    members, the last followed by the first. The first stands when the leader was silent for
    ``election_ms``, each further one `Timing.rank_ms` later. By then the one before has sent a
    `Prepare`, if it lives, and whoever promises it waits anew.

    Args:
        node: this one.
        members: all, sorted.
        random: spreads attempts.
        lease_ms: how long acceptors refuse everybody but a leader they heard (ms).
        election_ms: a leader silent for so long is suspected (ms).

    """

    def __init__(
        self, node: str, members: tuple[str, ...], random: Random, lease_ms: int, election_ms: int
    ) -> None:
        self._node = node
        self._members = members
        self._random = random
        self._lease_ms = lease_ms
        self._election_ms = election_ms
        self._heard_at = Instant(0)
        self.deadline = Instant(0)
        """When this node will stand, if it hears of nobody who leads or stands."""
        self.watching = Instant(0)
        """For which deadline a timer runs."""

    def wait(self, now: Instant, ms: int) -> list[Effect]:
        """Stand after ``ms`` and a little more, unless something happens."""
        spread = self._random.randrange(SPREAD_MS) if ms else 0
        return self._wait_until(_later(now, ms + spread), now)

    def on_heard(self, leader: str, now: Instant) -> list[Effect]:
        """Put the deadline off: ``leader`` leads, or stands."""
        self._heard_at = now
        return self._wait_until(_later(now, self._election_ms + self._turn_ms(leader)), now)

    def on_link_down(self, leader: str, now: Instant) -> list[Effect] | None:
        """Stand as soon as the lease of ``leader`` ends; None if it was to be sooner anyway."""
        ends = max(now, _later(self._heard_at, self._lease_ms + 1))
        soon = _later(ends, self._turn_ms(leader))
        return self._wait_until(soon, now) if soon < self.deadline else None

    def rings(self, watch: Watch) -> bool:
        """Return whether ``watch`` is the timer that runs; if so, none runs any more."""
        if watch.deadline != self.watching:
            return False
        self.watching = Instant(0)
        return True

    def look(self, now: Instant) -> list[Effect]:
        """Return the timer to wait for; empty if the deadline has passed."""
        if now < self.deadline:
            return self._wait_until(self.deadline, now)
        if now > _later(self.deadline, STALL_MS):
            return self._wait_until(_later(now, STALL_MS), now)
        return []

    def _turn_ms(self, leader: str) -> int:
        """Return how much later than the first this node stands after ``leader``."""
        members = self._members
        distance = (members.index(self._node) - members.index(leader)) % len(members)
        rank = max(0, distance - 1)
        return rank * TIMING.rank_ms + self._random.randrange(JITTER_MS)

    def _wait_until(self, deadline: Instant, now: Instant) -> list[Effect]:
        self.deadline = deadline
        if now < self.watching <= deadline:
            return []  # The timer that runs will look how long is left.
        self.watching = deadline
        after_ms = -((now - deadline) // NS_PER_MS)
        return [Wake(max(0, after_ms), Watch(deadline=deadline))]


def _later(now: Instant, ms: int) -> Instant:
    return Instant(now + ms * NS_PER_MS)
