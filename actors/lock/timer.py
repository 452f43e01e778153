"""What a proxy wakes itself for."""

from __future__ import annotations

from holdfast.actors.message import Timer, timer


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
