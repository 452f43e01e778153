"""Links of a hub, and members that come and go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import zmq
from support.expect import PATIENCE_S
from support.faces import Cables
from support.frames import decode_frame
from support.hub_station import Make, Station, alive, dealer, raw_frame, until

from fencelock.actors.api.session_message import Alive, KeepAlive
from fencelock.actors.error import ConfigError
from fencelock.actors.message import Address
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.transport import hub
from fencelock.transport.admission import CLIENT_FRAME_BYTES_MAX
from fencelock.transport.cbor import FrameTooLargeError
from fencelock.transport.frame import Envelope, Frame
from fencelock.transport.sockets import LOOKUP_THREADS, Socket, connected_dealer


@pytest.fixture
def cable() -> Iterator[Callable[[str], Cables]]:
    """Return a function that lays a cable to an address."""
    with ExitStack() as stack:
        yield lambda target: stack.enter_context(Cables([target]))


def test_a_link_that_falls_silent_is_down_within_seconds_and_comes_back(
    station: Make, cable: Callable[[str], Cables]
) -> None:
    node = station("n1")
    line = cable(node.hub.endpoint)
    client = station("s-1", {"endpoint-0": line.addresses}, client=True)
    until(lambda: client.news, client, node)
    client.send("endpoint-0", KeepAlive(session="s-1", request=1))
    until(lambda: node.arrivals, client, node)

    line.cut()
    begun = time.monotonic()
    until(lambda: len(client.news) > 1, client, node)
    assert client.news == [LinkUp(node="endpoint-0"), LinkDown(node="endpoint-0")]
    assert time.monotonic() - begun < 6

    line.heal()
    until(lambda: len(client.news) > 2, client, node)
    assert client.news[2:] == [LinkUp(node="endpoint-0")]
    client.send("endpoint-0", KeepAlive(session="s-1", request=2))
    until(lambda: len(node.arrivals) > 1, client, node)
    node.send("s-1", alive(2), role="session")
    until(lambda: client.arrivals, client, node)
    assert client.received() == [alive(2)]


def test_a_connection_takes_over_the_identity_of_one_that_broke_unseen(
    station: Make, cable: Callable[[str], Cables]
) -> None:
    """The same boot id comes again while the node still believes in the old connection."""
    node = station("n1")
    line = cable(node.hub.endpoint)
    with zmq.Context() as context:
        for endpoint in (line.addresses, node.hub.endpoint):
            with dealer(context, endpoint) as socket:
                socket.send(raw_frame(KeepAlive(session="me")))
                until(lambda: node.arrivals, node)
                node.arrivals.clear()
                node.send("me", alive(1), role="session")
                assert socket.poll(PATIENCE_S * 1000)
                assert decode_frame(socket.recv()).envelopes[0][2] == alive(1)
                line.cut()  # The node sees nothing of the first connection's end.
    assert node.counters == Counter()


def test_each_link_to_a_host_name_has_an_io_thread_of_its_own(
    station: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup blocks its thread, for seconds if the resolver is down: no other link may wait."""
    threads: dict[str, int] = {}

    def noted(context: zmq.Context[Socket], endpoint: str, *arguments: Any) -> Socket:
        socket = connected_dealer(context, endpoint, *arguments)
        threads[endpoint] = int(socket.getsockopt(zmq.AFFINITY))
        return socket

    monkeypatch.setattr(hub, "connected_dealer", noted)
    named = {f"n{place}": f"tcp://localhost:{place}" for place in range(2, 2 + LOOKUP_THREADS)}
    numeric = {"ipv4": "tcp://127.0.0.1:1", "ipv6": "tcp://[::1]:1"}
    node = station("n1", named | numeric)
    assert [threads[endpoint] for endpoint in numeric.values()] == [1, 1]
    assert len({threads[endpoint] for endpoint in named.values()} - {1}) == LOOKUP_THREADS

    node.hub.disconnect("n3")
    node.hub.connect("moved", "tcp://localhost:3333")
    assert threads["tcp://localhost:3333"] == threads[named["n3"]]


def has_got(station: Station, count: int) -> bool:
    return len(station.arrivals) == count


def test_frames_for_a_peer_that_does_not_read_are_bounded_in_bytes(
    station: Make, cable: Callable[[str], Cables], monkeypatch: pytest.MonkeyPatch
) -> None:
    most, size = 1 << 20, 30_000
    large = Alive(session="x" * size, node="n", request=1)
    monkeypatch.setattr(hub, "LINK_BYTES_MAX", most)
    node = station("n1", {"n2": "tcp://127.0.0.1:1"})
    line = cable(node.hub.endpoint)
    peer = station("n2", {"n1": line.addresses})
    until(peer.up, peer, node)
    for count in range(1, 3 * most // size):  # All of it is read: nothing is dropped.
        peer.send("n1", large)
        until(partial(has_got, node, count), peer, node)
    assert not peer.counters["wire.queue_full"]

    line.cut()
    sent = 0
    while not peer.counters["wire.queue_full"]:
        peer.send("n1", large)
        sent += 1
        assert sent < 800, "libzmq would take a thousand frames"
    assert sent > most // size - 2

    line.heal()
    before = len(node.arrivals)
    until(lambda: len(node.arrivals) == before + sent - 1, peer, node)
    peer.send("n1", alive(2))
    until(lambda: node.received()[-1] == alive(2), peer, node)


# Links that are opened and closed while the hub runs, and nodes that are not members


def long(number: int) -> Alive:
    """A message that is too large for a client."""
    return Alive(session="x" * (2 * CLIENT_FRAME_BYTES_MAX), node="n", request=number)


def test_a_peer_that_is_added_later_is_reached_and_its_frames_may_be_large(station: Make) -> None:
    a = station("a")
    b = station("b", peers={"a": a.hub.endpoint})
    a.hub.connect("b", b.hub.endpoint)
    until(lambda: a.up() and b.up(), a, b)
    a.send("b", alive(1))
    b.send("a", long(2))
    until(lambda: a.arrivals and b.arrivals, a, b)
    assert a.news == [LinkUp(node="b")]
    assert b.received() == [alive(1)]
    assert a.hub.waiting == {}  # It did not wait among those of clients.


def test_connecting_again_to_the_same_endpoint_keeps_the_link(station: Make) -> None:
    b = station("b")
    a = station("a", peers={"b": b.hub.endpoint})
    until(a.up, a, b)
    a.hub.connect("b", b.hub.endpoint)
    a.send("b", alive(1))
    until(lambda: b.arrivals, a, b)
    assert a.news == [LinkUp(node="b")]


def test_another_endpoint_replaces_the_link(station: Make) -> None:
    old, new = station("b", boot=1), station("b", boot=2)
    a = station("a", peers={"b": old.hub.endpoint})
    until(a.up, a, old, new)
    a.hub.connect("b", new.hub.endpoint)
    until(lambda: len(a.news) > 2, a, old, new)
    assert a.news == [LinkUp(node="b"), LinkDown(node="b"), LinkUp(node="b")]
    a.send("b", alive(1))
    until(lambda: new.arrivals, a, old, new)
    assert old.arrivals == []


def test_a_peer_that_is_dropped_is_a_client_from_then_on(station: Make) -> None:
    a = station("a")
    b = station("b", peers={"a": a.hub.endpoint})
    a.hub.connect("b", b.hub.endpoint)
    until(lambda: a.up() and b.up(), a, b)
    a.hub.disconnect("b")
    a.hub.disconnect("b")
    until(lambda: len(a.news) > 1, a, b)
    assert a.news == [LinkUp(node="b"), LinkDown(node="b")]
    a.send("b", alive(1))
    assert a.counters["wire.unroutable"] == 1
    b.send("a", alive(2))
    until(lambda: a.arrivals, a, b)
    a.send("b", alive(3))  # By the connection that b opened.
    until(lambda: b.arrivals, a, b)
    b.send("a", long(4))
    until(lambda: a.counters["wire.oversized"], a, b)


def test_many_changes_leave_no_socket_behind(station: Make) -> None:
    a, b, c = station("a"), station("b"), station("b")
    for _ in range(50):
        a.hub.connect("b", b.hub.endpoint)
        a.turn(0)
        a.hub.connect("b", c.hub.endpoint)
        a.turn(0)
        a.hub.disconnect("b")
    a.news.clear()  # The last may be that a link came up which has closed since.
    a.hub.connect("b", b.hub.endpoint)
    until(a.up, a, b)
    a.send("b", alive(1))
    until(lambda: b.arrivals, a, b)


def test_an_endpoint_that_cannot_be_parsed_is_refused_and_leaves_no_link(station: Make) -> None:
    b = station("b")
    a = station("a", peers={"b": b.hub.endpoint})
    until(a.up, a, b)
    with pytest.raises(ConfigError, match="cannot connect to 'tcp://nowhere'"):
        a.hub.connect("b", "tcp://nowhere")
    a.send("b", alive(1))
    assert a.counters["wire.unroutable"] == 1


def test_a_learner_without_a_link_to_it_is_answered_with_large_frames(station: Make) -> None:
    member = station("n1")
    learner = station("n4", peers={"n1": member.hub.endpoint})
    until(learner.up, learner, member)
    learner.send("n1", alive(1), role="catchup")
    until(lambda: member.arrivals, learner, member)
    snapshot = long(2)
    member.send("n4", snapshot, role="catchup")
    until(lambda: learner.arrivals, learner, member)
    assert learner.received() == [snapshot]


def test_messages_to_nodes_that_take_us_for_a_client_are_sent_apart(station: Make) -> None:
    member = station("n1")
    learner = station("n4", peers={"n1": member.hub.endpoint})
    until(learner.up, learner, member)
    to, sender = Address("n1/replica"), Address("n4/replica")
    half = Alive(session="x" * (CLIENT_FRAME_BYTES_MAX // 2), node="n", request=1)
    both = (Envelope(to, sender, half),) * 2
    with pytest.raises(FrameTooLargeError):
        learner.hub.send("n1", Frame("test", 0, 7, both))
    for one in both:
        learner.hub.send("n1", Frame("test", 0, 7, (one,)))
    until(lambda: len(member.arrivals) == 2, learner, member)
