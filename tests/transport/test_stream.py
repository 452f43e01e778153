"""Plain TCP connections beside the sockets of a hub: who is read, and who is dropped."""

from __future__ import annotations

import os
import resource
import select
import socket as tcp
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

import pytest

from fencelock.actors.error import ConfigError
from fencelock.actors.message import Local
from fencelock.actors.redis.event import Disconnected, HalfClosed, Opened, Received, Transmit
from fencelock.transport.stream import FULL, READ_BYTES, StreamServer

WAIT_MS = 5_000


class Station:
    """A server, and what it delivered to its role."""

    def __init__(self, most: int, unread_bytes: int, address: str = "tcp://127.0.0.1:0") -> None:
        self.events: list[Local] = []
        self.counters: Counter[str] = Counter()
        self.server = StreamServer(
            address,
            post=self._post,
            count=lambda name, times: self.counters.update({name: times}),
            fault=self._note,
            connections=most,
            unread_bytes=unread_bytes,
        )
        self._poll = select.poll()
        self._poll.register(self.server.descriptor, select.POLLIN)

    def _note(self, doing: str, error: Exception) -> None:
        raise AssertionError(doing) from error

    def _post(self, event: Local) -> bool:
        self.events.append(event)
        return True

    @property
    def where(self) -> tuple[str, int]:
        host, _, port = self.server.address.removeprefix("tcp://").rpartition(":")
        return host, int(port)

    def connect(self) -> tcp.socket:
        client = tcp.create_connection(self.where, WAIT_MS / 1_000)
        self.until(lambda: isinstance(self.events[-1] if self.events else None, Opened))
        return client

    def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            assert self._poll.poll(WAIT_MS), self.events
            self.server.ready()

    def turns(self) -> None:
        """Let the server do all that there is."""
        while self._poll.poll(20):
            self.server.ready()

    def received(self) -> list[bytes]:
        return [one.data for one in self.events if isinstance(one, Received)]


@contextmanager
def station(most: int = 10, unread_bytes: int = 1 << 20) -> Generator[Station]:
    made = Station(most, unread_bytes)
    try:
        yield made
    finally:
        made.server.close()


def test_nothing_is_read_before_it_is_wanted() -> None:
    with station() as here, here.connect() as client:
        client.sendall(b"a")
        here.until(lambda: here.received() == [b"a"])
        client.sendall(b"b")
        here.turns()
        assert here.received() == [b"a"]
        here.server.transmit(Transmit(connection=1, data=b"A", reads=True))
        here.until(lambda: here.received() == [b"a", b"b"])
        assert client.recv(10) == b"A"


def test_much_is_read_in_pieces() -> None:
    with station() as here, here.connect() as client:
        client.sendall(b"x" * (3 * READ_BYTES))
        here.until(lambda: bool(here.received()))
        assert len(here.received()[0]) <= READ_BYTES


def test_a_client_that_waits_and_closes_is_noticed() -> None:
    with station() as here, here.connect() as client:
        client.sendall(b"a")
        here.until(lambda: bool(here.received()))
        client.shutdown(tcp.SHUT_WR)
        here.until(lambda: HalfClosed(connection=1) in here.events)
        here.server.transmit(Transmit(connection=1, data=b"A", reads=True))
        here.until(lambda: Disconnected(connection=1) in here.events)
        assert client.recv(10) == b"A"


def test_a_connection_is_closed_after_its_last_bytes() -> None:
    with station() as here, here.connect() as client:
        here.server.transmit(Transmit(connection=1, data=b"bye", closes=True))
        assert client.recv(10) == b"bye"
        assert client.recv(10) == b""
        assert Disconnected(connection=1) not in here.events


def test_a_client_that_does_not_read_is_dropped_when_it_is_sent_more() -> None:
    with station(unread_bytes=1 << 10) as here, here.connect() as client:
        client.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 4 << 10)
        for _ in range(100):
            here.server.transmit(Transmit(connection=1, data=b"x" * (1 << 20)))
            if Disconnected(connection=1) in here.events:
                break
        assert here.counters["redis.client_slow"] == 1
        assert here.events[-1] == Disconnected(connection=1)


def test_one_client_too_many_is_refused_with_the_reason() -> None:
    with (
        station(most=1) as here,
        here.connect(),
        tcp.create_connection(here.where, WAIT_MS / 1_000) as second,
    ):
        here.until(lambda: here.counters["redis.connections_full"] == 1)
        assert second.recv(100) == FULL


def test_clients_that_come_while_no_descriptor_is_left_are_accepted_later() -> None:
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    with station() as here, ExitStack() as ends:
        ends.enter_context(tcp.create_connection(here.where))
        with ExitStack() as occupied:
            occupied.callback(resource.setrlimit, resource.RLIMIT_NOFILE, former)
            spare = os.dup(0)
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 1, former[1]))
            occupied.callback(os.close, spare)
            here.until(lambda: here.counters["redis.no_descriptor"] == 1)
            assert not here.events
        ends.enter_context(tcp.create_connection(here.where))
        here.until(lambda: len(here.events) == 2)


def test_an_address_that_is_taken_is_an_error() -> None:
    with station() as here, pytest.raises(ConfigError, match="another program listens there"):
        Station(1, 1, here.server.address)
