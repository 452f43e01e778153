"""What the users of a client hold, how often, and what they held until it was lost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from fencelock.actors.client.pending import Claim
from fencelock.actors.message import Address, Instant

HOLDS_MAX = 100_000
"""Locks one client may hold at a time; a session of the cluster may hold no more either."""


class Acquisition(NamedTuple):
    """One of the times that an owner entered a lock."""

    user: Address
    token: int
    """The number the user gave its `Acquire`, by which it can take it back."""


new_level: Callable[[type[Acquisition], tuple[Address, int]], Acquisition] = cast(
    "Any", tuple
).__new__
"""Makes one of the class and the fields in half of the time that the class needs for it."""


@dataclass(slots=True)
class Lease:
    """Until when a hold lasts, by the client's own clock."""

    ends_at: Instant
    """Before this its duration is certainly not over."""
    until: Instant
    """From now on somebody else may hold the lock."""
    grace_ms: int
    warn_at: Instant | None
    """When its user is told that the duration is over; None once it was."""

    @property
    def next_at(self) -> Instant:
        """When something is to be done."""
        return self.until if self.warn_at is None else min(self.warn_at, self.until)


@dataclass(slots=True)
class Hold:
    """A lock that was granted to an owner of this client, once or more often."""

    gate: Address
    """Who granted it: where the cluster keeps no sessions the hold lives there."""
    fence: int
    levels: list[Acquisition] = field(default_factory=list[Acquisition])
    """The times it was entered and not left, oldest first."""
    owed: int = 0
    """How many more it is held, at the cluster, by nobody: to be released."""
    lease: Lease | None = None
    """Until when it lasts, where holds have deadlines."""

    def take(self, found: Acquisition) -> None:
        """Let nobody own that level any more; it is owed."""
        self.levels.remove(found)
        self.owed += 1

    def freed(self, count: int, *, owed: bool) -> None:
        """Note that one release was confirmed, and ``count`` holds are left at the cluster."""
        if owed:
            self.owed -= 1
        elif self.levels:
            self.levels.pop()
        self.owed = max(0, count - len(self.levels))


@dataclass(slots=True)
class UnreportedLosses:
    """What was lost and not yet told to whoever releases it: a bounded memory, oldest first."""

    losses: OrderedDict[tuple[Claim, int], tuple[int, str]] = field(
        default_factory=OrderedDict[tuple[Claim, int], tuple[int, str]]
    )
    """By claim and fence: how often it was held, and how it was lost."""

    def add(self, claim: Claim, fence: int, times: int, detail: str) -> None:
        """Remember that ``claim`` was lost, which ``times`` releases may still ask about."""
        if times < 1:
            return
        self.losses[claim, fence] = (times, detail)
        self.losses.move_to_end((claim, fence))
        if len(self.losses) > HOLDS_MAX:
            self.losses.popitem(last=False)

    def knows(self, claim: Claim, fence: int) -> bool:
        """Whether that was lost."""
        return (claim, fence) in self.losses

    def tell(self, claim: Claim, fence: int) -> str | None:
        """Return how that was lost, once for each time it was held; None if it was not."""
        times, detail = self.losses.pop((claim, fence), (0, ""))
        if times > 1:
            self.losses[claim, fence] = (times - 1, detail)
        return detail if times else None
