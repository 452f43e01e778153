"""The state of clients that judges read: what the threads of a client see, and nothing more."""

from __future__ import annotations

from typing import Any, Protocol, cast

from fencelock.actors.message import Instant, address_of
from fencelock.actors.session.holds import ClientHold
from fencelock.actors.session.requests import LockKey
from fencelock.verification.simulation.retaining import OWNERS_ROLE, LocalHold
from fencelock.verification.simulation.world import World


class Clients(Protocol):
    """The clocks and the holds of clients."""

    def now(self, client: str) -> Instant:
        """Read the clock of a client's node."""
        ...

    def hold_of(self, client: str, lock: str, owner: str) -> ClientHold | None:
        """Return the hold that the threads of a client read, or None if there is none."""
        ...


class ClientView:
    """Reads the session roles of the clients in a world, and the local owners of retained locks."""

    def __init__(self, world: World) -> None:
        self.world = world

    def now(self, client: str) -> Instant:
        return self.world.nodes[client].now()

    def hold_of(self, client: str, lock: str, owner: str) -> ClientHold | None:
        lock_key = LockKey(lock, owner)
        owners = self.world.nodes[client].scheduler.roles.get(address_of(client, OWNERS_ROLE))
        if owners is not None:
            local: LocalHold | None = cast("Any", owners.role).inside.get(lock_key)
            if local is not None:
                return local.hold
        hold: ClientHold | None = self._session(client).holds.get(lock_key)
        return hold

    def relied_on(self, client: str) -> tuple[str, Instant] | None:
        """Return the session of a client, and until when it relies on it; None without one.

        The node of a client that died has no session when it starts again.
        """
        node = self.world.nodes[client]
        if not node.up or address_of(client, "session") not in node.scheduler.roles:
            return None
        lease = self._session(client).session_lease
        return (lease.assigned, lease.until) if lease.kept else None

    def _session(self, client: str) -> Any:
        return self.world.role_at(address_of(client, "session")).session_state
