"""The end of a run: an operator evicts what clients left, and an auditor looks for more."""

from __future__ import annotations

from itertools import count
from typing import Any

from fencelock.actors.api.message import Describe, NodeStatus
from fencelock.actors.api.session_message import End, Ended, Evict, ListLocks, LockList
from fencelock.actors.effect import Effects, Send, Wake
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Instant,
    Timer,
    address_of,
    node_of,
    role_of,
)
from fencelock.actors.role import Host, Role
from fencelock.actors.session.message import Closed
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge
from fencelock.verification.simulation.world import World

AUDIT_MS = 500


class Audit(Timer):
    """It is time to ask the proxies again."""


AuditorEvent = NodeStatus | LockList | Audit


class Auditor(Role[AuditorEvent]):
    """Asks every proxy for the holds and waits through it, until there are none.

    Where the cluster keeps one table of locks, every proxy is asked for a linearizable list
    of the held locks: a lock that is not held has no waiters.
    """

    def __init__(
        self, address: Address, host: Host, *, proxies: tuple[Address, ...], table: bool = False
    ) -> None:
        super().__init__(address, host)
        self.proxies = proxies
        self.table = table
        self.asked = 0
        self.left: dict[str, str] = dict.fromkeys(proxies, "it never answered")
        """The problems that a proxy still has, by its address."""

    def begin(self, now: Instant) -> Effects:
        return self._ask()

    def handle(self, sender: Address, event: AuditorEvent, now: Instant) -> Effects:
        match event:
            case Audit():
                return self._ask() if self.left else ()
            case NodeStatus(locks=()) | LockList(lines=()):
                self.left.pop(sender, None)
            case NodeStatus(locks=left) | LockList(lines=left):
                if sender in self.left:
                    self.left[sender] = f"it still has {left!r}"
        return ()

    def _ask(self) -> Effects:
        session = node_of(self.address)
        self.asked += 1
        query = (
            ListLocks(session=session, request=self.asked)
            if self.table
            else Describe(session=session)
        )
        return [*(Send(Address(proxy), query) for proxy in self.left), Wake(AUDIT_MS, Audit())]


EVERY_MS = 500
"""Interval at which the operator looks for holds to evict (ms)."""


class Evictions(Judge):
    """Watches how clients close, and evicts what the others left behind.

    `central` keeps a hold until its client's session ends it, however long the client is silent. A
    client that closes while no node answers leaves its holds, and an operator must end them. A hold
    is evicted only if its client's close was not confirmed: the client reported a release or cancel
    without a reply, or sent `End` and received no `Ended`. All other holds must end without help.
    """

    def __init__(self, world: World, server: Address) -> None:
        self.world = world
        self.server = server
        self.requests = count(1)
        self.ending: set[str] = set()
        """The clients that sent `End` and have received no reply."""
        self.unconfirmed: set[str] = set()
        """The clients whose close was not confirmed."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        client = delivered.node
        if client in self.world.members or role_of(delivered.to) != "session":
            return
        if type(delivered.event) is Ended:
            self.ending.discard(client)
        for effect in effects:
            if type(effect) is Send and type(effect.message) is End:
                self.ending.add(client)
            elif (
                type(effect) is Send
                and type(effect.message) is Closed
                and (effect.message.unanswered or client in self.ending)
            ):
                self.unconfirmed.add(client)

    def begin(self) -> None:
        """Evict from now on; all nodes are up."""
        server: Any = self.world.role_at(self.server)
        for lock, holding in list(server.held.items()):
            if holding.session in self.unconfirmed:
                self._evict(lock, holding.number)
        self.world.after(EVERY_MS * NS_PER_MS, self.begin)

    def _evict(self, lock: str, fence: int) -> None:
        evict = Evict(
            lock=lock,
            fence=fence,
            operator="operator",
            session="operator",
            request=next(self.requests),
        )
        node = node_of(self.server)
        self.world.nodes[node].tell(address_of(node, "proxy"), evict)
