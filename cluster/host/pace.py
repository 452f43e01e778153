"""A limit of client messages in a turn, adapted so that timers and members never wait long."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns

TURN_NS = 10_000_000
"""Processor time that a turn should take (ns, 10 ms): timers and members wait for its end."""

CLIENTS_NS = 2_000_000
"""Time for decoding frames of clients in one turn (ns, 2 ms)."""

CLIENTS_MAX = 256
"""The most envelopes of clients in one turn."""

CLIENTS_MIN = 4
"""The lower bound of that limit: any turn may take so many envelopes of clients."""


class Pace:
    """Takes fewer requests in a turn while turns are too long, and more when they are short again.

    It measures the processor time of the calling thread, so neither the disk nor other processes
    make a turn long.

    Args:
        clock: reads the thread's processor time (ns).

    Attributes:
        most: limit of client envelopes in the next turn.

    """

    __slots__ = ("_began_ns", "_clock", "most")

    def __init__(self, clock: Callable[[], int] = thread_time_ns) -> None:
        self._clock = clock
        self.most = CLIENTS_MAX
        self._began_ns = 0

    def begin(self) -> None:
        """Record the start of a turn's work."""
        self._began_ns = self._clock()

    def end(self, taken: int) -> None:
        """Record the end of a turn that took ``taken`` envelopes, and adapt the limit."""
        took_ns = self._clock() - self._began_ns
        if took_ns > TURN_NS:
            self.most = max(CLIENTS_MIN, min(taken, self.most) // 2)
        elif self.most < CLIENTS_MAX and took_ns < TURN_NS // 2:
            self.most = min(CLIENTS_MAX, 2 * self.most)
