"""The proxy of a node, with a backend that the test plays, or without batches."""

from __future__ import annotations

from collections.abc import Iterable

from fencelock.actors.api.lock_message import Acquire, Contender
from fencelock.actors.bakery.event import Readiness
from fencelock.actors.bakery.wire import Chosen, Query, QueryResult, Seating
from fencelock.actors.effect import Effect, Effects, Send
from fencelock.actors.message import Address, Event, Instant
from fencelock.actors.paxos.event import Gather, ProposalBatch
from fencelock.actors.proxy.event import LockDescription, LockGranted
from fencelock.actors.proxy.lock_manager import LockManager, LockRequests
from fencelock.actors.proxy.proxy import Proxy
from support.expect import checked
from support.leader_trio import member
from support.role_harness import HOST, T0

PROXY = Address("n1/proxy")
BACKEND = Address("n1/process")
ANN, BOB = Address("ann/session"), Address("bob/session")
ASK, LOCAL = Address("n1/ask-1"), Address("n1/session")
FREE = LockDescription(lock="a", query=1, holder=None, waiters=(), waits_for=())
"""The backend's answer about a lock that nobody holds or waits for; tests replace fields."""


def proxy_of_n1() -> Proxy:
    return Proxy(PROXY, HOST, backend=LockManager("n1", ("n1", "n2"), "lamport", BACKEND))


def manager_of(proxy: Proxy) -> LockManager:
    """Return the part of ``proxy`` that knows its waits and holds."""
    return checked(LockManager, proxy.backend)


def claims_of(proxy: Proxy) -> LockRequests:
    """Return the waits and holds of ``proxy``."""
    return manager_of(proxy).claims


def acquire(
    lock: str = "a", session: str = "ann", request: int = 1, wait_ms: int | None = None
) -> Acquire:
    """Return a request of owner ``o``."""
    return Acquire(lock=lock, session=session, owner="o", request=request, wait_ms=wait_ms)


def hold(proxy: Proxy, fence: int = 7) -> None:
    """Let Ann hold lock ``a`` through the proxy."""
    proxy.handle(ANN, acquire(), T0)
    proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=fence), T0)


MEMBERS = ("n1", "n2", "n3", "n4")


def readiness_of(
    epoch: int, leaders: Iterable[str], reachable: Iterable[str], *, ready: bool = True
) -> Readiness:
    """Return what a proxy learns of the leaders and of the nodes that it reaches."""
    return Readiness(
        seating=Seating(epoch, tuple(Chosen(name, 1) for name in leaders), 10_000),
        members=tuple(member(name) for name in reachable),
        ready=ready,
        detail="ready" if ready else "an election is under way",
    )


def reply_to(
    query: Query, *holders: Contender, epoch: int = 1, expired_ms: int | None = None
) -> QueryResult:
    """Return the reply of a leader at which nobody waits for the lock."""
    return QueryResult(
        lock=query.lock,
        number=query.number,
        holders=holders,
        waiters=(),
        waiting=0,
        epoch=epoch,
        nonce=query.nonce,
        expired_ms=expired_ms,
    )


class UnbatchedProxy(Proxy):
    """A proxy of the log that makes each event a turn by itself, and takes batches apart."""

    def handle(self, sender: Address, event: Event, now: Instant) -> Effects:
        """Handle ``event``, then the end of its turn."""
        effects = super().handle(sender, event, now)
        if Send(self.address, Gather()) not in effects:
            return effects
        rest = [effect for effect in effects if effect != Send(self.address, Gather())]
        proposed: list[Effect] = []
        for effect in super().handle(self.address, Gather(), now):
            if isinstance(effect, Send) and isinstance(effect.message, ProposalBatch):
                proposed += [Send(effect.to, propose) for propose in effect.message.each()]
            else:
                proposed.append(effect)
        return [*rest, *proposed]
