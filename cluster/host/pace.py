"""How much a turn takes of what clients send, so that timers and members never wait long."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns

TURN_NS = 10_000_000
"""Processor time that a turn should take (ns, 10 ms): timers and members wait for its end."""

CLIENTS_NS = 2_000_000
"""How long frames of clients are decoded in one turn (ns, 2 ms)."""

CLIENTS_MAX = 256
"""Envelopes of clients in one turn."""

CLIENTS_MIN = 4
"""As many envelopes of clients are taken in any turn."""


class Pace:
    """Takes fewer requests a turn while turns are too long, and more again when they are short.

    It measures the processor time of the thread that calls it: neither the disk nor other processes
    make a turn long.

    Args:
        clock: reads that time (ns).

    Attributes:
        most: how many envelopes of clients the next turn may take.

    """

    __slots__ = ("_began_ns", "_clock", "most")

    def __init__(self, clock: Callable[[], int] = thread_time_ns) -> None:
        self._clock = clock
        self.most = CLIENTS_MAX
        self._began_ns = 0

    def begin(self) -> None:
        """Note that a turn begins to work."""
        self._began_ns = self._clock()

    def end(self, taken: int) -> None:
        """Note that the turn is over, and that it took so many envelopes of clients."""
        took_ns = self._clock() - self._began_ns
        if took_ns > TURN_NS:
            self.most = max(CLIENTS_MIN, min(taken, self.most) // 2)
        elif self.most < CLIENTS_MAX and took_ns < TURN_NS // 2:
            self.most = min(CLIENTS_MAX, 2 * self.most)
