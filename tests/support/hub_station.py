"""A socket hub in the hands of a test."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from fencelock.actors.api.message import Alive
from fencelock.actors.link import LinkDown, LinkRefused, LinkUp
from fencelock.actors.message import Address, Message
from fencelock.transport.frame import Envelope, Frame
from fencelock.transport.hub import SocketHub
from fencelock.transport.listener import Arrival

PATIENCE_S = 20
"""How long a test waits for an event before it fails; far beyond what any takes."""


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


def stations() -> Iterator[Make]:
    """Yield a function that makes stations, and close them all afterwards."""
    made: list[Station] = []

    def make(
        node: str, peers: dict[str, str] | None = None, cluster: str = "test", gates: bool = False
    ) -> Station:
        made.append(Station(node, peers or {}, cluster, gates))
        return made[-1]

    yield make
    for one in made:
        one.hub.close()


def until(done: Callable[[], object], *stations: Station) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < limit, [(s.node, s.news, s.counters) for s in stations]
        for one in stations:
            one.turn()


def alive(number: int) -> Alive:
    return Alive(session="s", node="n", request=number)
