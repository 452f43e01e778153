"""The comparison of a leader's disk with the disks of its followers.

Every slot waits for the leader's own disk. So a leader whose disk is far slower than the others'
should hand over: the next leader decides slots with the quicker disks of the other members.

Disks can become slow together, for example if they are one disk. Then the followers' reports come
late, and the first ones are means of quick syncs and slow ones. So the leader compares its disk
only with syncs that began after its own disk became slow.
"""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.message import Instant, ms_between
from fencelock.actors.paxos.config import LogConfig

SLOW_MS_MIN = 50
"""A disk that syncs within this time (ms) is never slow: a busy machine delays others as much."""

SLOW_FACTOR = 5
"""A disk is slow beside others that are so many times as quick."""

SLOW_REPORTS_MIN = 3
SLOW_FOR_MS = 600
"""A leader hands over after so many reports in a row, and after this time (ms), in which its disk
was slow and no comparison said otherwise. A single long sync, or a pause of its process, is no
reason."""


class SyncReport(NamedTuple):
    """The last syncs of another member: the mean time, and an instant before the first began."""

    mean_us: int
    since: Instant


class DiskComparison:
    """Decides when a leader hands over because its disk is slow.

    Attributes:
        own_us: mean time of this node's syncs as last reported (us), or 0 if none was.

    """

    def __init__(self) -> None:
        self.own_us = 0
        self._others: dict[str, SyncReport] = {}
        """The last reports of other members in this leadership."""
        self._slow_since: Instant | None = None
        self._slow_reports = 0

    def clear(self) -> None:
        """Forget the other members' reports: a leadership begins."""
        self._others.clear()
        self._slow_since = None

    def note_other(self, member: str, mean_us: int, since: Instant) -> None:
        """Note a report of ``member``; a mean time of 0 means that it has reported none."""
        if mean_us > 0:
            self._others[member] = SyncReport(mean_us, since)

    def is_slow(self, mean_us: int, config: LogConfig, now: Instant) -> bool:
        """Note a report of this node; return whether it should hand over if it leads.

        The quickest majority of each current view must be able to decide without this node.
        """
        self.own_us = mean_us
        if mean_us < SLOW_MS_MIN * 1_000:
            self._slow_since = None
            return False
        if self._slow_since is None:
            self._slow_since, self._slow_reports = now, 0
        self._slow_reports += 1
        since = self._slow_since
        others = {member: -us for member, (us, began) in self._others.items() if began >= since}
        majority = config.reached(others)
        if majority is None:
            return False
        if -majority * SLOW_FACTOR > mean_us:
            self._slow_since = None
            return False
        return self._slow_reports >= SLOW_REPORTS_MIN and ms_between(since, now) >= SLOW_FOR_MS

    def is_quick(self, member: str) -> bool:
        """Return whether the disk of ``member`` is not slow beside the quickest one known."""
        quickest_us = min((report.mean_us for report in self._others.values()), default=0)
        return self._mean_us(member) <= max(SLOW_MS_MIN * 1_000, SLOW_FACTOR * quickest_us)

    def _mean_us(self, member: str) -> int:
        report = self._others.get(member)
        return 0 if report is None else report.mean_us

    def describe(self, successor: str) -> str:
        """Return the reason for handing over to ``successor``."""
        own_ms, other_ms = self.own_us / 1_000, self._mean_us(successor) / 1_000
        own = f"its disk takes {own_ms:.0f} ms for a sync"
        return f"{own}, the disk of {successor} takes {other_ms:.1f} ms"
