"""A client process of a measurement: ``python -m fencelock.verification.bench.worker JOB``.

It prints a line of JSON when it is ready, begins when it reads a line, and prints its result as
a line. Where there is no natural end, a second line ends it. When standard input ends, the
process that started it is gone, and it ends too.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import zmq

from fencelock.verification.bench import load
from fencelock.verification.bench.job import Job, JobKind, read_job

FRAME = bytes(100)
"""A frame about as long as the frame of one acquire."""

ROUND_TRIP_MS_MAX = 10_000
"""Timeout of a round trip (ms), which takes well below a millisecond."""

WARM_TRIPS = 200


def main() -> None:
    """Do the one job. An error ends the process, and its text is on standard error."""
    job = read_job(sys.argv[1])
    match job.kind:
        case JobKind.ECHO:
            _echo()
        case JobKind.PING:
            _begin()
            _say(_ping(job))
        case JobKind.TASKS:
            _say(asyncio.run(load.tasks(job, _begin)))
        case JobKind.FOLLOW:
            _say(asyncio.run(load.follow(job, _begin)))
        case JobKind.HOLD:
            _say(asyncio.run(load.hold(job, _say, sys.stdin.readline)))
        case JobKind.MIXED:
            from fencelock.verification.bench.mixed import mixed  # noqa: PLC0415 (as above)

            _say(mixed(job, _begin, _say))
        case JobKind.PROFILE:
            _say(load.marked_pairs(job, _begin))
        case _:
            _say(_with_threads(job))


def _with_threads(job: Job) -> object:
    with load.connect(job) as client:
        _begin()
        if job.kind is JobKind.WATCH:
            return load.watch(client, job, sys.stdin.readline)
        return BLOCKING.get(job.kind, load.rate)(client, job)


BLOCKING = {
    JobKind.PAIR: load.pair,
    JobKind.TURNS: load.turns,
    JobKind.RETAIN: load.retained_memory,
    JobKind.READ: load.read,
}
"""The other jobs of threads with the blocking API, except the usual one."""


def _echo() -> None:
    """Report the address, then echo frames until standard input has a line, or ends.

    A bare ROUTER and a bare DEALER in two processes show the cost of the sockets.
    """
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        _say({"address": f"tcp://127.0.0.1:{port}"})
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if sys.stdin.fileno() in ready:
                sys.stdin.readline()
                router.close(linger=0)
                return
            _send_back(router)


def _ping(job: Job) -> dict[str, float]:
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
        return {**load.quantiles_us(took), "piped_per_s": _piped(dealer, job)}


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


def _begin() -> None:
    """Report that all is ready, and wait for the line that begins the measurement."""
    _say({})
    if not sys.stdin.readline():
        raise SystemExit("whoever started this process is gone")


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
