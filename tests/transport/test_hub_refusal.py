"""A hub refuses bad frames, garbage and floods, and serves on."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import TypeAlias, get_type_hints

import cbor2
import psutil
import pytest
import zmq
from msgspec.structs import replace
from support.expect import PATIENCE_S
from support.frames import decode_frame
from support.hub_station import AnsweringHub, Make, Station, alive, dealer, raw_frame, until
from support.programs import Child

from fencelock.actors.api.lock_message import (
    Acquire,
    Cancel,
    Granted,
    Inspect,
    LockStatus,
    Reason,
    Refused,
    refused,
)
from fencelock.actors.api.request import Request
from fencelock.actors.api.session_message import KeepAlive
from fencelock.actors.message import REGISTRY, Address, Message
from fencelock.actors.role_message import LinkRefused, LinkUp
from fencelock.transport import client_queue
from fencelock.transport.admission import REFUSALS_MAX, Dropped, FrameValidator
from fencelock.transport.cbor import FRAME_BYTES_MAX, MalformedFrameError, UndecodableError
from fencelock.transport.client_queue import CLIENT_FRAMES_MAX
from fencelock.transport.frame import EnvelopeItems, Frame, Mismatch, Rejected, encode_frame
from fencelock.transport.keys import GREETING, ListedKeys, mechanism_at
from fencelock.transport.sockets import HEARTBEAT_MS, QUEUE_FRAMES_MAX

LOWEST = 1 - (1 << 63)


def greet_as(mechanism: bytes, server: socket.socket, cut: list[bool]) -> None:
    """Cut off each connection, at once unless it names the version that it speaks."""
    with contextlib.suppress(OSError):  # Until the server is closed.
        while True:
            with server.accept()[0] as one:
                looks = len(one.recv(64)) >= len(GREETING)
                if looks:
                    one.sendall(GREETING + b"\0" + mechanism.ljust(20, b"\0") + bytes(32))
                cut.append(looks)


@pytest.mark.parametrize("mechanism", [b"CURVE", b"NULL"])
def test_a_client_that_is_cut_off_without_a_reason_looks_at_the_mechanism_of_the_node(
    station: Make, mechanism: bytes
) -> None:
    cut: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=greet_as, args=(mechanism, server, cut), daemon=True).start()
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        client = station("s", {"endpoint-0": endpoint}, client=True)
        until(lambda: True in cut and len(cut) > cut.index(True) + 3, client)
        refused = [one for one in client.news if isinstance(one, LinkRefused)]
        server.shutdown(socket.SHUT_RDWR)
    detail = f"{endpoint}: it requires a key"
    needs_key = LinkRefused(node="endpoint-0", detail=detail, by_key=True)
    assert refused == ([needs_key] if mechanism == b"CURVE" else [])


def test_a_node_names_its_mechanism_and_others_have_none(station: Make) -> None:
    secret = zmq.curve_keypair()[1].decode()
    plain, keyed = station("n1"), station("n2", listed=ListedKeys(secret, {}))
    assert mechanism_at(plain.hub.endpoint) == "NULL"
    assert mechanism_at(keyed.hub.endpoint) == "CURVE"
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    assert mechanism_at(closed) == ""


def test_a_client_of_another_cluster_is_notified_and_the_node_serves_on(station: Make) -> None:
    node = station("n1", cluster="left")
    stranger = station("s-1", {"endpoint-0": node.hub.endpoint}, cluster="right", client=True)
    friend = station("s-2", {"endpoint-0": node.hub.endpoint}, cluster="left", client=True)
    until(lambda: stranger.news and friend.news, stranger, friend, node)

    for _ in range(3):
        stranger.send("endpoint-0", KeepAlive(session="s-1"))
    until(lambda: node.counters["wire.wrong_cluster"] == 3, node)
    until(lambda: stranger.counters["wire.rejected"] == 3, stranger, node)
    stranger.turn(20_000)  # News that waits ends a poll at once.
    friend.send("endpoint-0", KeepAlive(session="s-2"))
    until(lambda: node.arrivals, node)

    (up, refused) = stranger.news
    assert up == LinkUp(node="endpoint-0")
    assert refused == LinkRefused(
        node="endpoint-0",
        detail=f"{node.hub.endpoint}: frames for cluster 'right' are refused by a node of "
        "cluster 'left'",
        cluster="left",
    )
    assert node.counters == {"wire.wrong_cluster": 3}


def test_a_peer_of_another_cluster_is_notified_too(station: Make) -> None:
    b = station("b", cluster="right")
    a = station("a", {"b": b.hub.endpoint}, cluster="left")
    until(lambda: a.news, a)
    a.send("b", alive(1))
    until(lambda: len(a.news) > 1, a, b)
    assert isinstance(a.news[1], LinkRefused)
    assert "'left'" in a.news[1].detail
    assert "'right'" in a.news[1].detail


Socket: TypeAlias = "zmq.Socket[bytes]"
Wire = tuple[Station, Socket]


@pytest.fixture
def wire(station: Make) -> Wire:
    """A node, and a bare DEALER of the client ``me`` connected to it."""
    node = station("n1")
    return node, node.dealer()


GOOD = KeepAlive(session="me")
FRAME = raw_frame(GOOD)
REJECTED = Rejected(code=Mismatch.CLUSTER, detail="?")
BAD = {
    "wire.malformed": [b"", b"\xff", FRAME[:-1], FRAME + b"\x00", b"\x85" * 50],
    "wire.oversized": [b"\x00" * (FRAME_BYTES_MAX + 1)],
    "wire.spoofed_sender": [raw_frame(GOOD, "you/session"), raw_frame(GOOD, "me2/x")],
    "wire.misdirected": [raw_frame(GOOD, to=to) for to in ("n2/proxy", "n11/proxy")],
    "wire.rejected": [
        raw_frame(REJECTED, "me/link", "*/link", cluster=name) for name in ("test", "other")
    ],
}


def assert_first_reply(wire: Wire) -> None:
    """Let the node send to the client, which must have received nothing before."""
    node, socket = wire
    node.send("me", alive(1), role="session")
    assert received(socket) == (("me/session", "n1/session", alive(1)),)


def received(socket: Socket) -> tuple[EnvelopeItems, ...]:
    """Return the envelopes in the next frame that comes."""
    assert socket.poll(PATIENCE_S * 1000)
    return tuple(decode_frame(socket.recv(), cluster="test").envelopes)


MUTING = {"wire.malformed", "wire.oversized"}
"""After such a frame all frames of its sender are dropped unread for a moment."""


@pytest.mark.parametrize("counter", BAD)
def test_a_bad_frame_is_counted_dropped_and_not_answered(wire: Wire, counter: str) -> None:
    node, socket = wire
    for raw in BAD[counter]:
        socket.send(raw)
    if counter in MUTING:
        until(lambda: node.counters.total() == len(BAD[counter]), node)
        assert node.counters[counter] >= 1
        assert node.counters.keys() <= {counter, "wire.muted"}
        until(lambda: socket.send(FRAME) or node.arrivals, node)
    else:
        socket.send(FRAME)
        until(lambda: node.arrivals, node)
        assert node.counters == {counter: len(BAD[counter])}
    assert_first_reply(wire)


def test_a_frame_in_parts_and_a_link_without_a_name_are_dropped(wire: Wire) -> None:
    node, socket = wire
    socket.send_multipart([b"", FRAME])
    node.dealer("").send(FRAME)
    until(lambda: node.counters.total() == 4, node)
    # A sender of parts loses its connection, and libzmq makes another.
    until(lambda: node.arrivals, node, again=lambda: socket.send(FRAME))
    assert node.counters == {
        "wire.malformed": 1,
        "wire.unnamed": 1,
        "wire.held_closed": 1,
        "wire.address_barred": 1,
    }


def test_what_is_left_of_a_replaced_connection_is_not_called_malformed(station: Make) -> None:
    """A peer connects again while the node is paused: libzmq gives the former one another id."""
    node = station("n1")
    for _ in range(10):  # It depends on timing whether libzmq keeps the frames of the former one.
        one = node.dealer("me#1", (zmq.IMMEDIATE, 1))
        assert one.poll(PATIENCE_S * 1000, zmq.POLLOUT)  # It is connected.
        for _ in range(3):
            one.send(FRAME)
        one.close(linger=PATIENCE_S * 1000)
    until(lambda: node.arrivals and node.counters["wire.unnamed"], node)
    assert "wire.malformed" not in node.counters


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (raw_frame(GOOD, cluster="alps"), Mismatch.CLUSTER, "'alps'.*'test'"),
        (b"\x85\x02" + FRAME[2:], Mismatch.VERSION, "version 2.* 1"),
        (b"\x83\x18\x63\xa0\xf6", Mismatch.VERSION, "version 99.* 1"),
    ],
)
def test_the_sender_of_a_strange_frame_learns_both_values(
    wire: Wire, raw: bytes, code: Mismatch, words: str
) -> None:
    node, socket = wire
    socket.send(raw)
    until(lambda: node.counters, node)
    ((to, sender, rejected),) = received(socket)
    assert (to, sender) == ("me/link", "n1/link")
    assert isinstance(rejected, Rejected)
    assert rejected.code is code
    assert re.search(words, rejected.detail)
    assert node.arrivals == []


def request(*message: object, sender: str = "me/session", to: str = "*/proxy") -> bytes:
    return cbor2.dumps([1, "test", 0, 0, [[to, sender, [message]]]])


@pytest.mark.parametrize(
    ("raw", "number", "words"),
    [
        (
            request(0x10, "me.1", 7, "o", "a", "soon"),
            7,
            "Acquire.wait_ms: 'soon': expected `int | null`, got `str`",
        ),
        (
            request(0x10, "me.1", 7, "o", 5, b"x" * 99),
            7,
            "Acquire.lock: 5: expected `str`, got `int`",
        ),
        (
            request(0x11, "me.1", 9, "o", True, "a"),
            9,
            "Release.fence: True: expected `int`, got `bool`",
        ),
    ],
)
def test_a_request_with_a_field_of_a_wrong_type_is_refused_and_not_left_waiting(
    wire: Wire, raw: bytes, number: int, words: str
) -> None:
    node, socket = wire
    socket.send(raw)
    until(lambda: node.counters["wire.malformed"], node)
    ((to, sender, refused),) = received(socket)
    assert (to, sender) == ("me/session", "n1/proxy")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.session, refused.request) == (Reason.INVALID, "me.1", number)
    assert words in refused.detail
    assert len(refused.detail) < 200
    assert node.arrivals == []


@pytest.mark.parametrize(
    "raw",
    [
        request(0x10, "me.1", "7", "o", "a", None),  # The number itself.
        request(0x10, "me.1", 7, "o", "a", "soon", sender="you/session"),
        request(0x10, "me.1", 7, "o", "a", "soon", to="n1/replica"),
        request(0x19, "me.1", 7, "a", "o", "soon"),  # No request.
        request(0x10),
        request(0x10, "me.1", 7, "o", "a", "soon", sender=b"me/session"),  # type: ignore[arg-type]
        request(0x10, "me.1", 7, "o", "a" * 1024, "soon"),
    ],
)
def test_a_frame_that_is_no_request_is_not_answered(wire: Wire, raw: bytes) -> None:
    node, socket = wire
    socket.send(raw)
    until(lambda: node.counters["wire.malformed"], node)
    socket.send(FRAME)
    until(lambda: node.arrivals, node)
    assert_first_reply(wire)


def test_a_node_of_another_version_is_reported(station: Make) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as future:
        future.setsockopt(zmq.LINGER, 0)
        port = future.bind_to_random_port("tcp://127.0.0.1")
        a = station("a", {"b": f"tcp://127.0.0.1:{port}"})
        until(lambda: a.news, a)
        a.send("b", alive(1))
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
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_queue, "FLOOD_FRAMES", 10)
    node, socket = wire
    for _ in range(2 * CLIENT_FRAMES_MAX):
        socket.send(FRAME)
    while not node.counters["wire.flood_closed"]:
        node.hub.poll(PATIENCE_S * 1000)
        node.hub.receive_members(CLIENT_FRAMES_MAX)  # Those of clients wait.
    until(lambda: socket.send(FRAME) or node.counters["wire.flood_closed"] > 1, node)
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
        replies = validator.field_refusals("me", request(cls.TAG, *items))
        assert replies is None or encode_frame(replies)


def test_no_more_than_a_few_requests_of_a_frame_are_refused_for_a_field() -> None:
    wrong = [Inspect.TAG, "me", 1, "soon", "a"]
    raw = cbor2.dumps([1, "test", 0, 0, [["*/proxy", "me/session", [wrong] * 15]] * 4])
    replies = FrameValidator("n1", "test", client=False).field_refusals("me", raw)
    assert replies is not None
    assert len(replies.envelopes) == REFUSALS_MAX


def test_the_refusal_of_a_cancel_with_the_lowest_number_can_be_sent() -> None:
    ((_, _, cancel),) = decode_frame(request(Cancel.TAG, "me", LOWEST, "o", "a")).envelopes
    assert isinstance(cancel, Cancel)
    refusal = refused(cancel, Reason.INVALID, "no such number")
    frame = Frame("test", 0, 0, ((Address("me/s"), Address("n1/proxy"), refusal),))
    assert decode_frame(encode_frame(frame)).envelopes[0][2] == refusal


def test_integers_can_be_negated() -> None:
    with pytest.raises(MalformedFrameError, match=r"Cancel\.request: .* expected `int` >= "):
        decode_frame(request(Cancel.TAG, "me", LOWEST - 1, "o", "a"))


FRAMES = 100_000
GROWTH_BYTES_MAX = 64 << 20
"""Queues of a socket and what an allocator keeps; a leak of every frame would be far more."""

MESSAGES: tuple[Message, ...] = (
    Acquire(lock="orders/42", session="me", owner="o", request=1, wait_ms=5000),
    Granted(lock="orders/42", fence=1 << 40),
    LockStatus(lock="x", holder=None, waiters=(), waits_for=()),
    Rejected(code=Mismatch.VERSION, detail="no"),
)


def garbage(random: Random, count: int) -> Iterator[bytes]:
    """Yield random bytes, and good frames with bytes changed, cut, repeated and joined."""
    seeds = [raw_frame(one, cluster=name) for one in MESSAGES for name in ("test", "other")]
    seeds.append(b"\x85\x02" + seeds[0][2:])
    seeds += [raw_frame(MESSAGES[0], to="n2/proxy"), raw_frame(MESSAGES[0], "you/session")]
    for _ in range(count):
        raw = bytearray(random.choice(seeds))
        match random.randrange(6):
            case 0:
                yield random.randbytes(random.randrange(80))
            case 1:
                yield bytes(raw[: random.randrange(len(raw))])
            case 2:
                yield bytes(raw) + random.randbytes(random.randrange(1, 9))
            case 3:
                at = random.randrange(len(raw))
                yield bytes(raw[:at] + random.choice(seeds)[at:])
            case _:
                for _ in range(random.randrange(1, 5)):
                    raw[random.randrange(len(raw))] = random.randrange(256)
                yield bytes(raw)


def test_the_decoder_meets_garbage_with_one_error_only() -> None:
    outcomes: Counter[str] = Counter()
    for raw in garbage(Random(1), FRAMES):
        try:
            frame = decode_frame(raw)
        except MalformedFrameError as error:
            outcomes[type(error).__name__] += 1
        else:
            assert decode_frame(encode_frame(frame)) == replace(frame, newer=0)
            outcomes["decoded"] += 1
    assert outcomes.keys() == {
        "MalformedFrameError",
        "UndecodableError",  # A subclass, as are the next two.
        "FieldError",
        "WrongVersionError",
        "decoded",
    }, outcomes


@pytest.mark.parametrize("client", [False, True])
def test_a_frame_like_earlier_ones_is_judged_as_if_it_were_the_first(client: bool) -> None:
    experienced = FrameValidator("n1", "test", client=client)
    for one in MESSAGES:
        experienced.admit("me", raw_frame(one))
    outcomes: Counter[str] = Counter()
    random = Random(4)
    for raw in garbage(random, FRAMES // 5):
        link = random.choice(("me", "me", "me", "you", "n1"))
        judged = experienced.admit(link, raw)
        assert judged == FrameValidator("n1", "test", client=client).admit(link, raw)
        outcomes[judged.counter if isinstance(judged, Dropped) else "passed"] += 1
    assert outcomes["passed"] > 100
    assert len(outcomes) == 7, outcomes


def test_a_frame_that_passed_on_one_link_is_spoofed_on_another() -> None:
    admission = FrameValidator("n1", "test", client=False)
    raw = raw_frame(MESSAGES[0])
    for _ in range(3):
        assert isinstance(admission.admit("me", raw), Frame)
        assert admission.admit("you", raw) == Dropped("wire.spoofed_sender")


class GrantingNode(AnsweringHub):
    """A bridge on a thread that answers every Acquire with a Granted."""

    def answers(self, to: Address, message: Message) -> list[Message]:
        if not isinstance(message, Acquire):
            return []
        return [Granted(lock=message.lock, fence=1, request=message.request)]


@pytest.fixture
def node() -> Iterator[GrantingNode]:
    one = GrantingNode()
    yield one
    one.close()


def served(socket: Socket, request: int) -> bool:
    """Ask for a lock, again while muted; return whether it was granted before patience ended."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        socket.send(raw_frame(Acquire(lock="a", session="me", request=request)))
        while socket.poll(100):
            ((_, _, message),) = decode_frame(socket.recv()).envelopes
            if message == Granted(lock="a", fence=1, request=request):
                return True
    return False


def is_decodable(raw: bytes) -> bool:
    """Return whether ``raw`` is valid CBOR; a sender of invalid CBOR is muted for a while."""
    try:
        decode_frame(raw)
    except MalformedFrameError as error:
        return not isinstance(error, UndecodableError)
    return True


def flood(socket: Socket, random: Random, count: int, *, decodable: bool) -> None:
    """Send garbage, and drop the replies."""
    for raw in garbage(random, count):
        if decodable and not is_decodable(raw):
            continue
        socket.send(raw)
        while socket.poll(0):
            socket.recv()
    socket.send(b"")


def test_a_node_under_a_hundred_thousand_frames_of_garbage_serves_on(
    node: GrantingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine so much is dropped unread that the connection would be closed.
    monkeypatch.setattr(client_queue, "FLOOD_FRAMES", 10 * FRAMES)
    process = psutil.Process()
    with zmq.Context() as context, dealer(context, node.hub.endpoint, "me#1.1") as friend:
        assert served(friend, 1)
        with dealer(context, node.hub.endpoint, "me#1.2") as enemy:
            flood(enemy, Random(2), 2000, decodable=True)  # Caches and pools fill now.
            fds, memory = process.num_fds(), process.memory_info().rss
            flood(enemy, Random(3), FRAMES, decodable=True)
            assert served(enemy, 2)  # Behind everything that was sent before.
            flood(enemy, Random(4), FRAMES // 10, decodable=False)
            assert served(enemy, 4)
            grown = process.memory_info().rss - memory
            assert process.num_fds() == fds
        assert grown < GROWTH_BYTES_MAX
        assert served(friend, 3)
    # How often each is counted depends on how many frames a busy machine drops unread.
    assert node.counters.keys() >= {
        "arrived",
        "wire.malformed",
        "wire.misdirected",
        "wire.muted",
        "wire.rejected",
        "wire.spoofed_sender",
        "wire.wrong_cluster",
        "wire.wrong_version",
    }


@pytest.mark.parametrize("parts", [b"\x02\x01a\x02\x00b", b"\x06\x00hello"])
def test_messages_of_an_old_version_of_zmtp_are_dropped(node: GrantingNode, parts: bytes) -> None:
    """Random bytes may look like one; such a message names no connection."""
    host, _, port = node.hub.endpoint.removeprefix("tcp://").partition(":")
    name = b"me#1.1"
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as wire:
        wire.sendall(bytes((len(name) + 1, 0)) + name + parts)
        end = time.monotonic() + PATIENCE_S
        while not node.counters["wire.malformed"]:
            assert time.monotonic() < end
            time.sleep(0.01)


LONG_S = 60.0

VICTIM = """
import sys
import zmq
from fencelock.transport.sockets import bound_router, connected_dealer
with zmq.Context() as context:
    if sys.argv[1] == "router":
        socket = bound_router(context, "tcp://127.0.0.1:*")
        print(socket.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    else:
        socket = connected_dealer(context, sys.argv[2], b"n1#1")
        print("connected", flush=True)
    sys.stdin.readline()
    socket.disable_monitor()
    socket.close()
"""
"""Reads nothing until it receives the request to end."""


def outlives(process: Child, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def flood_raw(socket: Socket) -> None:
    """Send until both sides are full: for a moment nothing more can be sent."""
    ends = time.monotonic() + LONG_S
    while time.monotonic() < ends:
        if not socket.poll(200, zmq.POLLOUT):
            return
        socket.send(bytes(1000), zmq.NOBLOCK)


def end(process: Child) -> int:
    process.communicate("\n", timeout=LONG_S)
    return process.returncode


def test_a_router_outlives_a_peer_that_floods_it_and_breaks_the_connection() -> None:
    with Child("-c", VICTIM, "router") as router, zmq.Context() as context:
        peer = dealer(context, router.line(), "", (zmq.SNDHWM, 10))
        flood_raw(peer)
        peer.close()  # With frames unread, so that the connection is reset.
        assert outlives(router, 3 * HEARTBEAT_MS / 1000)
        assert end(router) == 0


def test_a_dealer_outlives_a_peer_that_floods_it_and_breaks_the_connection() -> None:
    with zmq.Context() as context:
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.SNDHWM, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with Child("-c", VICTIM, "dealer", f"tcp://127.0.0.1:{port}") as dealer:
            assert dealer.line() == "connected"
            wait_for_peer(router, b"n1#1")
            for _ in range(10 * QUEUE_FRAMES_MAX):
                router.send_multipart([b"n1#1", bytes(1000)])
            router.close()
            assert outlives(dealer, 3 * HEARTBEAT_MS / 1000)
            assert end(dealer) == 0


def wait_for_peer(router: Socket, identity: bytes) -> None:
    """Return when something can be sent to ``identity``: its handshake is over."""
    ends = time.monotonic() + LONG_S
    while time.monotonic() < ends:
        with contextlib.suppress(zmq.ZMQError):  # No route to the host, so far.
            router.send_multipart([identity, b"first"])
            return
    raise AssertionError(f"{identity!r} did not connect")
