"""A client that does not read its replies is cut off at its quota until it reads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fencelock.actors.proxy.access import key_of
from fencelock.transport.descriptors import acked_bytes, unread_of
from fencelock.transport.held_bytes import UnreadReplies

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
