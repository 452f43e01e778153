"""The proxy of the log on ``n1``, and its client Ann: a test plays the replica."""

from __future__ import annotations

from typing import Any, TypeVar

from fencelock.actors.api.lock_message import Acquire, Reason, Refused
from fencelock.actors.effect import Effects
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.backend import PaxosBackend
from fencelock.actors.paxos.event import LeaderChanged, ReadMachine, SlotOutcomes
from fencelock.actors.paxos.log_requests import LogRequests
from fencelock.actors.paxos.wire import Propose
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.table.wire import LogCommand, Result
from fencelock.transport.codec import decode, encode
from support.expect import checked
from support.role_harness import HOST, T0, only_sent, sent

PROXY, REPLICA, FAR = Address("n1/proxy"), Address("n1/replica"), Address("n2/replica")
ANN = Address("ann/session")
ME = "ann.7"
ACQUIRE = Acquire(lock="a", session=ME, owner="o", request=2, wait_ms=50, limit=3, label="x")

P = TypeVar("P", bound=Proxy)
K = TypeVar("K")


def log_proxy(kind: type[P]) -> P:
    """Return a proxy that has begun."""
    proxy = kind(PROXY, HOST, backend=PaxosBackend("n1", ("n1", "n2", "n3"), encode))
    assert proxy.begin(T0) == ()
    return proxy


def in_flight_at(proxy: Proxy) -> LogRequests:
    backend = checked(PaxosBackend, proxy.backend)
    return backend.in_flight


def led_by_n2(proxy: P) -> P:
    proxy.handle(REPLICA, LeaderChanged(leader="n2"), T0)
    return proxy


def acquire(request: int = 2, lock: str = "a") -> Acquire:
    """Return a request of Ann's owner ``o``."""
    return Acquire(lock=lock, session=ME, owner="o", request=request)


def happens(proxy: Proxy, *outcomes: Result, now: Instant = T0) -> Effects:
    """Let the log apply commands with these outcomes."""
    return proxy.handle(REPLICA, SlotOutcomes(slot=1, time_ms=1, outcomes=outcomes), now)


def read_request(effects: Effects) -> ReadMachine:
    return only_sent(effects, ReadMachine, REPLICA)


def proposals(effects: Effects) -> list[Propose]:
    return sent(effects, Propose, REPLICA)


def proposed(effects: Effects) -> list[LogCommand]:
    commands: list[Any] = [decode(propose.command) for propose in proposals(effects)]
    return commands


def messages_to(effects: Effects, kind: type[K], to: Address = ANN) -> list[K]:
    return sent(effects, kind, to)


def denied(reason: Reason, detail: str = "", request: int = 2, lock: str = "a") -> Refused:
    """Return the refusal of a request of Ann's."""
    owner = "o" if lock else ""
    return Refused(
        session=ME, owner=owner, request=request, lock=lock, reason=reason, detail=detail
    )
