from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_type_hints

import cbor2
import pytest
import zmq
from support.hub_station import PATIENCE_S, Make, Station, alive, stations, until

from fencelock.actors.api.message import Cancel, KeepAlive, Reason, Refused, refused
from fencelock.actors.api.request import Request
from fencelock.actors.message import REGISTRY, Address
from fencelock.actors.role_message import LinkRefused, LinkUp
from fencelock.transport import client_queue
from fencelock.transport.admission import FrameValidator
from fencelock.transport.cbor import FRAME_BYTES_MAX, MalformedFrameError
from fencelock.transport.client_queue import CLIENT_FRAMES_MAX
from fencelock.transport.frame import (
    Envelope,
    Frame,
    Mismatch,
    Rejected,
    decode_frame,
    encode_frame,
)

LOWEST = 1 - (1 << 63)


@pytest.fixture
def station() -> Iterator[Make]:
    yield from stations()


def test_a_client_of_another_cluster_is_told_and_the_node_serves_on(station: Make) -> None:
    node = station("n1", cluster="left")
    stranger = station("s-1", {"endpoint-0": node.hub.endpoint}, cluster="right", client=True)
    friend = station("s-2", {"endpoint-0": node.hub.endpoint}, cluster="left", client=True)
    until(lambda: stranger.news and friend.news, stranger, friend, node)

    for _ in range(3):
        stranger.say("endpoint-0", KeepAlive(session="s-1"))
    until(lambda: node.counters["wire.wrong_cluster"] == 3, node)
    until(lambda: stranger.counters["wire.rejected"] == 3, stranger, node)
    stranger.turn(20_000)  # News that waits ends a poll at once.
    friend.say("endpoint-0", KeepAlive(session="s-2"))
    until(lambda: node.arrivals, node)

    (up, refused) = stranger.news
    assert up == LinkUp(node="endpoint-0")
    assert refused == LinkRefused(
        node="endpoint-0",
        detail=f"{node.hub.endpoint}: frames for cluster 'right' are refused by a node of "
        "cluster 'left'",
    )
    assert node.counters == {"wire.wrong_cluster": 3}


def test_a_peer_of_another_cluster_is_told_too(station: Make) -> None:
    b = station("b", cluster="right")
    a = station("a", {"b": b.hub.endpoint}, cluster="left")
    until(lambda: a.news, a)
    a.say("b", alive(1))
    until(lambda: len(a.news) > 1, a, b)
    assert isinstance(a.news[1], LinkRefused)
    assert "'left'" in a.news[1].detail
    assert "'right'" in a.news[1].detail


@pytest.fixture
def wire(station: Make) -> Iterator[tuple[Station, zmq.Socket[bytes]]]:
    """A node, and a bare DEALER of the client ``me`` connected to it."""
    node = station("n1")
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTING_ID, b"me#1")
        socket.connect(node.hub.endpoint)
        yield node, socket


def frame(sender: str = "me/session", to: str = "*/proxy", cluster: str = "test") -> bytes:
    envelope = Envelope(Address(to), Address(sender), KeepAlive(session="me"))
    return encode_frame(Frame(cluster, 0, 0, (envelope,)))


REJECTED = Rejected(code=Mismatch.CLUSTER, detail="?")
BAD = {
    "wire.malformed": [b"", b"\xff", frame()[:-1], frame() + b"\x00", b"\x85" * 50],
    "wire.oversized": [b"\x00" * (FRAME_BYTES_MAX + 1)],
    "wire.spoofed_sender": [frame(sender="you/session"), frame(sender="me2/x")],
    "wire.misdirected": [frame(to="n2/proxy"), frame(to="n11/proxy")],
    "wire.rejected": [
        encode_frame(
            Frame(name, 0, 0, (Envelope(Address("*/link"), Address("me/link"), REJECTED),))
        )
        for name in ("test", "other")
    ],
}


MUTING = {"wire.malformed", "wire.oversized"}
"""After such a frame all frames of its sender are dropped unread for a moment."""


@pytest.mark.parametrize("counter", BAD)
def test_a_bad_frame_is_counted_dropped_and_not_answered(
    wire: tuple[Station, zmq.Socket[bytes]], counter: str
) -> None:
    node, socket = wire
    for raw in BAD[counter]:
        socket.send(raw)
    if counter in MUTING:
        until(lambda: node.counters.total() == len(BAD[counter]), node)
        assert node.counters[counter] >= 1
        assert node.counters.keys() <= {counter, "wire.muted"}
        until(lambda: socket.send(frame()) or node.arrivals, node)
    else:
        socket.send(frame())
        until(lambda: node.arrivals, node)
        assert node.counters == {counter: len(BAD[counter])}
    node.say("me", alive(1), role="session")
    assert socket.poll(PATIENCE_S * 1000)
    assert decode_frame(socket.recv()).envelopes[0][2] == alive(1)


def test_a_frame_in_parts_and_a_link_without_a_name_are_dropped(
    wire: tuple[Station, zmq.Socket[bytes]],
) -> None:
    node, socket = wire
    socket.send_multipart([b"", frame()])
    with zmq.Context() as context, context.socket(zmq.DEALER) as nameless:
        nameless.setsockopt(zmq.LINGER, 0)
        nameless.connect(node.hub.endpoint)
        nameless.send(frame())
        until(lambda: node.counters["wire.malformed"] == 2, node)
    # A sender of parts loses its connection, and libzmq makes another.
    until(lambda: node.arrivals, node, again=lambda: socket.send(frame()))
    assert node.counters == {"wire.malformed": 2, "wire.held_closed": 1, "wire.address_barred": 1}


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (frame(cluster="alps"), Mismatch.CLUSTER, "'alps'.*'test'"),
        (b"\x85\x02" + frame()[2:], Mismatch.VERSION, "version 2.* 1"),
        (b"\x83\x18\x63\xa0\xf6", Mismatch.VERSION, "version 99.* 1"),
    ],
)
def test_the_sender_of_a_strange_frame_is_told_both_values(
    wire: tuple[Station, zmq.Socket[bytes]], raw: bytes, code: Mismatch, words: str
) -> None:
    node, socket = wire
    socket.send(raw)
    until(lambda: node.counters, node)
    assert socket.poll(PATIENCE_S * 1000)
    answer = decode_frame(socket.recv(), cluster="test")
    ((to, sender, rejected),) = answer.envelopes
    assert (to, sender) == ("me/link", "n1/link")
    assert isinstance(rejected, Rejected)
    assert rejected.code is code
    assert re.search(words, rejected.detail)
    assert node.arrivals == []


def request(*message: object, sender: str = "me/session", to: str = "*/proxy") -> bytes:
    return cbor2.dumps([1, "test", 0, 0, [[to, sender, message]]])


@pytest.mark.parametrize(
    ("raw", "number", "words"),
    [
        (
            request(0x10, "a", "me.1", "o", 7, "soon"),
            7,
            "Acquire.wait_ms: 'soon': expected `int | null`, got `str`",
        ),
        (
            request(0x10, 5, "me.1", "o", 7, b"x" * 99),
            7,
            "Acquire.lock: 5: expected `str`, got `int`",
        ),
        (
            request(0x11, "a", True, "me.1", "o", 9),
            9,
            "Release.fence: True: expected `int`, got `bool`",
        ),
    ],
)
def test_a_request_with_a_field_of_a_wrong_type_is_refused_and_not_left_waiting(
    wire: tuple[Station, zmq.Socket[bytes]], raw: bytes, number: int, words: str
) -> None:
    node, socket = wire
    socket.send(raw)
    until(lambda: node.counters["wire.malformed"], node)
    assert socket.poll(PATIENCE_S * 1000)
    ((to, sender, refused),) = decode_frame(socket.recv(), cluster="test").envelopes
    assert (to, sender) == ("me/session", "n1/proxy")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.session, refused.request) == (Reason.INVALID, "me.1", number)
    assert words in refused.detail
    assert len(refused.detail) < 200
    assert node.arrivals == []


@pytest.mark.parametrize(
    "raw",
    [
        request(0x10, "a", "me.1", "o", "7", None),  # The number itself.
        request(0x10, "a", "me.1", "o", 7, "soon", sender="you/session"),
        request(0x10, "a", "me.1", "o", 7, "soon", to="n1/replica"),
        request(0x19, "a", "me.1", "o", 7, "soon"),  # No request.
        request(0x10),
        request(0x10, "a", "me.1", "o", 7, "soon", sender=b"me/session"),  # type: ignore[arg-type]
        request(0x10, "a" * 1024, "me.1", "o", 7, "soon"),
    ],
)
def test_what_cannot_be_read_as_a_request_is_not_answered(
    wire: tuple[Station, zmq.Socket[bytes]], raw: bytes
) -> None:
    node, socket = wire
    socket.send(raw)
    until(lambda: node.counters["wire.malformed"], node)
    socket.send(frame())
    until(lambda: node.arrivals, node)
    node.say("me", alive(1), role="session")
    assert socket.poll(PATIENCE_S * 1000)
    assert decode_frame(socket.recv()).envelopes[0][2] == alive(1)


def test_a_node_that_speaks_another_version_is_reported(station: Make) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as future:
        future.setsockopt(zmq.LINGER, 0)
        port = future.bind_to_random_port("tcp://127.0.0.1")
        a = station("a", {"b": f"tcp://127.0.0.1:{port}"})
        until(lambda: a.news, a)
        a.say("b", alive(1))
        assert future.poll(PATIENCE_S * 1000)
        identity, _ = future.recv_multipart()
        for _ in range(2):
            future.send_multipart([identity, b"\x82\x07\xa0"])
        until(lambda: a.counters["wire.wrong_version"] == 2, a)
        future.send_multipart([identity, b"\x01"])
        until(lambda: a.counters["wire.malformed"], a)
    detail = f"tcp://127.0.0.1:{port}: frames of version 7 are refused by a node of wire version 1"
    assert a.news == [LinkUp(node="b"), LinkRefused(node="b", detail=detail)]


def test_the_next_connections_of_a_sender_that_floods_are_closed_with_their_first_frame(
    wire: tuple[Station, zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_queue, "FLOOD_FRAMES", 10)
    node, socket = wire
    for _ in range(2 * CLIENT_FRAMES_MAX):
        socket.send(frame())
    while not node.counters["wire.flood_closed"]:
        node.hub.poll(PATIENCE_S * 1000)
        node.hub.receive_members(CLIENT_FRAMES_MAX)  # Those of clients wait.
    until(lambda: socket.send(frame()) or node.counters["wire.flood_closed"] > 1, node)
    assert not node.arrivals
    assert node.counters["wire.flood_closed"] == 2


REQUESTS = sorted(
    (cls for cls in REGISTRY.values() if issubclass(cls, Request)), key=lambda cls: cls.TAG
)
STAND_INS: dict[str, object] = {"int": 0, "str": "", "bool": False, "bytes": b""}


@pytest.mark.parametrize("number", [-(1 << 63), 1 - (1 << 63), -1, 0, (1 << 63) - 1])
@pytest.mark.parametrize("cls", REQUESTS, ids=lambda cls: cls.__name__)
def test_every_reply_to_a_wrong_request_can_be_sent(cls: type[Request], number: int) -> None:
    """A request whose number is extreme, with each other field of a wrong type in turn."""
    validator = FrameValidator("n1", "test", client=False)
    hints = get_type_hints(cls)
    declared = [(name, str(hints[name])) for name in cls.__struct_fields__]
    values = [number if "int" in kind else STAND_INS.get(kind, []) for _, kind in declared]
    for wrong in (n for n, (name, _) in enumerate(declared) if name != "request"):
        items = [*values[:wrong], 3.5, *values[wrong + 1 :]]
        raw = cbor2.dumps([1, "test", 0, 0, [["*/proxy", "me/session", [cls.TAG, *items]]]])
        replies = validator.field_refusals("me", raw)
        assert replies is None or encode_frame(replies)


def test_the_refusal_of_a_cancel_with_the_lowest_number_can_be_sent() -> None:
    raw = cbor2.dumps(
        [1, "test", 0, 0, [["*/proxy", "me/s", [Cancel.TAG, "a", "me", "o", LOWEST]]]]
    )
    (_, _, cancel), *_ = decode_frame(raw).envelopes
    assert isinstance(cancel, Cancel)
    refusal = refused(cancel, Reason.INVALID, "no such number")
    frame = Frame("test", 0, 0, ((Address("me/s"), Address("n1/proxy"), refusal),))
    assert decode_frame(encode_frame(frame)).envelopes[0][2] == refusal


def test_integers_can_be_negated() -> None:
    raw = cbor2.dumps([1, "t", 0, 0, [["*/p", "me/s", [Cancel.TAG, "a", "me", "o", LOWEST - 1]]]])
    with pytest.raises(MalformedFrameError, match=r"Cancel\.request: .* expected `int` >= "):
        decode_frame(raw)
