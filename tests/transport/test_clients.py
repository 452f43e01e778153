"""Which connection a client is known by, where descriptors of closed connections are used again.

A node may read the last frames of a connection after it was closed, when another connection has its
descriptor already.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import partial

import pytest
from support.hub_station import PATIENCE_S, Make, Station, stations, until

from fencelock.actors.api.message import KeepAlive
from fencelock.transport.clients import Clients

MEMBERS = ("n2", "n3", "n4")


class Connected:
    """Connections over loopback, as the side that accepted them sees them."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._others: list[socket.socket] = []

    def accept(self) -> socket.socket:
        """Return a new connection."""
        self._others.append(socket.create_connection(self._server.getsockname()))
        return self._server.accept()[0]

    def replace(self, connection: socket.socket) -> None:
        """Close a connection, and give its descriptor to a new one."""
        with self.accept() as new:
            os.dup2(new.fileno(), connection.fileno())

    def close(self) -> None:
        for one in (self._server, *self._others):
            one.close()


@pytest.fixture
def connected() -> Iterator[Connected]:
    made = Connected()
    yield made
    made.close()


@pytest.fixture
def station() -> Iterator[Make]:
    yield from stations()


def test_an_id_is_taken_while_the_connection_of_its_process_is_open(connected: Connected) -> None:
    clients = Clients()
    with connected.accept() as first, connected.accept() as second:
        clients.heard("s", b"s#1", first.fileno())
        assert clients.is_taken("s", b"s#2", second.fileno())
        assert not clients.is_taken("s", b"s#1.2", second.fileno())
        connected.replace(first)
        assert not clients.is_taken("s", b"s#2", second.fileno())


def test_a_process_may_have_the_descriptor_of_the_former_one(connected: Connected) -> None:
    clients = Clients()
    with connected.accept() as first:
        clients.heard("s", b"s#1", first.fileno())
        connected.replace(first)
        clients.gone("s")
        clients.heard("s", b"s#1", first.fileno())  # A frame of the closed connection.
        assert not clients.is_taken("s", b"s#2", first.fileno())


def test_a_client_is_not_known_by_the_connection_of_another(connected: Connected) -> None:
    clients = Clients()
    with connected.accept() as first, connected.accept() as second:
        clients.heard("s", b"s#1", first.fileno())
        connected.replace(first)
        clients.gone("s")
        clients.heard("s", b"s#1", first.fileno())  # A frame of the closed connection.
        clients.heard("other", b"other#1", first.fileno())
        assert not clients.is_taken("s", b"s#2", second.fileno())
        assert clients.connection("other") is not None
        clients.heard("s", b"s#1", first.fileno())  # And another one, later.
        assert clients.connection("other") is None
        clients.heard("other", b"other#1", first.fileno())
        assert not clients.is_taken("s", b"s#2", second.fileno())


def test_a_client_that_has_moved_stays_known(connected: Connected) -> None:
    clients = Clients()
    with connected.accept() as first, connected.accept() as second:
        clients.heard("s", b"s#1.1", first.fileno())
        clients.heard("s", b"s#1.2", second.fileno())
        connected.replace(first)
        clients.heard("other", b"other#1", first.fileno())
        assert clients.connection("s") is not None
        assert clients.connection("other") is not None


@pytest.mark.parametrize("between", [(), ("t", "u", "v"), MEMBERS])
def test_a_client_that_restarts_is_served_though_frames_of_its_former_process_come_late(
    station: Make, between: tuple[str, ...]
) -> None:
    node = station("n1", peers=dict.fromkeys(MEMBERS, "tcp://127.0.0.1:9"))

    def client(name: str, boot: int = 1) -> Station:
        peers = {"n1": node.hub.endpoint}
        made = station(name, boot=boot, listen=None, peers=peers, client=name not in MEMBERS)
        until(lambda: made.news, made)
        return made

    def say(number: int, *senders: Station) -> None:
        for one in senders:
            one.say("n1", KeepAlive(session="s", request=number))

    def until_heard(number: int, *senders: Station) -> None:
        """Let all of them send, again and again, until the first of them is heard."""
        came = partial(heard_from, node, senders[0].node, number)
        until(came, node, again=partial(say, number, *senders))

    open_before = len(os.listdir("/dev/fd"))
    first = client("s")
    until_heard(1, first)
    say(2, first)
    node.hub.poll(1000 * PATIENCE_S)  # The frame has arrived. The node has not read it.
    first.hub.close()
    until(lambda: len(os.listdir("/dev/fd")) <= open_before)  # The next connection has its number.
    others = [client(name) for name in between]
    node.turn()  # It reads the frame.
    second = client("s", boot=2)
    until_heard(3, second, *others)
    for other in others:
        until_heard(4, other, second)


def heard_from(node: Station, sender: str, number: int) -> bool:
    message = KeepAlive(session="s", request=number)
    return any(
        message in [heard for _, _, heard in arrival.frame.envelopes]
        for arrival in node.arrivals
        if arrival.link == sender
    )
