"""Requests that go to every endpoint at once, and the endpoints that have not replied."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.api.message import NodeStatus
from fencelock.actors.message import Address
from fencelock.actors.session.endpoint import Endpoints
from fencelock.actors.session.message import Surveyed


@dataclass(slots=True)
class Broadcast:
    """One survey: its user, the endpoints that have not replied, and the replies so far."""

    user: Address
    missing: dict[Address, int]
    """Number of the request at each endpoint that has not replied."""
    statuses: dict[Address, NodeStatus] = field(default_factory=dict[Address, NodeStatus])

    def result(self, gates: Endpoints) -> Surveyed:
        """Return the replies, and the names of silent endpoints, in the order of ``gates``."""
        return Surveyed(
            statuses=tuple(self.statuses[gate] for gate in gates.table if gate in self.statuses),
            silent=tuple(gates.table[gate].label for gate in gates.table if gate in self.missing),
        )
