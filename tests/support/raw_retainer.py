"""A client that retains a lock, as another implementation would: with ZeroMQ and frames alone."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import zmq

from fencelock.actors.api.message import Granted, KeepAlive, Release
from fencelock.actors.api.retained import AcquireRetained, Recall
from fencelock.actors.api.session_message import End, Open, Opened
from fencelock.actors.message import Address, Message
from fencelock.transport.frame import Envelope, Frame, decode_frame, encode_frame
from support.hub_station import PATIENCE_S

NAME = "retainer"
KEEP_S = 0.05
"""Interval of keep-alives (s): short, so that repeated recalls come soon."""


class RawRetainer:
    """One session that retains one lock, on a thread of its own.

    Args:
        address: the endpoint of a node.
        cluster: its cluster.

    Attributes:
        recalls: the recalls that it received, in order.
        in_use: whether an owner inside the session has the lock, so that a recall waits.

    """

    def __init__(self, address: str, cluster: str) -> None:
        self._cluster = cluster
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, f"{NAME}#1".encode())
        self._socket.connect(address)
        self._number = 0
        self._over = threading.Event()
        self.in_use = False
        self.recalls: list[Recall] = []
        self.recalled = threading.Event()
        self.session = NAME
        opened = self._ask(Open(session=NAME, ttl_ms=15_000, label="ann", request=self._next()))
        assert isinstance(opened, Opened)
        self.session = opened.assigned
        self._thread = threading.Thread(target=self._run)

    def retain(self, lock: str, span: int = 100, **fields: Any) -> int:
        """Acquire a lock, and begin to listen for its recall; return its fence."""
        of: dict[str, Any] = {"session": self.session, "owner": "*", "request": self._next()}
        granted = self._ask(AcquireRetained(lock=lock, span=span, **of, **fields))
        assert isinstance(granted, Granted)
        self._thread.start()
        return granted.fence

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        self._send(End(session=self.session, request=self._next()))
        self._context.destroy(linger=1_000)

    def _run(self) -> None:
        while not self._over.is_set():
            self._send(KeepAlive(session=self.session, request=self._next()))
            for message in self._receive(KEEP_S):
                if isinstance(message, Recall):
                    self._on_recall(message)

    def _on_recall(self, recall: Recall) -> None:
        self.recalls.append(recall)
        self.recalled.set()
        if not self.in_use:
            of: dict[str, Any] = {"session": self.session, "owner": "*", "request": self._next()}
            self._send(Release(lock=recall.lock, fence=recall.fence, **of))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _send(self, message: Message) -> None:
        envelope = Envelope(Address("*/proxy"), Address(f"{NAME}/session"), message)
        self._socket.send(encode_frame(Frame(self._cluster, 0, 0, (envelope,))))

    def _receive(self, wait_s: float) -> list[Message]:
        if not self._socket.poll(int(wait_s * 1_000)):
            return []
        frame = decode_frame(self._socket.recv())
        return [message for _, _, message in frame.envelopes]

    def _ask(self, message: Any) -> Message:
        self._send(message)
        while replies := self._receive(PATIENCE_S):
            for reply in replies:
                if getattr(reply, "request", 0) == message.request:
                    return reply
        raise AssertionError(f"no reply to {message}")


@contextmanager
def retaining(address: str, cluster: str) -> Generator[RawRetainer]:
    """Yield a client that has a session at ``address``."""
    client = RawRetainer(address, cluster)
    try:
        yield client
    finally:
        client.close()
