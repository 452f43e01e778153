"""The roles of `central` one at a time: addresses, events and what a test expects of them."""

from __future__ import annotations

from fencelock.actors.central.message import Grant, Release, Request
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.actors.proxy.backend import Want

SERVER = Address("s/server")
BROKER_A, PROXY, WATCH = Address("a/clients"), Address("a/proxy"), Address("a/watch")
A, B = Address("a/clients-1-1"), Address("b/clients-1-1")
FIRST = Address("a/clients-ab-1")
"""The first lock client of a broker whose node booted under 0xAB."""


def want(ticket: int, lock: str = "l", session: str = "s") -> Want:
    """Return the wish of owner ``o`` and its ticket."""
    return Want(lock=lock, ticket=ticket, session=session, owner=f"o{ticket}")


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
