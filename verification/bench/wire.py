"""A bare ROUTER and a bare DEALER in two processes: the cost of the sockets on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import zmq

from fencelock.verification.bench.job import Job
from fencelock.verification.bench.load import quantiles_us

FRAME = bytes(100)
"""A frame about as long as the frame of one acquire."""

ROUND_TRIP_MS_MAX = 10_000
"""Timeout of a round trip (ms), which takes well below a millisecond."""

WARM_TRIPS = 200


def echo(say: Callable[[dict[str, object]], None]) -> dict[str, object]:
    """Report the address, then echo frames until standard input has a line, or ends."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        say({"address": f"tcp://127.0.0.1:{port}"})
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if sys.stdin.fileno() in ready:
                sys.stdin.readline()
                router.close(linger=0)
                return {}
            _send_back(router)


def ping(job: Job) -> dict[str, float]:
    """Make round trips one at a time, and with ``job.at_once`` in flight, half of the time each."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(job.address)
        for _ in range(WARM_TRIPS):
            _round_trip(dealer)
        took: list[float] = []
        ends = time.perf_counter() + job.seconds / 2
        while (began := time.perf_counter()) < ends or len(took) < 2:  # noqa: PLR2004 (quantiles)
            _round_trip(dealer)
            took.append(time.perf_counter() - began)
        return {**quantiles_us(took), "piped_per_s": _piped(dealer, job)}


def _send_back(router: zmq.Socket[bytes]) -> None:
    try:
        while True:
            router.send_multipart(router.recv_multipart(zmq.DONTWAIT))
    except zmq.Again:
        return


def _round_trip(dealer: zmq.Socket[bytes]) -> None:
    dealer.send(FRAME)
    _receive(dealer)


def _piped(dealer: zmq.Socket[bytes], job: Job) -> float:
    for _ in range(job.at_once):
        dealer.send(FRAME)
    trips, began = 0, time.perf_counter()
    while (now := time.perf_counter()) < began + job.seconds / 2:
        _receive(dealer)
        dealer.send(FRAME)
        trips += 1
    return trips / (now - began)


def _receive(dealer: zmq.Socket[bytes]) -> None:
    if not dealer.poll(ROUND_TRIP_MS_MAX):
        raise TimeoutError(f"the echo was silent for {ROUND_TRIP_MS_MAX} ms")
    dealer.recv()
