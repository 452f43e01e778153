"""The queue from other threads to the dispatcher, which wakes the dispatcher when necessary."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fencelock.cluster.host.pending_asks import PendingAsks

Arrival = Callable[[], None]
"""A call to run on the dispatcher's thread."""


class CrossThreadQueue:
    """A queue that any thread may add to and that the dispatcher empties.

    Replies that arrive together wake their threads one after the other. Meanwhile the dispatcher
    stays asleep, so that it takes their next requests in one turn and sends them in one frame.
    The last of these threads wakes it; it sleeps at most `WAKING_MS` meanwhile.

    Args:
        asks: knows whether threads are being woken.
        ring: ends the dispatcher's sleep.

    Attributes:
        asleep: the dispatcher sleeps, or will without looking here again. Only the dispatcher
            sets it, so that an interrupted ring is repeated.

    """

    def __init__(self, asks: PendingAsks, ring: Callable[[], None]) -> None:
        self.asleep = False
        self._asks = asks
        self._ring = ring
        self.queue: deque[Arrival] = deque()
        """The waiting calls; other code may read its length."""
        asks.all_awake = self.look

    def put(self, arrival: Arrival) -> None:
        """Have ``arrival`` run by the dispatcher; from any thread."""
        self.queue.append(arrival)
        if self.asleep and not self._asks.waking:
            self._ring()

    def look(self) -> None:
        """Wake the dispatcher if anything waits here; from any thread."""
        if self.asleep and self.queue:
            self._ring()

    def take_back(self, arrival: Arrival) -> bool:
        """Remove ``arrival``; return whether it was still there."""
        while True:
            try:
                self.queue.remove(arrival)
            except ValueError:
                return False
            except IndexError:  # Another thread changed the queue while we looked.
                continue
            return True

    def run(self) -> None:
        """Run all calls that have arrived so far; on the dispatcher's thread."""
        queue = self.queue
        for _ in range(len(queue)):
            queue.popleft()()

    def run_one(self) -> None:
        """Run the first call.

        Raises:
            IndexError: the queue is empty.

        """
        self.queue.popleft()()
