"""The total order of requests, and the evidence needed before the first of them may enter.

Source: Lamport 1978, the relation ``=>``: events by clock time, ties by an order of
the processes. Pure: nothing here sends, waits or knows the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from fencelock.actors.clock import STAMP_MAX

RANK_BITS = 7
"""Room for the node in a fence, below the stamp: 56 + 7 is 63."""

NODES_MAX = 1 << RANK_BITS
"""Maximum nodes, by the fence. The 3(n-1) messages of each entry are a limit long before."""


SLACK = 16
"""Number of dead entries that a heap may always contain."""


class Turn(NamedTuple):
    """A place in the order: by stamp, then by node, so that no two are equal."""

    stamp: int
    node: str


def pack_fence(stamp: int, rank: int) -> int:
    """Return the fence of a request: fences have the order of turns, and fit 63 bits.

    Args:
        stamp: the request's stamp, 1 to `STAMP_MAX`.
        rank: the place of its node among the sorted nodes, 0 to `NODES_MAX` - 1.

    """
    assert 1 <= stamp <= STAMP_MAX
    assert 0 <= rank < NODES_MAX
    return stamp << RANK_BITS | rank


def unpack_fence(fence: int) -> tuple[int, int]:
    """Return stamp and rank of a fence."""
    return fence >> RANK_BITS, fence & (NODES_MAX - 1)


class Queue:
    """The requests for one lock, at most one of a node (M5), earliest first.

    A removed request stays in the heap until it reaches the top, so that every operation
    but `in_order` takes O(log n).
    """

    def __init__(self) -> None:
        self.stamps: dict[str, int] = {}
        self.heap: list[Turn] = []

    def __len__(self) -> int:
        return len(self.stamps)

    def add(self, turn: Turn) -> None:
        """Queue the request of ``turn.node``, which must not have one."""
        assert turn.node not in self.stamps  # M5
        self.stamps[turn.node] = turn.stamp
        heapq.heappush(self.heap, turn)

    def remove(self, node: str) -> None:
        """Remove the request of ``node``, which must have one."""
        del self.stamps[node]
        while self.heap and not self._lives(self.heap[0]):
            heapq.heappop(self.heap)
        if len(self.heap) > 2 * len(self.stamps) + SLACK:  # Amortized over as many removals.
            self.heap = self.in_order()

    def first(self) -> Turn | None:
        """Return the earliest request."""
        return self.heap[0] if self.heap else None

    def in_order(self) -> list[Turn]:
        """Return all requests, earliest first; O(n log n), for queries."""
        return sorted(turn for turn in set(self.heap) if self._lives(turn))

    def _lives(self, turn: Turn) -> bool:
        return self.stamps.get(turn.node) == turn.stamp


class Evidence:
    """The last stamp received from every other process: one a process, for all locks.

    The essay keeps acknowledgements in the queue, searches all of it for each
    process, and its `remove` loses track of their senders. One stamp a process is
    enough, because messages of a process arrive in the order of their stamps: after
    stamp 7, nothing from before 7 can arrive.
    """

    def __init__(self, others: Iterable[str]) -> None:
        self.heard: dict[str, int] = dict.fromkeys(sorted(others), 0)
        self.heap: list[Turn] = [Turn(0, node) for node in self.heard]

    def hear(self, node: str, stamp: int) -> None:
        """Note a message of ``node`` stamped ``stamp``, above every earlier one of it."""
        assert stamp > self.heard[node]
        self.heard[node] = stamp
        while (turn := self.heap[0]).stamp != (latest := self.heard[turn.node]):
            heapq.heapreplace(self.heap, Turn(latest, turn.node))

    def forget(self, node: str) -> None:
        """Start anew with ``node``, since it has restarted: its earlier life proves nothing."""
        self.heard[node] = 0
        self.heap = [Turn(stamp, name) for name, stamp in self.heard.items()]
        heapq.heapify(self.heap)

    def covers(self, turn: Turn) -> bool:
        """Return whether every other process sent something later than ``turn`` (M4)."""
        return not self.heap or self.heap[0] > turn

    def missing(self, turn: Turn) -> tuple[str, ...]:
        """Return the processes that sent nothing later than ``turn``, sorted."""
        return tuple(node for node, stamp in self.heard.items() if Turn(stamp, node) <= turn)


class Uncovered:
    """This node's own requests that are not granted, and a heap of those that lack evidence.

    Evidence rises for all requests together, so the heap's top is the first to be covered:
    a message costs a look at the top, and not at every request.
    """

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.heap: list[tuple[Turn, str]] = []

    def add(self, lock: str, turn: Turn) -> None:
        """Watch the request for ``lock``."""
        self.turns[lock] = turn
        heapq.heappush(self.heap, (turn, lock))

    def drop(self, lock: str) -> None:
        """Stop watching the request for ``lock``, if it is watched."""
        self.turns.pop(lock, None)
        if len(self.heap) > 2 * len(self.turns) + SLACK:  # Amortized over as many drops.
            self.renew()

    def renew(self) -> None:
        """Check all requests again: evidence was lost."""
        self.heap = [(turn, lock) for lock, turn in self.turns.items()]
        heapq.heapify(self.heap)

    def covered(self, evidence: Evidence) -> list[str]:
        """Return the locks whose requests now have all evidence; each is returned once."""
        locks: list[str] = []
        while self.heap and evidence.covers(self.heap[0][0]):
            turn, lock = heapq.heappop(self.heap)
            if self.turns.get(lock) == turn:
                locks.append(lock)
        return locks
