"""The limits of the machine itself: a bare ROUTER/DEALER ping-pong, and a small synced append.

Run as a program it is the ROUTER that sends everything back: ``compare_wire.py ENDPOINT``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import zmq
from peers.servers import bound_to_us

from fencelock.cluster.testing.ports import free_ports

BYTES = 100
"""About the size of a lock request on the wire."""
APPEND_BYTES = 256
WARM_S = 0.3
WAIT_MS = 10_000


def ping_pong(seconds: float) -> dict[str, float]:
    """Measure one client that sends 100 bytes to another process and waits for their return.

    Returns:
        ``per_s`` and ``p50_us``.

    Raises:
        RuntimeError: nothing came back for 10 s.

    """
    endpoint = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    command = bound_to_us([sys.executable, str(Path(__file__).resolve()), endpoint])
    context: zmq.Context[Any] = zmq.Context()
    with subprocess.Popen(command, start_new_session=True) as echo, context:
        dealer = context.socket(zmq.DEALER)
        dealer.linger, dealer.rcvtimeo = 0, WAIT_MS
        try:
            dealer.connect(endpoint)
            _trips(dealer, WARM_S)
            trips = _trips(dealer, seconds)
        except zmq.Again:
            raise RuntimeError("the bare ping-pong does not come back") from None
        finally:
            dealer.close()
            echo.kill()
    return {"per_s": len(trips) / seconds, "p50_us": statistics.median(trips) / 1000}


def sync_us(folder: Path, seconds: float) -> float:
    """Return the median time of a 256 byte append and its ``fdatasync`` in ``folder`` (us)."""
    times: list[int] = []
    with (folder / "synced").open("wb", buffering=0) as file:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.perf_counter_ns()
            file.write(bytes(APPEND_BYTES))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1000


def _trips(dealer: zmq.Socket[bytes], seconds: float) -> list[int]:
    trips: list[int] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.perf_counter_ns()
        dealer.send(bytes(BYTES))
        dealer.recv()
        trips.append(time.perf_counter_ns() - began)
    return trips


def main() -> None:
    """Send back all received frames, forever."""
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(sys.argv[1])
    while True:
        router.send_multipart(router.recv_multipart())


if __name__ == "__main__":
    main()
