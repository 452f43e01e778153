"""Bugs planted in the roles of `central`, found by exploration and by seeds."""

from __future__ import annotations

from fencelock.actors.central.broker import Broker
from fencelock.actors.central.client import LockClient
from fencelock.actors.central.message import Grant, Mode, Release, Request
from fencelock.actors.central.server import Holding, LockServer
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.proxy.message import LockGranted, ReleaseLock


class GrantsAreNotCompared(LockClient):
    """A client that takes an old grant for a new one."""

    def _is_newer(self, grant: Grant) -> bool:
        return self.mode is not Mode.HELD


class LocksAreHandedOnLocally(LockClient):
    """A client whose owners pass a hold on without the server."""

    def _on_release_lock(self, release: ReleaseLock) -> Effects:
        if release.ticket != self.holding or len(self.tickets) == 1:
            return super()._on_release_lock(release)
        del self.tickets[release.ticket]
        self.holding = next(iter(self.tickets))
        got = LockGranted(lock=self.lock, ticket=self.holding, fence=self.sequence_num)
        return (Send(self.broker, got),)


class HeldLocksAreGranted(LockServer):
    """A server that grants whatever is requested."""

    def _on_request(self, sender: Address, request: Request, now: Instant) -> Effects:
        return self._grant(request, now)


class ReleasesAreNotCompared(LockServer):
    """A server that takes a release of an earlier hold as a release of the present hold."""

    def _matches(self, holding: Holding, release: Release) -> bool:
        return holding.client == release.client


class HoldersAreNotReminded(LockServer):
    """A server that never repeats a grant to a holder that others wait for."""

    def _on_request(self, sender: Address, request: Request, now: Instant) -> Effects:
        effects = super()._on_request(sender, request, now)
        return () if Observe("central.holder_reminded") in effects else effects


class GrantsOfTheRetiredAreKept(Broker):
    """A broker that does not give back what is granted to a retired client."""

    def _on_grant(self, grant: Grant, now: Instant) -> Effects:
        return super()._on_grant(grant, now) if grant.client in self.clients else ()
