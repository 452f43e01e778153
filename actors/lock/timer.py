"""What a proxy wakes itself for."""

from __future__ import annotations

from fencelock.actors.effect import Wake
from fencelock.actors.message import Timer, timer

NAP_MS_MAX = 30_000
"""The longest timer of a wait (ms); a longer wait gets another. No timer can be taken back:
what was granted at once would leave one behind for as long as it might have waited."""


@timer
class WaitOver(Timer):
    """The time that ``ticket`` may wait is over."""

    ticket: int


@timer
class TryLook(Timer):
    """Look once more whether somebody is ahead of ``ticket``, which will not wait."""

    ticket: int


@timer
class Sweep(Timer):
    """Look for clients that wait and are silent."""


def nap(ticket: int, left_ms: int) -> Wake:
    """Return the next timer of a wait of which ``left_ms`` are left."""
    return Wake(min(left_ms, NAP_MS_MAX), WaitOver(ticket=ticket))
