"""Roles of `central` by hand, and mutants of them."""

from __future__ import annotations

from random import Random

from fencelock.actors.central.broker import Broker
from fencelock.actors.central.lock_client import LockClient
from fencelock.actors.central.server import Holding, LockServer
from fencelock.actors.central.wire import (
    ClientRetransmit,
    Grant,
    Mode,
    Release,
    ReleaseAck,
    Request,
    Revoke,
    ServerFull,
)
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Event, Instant
from fencelock.actors.proxy.event import AcquireLock, LockGranted, ReleaseLock
from support.role_harness import HOST, T0

SERVER = Address("s/server")
BROKER_A, PROXY, WATCH = Address("a/clients"), Address("a/proxy"), Address("a/watch")
A, B = Address("a/clients-1-1"), Address("b/clients-1-1")
FIRST = Address("a/clients-ab-1")
"""The first lock client of a broker whose node booted under 0xAB."""


def want(ticket: int, lock: str = "l", session: str = "s") -> AcquireLock:
    return AcquireLock(lock=lock, ticket=ticket, session=session, owner=f"o{ticket}")


def request(client: Address, lock: str = "l") -> Request:
    return Request(lock=lock, client=client, session="s", owner="o")


def release(client: Address, sequence: int, lock: str = "l") -> Release:
    return Release(lock=lock, client=client, sequence=sequence)


def granted(client: Address, number: int, lock: str = "l") -> Send:
    """Return the grant to a lock client, which goes to its broker."""
    broker = Address(client.partition("/")[0] + "/clients")
    return Send(broker, Grant(lock=lock, client=client, number=number))


class LoneClient:
    """Drives one lock client; effects less counters and the length of waits."""

    def __init__(self) -> None:
        self.client = LockClient(
            A, HOST, lock="l", session="s", broker=BROKER_A, server=SERVER, random=Random(1)
        )

    def receives(self, sender: Address, event: Event) -> list[Effect | type[Wake]]:
        known: object = event
        assert isinstance(
            known,
            AcquireLock | ReleaseLock | Grant | ReleaseAck | ServerFull | Revoke | ClientRetransmit,
        )
        effects = self.client.handle(sender, known, T0)
        return [
            Wake if isinstance(effect, Wake) else effect
            for effect in effects
            if not isinstance(effect, Observe)
        ]

    def wants(self, ticket: int) -> list[Effect | type[Wake]]:
        return self.receives(BROKER_A, AcquireLock(lock="l", ticket=ticket, session="s", owner="o"))

    def gives(self, ticket: int) -> list[Effect | type[Wake]]:
        return self.receives(BROKER_A, ReleaseLock(lock="l", ticket=ticket))

    def granted(self, number: int) -> list[Effect | type[Wake]]:
        return self.receives(BROKER_A, Grant(lock="l", client=A, number=number))

    def holding(self) -> LoneClient:
        """Let ticket 1 hold under 5, with no timer on its way; return this client."""
        self.wants(1)
        self.granted(5)
        self.rings()
        return self

    def acked(self, sequence: int) -> list[Effect | type[Wake]]:
        return self.receives(SERVER, ReleaseAck(lock="l", sequence=sequence))

    def rings(self) -> list[Effect | type[Wake]]:
        return self.receives(A, ClientRetransmit())

    def is_in(self, mode: Mode, sequence: int) -> None:
        """Check its mode and its latest number."""
        assert (self.client.mode, self.client.sequence_num) == (mode, sequence)

    def revoked(self, number: int) -> list[Effect | type[Wake]]:
        return self.receives(BROKER_A, Revoke(lock="l", client=A, number=number))


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
    """A server that grants every request."""

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
    """A broker that does not give back a lock granted to a retired client."""

    def _on_grant(self, grant: Grant, now: Instant) -> Effects:
        return super()._on_grant(grant, now) if grant.client in self.clients else ()
