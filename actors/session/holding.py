"""The holds of a client's users, their counts, and losses that are not yet reported."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from fencelock.actors.message import Address, Instant
from fencelock.actors.session.pending import Claim

HOLDS_MAX = 100_000
"""Maximum locks one client may hold at a time; a session in the cluster has the same limit."""


class Acquisition(NamedTuple):
    """One acquire of a lock by its owner."""

    user: Address
    token: int
    """The number of the user's `Acquire`, by which the user can cancel it."""


new_level: Callable[[type[Acquisition], tuple[Address, int]], Acquisition] = cast(
    "Any", tuple
).__new__
"""Makes one from the class and the fields, in half of the time that the class needs."""


@dataclass(slots=True)
class Lease:
    """Deadlines of a hold, by the client's own clock."""

    ends_at: Instant
    """Before this its duration has certainly not ended."""
    until: Instant
    """From this on another owner may hold the lock."""
    grace_ms: int
    warn_at: Instant | None
    """Time at which the user is notified that the duration is over; None once it was."""

    @property
    def next_at(self) -> Instant:
        """Time of the next action."""
        return self.until if self.warn_at is None else min(self.warn_at, self.until)


@dataclass(slots=True)
class Hold:
    """A lock granted to an owner of this client, once or more often."""

    gate: Address
    """The endpoint that granted it; where the cluster keeps no sessions the hold lives there."""
    fence: int
    levels: list[Acquisition] = field(default_factory=list[Acquisition])
    """Its acquires without a release, oldest first."""
    owed: int = 0
    """Number of further holds at the cluster that no user owns; they are to be released."""
    lease: Lease | None = None
    """Its deadlines, where holds have them."""

    def take(self, found: Acquisition) -> None:
        """Remove that acquire; its hold is now to be released."""
        self.levels.remove(found)
        self.owed += 1

    def freed(self, count: int, *, owed: bool) -> None:
        """Note one confirmed release; ``count`` holds are left at the cluster."""
        if owed:
            self.owed -= 1
        elif self.levels:
            self.levels.pop()
        self.owed = max(0, count - len(self.levels))


@dataclass(slots=True)
class UnreportedLosses:
    """Losses that no release has reported yet: bounded, oldest first."""

    losses: OrderedDict[tuple[Claim, int], tuple[int, str]] = field(
        default_factory=OrderedDict[tuple[Claim, int], tuple[int, str]]
    )
    """Number of holds lost, and the reason, by claim and fence."""

    def add(self, claim: Claim, fence: int, times: int, detail: str) -> None:
        """Remember a loss of ``claim``, which ``times`` releases may still report."""
        if times < 1:
            return
        self.losses[claim, fence] = (times, detail)
        self.losses.move_to_end((claim, fence))
        if len(self.losses) > HOLDS_MAX:
            self.losses.popitem(last=False)

    def knows(self, claim: Claim, fence: int) -> bool:
        """Return whether that hold was lost."""
        return (claim, fence) in self.losses

    def tell(self, claim: Claim, fence: int) -> str | None:
        """Return the reason of that loss, once for each time it was held; None without a loss."""
        times, detail = self.losses.pop((claim, fence), (0, ""))
        if times > 1:
            self.losses[claim, fence] = (times - 1, detail)
        return detail if times else None
