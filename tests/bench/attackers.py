"""Attacks of a stranger on nodes on loopback, each bounded; run by `attacks.py` and by tests.

Usage::

    python attackers.py ATTACK SECONDS CLUSTER ADDRESS...
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence

import cbor2
import zmq

BURST_BYTES = 100 << 20
"""Maximum number of bytes that an attack by size sends to each node."""

CONNECTIONS = 3_000
"""Idle connections to each node."""

CLUSTER = sys.argv[3] if len(sys.argv) > 3 else "demo"


def attacker(address: str, name: str, most: int = 64) -> zmq.Socket[bytes]:
    """Return a DEALER connected to ``address`` that queues at most ``most`` frames."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, f"{name}#{os.getpid()}".encode())
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.SNDHWM, most)
    dealer.connect(address)
    return dealer


def frame(*envelopes: Sequence[object]) -> bytes:
    """Return a frame for this cluster."""
    return cbor2.dumps([1, CLUSTER, 0, 0, [list(one) for one in envelopes]])


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


def nested(addresses: list[str], seconds: float) -> None:
    """Send 100 MiB of empty arrays in arrays, 1 MiB a frame."""
    flood(addresses, [nested_arrays(1 << 20)], BURST_BYTES, seconds)


def nested_small(addresses: list[str], seconds: float) -> None:
    """Send 100 MiB of empty arrays in arrays, in frames as large as a client's may be."""
    flood(addresses, [nested_arrays(64_000)], BURST_BYTES, seconds)


def describes(count: int) -> bytes:
    """Return a frame of ``count`` requests for a description."""
    return frame(*(("*/proxy", "attacker-0/x", 0x14, "attacker-0", n + 1) for n in range(count)))


def describe_4096(addresses: list[str], seconds: float) -> None:
    """Send frames of 4,096 requests for a description."""
    flood(addresses[:1], [describes(4096)], 2 << 20, seconds)


def describe_256(addresses: list[str], seconds: float) -> None:
    """Send frames that each carry 256 `Describe` requests, the maximum for a client's frame."""
    flood(addresses[:1], [describes(256)], 2 << 20, seconds)


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
            host, port = address.removeprefix("tcp://").rsplit(":", 1)
            with contextlib.suppress(OSError):
                one = socket.create_connection((host, int(port)), timeout=0.2)
                kept.append(one)
                one.sendall(greeting(f"idle-{number}#1"))
        if time.monotonic() > ends:
            break
    while time.monotonic() < ends:
        time.sleep(0.05)


ATTACKS: dict[str, Callable[[list[str], float], None]] = {
    "nested": nested,
    "nested-small": nested_small,
    "describe-4096": describe_4096,
    "describe-256": describe_256,
    "garbage": garbage,
    "idle": idle,
}


def main() -> None:
    """Run one attack."""
    name, seconds, _, *addresses = sys.argv[1:]
    os.nice(19)
    ATTACKS[name](addresses, float(seconds))
    os._exit(0)  # Nothing that is queued needs to be sent.


if __name__ == "__main__":
    main()
