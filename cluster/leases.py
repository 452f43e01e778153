"""Until when holds with a deadline last, as the session says it just before they are granted."""

from __future__ import annotations

from fencelock.actors.client.message import Leased
from fencelock.cluster.local_hold import LocalHold

LEASES_MAX = 10_000
"""Deadlines whose grants are about to come; more are of grants that nobody waits for any more."""


class Leases:
    """Brings a deadline and its grip together, whichever is known first."""

    def __init__(self) -> None:
        self._coming: dict[tuple[str, str], Leased] = {}
        """By lock and owner, the oldest first."""

    def note(self, leased: Leased, grip: LocalHold | None) -> None:
        """Note until when a hold lasts, which is granted next, or was renewed (``grip``)."""
        if grip is not None and grip.fence == leased.fence:
            grip.until, grip.unlocking = leased.until, False
            return
        self._coming[leased.lock, leased.owner] = leased
        if len(self._coming) > LEASES_MAX:
            del self._coming[next(iter(self._coming))]

    def give(self, grip: LocalHold) -> None:
        """Give a grip that was just granted its deadline, if it has one."""
        leased = self._coming.pop((grip.lock, grip.owner), None)
        if leased is not None and leased.fence == grip.fence:
            grip.until = leased.until

    def clear(self) -> None:
        """Forget everything."""
        self._coming.clear()
