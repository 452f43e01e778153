"""What libzmq holds of a connection is bounded in bytes, and its sender loses the connection."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import socket as tcp
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import zmq
from support.expect import present
from support.hub_station import PATIENCE_S, listening_hub

from fencelock.actors.api.message import Describe
from fencelock.actors.message import Address
from fencelock.transport import held_bytes, hub
from fencelock.transport.admission import CLIENT_BYTES_MAX
from fencelock.transport.frame import Envelope, Frame, encode_frame
from fencelock.transport.held_bytes import SLACK_BYTES, HeldBytes
from fencelock.transport.hub import SocketHub
from fencelock.transport.keys import LinkKey, ListedKeys

LIMIT = CLIENT_BYTES_MAX + SLACK_BYTES
MORE, LONG = 1, 2


class Scene:
    """A listening hub, turned by hand, and strangers that speak ZMTP by themselves."""

    def __init__(self, listen: str = "tcp://127.0.0.1:0") -> None:
        self.counters: Counter[str] = Counter()
        self.hub = listening_hub(self.counters, listen=listen)
        self.strangers: list[tcp.socket] = []
        self.arrived: Counter[str] = Counter()

    @property
    def held(self) -> HeldBytes:
        listener = present(self.hub._listener)
        return listener.held

    def turn(self) -> None:
        self.hub.poll(0)  # The looks come by processor time: an idle wait would delay them.
        self.hub.events()
        self.arrived.update(link for link, _ in self.hub.receive(100))

    def until(self, done: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < ends, (dict(self.counters), self.arrived)
            self.turn()

    def connection(self, source: str, timeout: float | None = None) -> tcp.socket:
        host, port = self.hub.endpoint.removeprefix("tcp://").rsplit(":", 1)
        one = tcp.create_connection((host.strip("[]"), int(port)), timeout, (source, 0))
        self.strangers.append(one)
        return one

    def stranger(self, name: str, source: str = "127.0.0.1") -> tcp.socket:
        """Return a connection that completed the handshake, and does not block."""
        one = self.connection(source)
        start = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        one.sendall(start)
        received = 0
        while received < len(start):
            received += len(one.recv(len(start) - received))
        routing_id = f"{name}#1".encode()
        ready = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
        ready += b"\x08Identity" + len(routing_id).to_bytes(4, "big") + routing_id
        one.sendall(b"\x04" + bytes([len(ready)]) + ready)
        one.setblocking(False)
        return one

    def close(self) -> None:
        self.hub.close()
        for one in self.strangers:
            one.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def whole(raw: bytes) -> bytes:
    """Return ``raw`` as a ZMTP frame that has one part."""
    if len(raw) <= held_bytes.SHORT_MAX:
        return bytes([0, len(raw)]) + raw
    return bytes([LONG]) + len(raw).to_bytes(8, "big") + raw


def describe(name: str, size: int = 0) -> bytes:
    message = Describe(session=name, request=1)
    envelope = Envelope(Address("n1/proxy"), Address(f"{name}/session"), message)
    return encode_frame(Frame("test", 0, 0, (envelope,) * max(1, size)))


def is_ended(one: tcp.socket) -> bool:
    with suppress(BlockingIOError):
        try:
            while one.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True
    return False


def sends_until_ended(scene: Scene, one: tcp.socket, raw: bytes) -> int:
    """Send ``raw`` again and again until the connection is ended; return the bytes sent."""
    sent, view, at = 0, memoryview(raw), 0
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        try:
            count = one.send(view[at:])
        except BlockingIOError:
            count = 0
        except OSError:
            return sent
        at = (at + count) % len(raw)
        sent += count
        scene.turn()
    raise AssertionError(dict(scene.counters))


@pytest.mark.parametrize("size", [0, 64])
def test_a_message_without_end_ends_its_connection_and_no_other(scene: Scene, size: int) -> None:
    honest = scene.stranger("honest")
    honest.sendall(whole(describe("honest")))
    scene.until(lambda: scene.arrived["honest"] == 1)

    part = bytes([MORE, size]) + bytes(size)
    attacker = scene.stranger("attacker")
    sends_until_ended(scene, attacker, part * 1024)
    scene.until(lambda: scene.counters["wire.held_closed"] == 1)

    honest.sendall(whole(describe("honest")))
    scene.until(lambda: scene.arrived["honest"] == 2)
    assert not is_ended(honest)


def test_a_message_without_end_just_above_the_limit_ends_its_connection(scene: Scene) -> None:
    attacker = scene.stranger("attacker")
    parts = bytes([MORE, 0]) * ((LIMIT + 4096) // 2)
    view = memoryview(parts)
    while view:
        with suppress(BlockingIOError):
            view = view[attacker.send(view) :]
        scene.turn()
    scene.until(lambda: is_ended(attacker))


def test_a_frame_of_several_parts_ends_its_connection(scene: Scene) -> None:
    attacker = scene.stranger("attacker")
    attacker.sendall(bytes([MORE, 0, 0, 0]))
    scene.until(lambda: is_ended(attacker))
    scene.until(lambda: scene.counters["wire.held_closed"] == 1)
    assert scene.counters["wire.malformed"] == 1


@pytest.mark.parametrize(("host", "source"), [("127.0.0.1", "127.0.0.2"), ("[::1]", "::1")])
def test_its_address_is_barred_for_a_moment_and_no_other(host: str, source: str) -> None:
    scene = Scene(f"tcp://{host}:0")
    try:
        attacker = scene.stranger("attacker", source)
        attacker.sendall(bytes([MORE, 0]) * 5_000 + bytes([0, 0]))
        scene.until(lambda: scene.counters["wire.address_barred"] == 1)
        with pytest.raises(TimeoutError):
            scene.connection(source, 0.05)
        if source == "127.0.0.2":
            honest = scene.stranger("honest")
            honest.sendall(whole(describe("honest")))
            scene.until(lambda: scene.arrived["honest"] == 1)

        def is_admitted() -> bool:
            with suppress(TimeoutError):
                return bool(scene.connection(source, 0.05))
            return False

        scene.until(is_admitted)
    finally:
        scene.close()


def test_what_others_of_that_address_hold_is_ended_with_it(scene: Scene) -> None:
    honest, other = scene.stranger("honest"), scene.stranger("other")
    scene.until(lambda: len(scene.held._watched) == 2)
    other.sendall(bytes([MORE, 0]) * held_bytes.LARGER_BYTES)
    watched = scene.held._watched.values()
    scene.until(lambda: any(one.held > held_bytes.LARGER_BYTES for one in list(watched)))
    scene.stranger("attacker").sendall(bytes([MORE, 0, 0, 0]))
    scene.until(lambda: is_ended(other))
    assert not is_ended(honest)


def test_a_client_that_sends_megabytes_of_frames_keeps_its_connection(scene: Scene) -> None:
    honest = scene.stranger("honest")
    raw = describe("honest", 250)
    view = memoryview(whole(raw) * 1000)
    assert len(view) > held_bytes.CLIENT_HELD_MAX
    while view:
        with suppress(BlockingIOError):
            view = view[honest.send(view[: 1 << 17]) :]
        scene.turn()
        assert not is_ended(honest)
    scene.until(lambda: scene.arrived["honest"] > 0)
    assert scene.counters["wire.held_closed"] == 0


def test_all_connections_together_hold_no_more_than_the_limit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_bytes, "HELD_MAX", 256 << 10)
    strangers = [scene.stranger(f"s{number}") for number in range(6)]
    for number, one in enumerate(strangers):
        view = memoryview(bytes([MORE, 0]) * (32_000 + 1_000 * number))
        while view:
            with suppress(BlockingIOError):
                view = view[one.send(view) :]
            scene.turn()
    scene.until(lambda: scene.counters["wire.held_closed"] >= 2)
    assert sum(map(is_ended, strangers)) <= 3


def test_a_node_that_waits_for_its_disk_still_ends_them(scene: Scene) -> None:
    """The listener's thread takes no turn: 4 MiB of one client are the limit then."""
    attacker = scene.stranger("attacker")
    scene.until(lambda: len(scene.held._watched) == 1)
    parts, sent, ends = bytes([MORE, 0]) * (1 << 16), 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        try:
            sent += attacker.send(parts)
        except BlockingIOError:
            scene.held._stops.wait(0.001)
        except OSError:
            break
    else:
        raise AssertionError(sent)
    assert sent > held_bytes.CLIENT_HELD_MAX


@pytest.mark.parametrize("keys", [False, True])
def test_the_bytes_of_frames_taken_are_exactly_those_of_the_wire(keys: bool) -> None:
    """Else an honest sender's frames would add up to what looks like a message without end."""
    counters: Counter[str] = Counter()
    key = listed = None
    if keys:
        server, secret = (one.decode() for one in zmq.curve_keypair())
        public, own = (one.decode() for one in zmq.curve_keypair())
        listed = ListedKeys(secret, {public: "me"})
        key = LinkKey(public, own, server)
    node = listening_hub(counters, listed=listed)
    client = listening_hub(
        Counter(), "me", listen=None, client=True, peers={"n1": node.endpoint}, key=key
    )
    listener = present(node._listener)
    try:
        sizes = [1, 2, 3, 200, 250]
        turns(node, client, lambda: bool(listener.held._watched) and link_up(client))
        for size in sizes:
            frame = Frame("test", 0, 0, (envelope("me"),) * size)
            before = sum(listener.held.taken.values())
            client.send("n1", frame)
            turns(node, client, lambda b=before: sum(listener.held.taken.values()) > b)  # type: ignore[misc]
        (one,) = listener.held._watched.values()
        read = held_bytes.counts_of(one.descriptor)[1]
        handshake = read - listener.held.taken[one.descriptor]
        assert 0 < handshake < 1024
        client.send("n1", Frame("test", 0, 0, (envelope("me"),) * 3))
        before = listener.held.taken[one.descriptor]
        turns(node, client, lambda: listener.held.taken[one.descriptor] > before)
        beats = held_bytes.counts_of(one.descriptor)[1] - listener.held.taken[one.descriptor]
        assert (beats - handshake) % (9 if not keys else 42) == 0
    finally:
        client.close()
        node.close()


def envelope(name: str) -> Envelope:
    return Envelope(
        Address("n1/proxy"), Address(f"{name}/session"), Describe(session=name, request=1)
    )


def link_up(client: SocketHub) -> bool:
    return all(link.up for link in client._links.values())


def turns(node: SocketHub, client: SocketHub, done: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < ends
        for one in (node, client):
            one.poll(0)
            one.events()
            one.receive(100)


def test_an_idle_link_sends_an_empty_frame_now_and_then(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "BEAT_S", 0.05)
    client = listening_hub(
        Counter(), "me", listen=None, client=True, peers={"n1": scene.hub.endpoint}
    )
    try:
        for frames in (1, 3):
            ends = time.monotonic() + PATIENCE_S
            while scene.arrived["me"] < frames:
                assert time.monotonic() < ends
                client.poll(5)
                client.events()
                scene.turn()
    finally:
        client.close()


def test_heartbeats_are_forgotten_once_a_frame_comes(scene: Scene) -> None:
    honest = scene.stranger("honest")
    ping = b"\x04\x07\x04PING\x00\x00"
    scene.until(lambda: len(scene.held._watched) == 1)
    (one,) = scene.held._watched.values()
    for _ in range(4):
        honest.sendall(ping * 100)
        scene.until(lambda: one.held > 800)
        ends = time.monotonic() + PATIENCE_S
        while one.held > 400:
            assert time.monotonic() < ends
            if one.mark_taken is not None:  # Else its bytes count as taken before the mark.
                honest.sendall(whole(describe("honest")))
            scene.turn()


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_sends_requests_and_reads_no_reply_loses_its_connection(
    scene: Scene, reads: bool
) -> None:
    one, raw = scene.stranger("deaf"), whole(describe("deaf"))
    one.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 2048)
    message = Describe(session="x" * 1_000, request=1)
    reply = Frame("test", 0, 0, (Envelope(Address("deaf/session"), Address("n1/proxy"), message),))
    ends = time.monotonic() + held_bytes.DEAF_S + 3 * held_bytes.UNREAD_LOOK_S
    sent = 0
    while time.monotonic() < ends and not scene.counters["wire.held_closed"]:
        if scene.arrived["deaf"] == sent:
            sent += 1
            with suppress(OSError):
                one.send(raw)
            if sent < 200 or reads:
                scene.hub.send("deaf", reply)
        scene.turn()
        if reads:
            with suppress(BlockingIOError):
                one.recv(1 << 16)
    assert scene.counters["wire.held_closed"] == (not reads)
    assert is_ended(one) == (not reads)


def test_a_client_that_reads_nothing_and_sends_nothing_keeps_its_connection_for_a_while(
    scene: Scene,
) -> None:
    """It may be paused, or cut off."""
    one = scene.stranger("paused")
    one.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 2048)
    one.send(whole(describe("paused")))
    scene.until(lambda: scene.arrived["paused"] == 1)
    message = Describe(session="x" * 40_000, request=1)
    address = Address("paused/session")
    scene.hub.send(
        "paused", Frame("test", 0, 0, (Envelope(address, Address("n1/proxy"), message),))
    )
    ends = time.monotonic() + held_bytes.DEAF_S + 3 * held_bytes.UNREAD_LOOK_S
    scene.until(lambda: time.monotonic() > ends)
    assert not scene.counters["wire.held_closed"]
    assert not is_ended(one)
