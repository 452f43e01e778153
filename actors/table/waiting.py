"""Waits in a lock's queue, ordered by their ends. Pure: log time is the only time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencelock.actors.table.session import OwnerState

SLACK = 16
"""Number of dead entries that a heap may always contain."""


@dataclass(slots=True, eq=False)
class Wait:
    """An owner's last request, an acquire, in the queue of its lock.

    Attributes:
        ticket: its place among all waits there ever were; queues have this order.
        since_ms: log time at which it was queued.
        due_ms: log time at which it times out, None for never.

    """

    owner_state: OwnerState
    ticket: int
    label: str
    since_ms: int
    due_ms: int | None


class Timeouts:
    """The waits with a timeout, soonest first; ties by ticket.

    A wait that ended otherwise stays in the heap until it reaches the top or the dead are
    the majority, so that each change costs O(log n), amortized.
    """

    def __init__(self) -> None:
        self.waits: dict[int, Wait] = {}
        self.heap: list[tuple[int, int]] = []

    def add(self, wait: Wait) -> None:
        """Watch ``wait``, if it has a timeout."""
        if wait.due_ms is not None:
            self.waits[wait.ticket] = wait
            heapq.heappush(self.heap, (wait.due_ms, wait.ticket))

    def drop(self, wait: Wait) -> None:
        """Stop watching ``wait``, if it was watched."""
        if wait.due_ms is None:
            return
        del self.waits[wait.ticket]
        if len(self.heap) > 2 * len(self.waits) + SLACK:  # Amortized over as many drops.
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
