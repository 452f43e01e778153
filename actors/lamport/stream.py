"""A numbered stream between two lives: once and in order, over a network that does neither.

Source: the Erlang essay: "we can ensure that messages are received by using timeouts
and message acknowledgment, and we can ensure that message order is maintained by
adding a 'message number'". Pure: the channel owns the timers and the network.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")

WINDOW = 256
"""Parcels in flight to one peer, and early ones held back from it: some 64 KiB of requests."""


class Outgoing(Generic[T]):
    """Contents that a peer has not confirmed: sent within the window, or waiting for room in it.

    Invariants:
        S1  ``first <= sent <= first + WINDOW``, and ``sent`` exceeds nothing ever pushed.
    """

    def __init__(self) -> None:
        self.first = 0
        """The number of ``contents[0]``: everything below is confirmed."""
        self.sent = 0
        """All numbers below it were sent at least once."""
        self.contents: deque[T] = deque()

    def __len__(self) -> int:
        return len(self.contents)

    def push(self, content: T) -> None:
        """Queue ``content`` under the next number."""
        self.contents.append(content)

    def fresh(self) -> list[tuple[int, T]]:
        """Return the contents that can be sent for the first time now, and count them as sent."""
        end = min(self.first + WINDOW, self.first + len(self.contents))
        fresh = [(number, self.contents[number - self.first]) for number in range(self.sent, end)]
        self.sent = max(self.sent, end)
        assert self.first <= self.sent <= self.first + WINDOW  # S1
        return fresh

    def unconfirmed(self) -> list[tuple[int, T]]:
        """Return the contents that were sent and are not confirmed, oldest first."""
        numbers = range(self.first, self.sent)
        return [(number, self.contents[number - self.first]) for number in numbers]

    def confirm(self, number: int) -> bool:
        """Drop all below ``number``; if that was never sent, return False and change nothing."""
        if not 0 <= number <= self.sent:
            return False
        while self.first < number:
            self.contents.popleft()
            self.first += 1
        return True


class Arrival(Enum):
    """Result of the arrival of a content."""

    IN_ORDER = "in order"
    """It is delivered, and with it the early ones that waited for it."""
    EARLY = "early"
    """It is held back until what comes before it has arrived."""
    REPEATED = "repeated"
    """It arrived before and is dropped."""
    BEYOND = "beyond"
    """It is too early to be held back and is dropped; it will be sent again."""


class Incoming(Generic[T]):
    """Contents from a peer: delivered up to the first gap, and early ones held back behind it."""

    def __init__(self) -> None:
        self.expected = 0
        """All numbers below it were delivered."""
        self.early: dict[int, T] = {}

    def accept(self, number: int, content: T) -> tuple[Arrival, list[T]]:
        """Take ``content``; return the result, and the contents to deliver now, in order."""
        if number < self.expected or number in self.early:
            return Arrival.REPEATED, []
        if number >= self.expected + WINDOW:
            return Arrival.BEYOND, []
        self.early[number] = content
        if number != self.expected:
            return Arrival.EARLY, []
        ready: list[T] = []
        while self.expected in self.early:
            ready.append(self.early.pop(self.expected))
            self.expected += 1
        return Arrival.IN_ORDER, ready
