"""What libzmq holds of a connection is bounded in bytes, and its sender loses the connection."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
import socket as tcp
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
import zmq
from support.collected import Lines
from support.expect import PATIENCE_S, present
from support.hub_station import Make, Station, describe, is_ended, until

from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.message import Address
from fencelock.transport import held_bytes, hub
from fencelock.transport.admission import CLIENT_FRAME_BYTES_MAX
from fencelock.transport.connections import Connection
from fencelock.transport.frame import Envelope, Frame
from fencelock.transport.held_bytes import SLACK_BYTES, HeldBytes
from fencelock.transport.keys import LinkKey, ListedKeys

LIMIT = CLIENT_FRAME_BYTES_MAX + SLACK_BYTES
MORE, LONG = 1, 2


@pytest.fixture
def node(station: Make) -> Station:
    # The looks come by processor time: an idle wait would delay them.
    return station("n1", wait_ms=0)


def held(node: Station) -> HeldBytes:
    return present(node.hub._listener).held


def connections(node: Station) -> list[Connection]:
    return [*present(node.hub._listener).connections.open.values()]


def taken(node: Station) -> int:
    """Return the bytes of the frames that were taken over all connections."""
    return sum(one.taken for one in connections(node))


def is_silent(node: Station) -> bool:
    """Return whether some connection is that of a silent client."""
    return any(one.silent for one in connections(node))


def whole(raw: bytes) -> bytes:
    """Return ``raw`` as a ZMTP frame that has one part."""
    if len(raw) <= held_bytes.SHORT_MAX:
        return bytes([0, len(raw)]) + raw
    return bytes([LONG]) + len(raw).to_bytes(8, "big") + raw


def sends_until_ended(node: Station, one: tcp.socket, raw: bytes) -> int:
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
        node.turn()
    raise AssertionError(dict(node.counters))


def sends_all(node: Station, one: tcp.socket, raw: bytes) -> None:
    view = memoryview(raw)
    while view:
        with suppress(BlockingIOError):
            view = view[one.send(view) :]
        node.turn()


def sends_whole_frame(node: Station, one: tcp.socket, name: str) -> None:
    """Send a frame of the client ``name``; return when the node has taken it."""
    before = node.came[name]
    one.sendall(whole(describe(name)))
    until(lambda: node.came[name] == before + 1, node)


@pytest.mark.parametrize("size", [0, 64])
def test_a_message_without_end_ends_its_connection_and_no_other(node: Station, size: int) -> None:
    honest = node.stranger("honest")
    sends_whole_frame(node, honest, "honest")

    part = bytes([MORE, size]) + bytes(size)
    attacker = node.stranger("attacker")
    sends_until_ended(node, attacker, part * 1024)
    until(lambda: node.counters["wire.held_closed"] == 1, node)

    sends_whole_frame(node, honest, "honest")
    assert not is_ended(honest)


def reasons(lines: Lines) -> list[str]:
    """Return why connections were ended, as the log says."""
    return [
        text.partition("latest from ")[2].partition(": ")[2]
        for _, _, text in lines.values
        if "too much memory" in text
    ]


def test_a_message_without_end_just_above_the_limit_ends_its_connection(
    node: Station, lines: Lines
) -> None:
    attacker = node.stranger("attacker")
    sends_all(node, attacker, bytes([MORE, 0]) * ((LIMIT + 4096) // 2))
    until(lambda: is_ended(attacker), node)
    until(lambda: reasons(lines), node)
    most, sent = LIMIT - held_bytes.SLACK_BYTES >> 10, (LIMIT + 4096) >> 10
    text = f"it sent {sent} KiB of one message without its end; a frame has one part of at most "
    assert reasons(lines) == [f"{text}{most} KiB"]


def test_a_frame_of_several_parts_ends_its_connection(node: Station, lines: Lines) -> None:
    attacker = node.stranger("attacker")
    text = "closed 1 connections that took too much memory, the latest from"
    attacker.sendall(bytes([MORE, 0, 0, 0]))
    until(lambda: is_ended(attacker), node)
    until(lambda: node.counters["wire.held_closed"] == 1, node)
    assert node.counters["wire.malformed"] == 1
    (line,) = lines.values
    host, port = attacker.getsockname()
    why = "it sent a frame of several parts"
    assert line[2] == f"{node.hub.endpoint}: {text} {host}:{port}: {why}"


@pytest.mark.parametrize(("host", "source"), [("127.0.0.1", "127.0.0.2"), ("[::1]", "::1")])
def test_only_its_address_is_barred_for_a_moment(station: Make, host: str, source: str) -> None:
    node = station("n1", listen=f"tcp://{host}:0", wait_ms=0)
    attacker = node.stranger("attacker", source)
    attacker.sendall(bytes([MORE, 0]) * 5_000 + bytes([0, 0]))
    until(lambda: node.counters["wire.address_barred"] == 1, node)
    assert not node.admits(source)
    if source == "127.0.0.2":
        sends_whole_frame(node, node.stranger("honest"), "honest")
    until(lambda: node.admits(source), node)


def test_other_connections_of_that_address_are_ended_with_it(node: Station) -> None:
    honest, other = node.stranger("honest"), node.stranger("other")
    until(lambda: len(connections(node)) == 2, node)
    other.sendall(bytes([MORE, 0]) * held_bytes.LARGER_BYTES)
    until(lambda: any(one.held > held_bytes.LARGER_BYTES for one in connections(node)), node)
    node.stranger("attacker").sendall(bytes([MORE, 0, 0, 0]))
    until(lambda: is_ended(other), node)
    assert not is_ended(honest)


def test_a_client_that_sends_megabytes_of_frames_keeps_its_connection(node: Station) -> None:
    honest = node.stranger("honest")
    raw = describe("honest", 250)
    view = memoryview(whole(raw) * 2000)
    assert len(view) > held_bytes.CLIENT_HELD_MAX
    sent = 0
    while sent < len(view):  # Part of it at a time: a slow node would find the limit at once.
        if sent - taken(node) < held_bytes.CLIENT_HELD_MAX // 2:
            with suppress(BlockingIOError):
                sent += honest.send(view[sent : sent + (1 << 17)])
        node.turn()
        node.arrivals.clear()
        assert not is_ended(honest)
    until(lambda: node.came["honest"] > 0, node)
    assert node.counters["wire.held_closed"] == 0


def test_all_connections_together_hold_no_more_than_the_limit(
    node: Station, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    monkeypatch.setattr(held_bytes, "HELD_MAX", 256 << 10)
    strangers = [node.stranger(f"s{number}") for number in range(6)]
    for number, one in enumerate(strangers):
        sends_all(node, one, bytes([MORE, 0]) * (32_000 + 1_000 * number))
    until(lambda: node.counters["wire.held_closed"] >= 2, node)
    assert sum(map(is_ended, strangers)) <= 3
    (first, *_) = reasons(lines)
    wait = r"0 MiB of all connections wait, the limit is 16 MiB, and \d+ KiB of it"
    assert re.fullmatch(wait, first)


def test_a_node_that_waits_for_its_disk_still_ends_them(node: Station) -> None:
    """The listener's thread takes no turn: 4 MiB of one client are the limit then."""
    attacker = node.stranger("attacker")
    until(lambda: len(connections(node)) == 1, node)
    parts, sent, ends = bytes([MORE, 0]) * (1 << 16), 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        try:
            sent += attacker.send(parts)
        except BlockingIOError:
            held(node)._stops.wait(0.001)
        except OSError:
            break
    else:
        raise AssertionError(sent)
    assert sent > held_bytes.CLIENT_HELD_MAX


REQUEST = Describe(session="me", request=1)
ENVELOPE = Envelope(Address("n1/proxy"), Address("me/session"), REQUEST)


@pytest.mark.parametrize("keys", [False, True])
def test_the_bytes_of_frames_taken_are_exactly_those_of_the_wire(station: Make, keys: bool) -> None:
    """Else an honest sender's frames would add up to what looks like a message without end."""
    key = listed = None
    if keys:
        server, secret = (one.decode() for one in zmq.curve_keypair())
        public, own = (one.decode() for one in zmq.curve_keypair())
        listed = ListedKeys(secret, {public: "me"})
        key = LinkKey(public, own, server)
    node = station("n1", listed=listed, wait_ms=0)
    peers = {"n1": node.hub.endpoint}
    client = station("me", peers, listen=None, client=True, key=key, wait_ms=0)
    until(lambda: connections(node) and client.up(), node, client)
    (one,) = connections(node)
    for size in (1, 2, 3, 200, 250):
        before = one.taken
        client.hub.send("n1", Frame("test", 0, 0, (ENVELOPE,) * size))
        until(lambda before=before: one.taken > before, node, client)  # type: ignore[misc]
    read = held_bytes.counts_of(one.descriptor)[1]
    handshake = read - one.taken
    assert 0 < handshake < 1024
    client.hub.send("n1", Frame("test", 0, 0, (ENVELOPE,) * 3))
    before = one.taken
    until(lambda: one.taken > before, node, client)
    beats = held_bytes.counts_of(one.descriptor)[1] - one.taken
    assert (beats - handshake) % (9 if not keys else 42) == 0


def test_an_idle_link_sends_an_empty_frame_now_and_then(
    node: Station, station: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "BEAT_S", 0.05)
    peers = {"n1": node.hub.endpoint}
    client = station("me", peers, listen=None, client=True, wait_ms=5)
    for frames in (1, 3):
        until(lambda frames=frames: node.came["me"] >= frames, client, node)  # type: ignore[misc]


def test_heartbeats_are_forgotten_once_a_frame_comes(node: Station) -> None:
    honest = node.stranger("honest")
    ping = b"\x04\x07\x04PING\x00\x00"
    until(lambda: len(connections(node)) == 1, node)
    (one,) = connections(node)
    for _ in range(4):
        honest.sendall(ping * 100)
        until(lambda: one.held > 800, node)
        ends = time.monotonic() + PATIENCE_S
        while one.held > 400:
            assert time.monotonic() < ends
            if one.mark_taken is not None:  # Else its bytes count as taken before the mark.
                honest.sendall(whole(describe("honest")))
            node.turn()


def reply(name: str, size: int) -> Frame:
    """Return a frame to the client ``name`` of a little more than ``size`` (bytes)."""
    message = Describe(session="x" * size, request=1)
    envelope = Envelope(Address(f"{name}/session"), Address("n1/proxy"), message)
    return Frame("test", 0, 0, (envelope,))


def exchange(
    node: Station,
    one: tcp.socket,
    name: str,
    *,
    reads: bool,
    ends: float,
    done: Callable[[], object],
) -> None:
    """Let a client send, and the node reply, until ``done`` or ``ends`` (s)."""
    one.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 2048)
    raw = whole(describe(name))
    sent = 0
    while time.monotonic() < ends and not done():
        if node.came[name] == sent:
            sent += 1
            with suppress(OSError):
                one.send(raw)
            if sent < 200 or reads:
                node.hub.send(name, reply(name, 1_000))
        node.turn()
        if reads:
            with suppress(BlockingIOError):
                one.recv(1 << 16)


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_reads_no_reply_loses_its_connection(
    node: Station, lines: Lines, reads: bool
) -> None:
    one, ends = node.stranger("deaf"), time.monotonic() + held_bytes.DEAF_S + 1.5
    closed = partial(node.counters.__getitem__, "wire.held_closed")
    exchange(node, one, "deaf", reads=reads, ends=ends, done=closed)
    assert node.counters["wire.held_closed"] == (not reads)
    assert is_ended(one) == (not reads)
    why = r"it read nothing for 1 s, in which it sent \d+ KiB; \d+ KiB wait"
    assert [re.fullmatch(why, text) is not None for text in reasons(lines)] == [True] * (not reads)


def make_silent(
    node: Station, *, reads: bool = False, seconds: float = PATIENCE_S, idle_s: float = 0
) -> tcp.socket:
    """Let a client send until it is silent, or for so long; return its side."""
    one, begins = node.stranger("silent"), time.monotonic() + idle_s
    until(lambda: time.monotonic() >= begins, node)
    ends = time.monotonic() + seconds
    exchange(node, one, "silent", reads=reads, ends=ends, done=lambda: is_silent(node))
    return one


def test_a_client_that_reads_its_replies_is_not_silent(node: Station) -> None:
    make_silent(node, reads=True, seconds=3 * held_bytes.SILENT_S)
    assert not is_silent(node)


def test_silence_counts_from_when_there_is_something_to_read(
    node: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was idle acknowledged nothing for long; its kernel may take 40 ms for that."""
    monkeypatch.setattr(held_bytes, "SILENT_S", 1.0)
    counts = held_bytes.counts_of

    def unacknowledged(descriptor: int) -> tuple[int, int]:
        return 0, counts(descriptor)[1]

    monkeypatch.setattr(held_bytes, "counts_of", unacknowledged)
    make_silent(node, seconds=0.6, idle_s=1.2)
    assert held(node)._readers
    assert not is_silent(node)


def test_a_client_that_sends_and_reads_no_reply_is_silent_before_it_is_deaf(
    node: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_bytes, "DEAF_S", PATIENCE_S)
    one = make_silent(node)
    assert is_silent(node)

    def read() -> None:
        with suppress(BlockingIOError):
            one.recv(1 << 16)

    until(lambda: not is_silent(node), node, again=read)


def test_a_closed_connection_is_not_silent(node: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor may soon be an honest client's."""
    monkeypatch.setattr(held_bytes, "SILENT_S", 0.0)
    make_silent(node).close()
    until(lambda: not connections(node), node)
    assert not is_silent(node)


def test_a_client_that_reads_and_sends_nothing_keeps_its_connection_a_while(node: Station) -> None:
    """It may be paused, or cut off."""
    one = node.stranger("paused")
    one.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 2048)
    sends_whole_frame(node, one, "paused")
    node.hub.send("paused", reply("paused", 40_000))
    ends = time.monotonic() + held_bytes.DEAF_S + 1.5
    until(lambda: time.monotonic() > ends, node)
    assert not node.counters["wire.held_closed"]
    assert not is_ended(one)


@pytest.mark.parametrize("judged", [False, True])
def test_frames_that_come_and_are_taken_during_a_look_are_not_held_after_it(
    judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the thread may pause between counting what was read and what was taken."""
    counted = Counter[str]()
    bytes_held = HeldBytes(
        "tcp://127.0.0.1:1", lambda: None, lambda name, _: counted.update([name]), curve=False
    )
    bytes_held.close()
    read, size = 0, 2 * LIMIT

    def count(descriptor: int) -> tuple[int, int]:
        return 0, read

    def frames_come_and_are_taken() -> None:
        nonlocal read
        read += size
        one.taken += size
        bytes_held.empties += 2

    def count_and_stop(descriptor: int) -> tuple[int, int]:
        found = count(descriptor)
        monkeypatch.setattr(held_bytes, "counts_of", count)
        frames_come_and_are_taken()
        return found

    monkeypatch.setattr(held_bytes, "counts_of", count if judged else count_and_stop)
    one = Connection(7, ("127.0.0.1", 1))
    if judged:
        read = size  # Of frames that are whole, and not taken yet.
    bytes_held._look(one)
    if judged:
        one.taken += size
        frames_come_and_are_taken()
        bytes_held._judge()
    bytes_held._look(one)
    for _ in range(3):
        bytes_held.empties += 2
        bytes_held._judge()
    bytes_held.tend()
    assert not counted
    assert one.held == 0
