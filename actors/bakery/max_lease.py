"""Leases that are longer than usual: a majority must know of them before one is given. Pure."""

from __future__ import annotations

from fencelock.actors.bakery.config import election_of, leader_of, majority
from fencelock.actors.bakery.event import Raise, Serve
from fencelock.actors.bakery.message import Seating, Vouch, Vouched
from fencelock.actors.effect import Send


class MaxLease:
    """One raising of the bound at a time; who asks for another meanwhile asks again.

    Args:
        node: this node.
        members: all that are configured.

    """

    def __init__(self, node: str, members: tuple[str, ...]) -> None:
        self.node = node
        self.members = members
        self.epoch = 0
        self.wanted_ms = 0
        self.vouched: dict[str, None] = {}
        """Who knows of ``wanted_ms``, in ``epoch``."""

    def begin(self, seating: Seating, raising: Raise) -> list[Send]:
        """Have all members know of a longer lease."""
        if (seating.epoch, raising.bound_ms) > (self.epoch, self.wanted_ms):
            self.vouched, self.epoch, self.wanted_ms = {}, seating.epoch, raising.bound_ms
        vouch = Vouch(epoch=seating.epoch, bound_ms=self.wanted_ms)
        return [Send(election_of(member), vouch) for member in self.members]

    def on_vouched(self, member: str, seating: Seating, vouched: Vouched) -> list[Send]:
        """Count who knows; tell the leader of this node once a majority does."""
        wanted = (self.epoch, self.wanted_ms)
        if vouched.epoch != seating.epoch or (vouched.epoch, vouched.bound_ms) != wanted:
            return []
        self.vouched[member] = None
        if len(self.vouched) < majority(len(self.members)):
            return []
        bound_ms, self.vouched, self.wanted_ms = self.wanted_ms, {}, 0
        word = Serve(epoch=seating.epoch, leaders=seating.leaders, bound_ms=bound_ms)
        return [Send(leader_of(self.node), word)]
