"""A socket hub in the hands of a test."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fencelock.actors.api.message import Alive
from fencelock.actors.message import Address, Message
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.transport.frame import Envelope, Frame
from fencelock.transport.hub import SocketHub
from fencelock.transport.listener import Arrival

PATIENCE_S = 20
"""Time that a test waits for an event before it fails (s); no event takes nearly as long."""


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
            for link, frame in self.hub.receive(100):
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
    """A hub with everything it brought so far.

    Args:
        node: its name.
        cluster: its cluster.
        options: for `listening_hub`.

    """

    def __init__(self, node: str, *, cluster: str = "test", **options: Any) -> None:
        self.counters: Counter[str] = Counter()
        self.arrivals: list[Arrival] = []
        self.news: list[LinkUp | LinkDown | LinkRefused] = []
        self.node, self.cluster = node, cluster
        self.hub = listening_hub(self.counters, node, cluster=cluster, **options)

    def turn(self, timeout_ms: int = 20) -> None:
        self.hub.poll(timeout_ms)
        self.news += self.hub.events()
        self.arrivals += self.hub.receive(100)

    def say(self, link: str, message: Message, role: str = "proxy") -> None:
        to, sender = Address(f"{link}/{role}"), Address(f"{self.node}/session")
        self.hub.send(link, Frame(self.cluster, 0, 7, (Envelope(to, sender, message),)))

    def up(self) -> bool:
        """Whether the last news is that a link came up."""
        return bool(self.news) and isinstance(self.news[-1], LinkUp)

    def heard(self) -> list[Message]:
        return [message for _, frame in self.arrivals for _, _, message in frame.envelopes]


Make = Callable[..., Station]


def stations() -> Iterator[Make]:
    """Yield a function that makes stations, and close them all afterwards."""
    made: list[Station] = []

    def make(node: str, peers: dict[str, str] | None = None, **options: Any) -> Station:
        made.append(Station(node, peers=peers, **options))
        return made[-1]

    yield make
    for one in made:
        one.hub.close()


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
