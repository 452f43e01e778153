"""What other threads bring for the dispatcher, and when it is woken for that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fencelock.cluster.host.pending_asks import PendingAsks

Arrival = Callable[[], None]
"""Something to be run on the dispatcher's thread."""


class CrossThreadQueue:
    """A queue that any thread may put something into and the dispatcher empties.

    While threads are woken one after the other, whose answers came together, the dispatcher is
    left asleep: what they ask next it takes in one turn and sends in one frame. The last of them
    wakes it, and it sleeps no longer than `WAKING_MS` meanwhile.

    Args:
        asks: knows who is being woken.
        ring: ends the dispatcher's sleep.

    Attributes:
        asleep: the dispatcher sleeps, or will without looking here again. It alone sets it, so
            that a ring that was interrupted is rung again.

    """

    def __init__(self, asks: PendingAsks, ring: Callable[[], None]) -> None:
        self.asleep = False
        self._asks = asks
        self._ring = ring
        self.queue: deque[Arrival] = deque()
        """What waits, for whoever would know how much it is."""
        asks.all_awake = self.look

    def put(self, arrival: Arrival) -> None:
        """Have ``arrival`` run by the dispatcher; from any thread."""
        self.queue.append(arrival)
        if self.asleep and not self._asks.waking:
            self._ring()

    def look(self) -> None:
        """Have the dispatcher look here, if there is anything; from any thread."""
        if self.asleep and self.queue:
            self._ring()

    def take_back(self, arrival: Arrival) -> bool:
        """Remove ``arrival``; return whether it was there still."""
        while True:
            try:
                self.queue.remove(arrival)
            except ValueError:
                return False
            except IndexError:  # Another thread changed the queue while we looked.
                continue
            return True

    def run(self) -> None:
        """Run what has come up to now; on the dispatcher's thread."""
        queue = self.queue
        for _ in range(len(queue)):
            queue.popleft()()

    def run_one(self) -> None:
        """Run the first.

        Raises:
            IndexError: there is none (any more).

        """
        self.queue.popleft()()
