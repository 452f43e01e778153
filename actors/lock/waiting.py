"""Who waits for a lock, and whose wait ends first. Pure: log time is the only time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencelock.actors.lock.session import OwnerState

SLACK = 16
"""Dead entries that a heap may always carry."""


@dataclass(slots=True, eq=False)
class Wait:
    """A claimant's last request, an acquire, in the queue of its lock.

    Attributes:
        ticket: its place among all waits there ever were; queues are in this order.
        since_ms: log time at which it was queued.
        due_ms: log time at which it ends without a grant, None for never.

    """

    owner_state: OwnerState
    ticket: int
    label: str
    since_ms: int
    due_ms: int | None


class Timeouts:
    """The waits that end by themselves, soonest first; ties by ticket.

    A wait that ended otherwise stays in the heap until it surfaces or the dead are
    the majority, so that each change costs O(log n), amortized.
    """

    def __init__(self) -> None:
        self.waits: dict[int, Wait] = {}
        self.heap: list[tuple[int, int]] = []

    def add(self, wait: Wait) -> None:
        """Watch ``wait``, if it ends by itself."""
        if wait.due_ms is not None:
            self.waits[wait.ticket] = wait
            heapq.heappush(self.heap, (wait.due_ms, wait.ticket))

    def drop(self, wait: Wait) -> None:
        """Stop watching ``wait``, if it was watched."""
        if wait.due_ms is None:
            return
        del self.waits[wait.ticket]
        if len(self.heap) > 2 * len(self.waits) + SLACK:  # Paid for by as many drops.
            self.heap = [(w.due_ms or 0, ticket) for ticket, w in self.waits.items()]
            heapq.heapify(self.heap)

    def first(self) -> Wait | None:
        """Return the wait that ends first."""
        while self.heap:
            wait = self.waits.get(self.heap[0][1])
            if wait is not None:
                return wait
            heapq.heappop(self.heap)
        return None
