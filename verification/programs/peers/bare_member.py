"""One of three bare processes: the path of a lock request with nothing around it.

``bare_member.py follower PORT FILE`` writes, syncs and confirms the batches that it receives.
``bare_member.py leader PORT FILE PORT PORT`` takes requests ``[take, lock]`` at its ROUTER, gives
all that came together one place in the log, sends it to the followers, writes and syncs it, and
grants once a follower confirmed. No sessions, no retries, no elections, no fences, no checks: it
forgets everything when it ends and grants twice when a message is lost. Its time is the time of
Python, ZeroMQ, CBOR and the disk.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any

import cbor2
import zmq

Request = tuple[bytes, bool, str]
"""The client, whether it acquires or releases, and the lock."""


def opened(path: str) -> int:
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)


def drained(socket: zmq.Socket[bytes]) -> list[list[bytes]]:
    messages: list[list[bytes]] = []
    while True:
        try:
            messages.append(socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return messages


def follow(port: str, path: str) -> None:
    """Confirm places in the log, in order, once they are on disk."""
    router: Any = zmq.Context().socket(zmq.ROUTER)
    router.bind(f"tcp://127.0.0.1:{port}")
    log = opened(path)
    while True:
        router.poll()
        messages = drained(router)
        os.write(log, b"".join(raw for _, raw in messages))
        os.fdatasync(log)
        for leader, raw in messages:
            router.send_multipart([leader, cbor2.dumps(cbor2.loads(raw)[0])])


class BareLeader:
    """Decides, and grants each lock to one at a time, first come first served."""

    def __init__(self, port: str, path: str, followers: list[str]) -> None:
        context: zmq.Context[Any] = zmq.Context()
        self.router: Any = context.socket(zmq.ROUTER)
        self.router.bind(f"tcp://127.0.0.1:{port}")
        self.dealers: list[Any] = [context.socket(zmq.DEALER) for _ in followers]
        self.poller = zmq.Poller()
        self.poller.register(self.router, zmq.POLLIN)
        for dealer, follower in zip(self.dealers, followers, strict=True):
            dealer.connect(f"tcp://127.0.0.1:{follower}")
            self.poller.register(dealer, zmq.POLLIN)
        self.log = opened(path)
        self.place = 0
        self.proposed: dict[int, list[Request]] = {}
        self.locks: dict[str, deque[bytes]] = {}

    def run(self) -> None:
        while True:
            readable = dict(self.poller.poll())
            for dealer in self.dealers:
                if dealer in readable:
                    for (raw,) in drained(dealer):
                        self.decided(cbor2.loads(raw))
            if self.router in readable:
                self.propose([(who, *cbor2.loads(raw)) for who, raw in drained(self.router)])

    def propose(self, requests: list[Request]) -> None:
        """Send the batch to the followers, then write and sync the same batch here."""
        self.place += 1
        self.proposed[self.place] = requests
        raw = cbor2.dumps([self.place, [[take, lock] for _, take, lock in requests]])
        for dealer in self.dealers:
            dealer.send(raw)
        os.write(self.log, raw)
        os.fdatasync(self.log)

    def decided(self, place: int) -> None:
        """Apply a batch that has a majority: this process and the first follower that confirmed
        it.
        """
        for who, take, lock in self.proposed.pop(place, ()):
            waiting = self.locks.setdefault(lock, deque())
            if take:
                waiting.append(who)
                if len(waiting) == 1:
                    self.router.send_multipart([who, b"\x01"])
                continue
            waiting.popleft()
            self.router.send_multipart([who, b"\x00"])
            if waiting:
                self.router.send_multipart([waiting[0], b"\x01"])


if __name__ == "__main__":
    role, at, file, *others = sys.argv[1:]
    if role == "follower":
        follow(at, file)
    else:
        BareLeader(at, file, others).run()
