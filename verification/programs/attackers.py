"""Attacks of a stranger on nodes on loopback, each bounded; run by `attacks.py` and by tests.

The floods of `flood.py` are here too. They print what they did as a JSON object.

Usage::

    python attackers.py ATTACK SECONDS CLUSTER ADDRESS...
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import cbor2
import zmq

BURST_BYTES = 100 << 20
"""Maximum number of bytes that an attack by size sends to each node."""

CONNECTIONS = 3_000
"""Idle connections to each node."""

FLOOD_CONNECTIONS, FLOOD_SESSIONS, FLOOD_LOCKS = 10_000, 100_000, 60_000
"""The size of each flood."""

GREETING_BYTES = 64
"""The first step of ZMTP's handshake."""

SLOW_READERS = 16
"""Connections that ask for listings."""

PARTS_CONNECTIONS = 8
"""Connections to each node over which parts are sent."""

PARTS_BYTES = 256 << 10
"""Bytes of parts that are sent over one connection at a time."""

KEYED_CONNECTIONS = 24
"""Connections with a key over which parts are sent, to all nodes together."""

UNREAD_CONNECTIONS = 300
"""Connections over which replies are not read, to all nodes together."""

ATTACKER_HOST = "127.0.0.2"
"""The address of a flood's connections: another than that of the clients that are served."""

ASKED_AT_ONCE = 250
"""Requests in a frame of a flood."""

ACQUIRE, RELEASE, INSPECT, DESCRIBE, KEEP_ALIVE, REFUSED = 0x10, 0x11, 0x13, 0x14, 0x15, 0x1B
OPEN, OPENED, LIST_LOCKS, PROBE = 0x60, 0x61, 0x65, 0x7B

CLUSTER = sys.argv[3] if len(sys.argv) > 3 else "demo"

QUEUED_FEW: Mapping[int, int] = {zmq.SNDHWM: 64}
DEAF: Mapping[int, int] = {zmq.RCVHWM: 1, zmq.RCVBUF: 4096}
"""Options of connections that queue few frames, and of those that read nothing."""


def attacker(
    address: str,
    name: str,
    options: Mapping[int, int] = QUEUED_FEW,
    secure: Callable[[zmq.Socket[bytes]], object] = lambda dealer: None,
) -> zmq.Socket[bytes]:
    """Return a DEALER connected to ``address``, with ``options`` of ZeroMQ.

    ``secure`` gives it a key before.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, f"{name}#{os.getpid()}".encode())
    dealer.setsockopt(zmq.LINGER, 0)
    for option, value in options.items():
        dealer.setsockopt(option, value)
    secure(dealer)
    dealer.connect(address)
    return dealer


def frame(*sent: tuple[str, str, object], cluster: str = CLUSTER) -> bytes:
    """Return a frame of messages with their addresses, each message in an envelope of its own."""
    return cbor2.dumps([1, cluster, 0, 0, [[to, sender, [one]] for to, sender, one in sent]])


def nested_arrays(size: int) -> bytes:
    """Return a frame of about ``size`` bytes of which almost each is an empty array."""
    count = size - 32
    start = b"\x85\x01" + cbor2.dumps(CLUSTER) + b"\x00\x00"
    return start + b"\x9a" + count.to_bytes(4, "big") + b"\x80" * count


def flood(addresses: list[str], raws: Sequence[bytes], bytes_max: int, seconds: float) -> None:
    """Send ``raws`` in turn to every node, as fast as the nodes take them."""
    sockets = [attacker(address, f"attacker-{n}") for n, address in enumerate(addresses)]
    ends, sent, number = time.monotonic() + seconds, 0, 0
    while time.monotonic() < ends and sent < bytes_max * len(addresses):
        raw = raws[number % len(raws)]
        number += 1
        busy = True
        for one in sockets:
            with contextlib.suppress(zmq.Again):
                one.send(raw, zmq.NOBLOCK)
                sent += len(raw)
                busy = False
        if busy:
            time.sleep(0.001)
    while time.monotonic() < ends:  # Queued frames keep arriving.
        time.sleep(0.01)


def nested(addresses: list[str], seconds: float, *, size: int) -> None:
    """Send 100 MiB of empty arrays in arrays, in frames of ``size`` bytes."""
    flood(addresses, [nested_arrays(size)], BURST_BYTES, seconds)


def describes(count: int) -> bytes:
    """Return a frame of ``count`` requests for a description."""
    return frame(*(("*/proxy", "attacker-0/x", [0x14, "attacker-0", n + 1]) for n in range(count)))


def many_describes(addresses: list[str], seconds: float, *, count: int) -> None:
    """Send frames of ``count`` requests for a description to one node."""
    flood(addresses[:1], [describes(count)], 2 << 20, seconds)


def garbage(addresses: list[str], seconds: float) -> None:
    """Send random bytes, and frames that break off."""
    whole = describes(16)
    raws = [os.urandom(size) for size in (1, 40, 400, 4_000, 40_000)]
    raws += [whole[:cut] for cut in range(1, len(whole), 37)]
    flood(addresses, raws, BURST_BYTES, seconds)


def greeting(name: str) -> bytes:
    """Return the first bytes of a ZMTP 3 DEALER, until it is ready."""
    start = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    ready += b"\x08Identity" + len(name).to_bytes(4, "big") + name.encode()
    return start + b"\x04" + bytes([len(ready)]) + ready


def idle(addresses: list[str], seconds: float) -> None:
    """Open thousands of connections that greet and then send nothing."""
    ends = time.monotonic() + seconds
    kept: list[socket.socket] = []
    for number in range(CONNECTIONS):
        for address in addresses:
            with contextlib.suppress(OSError):
                one = socket.create_connection(place_of(address), timeout=0.2)
                kept.append(one)
                one.sendall(greeting(f"idle-{number}#1"))
        if time.monotonic() > ends:
            break
    while time.monotonic() < ends:
        time.sleep(0.05)


def parts(
    addresses: list[str], seconds: float, *, size: int, most: int | None = None, member: str = ""
) -> None:
    """Send parts of ``size`` bytes with more to follow, over several connections to each node.

    A connection that is closed is made anew, under another routing id.

    A message has ``most`` parts, or no end if that is None. The connections use the id of
    ``member``, or without it a client's.
    """
    part = b"\x01" + bytes([size]) + bytes(size)
    count = PARTS_BYTES // len(part) if most is None else most
    burst = memoryview(part * count + (b"" if most is None else b"\x00\x00"))
    ends, number = time.monotonic() + seconds, 0
    links: dict[tuple[str, int], socket.socket] = {}
    sent: dict[tuple[str, int], int] = {}
    while time.monotonic() < ends:
        for lane in [(address, n) for address in addresses for n in range(PARTS_CONNECTIONS)]:
            try:
                if lane not in links:
                    number += 1
                    links[lane] = socket.create_connection(place_of(lane[0]), timeout=1.0)
                    sent[lane] = 0
                    handshake(links[lane], member or f"parts-{number}", str(number))
                    links[lane].setblocking(False)
                sent[lane] = (sent[lane] + links[lane].send(burst[sent[lane] :])) % len(burst)
            except BlockingIOError:
                continue
            except OSError:
                if lane in links:
                    links.pop(lane).close()


def place_of(address: str) -> tuple[str, int]:
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    return host, int(port)


def keyed_parts(addresses: list[str], seconds: float, *, count: int) -> None:
    """Send messages of ``count`` empty parts with the client key in `FENCELOCK_KEY`.

    libzmq sends a message once it is whole, and the node sees no end of it before that.
    """
    from fencelock.cluster.keys import client_key  # noqa: PLC0415 (others need no product)

    key = client_key(Path(os.environ["FENCELOCK_KEY"])).link
    options: dict[int, int] = {zmq.SNDHWM: 2, zmq.RECONNECT_IVL: 1}
    dealers = [
        attacker(addresses[number % len(addresses)], f"shop-{number}", options, key.secure)
        for number in range(KEYED_CONNECTIONS)
    ]
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for dealer in dealers:
            with contextlib.suppress(zmq.Again):
                dealer.send(b"", zmq.NOBLOCK | zmq.SNDMORE)
                for _ in range(count):
                    dealer.send(b"", zmq.SNDMORE)
                dealer.send(b"")


def unread(addresses: list[str], seconds: float) -> None:
    """Ask for descriptions over many connections, and read none of the replies."""
    ends = time.monotonic() + seconds
    links: list[tuple[socket.socket, bytes]] = []
    for lane in range(UNREAD_CONNECTIONS):
        with contextlib.suppress(OSError):
            name = f"unread-{lane:03}"
            request = frame(("*/proxy", f"{name}/x", [DESCRIBE, name, lane + 1, False]))
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.settimeout(1.0)
            one.connect(place_of(addresses[lane % len(addresses)]))
            handshake(one, name)
            one.setblocking(False)
            links.append((one, (bytes([0, len(request)]) + request) * 16))
    while time.monotonic() < ends:
        for one, burst in links:
            with contextlib.suppress(OSError):
                one.sendall(burst)
        time.sleep(0.005)


ATTACKS: dict[str, Callable[[list[str], float], None]] = {
    "nested": partial(nested, size=1 << 20),
    "nested-small": partial(nested, size=64_000),  # As large as a client's frame may be.
    "describe-4096": partial(many_describes, count=4_096),
    "describe-256": partial(many_describes, count=256),  # The most that a client's frame may have.
    "garbage": garbage,
    "idle": idle,
    "parts-empty": partial(parts, size=0),
    "parts-64": partial(parts, size=64),
    "parts-ended": partial(parts, size=0, most=50_000),
    "parts-of-member": partial(parts, size=0, member="n2"),
    "keyed-endless": partial(keyed_parts, count=300_000),  # Without end, as far as a node sees.
    "keyed-ended": partial(keyed_parts, count=1_500),  # Within the limit of bytes.
    "unread": unread,
}


class Asker:
    """A client that sends requests as fast as they are answered, in a session of its own.

    Args:
        name: the client's id.
        window: requests that are unanswered at a time.
        at_once: requests in a frame.

    Attributes:
        done: number of requests answered by anything but a refusal.
        refused: number of requests refused, by reason.

    """

    def __init__(
        self,
        address: str,
        name: str,
        window: int = 1024,
        at_once: int = ASKED_AT_ONCE,
        cluster: str = CLUSTER,
    ) -> None:
        self.name, self.cluster = name, cluster
        self.at_once = at_once
        self.socket = attacker(address, name, {})
        self.window = window
        self.sent = self.done = 0
        self.refused: dict[int, int] = {}
        self.session = ""

    def send(self, messages: Sequence[Sequence[object]]) -> bool:
        """Send ``messages`` in one frame; return False if the connection takes no more."""
        envelopes = (("*/proxy", f"{self.name}/x", one) for one in messages)
        raw = frame(*envelopes, cluster=self.cluster)
        try:
            self.socket.send(raw, zmq.NOBLOCK)
        except zmq.Again:
            return False
        self.sent += len(messages)
        return True

    def receive(self, wait_ms: int) -> None:
        """Count the replies that have come, after waiting for the first."""
        while self.socket.poll(wait_ms):
            wait_ms = 0
            envelopes = cbor2.loads(self.socket.recv())[4]
            for tag, *fields in (message for _, _, several in envelopes for message in several):
                if tag == REFUSED:
                    self.refused[fields[4]] = self.refused.get(fields[4], 0) + 1
                elif tag == OPENED:
                    self.done += 1
                    self.session = fields[2]
                else:
                    self.done += 1

    @property
    def unanswered(self) -> int:
        return self.sent - self.done - sum(self.refused.values())

    def open(self, ttl_ms: int = 60_000) -> None:
        while not self.session:
            self.send([(OPEN, self.name, 1, ttl_ms, "")])
            self.receive(500)

    def ask(self, make: Callable[[int], Sequence[object]], most: int, ends: float) -> None:
        """Send up to ``most`` requests that ``make`` returns by number, until ``ends`` (s)."""
        made = 0
        while made < most and time.monotonic() < ends:
            room = min(self.at_once, most - made)
            if self.unanswered + room > self.window:
                before = self.unanswered
                self.receive(200)
                if self.unanswered == before:  # They were dropped: the rest counts as asked.
                    self.window += room
                continue
            if self.send([make(number) for number in range(made + 2, made + 2 + room)]):
                made += room
            else:
                self.receive(5)
        while self.unanswered and time.monotonic() < ends:
            self.receive(100)


def asked(one: Asker) -> dict[str, object]:
    return {"asked": one.sent, "done": one.done, "refused": one.refused}


def handshake(one: socket.socket, name: str, boot: str = "1") -> None:
    """Greet as a DEALER, and send one request once the node has greeted."""
    steps, received = greeting(f"{name}#{boot}"), 0
    request = frame(("*/proxy", f"{name}/x", [KEEP_ALIVE, name, 1]))
    one.sendall(steps[:GREETING_BYTES])
    while received < GREETING_BYTES:
        received += len(one.recv(4096)) or GREETING_BYTES
    one.sendall(steps[GREETING_BYTES:] + bytes([0, len(request)]) + request)


def connections(addresses: list[str], seconds: float) -> dict[str, object]:
    """Open 10,000 connections to the first node, and send one request over each."""
    ends = time.monotonic() + seconds
    kept: list[socket.socket] = []
    for number in range(FLOOD_CONNECTIONS):
        with contextlib.suppress(OSError):
            one = socket.create_connection(place_of(addresses[0]), 1.0, (ATTACKER_HOST, 0))
            handshake(one, f"one-{number}")
            kept.append(one)
        if time.monotonic() > ends:
            break
    opened = len(kept)
    time.sleep(max(0.0, ends - time.monotonic()))
    return {"opened": opened, "open at the end": sum(map(is_open, kept))}


def is_open(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while one.recv(65_536):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


def frames(addresses: list[str], seconds: float) -> dict[str, object]:
    """Send small requests of several kinds to the first node, as fast as it takes them."""
    client = Asker(addresses[0], "frames")
    client.open()
    ends, number, sent = time.monotonic() + seconds, 2, 0
    began = time.monotonic()
    while time.monotonic() < ends:
        raws: list[bytes] = []
        for _ in range(50):
            number += 5
            acquire = (ACQUIRE, client.session, number, "o", "flood", 0, 1, "", 0, 0)
            release = (RELEASE, client.session, number + 1, "o", number, "flood")
            inspect = (INSPECT, client.session, number + 2, "flood", None)
            keep = (KEEP_ALIVE, client.session, number + 3)
            probe = (PROBE, client.session, number + 4)
            for one in (acquire, release, inspect, keep, probe):
                raws.append(frame(("*/proxy", f"{client.name}/x", one)))
        for raw in raws * 4:
            try:
                client.socket.send(raw, zmq.NOBLOCK)
                sent += 1
            except zmq.Again:
                time.sleep(0.0005)
        with contextlib.suppress(zmq.Again):
            while True:
                client.socket.recv(zmq.NOBLOCK)
    return {"frames a second": round(sent / (time.monotonic() - began))}


def slow_reader(addresses: list[str], seconds: float) -> dict[str, object]:
    """Ask for long listings over several connections, and read nothing."""
    ends = time.monotonic() + seconds
    holder = Asker(addresses[0], "holder", at_once=50)  # A frame has at most 72 KiB.
    holder.open()
    session, label = holder.session, "l" * 250
    names = [f"{number:04}".ljust(250, "x") for number in range(1_000)]

    def acquire(number: int) -> Sequence[object]:
        name = names[(number - 2) % len(names)]
        return (ACQUIRE, session, number, "o" * 200, name, 0, 1, label, 0, 0)

    holder.ask(acquire, len(names), ends)
    readers = [attacker(addresses[0], f"slow-{number}", DEAF) for number in range(SLOW_READERS)]
    number = sent = 0
    while time.monotonic() < ends:
        for at, one in enumerate(readers):
            number += 1
            listing = (LIST_LOCKS, "", "", 1000, f"slow-{at}", number, None)
            with contextlib.suppress(zmq.Again):
                one.send(frame(("*/proxy", f"slow-{at}/x", listing)), zmq.NOBLOCK)
                sent += 1
        time.sleep(0.001)
    return {"listings asked": sent, "readers": SLOW_READERS}


def sessions(addresses: list[str], seconds: float) -> dict[str, object]:
    client = Asker(addresses[0], "opener")
    day = 24 * 3_600_000
    client.ask(
        lambda number: (OPEN, f"opener~{number}", number, day, ""),
        FLOOD_SESSIONS,
        time.monotonic() + seconds,
    )
    return asked(client)


def locks(addresses: list[str], seconds: float) -> dict[str, object]:
    client = Asker(addresses[0], "taker")
    client.open()
    session = client.session
    client.ask(
        lambda number: (ACQUIRE, session, number, "o", f"lock-{number}", 0, 1, "", 0, 0),
        FLOOD_LOCKS,
        time.monotonic() + seconds,
    )
    return asked(client)


FLOODS: dict[str, Callable[[list[str], float], dict[str, object]]] = {
    "connections": connections,
    "frames": frames,
    "slow-reader": slow_reader,
    "sessions": sessions,
    "locks": locks,
}


def main() -> None:
    name, seconds, _, *addresses = sys.argv[1:]
    os.nice(19)
    if name in FLOODS:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        print(json.dumps(FLOODS[name](addresses, float(seconds))), flush=True)
        os._exit(0)
    ATTACKS[name](addresses, float(seconds))
    os._exit(0)  # Nothing that is queued needs to be sent.


if __name__ == "__main__":
    main()
