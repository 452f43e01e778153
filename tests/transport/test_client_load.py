"""Limits on single clients: those that send too much, or do not read their replies."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fencelock.actors.proxy.access import key_of
from fencelock.transport import client_load
from fencelock.transport.borrowed import acked_bytes
from fencelock.transport.client_load import DROPPED_NS, WINDOW_NS, Floods, Load, UnreadReplies

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def connection() -> Iterator[Pair]:
    """The node's and the client's side of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        node = server.accept()[0]
        with client, node:
            yield node, client


def load_of(behind: str, **sent: int) -> Load:
    """Return the load of clients that sent so much in each of two windows, one not yet served."""
    load = Load()
    for now in (0, WINDOW_NS):
        for client, units in sent.items():
            add(load, client, units, now)
        load.behind(behind)
    return load


def add(load: Load, client: str, envelopes: int, now: int) -> None:
    """Count as the listener does."""
    if now >= load.ends:
        load.end_window(now)
    load.counts[client] += envelopes


def test_a_client_that_sends_much_more_than_another_is_busy() -> None:
    load = load_of("greedy", greedy=500, modest=10)
    assert load.busy == {"greedy"}
    add(load, "greedy", 500, 2 * WINDOW_NS)
    load.behind("greedy")
    add(load, "greedy", 500, 3 * WINDOW_NS)  # The other has sent nothing.
    assert not load.busy


def test_a_client_that_sends_much_more_is_not_busy_while_it_is_served_as_fast() -> None:
    load = Load()
    for now in (0, WINDOW_NS, 2 * WINDOW_NS):
        add(load, "eager", 5_000, now)
        add(load, "modest", 10, now)
    assert not load.busy


def test_clients_that_send_about_as_much_are_not_busy() -> None:
    assert not load_of("a", a=500, b=200).busy


def test_a_client_is_busy_as_soon_as_a_frame_of_it_is_dropped_and_for_a_while_after() -> None:
    load = Load()
    for client, envelopes in (("modest", 10), ("greedy", 255)):
        add(load, client, envelopes, 0)
    assert not load.busy
    load.dropped("greedy")
    assert load.busy == {"greedy"}
    for now in (WINDOW_NS, 2 * WINDOW_NS):  # The greedy one is connecting anew.
        add(load, "modest", 10, now)
        assert load.busy == {"greedy"}
    add(load, "modest", 10, 2 * WINDOW_NS + DROPPED_NS)
    assert not load.busy


def test_a_client_of_which_frames_are_dropped_is_not_busy_while_there_is_no_other() -> None:
    load = Load()
    for now in (0, WINDOW_NS, 2 * WINDOW_NS):
        add(load, "greedy", 5_000, now)
        load.dropped("greedy")
        assert not load.busy


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


def test_a_connection_of_which_too_many_frames_are_dropped_is_closed(
    connection: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_load, "FLOOD_FRAMES", 3)
    node, client = connection
    floods = Floods()
    assert [floods.note(b"a#1", node.fileno()) for _ in range(4)] == [1, 2, 3, 0]
    assert client.recv(1) == b""
    assert floods.note(b"b#1", node.fileno()) == 1


def test_a_frame_that_arrived_before_its_connection_was_closed_does_not_close_another(
    connection: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have given the descriptor to the connection of somebody else."""
    monkeypatch.setattr(client_load, "FLOOD_FRAMES", 3)
    node, _ = connection
    floods, closed = Floods(), node.dup()
    with closed:
        while floods.note(b"a#1", closed.fileno()):
            pass
    assert all(floods.note(b"a#1", node.fileno()) for _ in range(10))
