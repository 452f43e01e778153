"""Decides when a follower stands: after silence, and one follower after another. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencelock.actors.effect import Effect, Wake
from fencelock.actors.message import NS_PER_MS, Instant, Local, local
from fencelock.actors.paxos.timer import Watch
from fencelock.actors.timing import TIMING

if TYPE_CHECKING:
    from random import Random

SPREAD_MS = 200
"""Range over which attempts are spread if no node led, so that two rarely stand at once (ms)."""

JITTER_MS = 20
"""The same for followers, which are already ranked (ms)."""

STALL_MS = 2 * TIMING.beat_ms
"""A timer this late shows that the process was paused (ms). Messages of the leader may still be
unread, and the leader may have been paused as well, so it gets this much more time."""


@local
class Isolated(Local):
    """Failure detector to the listener: whether no majority has answered this leader lately."""

    isolated: bool


class Suspicion:
    """The deadline at which a node stands unless it hears from a leader or candidate.

    Followers are ranked by their distance after the leader in the sorted list of members,
    which wraps around. The first stands when the leader was silent for ``election_ms``, each
    further one `Timing.rank_ms` later. By then the one before has sent a `Prepare`, if it is
    alive, and every member that promises it waits anew.

    Args:
        node: this node.
        members: all members, sorted.
        random: spreads attempts.
        lease_ms: time for which acceptors refuse all but the leader they follow (ms).
        election_ms: a leader silent for this long is suspected (ms).

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
        """The time at which this node stands, if it learns of no leader or candidate."""
        self.watching = Instant(0)
        """The deadline for which a timer runs."""

    def wait(self, now: Instant, ms: int) -> list[Effect]:
        """Stand after ``ms`` and a little more, unless a message comes."""
        spread = self._random.randrange(SPREAD_MS) if ms else 0
        return self._wait_until(_later(now, ms + spread), now)

    def on_heard(self, leader: str, now: Instant) -> list[Effect]:
        """Extend the deadline: ``leader`` leads, or stands."""
        self._heard_at = now
        return self._wait_until(_later(now, self._election_ms + self._turn_ms(leader)), now)

    def on_link_down(self, leader: str, now: Instant) -> list[Effect] | None:
        """Stand as soon as the lease of ``leader`` ends; return None if that is no sooner."""
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
        """Return the delay of this node's turn after ``leader`` against the first one (ms)."""
        members = self._members
        distance = (members.index(self._node) - members.index(leader)) % len(members)
        rank = max(0, distance - 1)
        return rank * TIMING.rank_ms + self._random.randrange(JITTER_MS)

    def _wait_until(self, deadline: Instant, now: Instant) -> list[Effect]:
        self.deadline = deadline
        if now < self.watching <= deadline:
            return []  # The running timer then waits for the rest.
        self.watching = deadline
        after_ms = -((now - deadline) // NS_PER_MS)
        return [Wake(max(0, after_ms), Watch(deadline=deadline))]


def _later(now: Instant, ms: int) -> Instant:
    return Instant(now + ms * NS_PER_MS)
