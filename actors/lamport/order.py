"""The total order of requests, and what must be known before the first of them may enter.

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
"""As many nodes as a fence can tell apart. Every entry costs 3(n-1) messages long before."""


SLACK = 16
"""Dead entries that a heap may always carry."""


class Turn(NamedTuple):
    """A place in the order: by stamp, then by node, so that no two are equal."""

    stamp: int
    node: str


def pack_fence(stamp: int, rank: int) -> int:
    """Return the fence of a request: fences are ordered as turns are, and fit 63 bits.

    Args:
        stamp: the request's, 1 to `STAMP_MAX`.
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

    A removed request stays in the heap until it surfaces, so that every operation
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
        """Take out the request of ``node``, which must have one."""
        del self.stamps[node]
        while self.heap and not self._lives(self.heap[0]):
            heapq.heappop(self.heap)
        if len(self.heap) > 2 * len(self.stamps) + SLACK:  # Paid for by as many removals.
            self.heap = self.in_order()

    def first(self) -> Turn | None:
        """Return the earliest request."""
        return self.heap[0] if self.heap else None

    def in_order(self) -> list[Turn]:
        """Return all requests, earliest first; O(n log n), for those who look."""
        return sorted(turn for turn in set(self.heap) if self._lives(turn))

    def _lives(self, turn: Turn) -> bool:
        return self.stamps.get(turn.node) == turn.stamp


class Evidence:
    """The last stamp heard from every other process: one a process, whatever the lock.

    The essay keeps acknowledgements in the queue, searches all of it for each
    process, and its `remove` loses track of who sent them. One stamp a process is
    enough, because messages of a process arrive in the order of their stamps: whoever
    was heard at 7 has nothing left to say from before 7.
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
        """Start anew with ``node``: it did, so its earlier life vouches for nothing."""
        self.heard[node] = 0
        self.heap = [Turn(stamp, name) for name, stamp in self.heard.items()]
        heapq.heapify(self.heap)

    def covers(self, turn: Turn) -> bool:
        """Return whether every other process was heard later than ``turn`` (M4)."""
        return not self.heap or self.heap[0] > turn

    def missing(self, turn: Turn) -> tuple[str, ...]:
        """Return the processes not heard later than ``turn``, sorted."""
        return tuple(node for node, stamp in self.heard.items() if Turn(stamp, node) <= turn)


class Uncovered:
    """The own requests that are not granted, and a heap of those that lack evidence.

    Evidence rises for all requests together, so the heap's top is the first to be
    covered: each message costs a look at it, not a look at every request.
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
        if len(self.heap) > 2 * len(self.turns) + SLACK:  # Paid for by as many drops.
            self.renew()

    def renew(self) -> None:
        """Judge all again: evidence was lost."""
        self.heap = [(turn, lock) for lock, turn in self.turns.items()]
        heapq.heapify(self.heap)

    def covered(self, evidence: Evidence) -> list[str]:
        """Return the locks whose requests lack no evidence any more; each is told once."""
        locks: list[str] = []
        while self.heap and evidence.covers(self.heap[0][0]):
            turn, lock = heapq.heappop(self.heap)
            if self.turns.get(lock) == turn:
                locks.append(lock)
        return locks
