"""Timers of a proxy."""

from __future__ import annotations

from fencelock.actors.effect import Wake
from fencelock.actors.message import Timer, timer

NAP_MS_MAX = 30_000
"""The longest timer of a wait (ms); a longer wait gets several. Timers cannot be cancelled: one for
the whole wait would remain for as long, even if the lock is granted at once."""


@timer
class WaitOver(Timer):
    """The timeout of ``ticket`` has passed."""

    ticket: int


@timer
class TryLook(Timer):
    """Check once more whether another owner is ahead of ``ticket``, which does not wait."""

    ticket: int


@timer
class Sweep(Timer):
    """Look for silent clients that have waits."""


def nap(ticket: int, left_ms: int) -> Wake:
    """Return the next timer of a wait with ``left_ms`` left."""
    return Wake(min(left_ms, NAP_MS_MAX), WaitOver(ticket=ticket))
