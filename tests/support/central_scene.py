"""The roles of `central` one at a time: addresses, events and what a test expects of them."""

from __future__ import annotations

from random import Random

from fencelock.actors.central.client import LockClient
from fencelock.actors.central.message import (
    ClientRetransmit,
    Grant,
    Mode,
    Release,
    ReleaseAck,
    Request,
    Revoke,
    ServerFull,
)
from fencelock.actors.effect import Effect, Observe, Send, Wake
from fencelock.actors.message import Address, Event
from fencelock.actors.proxy.message import AcquireLock, ReleaseLock
from support.effects import HOST, T0

SERVER = Address("s/server")
BROKER_A, PROXY, WATCH = Address("a/clients"), Address("a/proxy"), Address("a/watch")
A, B = Address("a/clients-1-1"), Address("b/clients-1-1")
FIRST = Address("a/clients-ab-1")
"""The first lock client of a broker whose node booted under 0xAB."""


def want(ticket: int, lock: str = "l", session: str = "s") -> AcquireLock:
    """Return the wish of owner ``o`` and its ticket."""
    return AcquireLock(lock=lock, ticket=ticket, session=session, owner=f"o{ticket}")


def request(client: Address, lock: str = "l") -> Request:
    """Return the request of a lock client."""
    return Request(lock=lock, client=client, session="s", owner="o")


def release(client: Address, sequence: int, lock: str = "l") -> Release:
    """Return the release of a lock client."""
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

    def hears(self, sender: Address, event: Event) -> list[Effect | type[Wake]]:
        """Deliver an event; return the effects."""
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
        """Let an owner want the lock."""
        return self.hears(BROKER_A, AcquireLock(lock="l", ticket=ticket, session="s", owner="o"))

    def gives(self, ticket: int) -> list[Effect | type[Wake]]:
        """Let an owner give the lock up."""
        return self.hears(BROKER_A, ReleaseLock(lock="l", ticket=ticket))

    def granted(self, number: int) -> list[Effect | type[Wake]]:
        """Deliver a grant."""
        return self.hears(BROKER_A, Grant(lock="l", client=A, number=number))

    def holding(self) -> LoneClient:
        """Let ticket 1 hold under 5, with no timer on its way; return this client."""
        self.wants(1)
        self.granted(5)
        self.rings()
        return self

    def acked(self, sequence: int) -> list[Effect | type[Wake]]:
        """Deliver the acknowledgement of a release."""
        return self.hears(SERVER, ReleaseAck(lock="l", sequence=sequence))

    def rings(self) -> list[Effect | type[Wake]]:
        """Let its timer fire."""
        return self.hears(A, ClientRetransmit())

    def is_in(self, mode: Mode, sequence: int) -> None:
        """Check its mode and its latest number."""
        assert (self.client.mode, self.client.sequence_num) == (mode, sequence)

    def revoked(self, number: int) -> list[Effect | type[Wake]]:
        """Deliver the revocation of a hold."""
        return self.hears(BROKER_A, Revoke(lock="l", client=A, number=number))
