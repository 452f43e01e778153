from __future__ import annotations

import socket as tcp
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector

import pytest
import zmq

from fencelock.actors.link import LinkDown, LinkRefused, LinkUp
from fencelock.actors.lock.message import Alive, KeepAlive
from fencelock.actors.message import Address, Message
from fencelock.transport.frame import Envelope, Frame, decode_frame, encode_frame
from fencelock.transport.hub import Arrival, SocketHub

PATIENCE_S = 20
"""How long a test waits for an event before it fails; far beyond what any takes."""


class Proxy:
    """A TCP proxy on a thread that can stop to forward without closing anything."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self._door = tcp.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._door.getsockname()[1]}"
        self.frozen = threading.Event()
        self._ends = threading.Event()
        self._other: dict[tcp.socket, tcp.socket] = {}
        self._selector = DefaultSelector()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._selector.register(self._door, EVENT_READ)
        while not self._ends.is_set():
            for key, _ in self._selector.select(0.02):
                one = key.fileobj
                assert isinstance(one, tcp.socket)
                if one is self._door:
                    self._accept()
                elif one in self._other and not self.frozen.is_set():
                    self._forward(one)
            if self.frozen.is_set():
                self._ends.wait(0.02)

    def _accept(self) -> None:
        inner, _ = self._door.accept()
        outer = tcp.create_connection(self._target)
        for one, other in ((inner, outer), (outer, inner)):
            self._other[one] = other
            self._selector.register(one, EVENT_READ)

    def _forward(self, one: tcp.socket) -> None:
        with suppress(OSError):
            piece = one.recv(65536)
            if piece:
                self._other[one].sendall(piece)
                return
        for end in (one, self._other[one]):
            self._selector.unregister(end)
            del self._other[end]
            end.close()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(PATIENCE_S)
        for one in (self._door, *self._other):
            one.close()
        self._selector.close()


class Station:
    """A bridge with everything it brought so far, in a test's own hands."""

    def __init__(self, node: str, peers: dict[str, str], cluster: str, gates: bool) -> None:
        self.counters: Counter[str] = Counter()
        self.arrivals: list[Arrival] = []
        self.news: list[LinkUp | LinkDown | LinkRefused] = []
        self.node, self.cluster = node, cluster
        self.hub = SocketHub(
            node=node,
            boot=1,
            cluster=cluster,
            listen="tcp://127.0.0.1:0",
            peers=peers,
            gates=gates,
            count=lambda name, times: self.counters.update({name: times}),
        )

    def turn(self, timeout_ms: int = 20) -> None:
        self.hub.poll(timeout_ms)
        self.news += self.hub.events()
        self.arrivals += self.hub.receive(100)

    def say(self, link: str, message: Message, role: str = "proxy") -> None:
        to, sender = Address(f"{link}/{role}"), Address(f"{self.node}/session")
        self.hub.send(link, Frame(self.cluster, 0, 7, (Envelope(to, sender, message),)))

    def heard(self) -> list[Message]:
        return [message for a in self.arrivals for _, _, message in a.frame.envelopes]


Make = Callable[..., Station]


@pytest.fixture
def station() -> Iterator[Make]:
    made: list[Station] = []

    def make(
        node: str, peers: dict[str, str] | None = None, cluster: str = "test", gates: bool = False
    ) -> Station:
        made.append(Station(node, peers or {}, cluster, gates))
        return made[-1]

    yield make
    for one in made:
        one.hub.close()


@pytest.fixture
def proxy() -> Iterator[Callable[[str], Proxy]]:
    made: list[Proxy] = []

    def make(target: str) -> Proxy:
        made.append(Proxy(target))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(done: Callable[[], object], *stations: Station) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < limit, [(s.node, s.news, s.counters) for s in stations]
        for one in stations:
            one.turn()


def alive(number: int) -> Alive:
    return Alive(session="s", node="n", request=number)


def test_a_link_that_falls_silent_is_down_within_seconds_and_comes_back(
    station: Make, proxy: Callable[[str], Proxy]
) -> None:
    node = station("n1")
    line = proxy(node.hub.endpoint)
    client = station("s-1", {"gate-0": line.endpoint}, gates=True)
    until(lambda: client.news, client, node)
    client.say("gate-0", KeepAlive(session="s-1", request=1))
    until(lambda: node.arrivals, client, node)

    line.frozen.set()
    begun = time.monotonic()
    until(lambda: len(client.news) > 1, client, node)
    assert client.news == [LinkUp(node="gate-0"), LinkDown(node="gate-0")]
    assert time.monotonic() - begun < 6

    line.frozen.clear()
    until(lambda: len(client.news) > 2, client, node)
    assert client.news[2:] == [LinkUp(node="gate-0")]
    client.say("gate-0", KeepAlive(session="s-1", request=2))
    until(lambda: len(node.arrivals) > 1, client, node)
    node.say("s-1", alive(2), role="session")
    until(lambda: client.arrivals, client, node)
    assert client.heard() == [alive(2)]


def test_a_connection_takes_over_the_identity_of_one_that_broke_unseen(
    station: Make, proxy: Callable[[str], Proxy]
) -> None:
    """The same boot id comes again while the node still believes in the old connection."""
    node = station("n1")
    line = proxy(node.hub.endpoint)
    envelope = Envelope(Address("*/proxy"), Address("me/session"), KeepAlive(session="me"))
    raw = encode_frame(Frame("test", 0, 0, (envelope,)))
    with zmq.Context() as context:
        for endpoint in (line.endpoint, node.hub.endpoint):
            with context.socket(zmq.DEALER) as socket:
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.ROUTING_ID, b"me#1")
                socket.connect(endpoint)
                socket.send(raw)
                until(lambda: node.arrivals, node)
                node.arrivals.clear()
                node.say("me", alive(1), role="session")
                assert socket.poll(PATIENCE_S * 1000)
                assert decode_frame(socket.recv()).envelopes[0][2] == alive(1)
                line.frozen.set()  # The node sees nothing of the first connection's end.
    assert node.counters == Counter()
