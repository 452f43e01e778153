"""Log time on a master: the last applied stamp, plus what its own clock measured since. Pure."""

from __future__ import annotations

from fencelock.actors.message import NS_PER_MS, Instant


class LogClock:
    """Counts milliseconds from the last known stamp on.

    Followers set it to each stamp they apply. A master lets it run: setting it would slow it
    down by the time between stamping and applying.
    """

    def __init__(self) -> None:
        self.base_ms = 0
        self.base_at = Instant(0)

    def read(self, now: Instant) -> int:
        """Return the log time at ``now`` (ms)."""
        return self.base_ms + max(0, (now - self.base_at) // NS_PER_MS)

    def set(self, time_ms: int, now: Instant) -> None:
        """Let it be ``time_ms`` at ``now``."""
        self.base_ms = time_ms
        self.base_at = now
