"""A client that knows the wire and nothing else, at three nodes of the log on loopback."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import TypeVar

import pytest
import zmq
from support.real_nodes import LONG_S, NODES, running_nodes

from fencelock.actors.api import message as api
from fencelock.actors.api.session_message import (
    End,
    Ended,
    Evict,
    Evicted,
    HoldLost,
    ListLocks,
    LockList,
    Open,
    Opened,
)
from fencelock.actors.error import LockOwnershipLostError
from fencelock.actors.message import Address, Message
from fencelock.cluster.node.node import Node
from fencelock.transport.frame import Envelope, Frame, decode_frame, encode_frame

K = TypeVar("K", bound=Message)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    with running_nodes(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


class Wire:
    """A client that knows the wire and nothing else, connected to every node."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.me = f"wire-{secrets.token_hex(4)}"
        self.session = self.me
        self.request = 0
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        self.heard: list[Message] = []
        for node in nodes.values():
            socket = self.context.socket(zmq.DEALER)
            socket.setsockopt(zmq.ROUTING_ID, f"{self.me}#1".encode())
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(node.address)
            self.sockets[node.id] = socket

    def next(self) -> int:
        self.request += 1
        return self.request

    def send(self, node: str, message: Message) -> None:
        envelope = Envelope(Address("*/proxy"), Address(f"{self.me}/session"), message)
        self.sockets[node].send(encode_frame(Frame("fencelock", 0, 0, (envelope,))))

    def hear(self, node: str, kind: type[K], within_s: float = LONG_S) -> K:
        """Return the next message of ``kind``; others that come before are kept in `heard`."""
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            if not self.sockets[node].poll(int(left * 1000)):
                continue
            for _, _, message in decode_frame(self.sockets[node].recv()).envelopes:
                if isinstance(message, kind):
                    return message
                self.heard.append(message)
        raise AssertionError(f"no {kind.__name__} within {within_s} s, but {self.heard}")

    def ask(self, node: str, message: Message, kind: type[K]) -> K:
        self.send(node, message)
        return self.hear(node, kind)

    def open(self, node: str = "n1", ttl_ms: int = 15_000) -> str:
        opening = Open(session=self.me, ttl_ms=ttl_ms, label="wire", request=self.next())
        self.session = self.ask(node, opening, Opened).assigned
        return self.session

    def acquire(self, lock: str, wait_ms: int | None = None, limit: int = 1) -> api.Acquire:
        return api.Acquire(
            lock=lock,
            session=self.session,
            owner="o",
            request=self.next(),
            wait_ms=wait_ms,
            limit=limit,
        )

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def wire(nodes: dict[str, Node]) -> Iterator[Wire]:
    wire = Wire(nodes)
    yield wire
    wire.close()


def test_a_session_is_one_at_every_node(wire: Wire) -> None:
    session = wire.open("n1")
    acquire = wire.acquire("shared", limit=2)
    granted = wire.ask("n1", acquire, api.Granted)
    assert wire.ask("n2", acquire, api.Granted) == granted, "the same request is done once"
    again = wire.acquire("shared", limit=2)
    assert wire.ask("n3", again, api.Granted) == api.Granted(
        lock="shared",
        fence=granted.fence,
        session=session,
        owner="o",
        request=again.request,
        count=2,
    )
    refused = wire.ask("n2", wire.acquire("shared", limit=2), api.Refused)
    assert refused.reason is api.Reason.LIMIT_REACHED
    cancel = api.Cancel(lock="shared", session=session, owner="o", request=again.request)
    wire.ask("n2", cancel, api.Cancelled)
    release = api.Release(
        lock="shared", fence=granted.fence, session=session, owner="o", request=wire.next()
    )
    assert wire.ask("n3", release, api.Released).count == 0
    assert wire.ask("n1", release, api.Released).count == 0
    alive = wire.ask("n2", api.KeepAlive(session=session, request=wire.next()), api.Alive)
    assert (alive.node, alive.leader in NODES) == ("n2", True)


def test_a_session_that_ends_frees_its_locks_and_is_no_more(
    nodes: dict[str, Node], wire: Wire
) -> None:
    session = wire.open("n1")
    fence = wire.ask("n2", wire.acquire("ended"), api.Granted).fence
    end = End(session=session, request=wire.next())
    assert wire.ask("n3", end, Ended).session == session
    granted: api.Granted = nodes["n1"].proxy.ask(api.Acquire(lock="ended"), timeout=LONG_S)
    assert granted.fence > fence
    refused = wire.ask("n1", wire.acquire("ended"), api.Refused)
    assert refused.reason is api.Reason.SESSION_EXPIRED
    nodes["n1"].proxy.ask(api.Release(lock="ended", fence=granted.fence), timeout=LONG_S)


def test_the_locks_of_a_client_that_fell_silent_are_free_after_its_ttl(
    nodes: dict[str, Node], wire: Wire
) -> None:
    wire.open("n1", ttl_ms=300)
    began = time.monotonic()
    fence = wire.ask("n1", wire.acquire("silent"), api.Granted).fence
    granted: api.Granted = nodes["n2"].proxy.ask(api.Acquire(lock="silent"), timeout=LONG_S)
    assert granted.fence > fence
    assert time.monotonic() - began >= 0.25
    assert "TTL" in wire.hear("n1", Ended).detail
    nodes["n2"].proxy.ask(api.Release(lock="silent", fence=granted.fence), timeout=LONG_S)


def test_an_operator_sees_and_takes_a_lock_and_its_holder_is_told(
    nodes: dict[str, Node], wire: Wire
) -> None:
    session = wire.open("n1")
    fence = wire.ask("n1", wire.acquire("taken/1"), api.Granted).fence
    listed: LockList = nodes["n3"].proxy.ask(ListLocks(prefix="taken/"), timeout=LONG_S)
    assert [(line.lock, line.holder.session) for line in listed.lines] == [("taken/1", session)]
    evicted: Evicted = nodes["n2"].proxy.ask(
        Evict(lock="taken/1", fence=fence, operator="eve"), timeout=LONG_S
    )
    assert evicted.holder.node == wire.me
    lost = wire.hear("n1", HoldLost)
    assert (lost.lock, lost.fence, "eve" in lost.detail) == ("taken/1", fence, True)
    release = api.Release(
        lock="taken/1", fence=fence, session=session, owner="o", request=wire.next()
    )
    assert wire.ask("n1", release, api.Refused).reason is api.Reason.OWNERSHIP_LOST
    mine: api.Granted = nodes["n1"].proxy.ask(api.Acquire(lock="taken/2"), timeout=LONG_S)
    nodes["n2"].proxy.ask(Evict(lock="taken/2", fence=mine.fence, operator="eve"), timeout=LONG_S)
    with pytest.raises(LockOwnershipLostError, match="taken/2"):
        nodes["n1"].proxy.ask(api.Release(lock="taken/2", fence=mine.fence), timeout=LONG_S)
