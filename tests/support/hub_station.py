"""Socket hubs in the hands of a test, and bare sockets that connect to them."""

from __future__ import annotations

import socket as tcp
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import zmq

from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.api.session_message import Alive
from fencelock.actors.message import Address, Message
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.transport.frame import Envelope, Frame, Rejected, encode_frame
from fencelock.transport.hub import SocketHub
from fencelock.transport.listener import Arrival
from support.expect import PATIENCE_S
from support.frames import decode_frame

DECODING_NS = 10_000_000
"""Time for decoding frames of clients (ns)."""


def listening_hub(
    counters: Counter[str],
    node: str = "n1",
    *,
    boot: int = 1,
    cluster: str = "test",
    listen: str | None = "tcp://127.0.0.1:0",
    peers: dict[str, str] | None = None,
    **options: Any,
) -> SocketHub:
    """Return a hub on loopback, at a port of its choice, that counts in ``counters``."""
    return SocketHub(
        node=node,
        boot=boot,
        cluster=cluster,
        listen=listen,
        peers=peers or {},
        count=lambda name, times: counters.update({name: times}),
        **options,
    )


def received(hub: SocketHub, most: int) -> list[Arrival]:
    """Return frames that have come: members', then clients'; at most ``most`` of each are read."""
    return [*hub.receive_members(most), *hub.receive_clients(most, DECODING_NS)[0]]


class AnsweringHub(ABC):
    """A hub on a thread of its own, which answers messages until it is closed."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.hub = listening_hub(self.counters)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @abstractmethod
    def answers(self, to: Address, message: Message) -> Sequence[Message]:
        """Return the answers to a message."""

    def _run(self) -> None:
        while not self._ends.is_set():
            self.hub.poll(None)
            for link, frame in received(self.hub, 100):
                self.counters["arrived"] += 1
                for to, sender, message in frame.envelopes:
                    answers = self.answers(to, message)
                    if answers:
                        envelopes = tuple(Envelope(sender, to, answer) for answer in answers)
                        self.hub.send(link, Frame("test", 0, 1, envelopes))
        self.hub.close()

    def close(self) -> None:
        self._ends.set()
        self.hub.ring()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


class Station:
    """A hub with everything it brought so far, and bare sockets that connect to it.

    Args:
        node: its name.
        cluster: its cluster.
        wait_ms: the time for which a turn waits for something to do.
        options: for `listening_hub`.

    Attributes:
        came: how many frames came by each link.

    """

    def __init__(
        self, node: str, *, cluster: str = "test", wait_ms: int = 20, **options: Any
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.arrivals: list[Arrival] = []
        self.came: Counter[str] = Counter()
        self.news: list[LinkUp | LinkDown | LinkRefused] = []
        self.node, self.cluster, self.wait_ms = node, cluster, wait_ms
        self.hub = listening_hub(self.counters, node, cluster=cluster, **options)
        self._strangers: list[tcp.socket] = []
        self._dealers: list[zmq.Socket[bytes]] = []

    @cached_property
    def _context(self) -> zmq.Context[zmq.Socket[bytes]]:
        return zmq.Context()

    def turn(self, timeout_ms: int | None = None) -> None:
        self.hub.poll(self.wait_ms if timeout_ms is None else timeout_ms)
        self.news += self.hub.events()
        arrivals = received(self.hub, 100)
        self.arrivals += arrivals
        self.came.update(link for link, _ in arrivals)

    def send(self, link: str, message: Message, role: str = "proxy") -> None:
        to, sender = Address(f"{link}/{role}"), Address(f"{self.node}/session")
        self.hub.send(link, Frame(self.cluster, 0, 7, (Envelope(to, sender, message),)))

    def up(self) -> bool:
        """Whether the last news is that a link came up."""
        return bool(self.news) and isinstance(self.news[-1], LinkUp)

    def received(self) -> list[Message]:
        return [message for _, frame in self.arrivals for _, _, message in frame.envelopes]

    def dealer(self, identity: str = "me#1", *options: tuple[int, int]) -> zmq.Socket[bytes]:
        """Return the socket of a client that connects, as `dealer` does."""
        self._dealers.append(dealer(self._context, self.hub.endpoint, identity, *options))
        return self._dealers[-1]

    def connection(self, source: str = "127.0.0.1", timeout: float | None = None) -> tcp.socket:
        host, port = self.hub.endpoint.removeprefix("tcp://").rsplit(":", 1)
        one = tcp.create_connection((host.strip("[]"), int(port)), timeout, (source, 0))
        self._strangers.append(one)
        return one

    def admits(self, source: str) -> bool:
        """Return whether a connection from ``source`` is accepted, rather than left to wait."""
        with suppress(TimeoutError):
            return bool(self.connection(source, 0.05))
        return False

    def stranger(self, name: str, source: str = "127.0.0.1") -> tcp.socket:
        """Return a connection that completed ZMTP's handshake, and does not block."""
        one = self.connection(source)
        start = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        one.sendall(start)
        received = 0
        while received < len(start):
            received += len(one.recv(len(start) - received))
        routing_id = f"{name}#1".encode()
        ready = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
        ready += b"\x08Identity" + len(routing_id).to_bytes(4, "big") + routing_id
        one.sendall(b"\x04" + bytes([len(ready)]) + ready)
        one.setblocking(False)
        return one

    def close(self) -> None:
        self.hub.close()
        for one in self._strangers:
            one.close()
        if self._dealers:
            self._context.destroy(linger=0)


Make = Callable[..., Station]


def stations() -> Iterator[Make]:
    """Yield a function that makes stations, and close them all afterwards."""
    made: list[Station] = []

    def make(node: str, peers: dict[str, str] | None = None, **options: Any) -> Station:
        made.append(Station(node, peers=peers, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def dealer(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    identity: str = "me#1",
    *options: tuple[int, int],
) -> zmq.Socket[bytes]:
    """Return a socket that connects under ``identity``, if it is not empty."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    if identity:
        socket.setsockopt(zmq.ROUTING_ID, identity.encode())
    for option, value in options:
        socket.setsockopt(option, value)
    socket.connect(endpoint)
    return socket


class BareClient:
    """A client of one node over a bare socket, without a session of its own.

    Args:
        address: the endpoint of the node.
        cluster: its cluster.
        name: the id of the client.
        boot: what follows the id in its identity.

    """

    def __init__(self, address: str, cluster: str, name: str, boot: str = "1") -> None:
        self.name = name
        self._cluster = cluster
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = dealer(self._context, address, f"{name}#{boot}")

    def send(self, message: Message) -> None:
        self._socket.send(raw_frame(message, f"{self.name}/x", cluster=self._cluster))

    def receive(self, wait_s: float) -> list[Message]:
        """Return the messages of the next frame, none if no frame comes in time."""
        if not self._socket.poll(int(wait_s * 1_000)):
            return []
        return [message for _, _, message in decode_frame(self._socket.recv()).envelopes]

    def ask(self, message: Any, wait_s: float = PATIENCE_S) -> Message | None:
        """Return the reply to ``message``, or that its frame was rejected; None if none comes."""
        self.send(message)
        while replies := self.receive(wait_s):
            for reply in replies:
                if isinstance(reply, Rejected) or getattr(reply, "request", 0) == message.request:
                    return reply
        return None

    def close(self) -> None:
        self._context.destroy(linger=1_000)


def is_ended(one: tcp.socket) -> bool:
    with suppress(BlockingIOError):
        with suppress(ConnectionError):
            while one.recv(1 << 16):
                pass
        return True
    return False


def until(
    done: Callable[[], object], *stations: Station, again: Callable[[], None] | None = None
) -> None:
    """Give every station turns until ``done``, and before each round do ``again``."""
    limit = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < limit, [(s.node, s.news, s.counters) for s in stations]
        if again is not None:
            again()
        for one in stations:
            one.turn()


def alive(number: int) -> Alive:
    return Alive(session="s", node="n", request=number)


def raw_frame(
    message: Message,
    sender: str = "me/session",
    to: str = "*/proxy",
    *,
    cluster: str = "test",
    count: int = 1,
) -> bytes:
    envelope = Envelope(Address(to), Address(sender), message)
    return encode_frame(Frame(cluster, 0, 0, (envelope,) * count))


def describe(name: str, count: int = 1) -> bytes:
    """Return a frame with so many requests of a client to the node ``n1``."""
    message = Describe(session=name, request=1)
    return raw_frame(message, f"{name}/session", "n1/proxy", count=count)
