"""Leases that are longer than usual: a majority must know their bound before one is given. Pure."""

from __future__ import annotations

from fencelock.actors.bakery.config import election_of, leader_of, majority
from fencelock.actors.bakery.event import Raise, Serve
from fencelock.actors.bakery.message import Seating, Vouch, Vouched
from fencelock.actors.effect import Send


class MaxLease:
    """Raises the bound, once at a time; a request that comes meanwhile must be repeated.

    Args:
        node: this node.
        members: all configured members.

    """

    def __init__(self, node: str, members: tuple[str, ...]) -> None:
        self.node = node
        self.members = members
        self.epoch = 0
        self.wanted_ms = 0
        self.vouched: dict[str, None] = {}
        """Members that know ``wanted_ms``, in ``epoch``."""

    def begin(self, seating: Seating, raising: Raise) -> list[Send]:
        """Have all members store a longer bound."""
        if (seating.epoch, raising.bound_ms) > (self.epoch, self.wanted_ms):
            self.vouched, self.epoch, self.wanted_ms = {}, seating.epoch, raising.bound_ms
        vouch = Vouch(epoch=seating.epoch, bound_ms=self.wanted_ms)
        return [Send(election_of(member), vouch) for member in self.members]

    def on_vouched(self, member: str, seating: Seating, vouched: Vouched) -> list[Send]:
        """Count members that know it; tell the leader of this node once a majority does."""
        wanted = (self.epoch, self.wanted_ms)
        if vouched.epoch != seating.epoch or (vouched.epoch, vouched.bound_ms) != wanted:
            return []
        self.vouched[member] = None
        if len(self.vouched) < majority(len(self.members)):
            return []
        bound_ms, self.vouched, self.wanted_ms = self.wanted_ms, {}, 0
        word = Serve(epoch=seating.epoch, leaders=seating.leaders, bound_ms=bound_ms)
        return [Send(leader_of(self.node), word)]
