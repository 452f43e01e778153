"""Links that are opened and closed while the hub runs, and nodes that are not members."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hub_station import Make, alive, stations, until

from fencelock.actors.api.message import Alive
from fencelock.actors.error import ConfigError
from fencelock.actors.message import Address
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.transport.admission import CLIENT_BYTES_MAX
from fencelock.transport.cbor import FrameTooLargeError
from fencelock.transport.frame import Envelope, Frame


def long(number: int) -> Alive:
    """A message that is too large for a client."""
    return Alive(session="x" * (2 * CLIENT_BYTES_MAX), node="n", request=number)


@pytest.fixture
def station() -> Iterator[Make]:
    yield from stations()


def test_a_peer_that_is_added_later_is_reached_and_its_frames_may_be_large(station: Make) -> None:
    a = station("a")
    b = station("b", peers={"a": a.hub.endpoint})
    a.hub.connect("b", b.hub.endpoint)
    until(lambda: a.up() and b.up(), a, b)
    a.say("b", alive(1))
    b.say("a", long(2))
    until(lambda: a.arrivals and b.arrivals, a, b)
    assert a.news == [LinkUp(node="b")]
    assert b.heard() == [alive(1)]
    assert a.hub.waiting == {}  # It did not wait among those of clients.


def test_connecting_again_to_the_same_endpoint_keeps_the_link(station: Make) -> None:
    b = station("b")
    a = station("a", peers={"b": b.hub.endpoint})
    until(a.up, a, b)
    a.hub.connect("b", b.hub.endpoint)
    a.say("b", alive(1))
    until(lambda: b.arrivals, a, b)
    assert a.news == [LinkUp(node="b")]


def test_another_endpoint_replaces_the_link(station: Make) -> None:
    old, new = station("b", boot=1), station("b", boot=2)
    a = station("a", peers={"b": old.hub.endpoint})
    until(a.up, a, old, new)
    a.hub.connect("b", new.hub.endpoint)
    until(lambda: len(a.news) > 2, a, old, new)
    assert a.news == [LinkUp(node="b"), LinkDown(node="b"), LinkUp(node="b")]
    a.say("b", alive(1))
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
    a.say("b", alive(1))
    assert a.counters["wire.unroutable"] == 1
    b.say("a", alive(2))
    until(lambda: a.arrivals, a, b)
    a.say("b", alive(3))  # By the connection that b opened.
    until(lambda: b.arrivals, a, b)
    b.say("a", long(4))
    until(lambda: a.counters["wire.oversized"], a, b)


def test_many_changes_leave_no_socket_behind(station: Make) -> None:
    a, b, c = station("a"), station("b"), station("b")
    for _ in range(50):
        a.hub.connect("b", b.hub.endpoint)
        a.turn(0)
        a.hub.connect("b", c.hub.endpoint)
        a.turn(0)
        a.hub.disconnect("b")
    a.news.clear()  # The last may be that a link came up which is gone.
    a.hub.connect("b", b.hub.endpoint)
    until(a.up, a, b)
    a.say("b", alive(1))
    until(lambda: b.arrivals, a, b)


def test_an_endpoint_that_cannot_be_parsed_is_refused_and_leaves_no_link(station: Make) -> None:
    b = station("b")
    a = station("a", peers={"b": b.hub.endpoint})
    until(a.up, a, b)
    with pytest.raises(ConfigError, match="cannot connect to 'tcp://nowhere'"):
        a.hub.connect("b", "tcp://nowhere")
    a.say("b", alive(1))
    assert a.counters["wire.unroutable"] == 1


def test_a_learner_without_a_link_to_it_is_answered_with_large_frames(station: Make) -> None:
    member = station("n1")
    learner = station("n4", peers={"n1": member.hub.endpoint})
    until(learner.up, learner, member)
    learner.say("n1", alive(1), role="catchup")
    until(lambda: member.arrivals, learner, member)
    snapshot = long(2)
    member.say("n4", snapshot, role="catchup")
    until(lambda: learner.arrivals, learner, member)
    assert learner.heard() == [snapshot]


def test_messages_that_may_go_to_nodes_that_take_us_for_a_client_are_sent_apart(
    station: Make,
) -> None:
    member = station("n1")
    learner = station("n4", peers={"n1": member.hub.endpoint})
    until(learner.up, learner, member)
    to, sender = Address("n1/replica"), Address("n4/replica")
    half = Alive(session="x" * (CLIENT_BYTES_MAX // 2), node="n", request=1)
    both = (Envelope(to, sender, half),) * 2
    with pytest.raises(FrameTooLargeError):
        learner.hub.send("n1", Frame("test", 0, 7, both))
    for one in both:
        learner.hub.send("n1", Frame("test", 0, 7, (one,)))
    until(lambda: len(member.arrivals) == 2, learner, member)
