"""The broker: the role ``clients`` of every node, between the proxy and its lock clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.actors.central.client import LockClient
from holdfast.actors.central.message import Glance, Grant, Idle, Release
from holdfast.actors.central.watch import ServerWatch
from holdfast.actors.effect import Effect, Effects, Observe, Retire, Send, Spawn
from holdfast.actors.lock.backend import Full, Give, Got, Look, Want
from holdfast.actors.lock.message import Contender
from holdfast.actors.message import Address, Instant, address_of, ms_between, node_of
from holdfast.actors.role import Host, Role

if TYPE_CHECKING:
    from random import Random

TICKETS_MAX = 10_000
"""Owners of one node that wait or hold: each is under a kilobyte, and asks every 50 ms."""

WAITERS_SHOWN_MAX = 100
"""Waiters named in one answer to `Look`, so that a status fits its frame."""


class Ticket(NamedTuple):
    """One acquisition through this node: for whom, since when, and its number once held."""

    lock: str
    session: str
    owner: str
    client: Address
    since: Instant
    number: int | None


class Employment(NamedTuple):
    """What a living lock client is for, and how many wants it was handed."""

    lock: str
    session: str
    wants: int


class Broker(Role[Want | Give | Look | Got | Full | Idle | Grant]):
    """Spawns a `LockClient` per session and lock, and retires it when nobody needs it.

    The backend of the node's proxy. Every `Grant` for a lock client of this node comes
    here first, because a late copy of a request can win a lock for a lock client that is
    gone. Such a grant is given back, which nobody would do otherwise.

    A grant for a lock client of an *earlier life* of this node is not given back: that
    life may have held the lock when it crashed, and who it let into the critical section
    may be in there still. So a crashed holder stalls its lock, as the design page says.

    Invariants:
        B1  An address is given to one lock client only: it names the boot and a count.
        B2  A lock client is retired only when it was handed no want it has not seen.

    A grant may be on its way to a lock client that is retired before it arrives, or a
    release of the lock client's own may get lost after it. The server's reminders make up
    for both.

    Args:
        proxy: the role that speaks `holdfast.actors.lock.backend` with us.
        server: where the `LockServer` is.
        boot: tells this life of the node from earlier ones.
        random: spreads the retransmissions.
        tickets_max: how many tickets may wait or hold at one time; one more is `Full`.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        proxy: Address,
        server: Address,
        boot: int,
        random: Random,
        tickets_max: int = TICKETS_MAX,
    ) -> None:
        super().__init__(address, host)
        self.proxy = proxy
        self.server = server
        self.boot = boot
        self.tickets_max = tickets_max
        self.spawned = 0
        self.clients: dict[Address, Employment] = {}
        self.client_of: dict[tuple[str, str], Address] = {}
        self.tickets: dict[int, Ticket] = {}
        self.tickets_of: dict[str, dict[int, None]] = {}
        self.watch = address_of(node_of(address), "watch")
        self._random = random

    def begin(self, now: Instant) -> Effects:
        """Set a watch on the server."""
        del now
        return (Spawn(self.watch, ServerWatch, {"proxy": self.proxy, "server": self.server}),)

    def handle(
        self,
        sender: Address,
        event: Want | Give | Look | Got | Full | Idle | Grant,
        now: Instant,
    ) -> Effects:
        """Pass on one event. Time is only noted, for status."""
        match event:
            case Want():
                return self._on_want(event, now)
            case Give():
                return self._on_give(event)
            case Look():
                return self._on_look(event, now)
            case Got():
                return self._on_got(event, now)
            case Full():
                return self._on_full(event)
            case Idle():
                return self._on_idle(sender, event)
            case Grant():
                return self._on_grant(sender, event)

    def _on_want(self, want: Want, now: Instant) -> Effects:
        assert want.ticket not in self.tickets
        if len(self.tickets) >= self.tickets_max:
            detail = f"{self.tickets_max} tickets wait or hold through this node, its limit"
            full = Full(lock=want.lock, ticket=want.ticket, detail=detail)
            return (Observe("central.tickets_full"), Send(self.proxy, full))
        effects: list[Effect] = []
        client = self.client_of.get((want.session, want.lock))
        if client is None:
            client = self._new_address()
            self.client_of[want.session, want.lock] = client
            self.clients[client] = Employment(want.lock, want.session, 0)
            effects.append(self._spawn(client, want))
        employment = self.clients[client]
        self.clients[client] = employment._replace(wants=employment.wants + 1)
        self.tickets[want.ticket] = Ticket(want.lock, want.session, want.owner, client, now, None)
        self.tickets_of.setdefault(want.lock, {})[want.ticket] = None
        return (*effects, Send(client, want))

    def _new_address(self) -> Address:
        self.spawned += 1
        return Address(f"{self._of_this_life()}{self.spawned}")  # B1

    def _of_this_life(self) -> str:
        return f"{self.address}-{self.boot:x}-"

    def _spawn(self, client: Address, want: Want) -> Spawn:
        arguments = {
            "lock": want.lock,
            "session": want.session,
            "broker": self.address,
            "server": self.server,
            "random": self._random,
        }
        return Spawn(client, LockClient, arguments)

    def _on_give(self, give: Give) -> Effects:
        ticket = self._forget(give.ticket)
        if ticket is None:
            return ()  # It crossed with our `Full`.
        return (Send(ticket.client, give),)

    def _forget(self, number: int) -> Ticket | None:
        ticket = self.tickets.pop(number, None)
        if ticket is not None:
            of_lock = self.tickets_of[ticket.lock]
            del of_lock[number]
            if not of_lock:
                del self.tickets_of[ticket.lock]
        return ticket

    def _on_look(self, look: Look, now: Instant) -> Effects:
        tickets = [self.tickets[number] for number in self.tickets_of.get(look.lock, ())]
        contenders = [self._contender(ticket, now) for ticket in tickets]
        holders = [contender for contender in contenders if contender.fence is not None]
        waiters = [contender for contender in contenders if contender.fence is None]
        glance = Glance(
            lock=look.lock,
            query=look.query,
            holder=holders[0] if holders else None,
            waiters=tuple(waiters[:WAITERS_SHOWN_MAX]),
        )
        return (Send(self.watch, glance),)

    def _contender(self, ticket: Ticket, now: Instant) -> Contender:
        return Contender(
            node=node_of(self.address),
            session=ticket.session,
            owner=ticket.owner,
            fence=ticket.number,
            since_ms=ms_between(ticket.since, now),
        )

    def _on_got(self, got: Got, now: Instant) -> Effects:
        ticket = self.tickets.get(got.ticket)
        if ticket is None:
            return ()  # It crossed with a `Give`, which is on its way to the lock client.
        self.tickets[got.ticket] = ticket._replace(number=got.fence, since=now)
        return (Send(self.proxy, got),)

    def _on_full(self, full: Full) -> Effects:
        if self._forget(full.ticket) is None:
            return ()  # It crossed with a `Give`.
        return (Send(self.proxy, full),)

    def _on_idle(self, client: Address, idle: Idle) -> Effects:
        employment = self.clients.get(client)
        if employment is None or employment.wants != idle.wants:
            return ()  # B2
        del self.clients[client]
        del self.client_of[employment.session, employment.lock]
        return (Retire(client),)

    def _on_grant(self, sender: Address, grant: Grant) -> Effects:
        if sender != self.server:
            return (Observe("central.grant_malformed"),)
        if grant.client in self.clients:
            return (Send(grant.client, grant),)
        if not grant.client.startswith(self._of_this_life()):
            return (Observe("central.granted_to_earlier_life"),)
        back = Release(lock=grant.lock, client=grant.client, sequence=grant.number)
        return (Observe("central.given_back"), Send(self.server, back))
