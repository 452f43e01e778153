"""One attempt of a coordinator to have a new seating, with the answers so far. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from fencelock.actors.bakery.config import TRUST_MS, majority, quorum, surely_over
from fencelock.actors.bakery.event import Member
from fencelock.actors.bakery.leader_selection import can_hand_over
from fencelock.actors.bakery.message import NOBODY, Chosen, Lead, Merged, Promised, Propose, Seating
from fencelock.actors.message import NS_PER_MS, Instant, ms_between

PHASE_MS = 1_000
"""A phase that takes longer than this (ms) is given up: a member is gone, or another proposes."""


NEVER = Instant(0)
"""An instant before every clock reading."""


class Phase(Enum):
    """Phase of a campaign."""

    PROPOSING = "asks for promises"
    WAITING = "waits until all leases are over"
    MERGING = "has tables handed over"


@dataclass(slots=True)
class Election:
    """A proposal that is under way.

    Attributes:
        former: the highest seating that a promise reported; once a majority promised, no
            later one has served, or ever will in an epoch below.
        quiet_at: by member: the time since which it heeds no leader of ``former``.
        merged: by leader: the longest lease in its table (ms).

    """

    epoch: int
    leaders: tuple[Chosen, ...]
    configured: int
    began: Instant
    phase: Phase = Phase.PROPOSING
    promised: dict[str, Seating] = field(default_factory=dict[str, Seating])
    quiet_at: dict[str, Instant] = field(default_factory=dict[str, Instant])
    former: Seating = NOBODY
    empty: bool = False
    merged: dict[str, int] = field(default_factory=dict[str, int])
    promised_at: Instant = NEVER
    """The time at which a majority had promised."""

    @property
    def proposal(self) -> Propose:
        """The proposal sent to every member."""
        return Propose(epoch=self.epoch, leaders=self.leaders)

    @property
    def lead(self) -> Lead:
        """The request sent to the leaders."""
        return Lead(epoch=self.epoch, leaders=self.leaders, former=self.former, empty=self.empty)

    def on_promised(self, member: str, promised: Promised, now: Instant) -> bool:
        """Count a promise, once per member; return whether a majority is there now."""
        if self.phase is not Phase.PROPOSING or promised.epoch != self.epoch:
            return False
        self.promised[member] = promised.seating
        quiet_ms = max(0, promised.quiet_ms)
        self.quiet_at[member] = Instant(now - quiet_ms * NS_PER_MS)
        if len(self.promised) < majority(self.configured):
            return False
        self.former = max(self.promised.values(), key=lambda s: (s.epoch, s.bound_ms))
        self.promised_at = now
        return True

    def begin_merging(self, members: Sequence[Member], now: Instant) -> None:
        """Request the former leaders' tables, or go on without if none are needed."""
        self.phase, self.began = Phase.MERGING, now
        if self.former.epoch == 0:
            self.empty = True
        elif not can_hand_over(self.former, members):
            if self.left_ms(now) > 0:
                self.phase = Phase.WAITING
            else:
                self.empty = True

    def left_ms(self, now: Instant) -> int:
        """Return how long some lease of the former leaders may still live (ms).

        A majority heeded them until ``quiet_at``. So they granted nothing later than
        `TRUST_MS` after that, and nothing for longer than the bound. A member whose promise
        counts, but reported an older seating, has been quiet since it promised now.
        """
        quiet = max(
            at if self.promised[member].epoch == self.former.epoch else self.promised_at
            for member, at in self.quiet_at.items()
        )
        whole = surely_over(TRUST_MS + self.former.bound_ms)
        return max(0, whole - ms_between(quiet, now))

    def on_merged(self, member: str, merged: Merged) -> bool:
        """Count a leader that is ready; return whether they are enough."""
        if self.phase is not Phase.MERGING or merged.epoch != self.epoch:
            return False
        if member not in {leader.node for leader in self.leaders}:
            return False
        self.merged[member] = max(0, merged.left_ms)
        return len(self.merged) >= quorum(len(self.leaders))

    def seating(self, bound_ms: int) -> Seating:
        """Return the seating to install; leases last ``bound_ms`` unless one is longer."""
        return Seating(self.epoch, self.leaders, max(bound_ms, *self.merged.values()))

    def is_late(self, now: Instant) -> bool:
        """Return whether the phase has taken too long."""
        return self.phase is not Phase.WAITING and ms_between(self.began, now) >= PHASE_MS
