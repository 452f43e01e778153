"""Durations that one clock promises to another: the drift of clocks, for every protocol. Pure.

The one who promises counts from when it handles the request. The one who relies on the promise
counts from when it *sent* the request, which was earlier, and subtracts the drift of two clocks:
its own may run slow, and the other fast. So it stops relying before the promise ends.

Source: Cary Gray and David Cheriton, "Leases", SOSP 1989.
"""

from __future__ import annotations

from fencelock.actors.message import NS_PER_MS

DRIFT_PPM = 1_000
"""Largest deviation of a clock's rate (millionths); the same for all. Quartz stays within 100."""

PPM = 1_000_000


def relied_ns(promised_ms: int, drift_ppm: int = DRIFT_PPM) -> int:
    """Return the time on this clock that is within ``promised_ms`` of any other clock (ns)."""
    return promised_ms * NS_PER_MS * (PPM - drift_ppm) // (PPM + drift_ppm)


def surely_over(ms: int, drift_ppm: int = DRIFT_PPM) -> int:
    """Return how long to wait on this clock until ``ms`` have passed on any other (ms)."""
    return -(-ms * (PPM + drift_ppm) // (PPM - drift_ppm))
