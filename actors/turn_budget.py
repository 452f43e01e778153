"""A limit of the work that a role does in one turn. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.effect import Wake
from fencelock.actors.message import Timer


@dataclass(slots=True)
class TurnBudget:
    """The items that a role may still process until its ``timer``: then it calls `renew`."""

    most: int
    every_ms: int
    """Time until the timer (ms)."""
    timer: Timer
    left: int = field(init=False)
    """The number of items that may still be processed."""
    armed: bool = False
    """Whether the timer is set."""

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
