"""The scenes of the transcripts of `central` (`role_transcript.py`), and mutants of its roles."""

from __future__ import annotations

from random import Random
from typing import Any

from fencelock.actors.central import wire
from fencelock.actors.central.broker import Broker
from fencelock.actors.central.lock_client import LockClient
from fencelock.actors.central.server import Holding, LockServer
from fencelock.actors.central.server_watch import ServerWatch
from fencelock.actors.central.wire import Grant, Mode, Release, Request
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.proxy import event
from fencelock.actors.proxy.event import LockGranted, ReleaseLock
from fencelock.actors.role import Host
from support.role_transcript import Scene, events_of

SERVER, NODE = Address("s/server"), Address("s/node")
BROKER, PROXY, WATCH = Address("a/clients"), Address("a/proxy"), Address("a/watch")
CLIENT = Address("a/clients-1-1")
NAMES = {"server": SERVER, "broker": BROKER, "proxy": PROXY, "watch": WATCH}
EVENTS = events_of(event, wire)


def make_server(host: Host, **arguments: Any) -> LockServer:
    return LockServer(SERVER, host, **arguments)


def make_client(host: Host, server: Address = SERVER) -> LockClient:
    return LockClient(
        CLIENT, host, lock="l", session="s", broker=BROKER, server=server, random=Random(1)
    )


def make_watch(host: Host, boot: int = 0) -> ServerWatch:
    return ServerWatch(WATCH, host, proxy=PROXY, server=SERVER, boot=boot)


def make_broker(host: Host) -> Broker:
    return Broker(BROKER, host, proxy=PROXY, server=SERVER, boot=0xAB, random=Random(1))


HOLD = {"session": "s", "owner": "o"}
NOTHING_KNOWN = {"holder": None, "waiters": (), "waits_for": ()}
SCENES = {
    "central-server": Scene(make_server, EVENTS, {}, HOLD),
    "central-client": Scene(make_client, EVENTS, NAMES, HOLD | {"lock": "l", "client": CLIENT}),
    "central-watch": Scene(make_watch, EVENTS, NAMES, NOTHING_KNOWN),
    "central-broker": Scene(make_broker, EVENTS, NAMES, HOLD),
}


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
