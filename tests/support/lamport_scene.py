"""The lock process of ``b`` between ``a`` and ``c``: a test plays its clock, proxy and channel."""

from __future__ import annotations

from fencelock.actors.clock import Post
from fencelock.actors.effect import Effects, Send
from fencelock.actors.lamport.order import pack_fence
from fencelock.actors.lamport.process import LockProcess, Received
from fencelock.actors.lamport.wire import (
    Acknowledge,
    Content,
    Delivered,
    KnownRequest,
    Neighbors,
    PeerJoined,
    Release,
    Request,
    Welcome,
)
from fencelock.actors.message import Address, Event
from fencelock.actors.proxy.event import (
    AcquireLock,
    LockDescription,
    LockGranted,
    QueryLock,
    ReleaseLock,
)
from support.role_harness import HOST, at, only_sent

CLOCK, PROXY = Address("b/clock"), Address("b/proxy")
BOOT = 99
REQUEST = (("a", "b", "c"), Request(lock="x"))


class LoneProcess:
    """The process of ``b`` without a node."""

    def __init__(self, *nodes: str) -> None:
        self.process = LockProcess(
            Address("b/process"), HOST, node="b", boot=BOOT, clock=CLOCK, proxy=PROXY
        )
        self.now = 0
        self.handle(Neighbors(nodes=nodes or ("a", "b", "c")))

    def handle(self, event: Received) -> Effects:
        """Deliver ``event`` from a role of its node."""
        return self.process.handle(Address("b/anyone"), event, at(self.now))

    def receive(self, origin: str, message: Content) -> Effects:
        """Deliver a message of another node."""
        return self.handle(Delivered(origin=origin, message=message))

    def want(self, ticket: int, lock: str = "x") -> Effects:
        return self.handle(AcquireLock(lock=lock, ticket=ticket, session=f"s{ticket}", owner="o"))

    def give(self, ticket: int, lock: str = "x") -> Effects:
        """Let an owner give up its hold of ``lock`` or its wait."""
        return self.handle(ReleaseLock(lock=lock, ticket=ticket))

    def look(self, lock: str = "x") -> LockDescription:
        """Return the state of ``lock`` as the process sees it."""
        return only_sent(self.handle(QueryLock(lock=lock, query=1, waiters=True)), LockDescription)

    def prove(self, query: int = 1) -> Effects:
        """Look as for a client that asks for the status of a lock."""
        return self.handle(QueryLock(lock="x", query=query, proven=True))

    def requested(self, ticket: int, stamp: int, lock: str = "x") -> Effects:
        """Let an owner want ``lock``, and deliver the own request, stamped."""
        self.want(ticket, lock)
        return self.receive("b", Request(lock=lock, stamp=stamp))

    def acknowledge(self, node: str, stamp: int, lock: str = "") -> Effects:
        """Deliver an acknowledgement of ``node``, of a probe or of a request for ``lock``."""
        return self.receive(node, Acknowledge(lock=lock, stamp=stamp))

    def acknowledged(self, stamp: int) -> Effects:
        """Deliver an acknowledgement of each of the others."""
        return [*self.acknowledge("a", stamp, "x"), *self.acknowledge("c", stamp, "x")]

    def welcomed(self) -> LoneProcess:
        """Let the others join and welcome it."""
        for node in ("a", "c"):
            self.handle(PeerJoined(node=node, boot=1))
        for node in ("a", "c"):
            self.receive(node, welcome(2, stamp=1))
        return self


def welcome(
    round_: int, *pending: KnownRequest, stamp: int, boot: int = BOOT, complete: bool = True
) -> Welcome:
    """Return an answer to the greeting of that round."""
    return Welcome(boot=boot, round=round_, requests=pending, complete=complete, stamp=stamp)


def release(stamp: int) -> tuple[tuple[str, ...], Release]:
    """Return the release of the request with ``stamp``, as `posts` shows it."""
    return ("a", "c"), Release(lock="x", request=stamp)


def posts(effects: Effects) -> list[tuple[tuple[str, ...], Event]]:
    """Return the messages to other nodes, with their receivers."""
    found = [e.message for e in effects if isinstance(e, Send) and e.to == CLOCK]
    return [(post.nodes, post.message) for post in found if isinstance(post, Post)]


def to_proxy(effects: Effects) -> list[Event]:
    return [e.message for e in effects if isinstance(e, Send) and e.to == PROXY]


def got(ticket: int, stamp: int, lock: str = "x") -> LockGranted:
    """Return the grant of the request with ``stamp``."""
    return LockGranted(lock=lock, ticket=ticket, fence=pack_fence(stamp, 1))
