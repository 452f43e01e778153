"""Questions that go to every gate at once, and who still has to answer them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.client.endpoint import Endpoints
from fencelock.actors.client.message import Surveyed
from fencelock.actors.lock.message import NodeStatus
from fencelock.actors.message import Address


@dataclass(slots=True)
class Broadcast:
    """One survey: who asked, which gates are still to answer, what the others said."""

    user: Address
    missing: dict[Address, int]
    """Gate to the number of the question it was asked."""
    statuses: dict[Address, NodeStatus] = field(default_factory=dict[Address, NodeStatus])

    def result(self, gates: Endpoints) -> Surveyed:
        """Return what was heard, and who was not, both in the order of ``gates``."""
        return Surveyed(
            statuses=tuple(self.statuses[gate] for gate in gates.table if gate in self.statuses),
            silent=tuple(gates.table[gate].label for gate in gates.table if gate in self.missing),
        )
