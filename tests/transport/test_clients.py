"""Clients of a hub, and those that do not read their replies."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from support.hub_station import PATIENCE_S, Make, Station, alive, stations, until

from fencelock.actors.api.message import KeepAlive
from fencelock.actors.proxy.access import key_of
from fencelock.transport import listener
from fencelock.transport.descriptors import acked_bytes, unread_of
from fencelock.transport.held_bytes import UnreadReplies
from fencelock.transport.listener import Clients

MEMBERS = ("n2", "n3", "n4")
OTHERS = ("t", "u", "v")


@pytest.fixture
def station() -> Iterator[Make]:
    yield from stations()


def test_an_id_is_taken_while_the_connection_of_its_process_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "OPEN_S", 0.0)
    connected = {b"s#1"}
    clients = Clients(connected.__contains__)
    assert not clients.is_taken("s", b"s#2")
    clients.heard("s", b"s#1", 5)
    assert clients.is_taken("s", b"s#2")
    assert not clients.is_taken("s", b"s#1")
    assert not clients.is_taken("s", b"s#1.7")
    connected.clear()
    assert not clients.is_taken("s", b"s#2")
    assert clients.connection("s") is None


def test_a_process_that_uses_the_id_of_another_causes_one_check_a_second() -> None:
    checked: list[bytes] = []

    def is_open(identity: bytes) -> bool:
        checked.append(identity)
        return True

    clients = Clients(is_open)
    clients.heard("s", b"s#1", 5)
    assert all(clients.is_taken("s", b"s#2") for _ in range(100))
    assert checked == [b"s#1"]


class Scene:
    """A node and its clients, in one process, so that they share the numbers of descriptors."""

    def __init__(self, station: Make) -> None:
        self._station = station
        self.node = station("n1", peers=dict.fromkeys(MEMBERS, "tcp://127.0.0.1:9"))

    def connect(self, name: str, boot: int = 1) -> Station:
        """Return a client or a member that has connected, and has sent nothing."""
        peers, client = {"n1": self.node.hub.endpoint}, name not in MEMBERS
        made = self._station(name, boot=boot, listen=None, peers=peers, client=client)
        until(lambda: made.news, made)
        return made

    def leave_a_late_frame(self, name: str) -> None:
        """Let a client come and go. The node has read the first of its frames, not the second."""
        before = len(os.listdir("/dev/fd"))
        first = self.connect(name)
        self.until_heard(1, first)
        send(2, first)
        self.node.hub.poll(1000 * PATIENCE_S)  # The frame has arrived.
        first.hub.close()
        until(lambda: len(os.listdir("/dev/fd")) <= before)  # The descriptor is free.

    def until_heard(self, number: int, *senders: Station) -> None:
        """Let all of them send, again and again, until the first of them is heard."""
        until(
            lambda: self.has_received(senders[0].node, number),
            self.node,
            again=partial(send, number, *senders),
        )

    def has_received(self, sender: str, number: int) -> bool:
        message = KeepAlive(session="s", request=number)
        return any(
            message in [heard for _, _, heard in frame.envelopes]
            for link, frame in self.node.arrivals
            if link == sender
        )


def send(number: int, *senders: Station) -> None:
    for one in senders:
        one.say("n1", KeepAlive(session="s", request=number))


@pytest.fixture
def scene(station: Make) -> Scene:
    return Scene(station)


@pytest.mark.parametrize("talk", [True, False], ids=["they talk", "they are silent"])
@pytest.mark.parametrize("between", [(), OTHERS, MEMBERS], ids=["nobody", "clients", "members"])
def test_a_client_that_restarts_is_served_though_a_frame_of_its_former_process_comes_late(
    scene: Scene, between: tuple[str, ...], *, talk: bool
) -> None:
    scene.leave_a_late_frame("s")
    others = [scene.connect(name) for name in between]
    scene.node.turn()  # It reads the late frame.
    second = scene.connect("s", boot=2)
    scene.until_heard(3, second, *(others if talk else ()))
    for other in others:
        scene.until_heard(4, other, second)


def test_a_late_frame_of_one_client_does_not_disturb_the_replies_to_another(scene: Scene) -> None:
    scene.leave_a_late_frame("s")
    others = [scene.connect(name) for name in OTHERS]
    for other in others:
        scene.until_heard(3, other)
    scene.node.turn()
    for other in others:
        scene.node.say(other.node, alive(5), role="session")
        until(lambda other=other: other.heard() == [alive(5)], other, scene.node)  # type: ignore[misc]


def test_the_id_of_a_client_that_is_connected_stays_its_own(scene: Scene) -> None:
    owner, other = scene.connect("s"), scene.connect("s", boot=2)
    scene.until_heard(1, owner)
    node = scene.node
    until(lambda: node.counters["wire.client_id_taken"] > 5, node, again=partial(send, 2, other))
    assert not scene.has_received("s", 2)
    assert owner.heard() == []  # The frames by which the node checks it have no messages.
    node.say("s", alive(3), role="session")
    until(lambda: owner.heard() == [alive(3)], owner, node)


# A client that does not read its replies is cut off at its quota until it reads


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def connection() -> Iterator[Pair]:
    """The node's and the client's side of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        node = server.accept()[0]
        with client, node:
            yield node, client


def test_a_client_that_does_not_read_is_cut_off_at_its_quota_until_it_reads(
    connection: Pair,
) -> None:
    node, client = connection
    unread = UnreadReplies(10_000)
    assert unread.take("slow", node.fileno(), 6_000)
    assert unread.take("slow", node.fileno(), 4_000)
    assert not unread.take("slow", node.fileno(), 6_000)
    assert unread.blocked == 1
    assert unread.is_blocked("slow")
    assert not unread.is_blocked("other")
    before = acked_bytes(node)
    assert before is not None
    node.sendall(bytes(10_000))
    while len(client.recv(65_536, socket.MSG_PEEK)) < 10_000 or acked_bytes(node) == before:
        pass
    assert not unread.is_blocked("slow")
    assert unread.blocked == 0
    assert unread.take("slow", node.fileno(), 6_000)


def test_a_client_that_connects_anew_is_not_taken_for_one_that_does_not_read() -> None:
    """The kernel gives the new connection the descriptor of the former one."""
    unread, descriptors = UnreadReplies(10_000), set[int]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(2):
            with (
                socket.create_connection(server.getsockname()) as client,
                server.accept()[0] as node,
            ):
                descriptors.add(node.fileno())
                for _ in range(20):
                    assert unread.take("watcher", node.fileno(), 5_000)
                    node.sendall(bytes(5_000))
                    left = 5_000
                    while left:
                        left -= len(client.recv(left))
                    while unread.blocked:
                        unread.is_blocked("watcher")
    assert len(descriptors) == 1


def test_clients_with_one_key_share_its_quota_of_unread_replies() -> None:
    unread = UnreadReplies(10_000, key_of)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def connected() -> Pair:
            client = stack.enter_context(socket.create_connection(server.getsockname()))
            return stack.enter_context(server.accept()[0]), client

        slow, reads, other = connected(), connected(), connected()
        assert unread.take("shop@1", slow[0].fileno(), 6_000)
        assert not unread.take("shop@2", reads[0].fileno(), 6_000)
        assert not unread.is_blocked("shop@2"), "it reads"
        assert unread.take("bob@1", other[0].fileno(), 6_000)
        for one in slow:
            one.close()
        while not unread.take("shop@2", reads[0].fileno(), 6_000):
            pass  # The other clients with the key are looked at once an interval.
        assert not unread.take("shop@2", reads[0].fileno(), 6_000)


def test_one_reply_above_the_quota_is_sent_to_a_client_that_reads(connection: Pair) -> None:
    assert UnreadReplies(10_000).take("reader", connection[0].fileno(), 50_000)


def test_nothing_is_counted_for_a_descriptor_that_is_no_connection() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert unread_of(here.fileno()) is None
