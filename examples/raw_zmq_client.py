"""A fencelock client written from the description of the wire alone, with pyzmq and cbor2.

Opens a session at one node, takes a lock, prints its fence, keeps the session while it holds,
gives the lock back. `transport/README.md` explains every byte that is sent here; this file is
meant to be translated into other languages.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import sys
import time
from typing import Any

import cbor2
import zmq

VERSION = 1
ACQUIRE, RELEASE, KEEP_ALIVE, ALIVE = 0x10, 0x11, 0x15, 0x16
GRANTED, RELEASED, REFUSED, REJECTED = 0x18, 0x19, 0x1B, 0x70
OPEN, OPENED, END, ENDED, HOLD_LOST = 0x60, 0x61, 0x62, 0x63, 0x64
NUMBERED = {ALIVE, GRANTED, RELEASED, REFUSED, OPENED, ENDED}
"""Replies. They begin with the tag, the session and the request number."""
DETAIL_AT = {REFUSED: 6, ENDED: 3, HOLD_LOST: 5}
"""Positions of a reason. Count from the front: newer nodes may send more items at the end."""
SESSION_EXPIRED = 12
RESEND_S = 1.0
"""Interval at which a request without a reply is sent again, with the same number (s)."""
TTL_S = 15.0
"""Time for which the session and its holds outlive this client's last message (s)."""
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that counts suspend: after a suspend the session may have ended."""
DRIFT = 0.001
"""Share of the TTL that is given away, because clocks do not run at the same rate."""


class Client:
    """One session at one node: sends each request until the reply with its number arrives."""

    def __init__(self, node: str, cluster: str) -> None:
        self.cluster = cluster
        self.name = "raw-" + secrets.token_hex(8)
        self.session = self.name
        self.ttl_s = 0.0
        self.number = 0
        self.sent_at: dict[int, float] = {}
        self.confirmed_at = 0.0
        self.kept_at = 0.0
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, f"{self.name}#{secrets.token_hex(8)}".encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000)
        try:
            self.socket.connect(node)
        except zmq.ZMQError as error:
            sys.exit(f"{node!r} is no endpoint like tcp://127.0.0.1:4041: {error}")

    def next(self) -> int:
        """Return the number of the next request: it only ever rises."""
        self.number += 1
        return self.number

    def send(self, number: int, message: list[Any]) -> None:
        """Send one message to the proxy of the connected node; drop it if none is connected."""
        envelope = ["*/proxy", f"{self.name}/session", [message]]
        frame = [VERSION, self.cluster, 0, 0, [envelope]]
        self.sent_at.setdefault(number, time.clock_gettime(CLOCK))
        with contextlib.suppress(zmq.Again):  # Not connected: it is sent again in a moment.
            self.socket.send(cbor2.dumps(frame), zmq.NOBLOCK)

    def receive(self, wait_s: float) -> list[list[Any]]:
        """Return the messages of the next frame, nothing if none comes in time."""
        if not self.socket.poll(max(0, int(wait_s * 1000))):
            return []
        version, cluster, _view, _stamp, envelopes = cbor2.loads(self.socket.recv())
        messages = [message for _to, _sender, several in envelopes for message in several]
        for message in messages:
            if message[0] == REJECTED:
                sys.exit(f"the node does not take our frames: {message[2]}")
        return messages if (version, cluster) == (VERSION, self.cluster) else []

    def judge(self, message: list[Any]) -> int:
        """Return the number of the request that ``message`` answers; exit if all is lost."""
        tag = message[0]
        number = message[2] if tag in NUMBERED else 0
        lost = tag == REFUSED and message[5] == SESSION_EXPIRED
        if lost or tag == HOLD_LOST or (tag == ENDED and number == 0):
            sys.exit(f"lost: {message[DETAIL_AT[tag]]}")
        sent_at = self.sent_at.pop(number, 0.0)
        if tag != REFUSED:  # It was done after it was sent: the session lived then.
            self.confirmed_at = max(self.confirmed_at, sent_at)
        return int(number)

    def keep(self) -> None:
        """Send keep-alives, five for each TTL; exit once the session may be over."""
        now = time.clock_gettime(CLOCK)
        if not self.ttl_s:
            return  # This cluster keeps no sessions.
        if now >= self.confirmed_at + self.ttl_s * (1 - DRIFT):
            sys.exit("lost: the session was not confirmed in time, others may hold the lock")
        if now >= self.kept_at + self.ttl_s / 5:
            self.kept_at = now
            number = self.next()
            self.send(number, [KEEP_ALIVE, self.session, number])

    def ask(
        self, number: int, message: list[Any], answers: tuple[int, ...], patience_s: float = 10.0
    ) -> list[Any]:
        """Send ``message`` until a reply to it arrives; exit after ``patience_s``."""
        deadline = time.clock_gettime(CLOCK) + patience_s
        again = 0.0
        while (now := time.clock_gettime(CLOCK)) < deadline:
            if now >= again:
                self.send(number, message)
                again = now + (RESEND_S if again else RESEND_S / 10)  # Soon, while connecting.
            self.keep()
            for answer in self.receive(again - now):
                if self.judge(answer) == number and answer[0] in answers:
                    return answer
        sys.exit(f"no answer within {patience_s:g} s")

    def open(self) -> None:
        """Open a session, and use the name that is assigned from then on."""
        label = f"{socket.gethostname()}:{os.getpid()}"
        number = self.next()
        name = f"{self.name}~{secrets.token_hex(16)}"  # Only who knows it can use it.
        opening = [OPEN, name, number, int(TTL_S * 1000), label]
        tag, _, _, *rest = self.ask(number, opening, (OPENED, REFUSED))
        if tag == REFUSED:
            sys.exit(f"no session, for reason {rest[2]}: {rest[3]}")
        self.session, self.ttl_s = rest[0], rest[1] / 1000
        self.kept_at = time.clock_gettime(CLOCK)

    def acquire(self, lock: str, wait_ms: int) -> list[Any]:
        """Return the Granted or Refused that answers."""
        number = self.next()
        message = [ACQUIRE, self.session, number, "main", lock, wait_ms, 1, "", 0, 0]
        return self.ask(number, message, (GRANTED, REFUSED), wait_ms / 1000 + 10)

    def hold(self, seconds: float) -> None:
        """Keep the session alive for so long, and receive what is lost meanwhile."""
        end = time.clock_gettime(CLOCK) + seconds
        while (left := end - time.clock_gettime(CLOCK)) > 0:
            self.keep()
            for message in self.receive(min(left, (self.ttl_s or TTL_S) / 10)):
                self.judge(message)

    def release(self, lock: str, fence: int) -> list[Any]:
        """Return the Released or Refused that answers."""
        number = self.next()
        message = [RELEASE, self.session, number, "main", fence, lock]
        return self.ask(number, message, (RELEASED, REFUSED))

    def close(self) -> None:
        """End the session, and with it all it holds."""
        number = self.next()
        self.ask(number, [END, self.session, number], (ENDED,))
        self.context.destroy(linger=0)


def main() -> None:
    """Acquire a lock, print its fence, release it. The exit status is 1 if any step fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", default="tcp://127.0.0.1:4041", help="endpoint of any node")
    parser.add_argument("--cluster", required=True, help="the cluster's id, as in its cluster.toml")
    parser.add_argument("--lock", default="orders/42", help="name of the lock (1 to 256 bytes)")
    parser.add_argument("--wait-ms", type=int, default=10_000, help="how long to wait for it")
    parser.add_argument("--hold-s", type=float, default=0.0, help="how long to keep it")
    arguments = parser.parse_args()

    client = Client(arguments.node, arguments.cluster)
    client.open()
    tag, _, _, lock, _, *rest = client.acquire(arguments.lock, arguments.wait_ms)
    if tag == REFUSED:
        sys.exit(f"refused for reason {rest[0]}: {rest[1]}")
    fence = rest[0]
    print(f"granted {lock} under fence {fence}", flush=True)
    client.hold(arguments.hold_s)
    tag, _, _, lock, _, *rest = client.release(arguments.lock, fence)
    if tag == REFUSED:
        sys.exit(f"release refused for reason {rest[0]}: {rest[1]}")
    print(f"released {lock}")
    client.close()


if __name__ == "__main__":
    main()
