"""Deadlines of holds, which the session sends just before it reports their grants."""

from __future__ import annotations

from fencelock.actors.session.message import Leased
from fencelock.cluster.local_hold import LocalHold

LEASES_MAX = 10_000
"""Limit of deadlines whose grants have not arrived. Those above it belong to abandoned acquires."""


class Leases:
    """Joins a deadline and its hold, whichever arrives first."""

    def __init__(self) -> None:
        self._coming: dict[tuple[str, str], Leased] = {}
        """By lock and owner, the oldest first."""

    def note(self, leased: Leased, grip: LocalHold | None) -> None:
        """Record the deadline of a hold that is granted next, or that was renewed (``grip``)."""
        if grip is not None and grip.fence == leased.fence:
            grip.until, grip.unlocking = leased.until, False
            return
        self._coming[leased.lock, leased.owner] = leased
        if len(self._coming) > LEASES_MAX:
            del self._coming[next(iter(self._coming))]

    def give(self, grip: LocalHold) -> None:
        """Set the deadline of a hold that was just granted, if it has one."""
        leased = self._coming.pop((grip.lock, grip.owner), None)
        if leased is not None and leased.fence == grip.fence:
            grip.until = leased.until

    def clear(self) -> None:
        """Forget everything."""
        self._coming.clear()
