"""The bound of leases: a longer one is granted once enough members know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencelock.actors.bakery.config import election_of, leader_of
from fencelock.actors.bakery.event import Raise, Serve
from fencelock.actors.bakery.message import Vouch, Vouched
from fencelock.actors.effect import Send

if TYPE_CHECKING:
    from fencelock.actors.bakery.electorate import Electorate
    from fencelock.actors.bakery.message import Seating


class MaxLease:
    """Raises the bound, once at a time; a request that comes meanwhile must be repeated.

    Args:
        node: this node.

    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.epoch = 0
        self.wanted_ms = 0
        self.vouched: dict[str, None] = {}
        """Members that know ``wanted_ms``, in ``epoch``."""

    def begin(self, seating: Seating, raising: Raise, electorate: Electorate) -> list[Send]:
        """Make all members store a longer bound."""
        if (seating.epoch, raising.bound_ms) > (self.epoch, self.wanted_ms):
            self.vouched, self.epoch, self.wanted_ms = {}, seating.epoch, raising.bound_ms
        vouch = Vouch(epoch=seating.epoch, bound_ms=self.wanted_ms)
        return [Send(election_of(member), vouch) for member in electorate.everyone]

    def on_vouched(
        self, member: str, seating: Seating, vouched: Vouched, electorate: Electorate
    ) -> list[Send]:
        """Count members that know it; notify the leader of this node once a quorum does."""
        wanted = (self.epoch, self.wanted_ms)
        if vouched.epoch != seating.epoch or (vouched.epoch, vouched.bound_ms) != wanted:
            return []
        self.vouched[member] = None
        if not electorate.is_quorum(self.vouched):
            return []
        bound_ms, self.vouched, self.wanted_ms = self.wanted_ms, {}, 0
        message = Serve(epoch=seating.epoch, leaders=seating.leaders, bound_ms=bound_ms)
        return [Send(leader_of(self.node), message)]
