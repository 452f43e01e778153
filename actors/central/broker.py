"""The broker: the role ``clients`` of every node, between the proxy and its lock clients."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.central.lock_client import LockClient
from fencelock.actors.central.server_watch import ServerWatch
from fencelock.actors.central.wire import (
    EndSession,
    Free,
    FreeReply,
    Grant,
    Idle,
    Peek,
    Peeked,
    Release,
    Revoke,
    Revoked,
    SessionEnded,
    holder_fits,
)
from fencelock.actors.effect import Effect, Effects, Observe, Retire, Send, Spawn
from fencelock.actors.message import Address, Instant, address_of, ms_between, node_of
from fencelock.actors.proxy.event import (
    WAITERS_SHOWN_MAX,
    AcquireLock,
    EndHolds,
    HoldInDoubt,
    HoldReleased,
    HoldsEnded,
    LockDescription,
    LockGranted,
    LockRevoked,
    QueryLock,
    QueueFull,
    ReleaseHold,
    ReleaseLock,
)
from fencelock.actors.role import Host, Role, Summary

if TYPE_CHECKING:
    from random import Random

NODE_TICKETS_MAX = 10_000
"""Owners of one node that wait or hold: each is under a kilobyte, and sends every 50 ms."""

DOUBT_MS = 500
"""Minimum interval between two questions to a client about one hold of an earlier life (ms)."""

DOUBTS_MAX = 10_000
"""Holds of earlier lives that are remembered for `DOUBT_MS`; with more, all are forgotten."""

FromProxy = AcquireLock | ReleaseLock | QueryLock | ReleaseHold | EndHolds
FromClient = LockGranted | QueueFull | LockRevoked | HoldReleased | Idle | Revoked
FromServer = Grant | FreeReply | SessionEnded | Peeked | Revoke
Accepted = FromProxy | FromClient | FromServer


class ClientRecord(NamedTuple):
    """The lock and session of a living lock client, and the number of wants it was given."""

    lock: str
    session: str
    wants: int


class Broker(Role[Accepted]):
    """Spawns a `LockClient` per session and lock, and retires it when it is not needed any more.

    It is the ``granter`` of the `LockManager` in the node's proxy. Every `Grant` for a lock client
    of this node comes here first, because a late copy of a request can win a lock for a lock client
    that does not exist any more. The broker gives such a grant back, which no other role would do.

    A grant for a lock client of an *earlier life* of this node is not given back at once: in that
    life a client may have acquired the lock, and it may still use the resource. The hold belongs to
    that client's session. So the broker asks the client (`HoldInDoubt`), and gives the lock back
    only if the client replies that it does not hold it. A dead client does not
    reply: its lock stays held, as the design page says, until an operator releases it.

    Invariants:
        address-used-once: An address is given to one lock client only: it names the boot and a
            count.
        retired-when-done: A lock client is retired only after it has processed every request for
            its lock.

        A grant may be on its way to a lock client that is retired before it arrives, or a
        release of the lock client's own may get lost after it. The server's reminders make up
        for both.

    Args:
        proxy: requests locks and receives grants.
        server: the address of the `LockServer`.
        boot: the id of this life of the node.
        random: spreads the retransmissions.

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
    ) -> None:
        super().__init__(address, host)
        self.proxy = proxy
        self.server = server
        self.boot = boot
        self.spawned = 0
        self.clients: dict[Address, ClientRecord] = {}
        self.client_of: dict[tuple[str, str], Address] = {}
        self.tickets: dict[int, BrokerAcquire] = {}
        self.waiting: dict[str, dict[int, None]] = {}
        """The tickets that wait for each lock, the oldest first."""
        self.holding: dict[str, dict[int, None]] = {}
        """The tickets that hold each lock: two only if a server without a journal forgot one."""
        self.doubts: dict[tuple[str, int], Instant] = {}
        """Times of the last questions about holds of an earlier life, by lock and number."""
        self.watch = address_of(node_of(address), "watch")
        self._random = random

    def begin(self, now: Instant) -> Effects:
        arguments = {"proxy": self.proxy, "server": self.server, "boot": self.boot}
        return (Spawn(self.watch, ServerWatch, arguments),)

    def handle(  # noqa: PLR0912  (a case for each event)
        self, sender: Address, event: Accepted, now: Instant
    ) -> Effects:
        match event:
            case AcquireLock():
                return self._on_acquire_lock(event, now)
            case ReleaseLock():
                return self._on_release_lock(event)
            case QueryLock():
                return (Send(self.watch, self._local_view(event, now)),)
            case ReleaseHold(lock=lock, fence=fence, session=session, operator=operator):
                free = Free(lock=lock, number=fence, session=session, operator=operator)
                return (Send(self.server, free),)
            case EndHolds(session=session):
                return (Send(self.server, EndSession(session=session)),)
            case LockGranted():
                return self._on_granted(event, now)
            case QueueFull() | LockRevoked() if self._forget(event.ticket) is None:
                return ()  # It crossed with a `ReleaseLock`.
            case QueueFull() | LockRevoked() | HoldReleased():
                return (Send(self.proxy, event),)
            case Idle():
                return self._on_idle(sender, event)
            case Revoked():
                return (Send(self.server, event),)
            case Grant() | FreeReply() | SessionEnded() | Peeked() | Revoke() if (
                sender != self.server
            ):
                return (Observe(f"central.{type(event).__name__.lower()}_malformed"),)
            case Grant():
                return self._on_grant(event, now)
            case FreeReply():
                return self._on_free_reply(event)
            case SessionEnded():
                return self._on_session_ended(event.session)
            case Peeked():
                return self._on_peeked(event)
            case Revoke() if event.client in self.clients:
                return (Send(event.client, event),)
            case Revoke(lock=lock, client=client, number=number):
                return (Send(self.server, Revoked(lock=lock, client=client, number=number)),)

    def summary(self) -> Summary:
        return (("lock clients", len(self.clients)), ("tickets", len(self.tickets)))

    def _on_acquire_lock(self, acquire: AcquireLock, now: Instant) -> Effects:
        assert acquire.ticket not in self.tickets
        if len(self.tickets) >= NODE_TICKETS_MAX:
            detail = f"{NODE_TICKETS_MAX} tickets wait or hold through this node, its limit"
            full = QueueFull(lock=acquire.lock, ticket=acquire.ticket, detail=detail)
            return (Observe("central.tickets_full"), Send(self.proxy, full))
        effects: list[Effect] = []
        client = self.client_of.get((acquire.session, acquire.lock))
        if client is None:
            client = self._new_address()
            self.client_of[acquire.session, acquire.lock] = client
            self.clients[client] = ClientRecord(acquire.lock, acquire.session, 0)
            effects.append(self._spawn(client, acquire))
        record = self.clients[client]
        self.clients[client] = record._replace(wants=record.wants + 1)
        self.tickets[acquire.ticket] = BrokerAcquire(
            acquire.lock, acquire.session, acquire.owner, client, now, None
        )
        self.waiting.setdefault(acquire.lock, {})[acquire.ticket] = None
        return (*effects, Send(client, acquire))

    def _new_address(self) -> Address:
        self.spawned += 1
        return Address(f"{self._of_this_life()}{self.spawned}")  # address-used-once

    def _of_this_life(self) -> str:
        return f"{self.address}-{self.boot:x}-"

    def _spawn(self, client: Address, acquire: AcquireLock) -> Spawn:
        arguments = {
            "lock": acquire.lock,
            "session": acquire.session,
            "broker": self.address,
            "server": self.server,
            "random": self._random,
        }
        return Spawn(client, LockClient, arguments)

    def _on_release_lock(self, release: ReleaseLock) -> Effects:
        ticket = self._forget(release.ticket)
        if ticket is None:
            return ()  # It crossed with our `QueueFull`.
        return (Send(ticket.client, release),)

    def _forget(self, number: int) -> BrokerAcquire | None:
        ticket = self.tickets.pop(number, None)
        if ticket is not None:
            _take(self.waiting if ticket.number is None else self.holding, ticket.lock, number)
        return ticket

    def _local_view(self, query: QueryLock, now: Instant) -> LockDescription:
        """Return what this node knows of a lock; the watch adds the knowledge of the server."""
        holder = next(iter(self.holding.get(query.lock, ())), None)
        most = WAITERS_SHOWN_MAX if query.waiters else 0
        waiters = islice(self.waiting.get(query.lock, ()), most)
        return LockDescription(
            lock=query.lock,
            query=query.query,
            holder=None if holder is None else self._contender(holder, now),
            waiters=tuple(self._contender(number, now) for number in waiters),
            waits_for=(),
        )

    def _contender(self, number: int, now: Instant) -> Contender:
        ticket = self.tickets[number]
        return Contender(
            node=node_of(self.address),
            session=ticket.session,
            owner=ticket.owner,
            fence=ticket.number,
            since_ms=ms_between(ticket.since, now),
        )

    def _on_granted(self, got: LockGranted, now: Instant) -> Effects:
        ticket = self.tickets.get(got.ticket)
        if ticket is None:
            return ()  # It crossed with a `ReleaseLock`, which is on its way to the lock client.
        self.tickets[got.ticket] = ticket._replace(number=got.fence, since=now)
        if ticket.number is None:
            _take(self.waiting, got.lock, got.ticket)
        self.holding.setdefault(got.lock, {})[got.ticket] = None
        return (Send(self.proxy, got),)

    def _on_idle(self, client: Address, idle: Idle) -> Effects:
        record = self.clients.get(client)
        if record is None or record.wants != idle.wants:
            return ()  # retired-when-done
        del self.clients[client]
        del self.client_of[record.session, record.lock]
        return (Retire(client),)

    def _on_free_reply(self, reply: FreeReply) -> Effects:
        if not holder_fits(reply.holder):
            return (Observe("central.freereply_malformed"),)
        released = HoldReleased(
            lock=reply.lock,
            fence=reply.number,
            session=reply.session,
            outcome=reply.outcome,
            holder=reply.holder,
        )
        return (Send(self.proxy, released),)

    def _on_grant(self, grant: Grant, now: Instant) -> Effects:
        if grant.client in self.clients:
            return (Send(grant.client, grant),)
        if not grant.client.startswith(self._of_this_life()):
            return (Observe("central.granted_to_earlier_life"), *self._doubt(grant, now))
        back = Release(lock=grant.lock, client=grant.client, sequence=grant.number)
        return (Observe("central.given_back"), Send(self.server, back))

    def _doubt(self, grant: Grant, now: Instant) -> Effects:
        """Ask the server for the session to which a hold of an earlier life belongs."""
        asked_at = self.doubts.get((grant.lock, grant.number))
        if asked_at is not None and ms_between(asked_at, now) < DOUBT_MS:
            return ()
        if len(self.doubts) >= DOUBTS_MAX:
            self.doubts.clear()
        self.doubts[grant.lock, grant.number] = now
        return (Send(self.server, Peek(lock=grant.lock, query=0)),)

    def _on_peeked(self, peeked: Peeked) -> Effects:
        holder = peeked.holder
        if holder is None or not holder_fits(holder) or holder.fence is None:
            return ()
        if (peeked.lock, holder.fence) not in self.doubts or "/" in holder.session:
            return ()  # A caller inside the node's process died with it: no client is left to ask.
        doubt = HoldInDoubt(lock=peeked.lock, fence=holder.fence, session=holder.session)
        return (Send(self.proxy, doubt),)

    def _on_session_ended(self, session: str) -> Effects:
        """Notify the proxy, and end waits of the session through this node."""
        effects: list[Effect] = []
        text = f"session {session[:80]!r} has ended; connect anew, under another name"
        for number, ticket in list(self.tickets.items()):
            if ticket.session != session or ticket.number is not None:
                continue
            self._forget(number)
            effects += [
                Send(ticket.client, ReleaseLock(lock=ticket.lock, ticket=number)),
                Send(self.proxy, QueueFull(lock=ticket.lock, ticket=number, detail=text)),
            ]
        return (*effects, Send(self.proxy, HoldsEnded(session=session)))


class BrokerAcquire(NamedTuple):
    """One acquire through this node: its owner, its time, and its number once it holds."""

    lock: str
    session: str
    owner: str
    client: Address
    since: Instant
    number: int | None


def _take(tickets: dict[str, dict[int, None]], lock: str, number: int) -> None:
    """Remove a ticket of ``lock``, and the lock with its last."""
    of_lock = tickets[lock]
    del of_lock[number]
    if not of_lock:
        del tickets[lock]
