"""A limit of the work that a role does in one turn. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.effect import Wake
from fencelock.actors.message import Timer


@dataclass(slots=True)
class TurnBudget:
    """A number of items that a role may process until a timer of that role renews it.

    Attributes:
        most: that number.
        every_ms: time until the timer (ms).
        timer: that timer; the role calls `renew` when it arrives, and goes on.
        left: the number of items that may still be processed.
        armed: whether the timer is set.

    """

    most: int
    every_ms: int
    timer: Timer
    left: int = field(init=False)
    armed: bool = False

    def __post_init__(self) -> None:
        self.left = self.most

    def renew(self) -> None:
        self.left = self.most
        self.armed = False

    def wake(self) -> list[Wake]:
        """Return the timer, if some of the budget is spent and the timer is not set yet."""
        if self.armed or self.left == self.most:
            return []
        self.armed = True
        return [Wake(self.every_ms, self.timer)]
