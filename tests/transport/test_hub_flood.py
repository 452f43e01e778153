"""A peer that sends more than is read, and dies, ends its connection and nothing else."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import zmq

from fencelock.transport.sockets import HEARTBEAT_MS, QUEUE_FRAMES_MAX

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


def victim(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", VICTIM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def outlives(process: subprocess.Popen[str], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def flood(socket: zmq.Socket[bytes], prefix: list[bytes]) -> None:
    """Send until both sides are full: for a moment nothing more can be sent."""
    ends = time.monotonic() + LONG_S
    while time.monotonic() < ends:
        if not socket.poll(200, zmq.POLLOUT):
            return
        socket.send_multipart([*prefix, bytes(1000)], zmq.NOBLOCK)


def end(process: subprocess.Popen[str]) -> int:
    process.communicate("\n", timeout=LONG_S)
    return process.returncode


def test_a_router_outlives_a_peer_that_floods_it_and_breaks_the_connection() -> None:
    with victim("router") as router, zmq.Context() as context:
        assert router.stdout is not None
        endpoint = router.stdout.readline().strip()
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDHWM, 10)
        dealer.connect(endpoint)
        flood(dealer, [])
        dealer.close()  # With frames unread, so that the connection is reset.
        assert outlives(router, 3 * HEARTBEAT_MS / 1000)
        assert end(router) == 0


def test_a_dealer_outlives_a_peer_that_floods_it_and_breaks_the_connection() -> None:
    with zmq.Context() as context:
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.SNDHWM, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with victim("dealer", f"tcp://127.0.0.1:{port}") as dealer:
            assert dealer.stdout is not None
            assert dealer.stdout.readline() == "connected\n"
            wait_for_peer(router, b"n1#1")
            for _ in range(10 * QUEUE_FRAMES_MAX):
                router.send_multipart([b"n1#1", bytes(1000)])
            router.close()
            assert outlives(dealer, 3 * HEARTBEAT_MS / 1000)
            assert end(dealer) == 0


def wait_for_peer(router: zmq.Socket[bytes], identity: bytes) -> None:
    """Return when something can be sent to ``identity``: its handshake is over."""
    ends = time.monotonic() + LONG_S
    while time.monotonic() < ends:
        with contextlib.suppress(zmq.ZMQError):  # No route to the host, so far.
            router.send_multipart([identity, b"first"])
            return
    raise AssertionError(f"{identity!r} did not connect")
