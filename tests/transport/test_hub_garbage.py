"""A hundred thousand frames of garbage at a live ROUTER, and as many at the decoder."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import TypeAlias

import psutil
import pytest
import zmq
from msgspec.structs import replace
from support.hub_station import AnsweringHub

from fencelock.actors.api.message import Acquire, Granted, LockStatus
from fencelock.actors.message import Address, Message
from fencelock.transport import client_queue
from fencelock.transport.admission import Dropped, FrameValidator
from fencelock.transport.cbor import MalformedFrameError, UndecodableError
from fencelock.transport.frame import (
    Envelope,
    Frame,
    Mismatch,
    Rejected,
    decode_frame,
    encode_frame,
)

Socket: TypeAlias = "zmq.Socket[bytes]"

PATIENCE_S = 60
"""Time that a test waits for an event before it fails (s); no event takes nearly as long."""

FRAMES = 100_000
GROWTH_BYTES_MAX = 64 << 20
"""Queues of a socket and what an allocator keeps; a leak of every frame would be far more."""

MESSAGES: tuple[Message, ...] = (
    Acquire(lock="orders/42", session="me", owner="o", request=1, wait_ms=5000),
    Granted(lock="orders/42", fence=1 << 40),
    LockStatus(lock="x", holder=None, waiters=(), waits_for=()),
    Rejected(code=Mismatch.VERSION, detail="no"),
)


def good(
    message: Message, cluster: str = "test", *, to: str = "*/proxy", sender: str = "me/session"
) -> bytes:
    envelope = Envelope(Address(to), Address(sender), message)
    return encode_frame(Frame(cluster, 0, 0, (envelope,)))


def garbage(random: Random, count: int) -> Iterator[bytes]:
    """Yield random bytes, and good frames with bytes changed, cut, repeated and joined."""
    seeds = [good(one, cluster) for one in MESSAGES for cluster in ("test", "other")]
    seeds.append(b"\x85\x02" + seeds[0][2:])
    seeds += [good(MESSAGES[0], to="n2/proxy"), good(MESSAGES[0], sender="you/session")]
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
def test_what_is_like_earlier_frames_is_judged_as_if_it_were_the_first(client: bool) -> None:
    experienced = FrameValidator("n1", "test", client=client)
    for one in MESSAGES:
        experienced.admit("me", good(one))
    outcomes: Counter[str] = Counter()
    random = Random(4)
    for raw in garbage(random, FRAMES // 5):
        link = random.choice(("me", "me", "me", "you", "n1"))
        judged = experienced.admit(link, raw)
        assert judged == FrameValidator("n1", "test", client=client).admit(link, raw)
        outcomes[judged.counter if isinstance(judged, Dropped) else "passed"] += 1
    assert outcomes["passed"] > 100
    assert len(outcomes) == 7, outcomes


def test_what_passed_on_one_link_is_spoofed_on_another() -> None:
    admission = FrameValidator("n1", "test", client=False)
    raw = good(MESSAGES[0])
    for _ in range(3):
        assert isinstance(admission.admit("me", raw), Frame)
        assert admission.admit("you", raw) == Dropped("wire.spoofed_sender")


class GrantingNode(AnsweringHub):
    """A bridge on a thread that answers every Acquire with a Granted."""

    def answers(self, to: Address, message: Message) -> list[Message]:
        del to
        if not isinstance(message, Acquire):
            return []
        return [Granted(lock=message.lock, fence=1, request=message.request)]


@pytest.fixture
def node() -> Iterator[GrantingNode]:
    one = GrantingNode()
    yield one
    one.close()


def dealer(context: zmq.Context[Socket], node: GrantingNode, identity: bytes) -> Socket:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTING_ID, identity)
    socket.connect(node.hub.endpoint)
    return socket


def served(socket: Socket, request: int) -> bool:
    """Ask for a lock, again while muted; return whether it was granted before patience ended."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        socket.send(good(Acquire(lock="a", session="me", request=request)))
        while socket.poll(100):
            ((_, _, message),) = decode_frame(socket.recv()).envelopes
            if message == Granted(lock="a", fence=1, request=request):
                return True
    return False


def is_decodable(raw: bytes) -> bool:
    """Return whether ``raw`` is valid CBOR; a sender of invalid CBOR is muted for a while."""
    try:
        decode_frame(raw)
    except UndecodableError:
        return False
    except MalformedFrameError:
        return True
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
    with zmq.Context() as context, dealer(context, node, b"me#1.1") as friend:
        assert served(friend, 1)
        with dealer(context, node, b"me#1.2") as enemy:
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
