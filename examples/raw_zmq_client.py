"""A holdfast client from the description of the wire alone: pyzmq, cbor2, nothing else.

Takes a lock at one node, prints its fence, gives it back. `transport/README.md` explains
every byte that is sent here; this file is meant to be translated into other languages.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
import time
from typing import Any

import cbor2
import zmq

VERSION = 1
ACQUIRE, RELEASE, GRANTED, RELEASED, REFUSED, REJECTED = 0x10, 0x11, 0x18, 0x19, 0x1B, 0x70
RESEND_S = 1.0
"""A request without an answer is sent again this often, under the same request number."""


class Client:
    """One session at one node: sends requests, and again, until the answer with their number."""

    def __init__(self, node: str, cluster: str) -> None:
        self.cluster = cluster
        self.session = "raw-" + secrets.token_hex(8)
        self.request = 0
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, f"{self.session}#{secrets.token_hex(8)}".encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000)
        try:
            self.socket.connect(node)
        except zmq.ZMQError as error:
            sys.exit(f"{node!r} is no endpoint like tcp://127.0.0.1:4041: {error}")

    def send(self, message: list[Any]) -> None:
        """Send one message to the proxy of whichever node is connected; drop it if none is."""
        envelope = ["*/proxy", f"{self.session}/session", *message]
        frame = [VERSION, self.cluster, 0, 0, [envelope]]
        with contextlib.suppress(zmq.Again):  # Not connected: it is sent again in a moment.
            self.socket.send(cbor2.dumps(frame), zmq.NOBLOCK)

    def receive(self, wait_s: float) -> list[list[Any]]:
        """Return the messages of the next frame, nothing if none comes in time."""
        if not self.socket.poll(int(wait_s * 1000)):
            return []
        version, cluster, _view, _stamp, envelopes = cbor2.loads(self.socket.recv())
        messages = [envelope[2:] for envelope in envelopes]  # Less to and from.
        for message in messages:
            if message[0] == REJECTED:
                sys.exit(f"the node does not take our frames: {message[2]}")
        return messages if (version, cluster) == (VERSION, self.cluster) else []

    def ask(self, message: list[Any], answers: tuple[int, ...], patience_s: float) -> list[Any]:
        """Send ``message`` until an answer to it comes; give up after ``patience_s``.

        A request's last fields are session, owner and its number, an answer ends with them.
        """
        deadline = time.monotonic() + patience_s
        again = 0.0
        while (now := time.monotonic()) < deadline:
            if now >= again:
                self.send(message)
                again = now + (RESEND_S if again else RESEND_S / 10)  # Soon, while connecting.
            for answer in self.receive(again - now):
                if answer[0] in answers and answer[-1] == self.request:
                    return answer
        sys.exit(f"no answer within {patience_s:g} s")

    def acquire(self, lock: str, wait_ms: int) -> list[Any]:
        """Return the Granted or Refused that answers."""
        self.request += 1
        message = [ACQUIRE, lock, self.session, "main", self.request, wait_ms]
        return self.ask(message, (GRANTED, REFUSED), wait_ms / 1000 + 10)

    def release(self, lock: str, fence: int) -> list[Any]:
        """Return the Released or Refused that answers."""
        self.request += 1
        message = [RELEASE, lock, fence, self.session, "main", self.request]
        return self.ask(message, (RELEASED, REFUSED), 10)


def main() -> None:
    """Take a lock, show its fence, give it back. Exit status 1 if any of it fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", default="tcp://127.0.0.1:4041", help="endpoint of any node")
    parser.add_argument("--cluster", required=True, help="the cluster's id, as in its cluster.toml")
    parser.add_argument("--lock", default="orders/42", help="name of the lock (1 to 256 bytes)")
    parser.add_argument("--wait-ms", type=int, default=10_000, help="how long to wait for it")
    parser.add_argument("--hold-s", type=float, default=0.0, help="how long to keep it")
    arguments = parser.parse_args()

    client = Client(arguments.node, arguments.cluster)
    tag, lock, *rest = client.acquire(arguments.lock, arguments.wait_ms)
    if tag == REFUSED:
        sys.exit(f"refused for reason {rest[0]}: {rest[1]}")
    fence = rest[0]
    print(f"granted {lock} under fence {fence}", flush=True)
    time.sleep(arguments.hold_s)
    tag, lock, *rest = client.release(arguments.lock, fence)
    if tag == REFUSED:
        sys.exit(f"release refused for reason {rest[0]}: {rest[1]}")
    print(f"released {lock}")
    client.context.destroy(linger=0)


if __name__ == "__main__":
    main()
