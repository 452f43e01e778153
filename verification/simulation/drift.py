"""Clocks that run too fast or too slow and jump forward, as seen from true time."""

from __future__ import annotations

PPM = 1_000_000
"""The rate of a true clock, in millionths."""


class DriftingClock:
    """A node's monotonic clock: piecewise linear in true time, and never going back.

    Args:
        reading: the clock's value at true time 0 (ns).

    """

    def __init__(self, reading: int) -> None:
        self._since = 0
        self._reading = reading
        self.rate = PPM

    def read(self, time: int) -> int:
        """Return the clock's value at true ``time`` (ns), which is not before its last change."""
        return self._reading + (time - self._since) * self.rate // PPM

    def reaches(self, reading: int) -> int:
        """Return the first true time at which the clock shows at least ``reading`` (ns)."""
        return self._since - (self._reading - reading) * PPM // self.rate

    def run_at(self, rate: int, time: int) -> None:
        """Run from true ``time`` on at ``rate`` millionths of true time, at least 1."""
        assert rate > 0
        self._reading = self.read(time)
        self._since = time
        self.rate = rate

    def jump(self, by: int, time: int) -> None:
        """Show ``by`` more from true ``time`` on (ns, not negative)."""
        assert by >= 0
        self._reading = self.read(time) + by
        self._since = time

    def restart(self, reading: int, time: int) -> None:
        """Begin anew with ``reading``, as the clock of a machine that was switched off does."""
        self._reading = reading
        self._since = time
