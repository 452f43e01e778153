"""A member's promises and the seating it knows, as its journal keeps them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fencelock.actors.bakery.config import LEADERS_MAX
from fencelock.actors.bakery.message import (
    EPOCH_MAX,
    NOBODY,
    Chosen,
    Install,
    Propose,
    Seating,
)
from fencelock.actors.message import Instant, Message, ms_between


@dataclass(slots=True)
class DurablePromises:
    """The promises of one member.

    Attributes:
        promised: no lower epoch is heeded, and in this one no other leaders.
        leaders: the leaders that it promised, in that epoch.
        seating: the highest one that is known to be installed.
        quiet_since: the time since which no leader of ``seating`` is heeded, None if they
            are; in this life, since an earlier one may have heeded them to its end.

    """

    promised: int = 0
    leaders: tuple[Chosen, ...] = ()
    seating: Seating = NOBODY
    quiet_since: Instant | None = None

    @classmethod
    def recover(cls, records: Sequence[Message]) -> DurablePromises:
        """Return the state in ``records``, in any order; records of other kinds are skipped."""
        durable_promises = cls()
        for record in records:
            if isinstance(record, Propose) and record.epoch > durable_promises.promised:
                durable_promises.promised, durable_promises.leaders = record.epoch, record.leaders
            elif isinstance(record, Install):
                durable_promises.learn(record.seating, Instant(0))
        durable_promises.quiet_since = None
        return durable_promises

    def records(self) -> tuple[Message, ...]:
        """Return the records that replace everything ever written."""
        promise = Propose(epoch=self.promised, leaders=self.leaders)
        installed = Install(seating=self.seating)
        return (
            *((promise,) if self.promised else ()),
            *((installed,) if self.seating.epoch else ()),
        )

    def may_promise(self, proposal: Propose) -> bool:
        """Return whether the proposal may be promised."""
        return proposal.epoch > self.promised

    def has_promised(self, proposal: Propose) -> bool:
        """Return whether exactly this was promised, and nothing higher."""
        return (proposal.epoch, proposal.leaders) == (self.promised, self.leaders)

    def promise(self, proposal: Propose, now: Instant) -> None:
        """Promise ``proposal``."""
        assert self.may_promise(proposal)  # B1
        self.promised, self.leaders = proposal.epoch, proposal.leaders
        if self.quiet_since is None:
            self.quiet_since = now

    def learn(self, seating: Seating, now: Instant) -> bool:
        """Store an installed seating; return whether it is new."""
        before = self.seating
        if (seating.epoch, seating.bound_ms) <= (before.epoch, before.bound_ms):
            return False
        self.seating = seating
        if seating.epoch >= self.promised:
            self.promised, self.leaders = seating.epoch, seating.leaders
            self.quiet_since = None
        elif seating.epoch > before.epoch:
            self.quiet_since = now
        return True

    def quiet_ms(self, now: Instant) -> int:
        """Return for how long no leader of ``seating`` has been heeded (ms)."""
        return 0 if self.quiet_since is None else ms_between(self.quiet_since, now)


def sound_proposal(proposal: Propose, members: Sequence[str]) -> bool:
    """Return whether a peer's proposal is valid: one to three distinct members lead."""
    names = [leader.node for leader in proposal.leaders]
    sound = 1 <= len(names) <= LEADERS_MAX and len(set(names)) == len(names)
    return sound and 0 < proposal.epoch <= EPOCH_MAX and set(names) <= set(members)
