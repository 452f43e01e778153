"""TCP relays between nodes and clients, which can fall silent without closing anything, or delay.

A relay that is silent accepts connections and forwards nothing, not even that a peer closed its
end. For both sides that looks like a cable that was pulled. A relay with a delay forwards every
byte, and the end of a connection, so much later: a long cable. Needs no privileges.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

BUFFER_BYTES = 4 << 20
"""Limit of unsent bytes in one direction; above it nothing more is read."""

READ_BYTES = 1 << 16
BACKLOG = 128


class RelayedLink(NamedTuple):
    """A link, by the side that connects and the side that listens."""

    source: str
    target: str


class _Half:
    """One of the two sockets of a relayed connection."""

    def __init__(self, link: RelayedLink, sock: socket.socket) -> None:
        self.link = link
        self.socket = sock
        self.other: _Half | None = None
        self.unsent = bytearray()
        self.in_transit: deque[tuple[float, bytes]] = deque()
        """What is on its way to this socket, with its time of arrival; no bytes end it."""
        self.bytes_in_transit = 0
        self.ended = False
        """Whether the other side has ended, and nothing more is read from this one."""


class Relays:
    """One relay for each `RelayedLink`, all served by one thread, until the ``with`` block ends.

    Args:
        targets: for each link the port on 127.0.0.1 that its relay connects to.
        delays_ms: for each link the time that it takes one way (ms); 0 for those left out.

    """

    def __init__(
        self, targets: dict[RelayedLink, int], delays_ms: Mapping[RelayedLink, int] | None = None
    ) -> None:
        self._targets = targets
        self._delays_ms = dict(delays_ms or {})
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        """Guards everything below; the thread holds it except while it waits."""
        self._silent: set[RelayedLink] = set()
        self._halves: dict[socket.socket, _Half] = {}
        self._listeners: dict[socket.socket, RelayedLink] = {}
        self._over = False
        self.ports: dict[RelayedLink, int] = {}
        """The port of each link's relay, for its source to connect to."""
        for link in targets:
            listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
            listener.setblocking(False)
            self._listeners[listener] = link
            self.ports[link] = listener.getsockname()[1]
            self._selector.register(listener, selectors.EVENT_READ)
        self._bell, self._ring = socket.socketpair()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="relays", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over = True
        self._ring.send(b"x")
        self._thread.join()
        for each in [*self._halves, *self._listeners, self._bell, self._ring]:
            each.close()
        self._selector.close()

    def silence(self, links: Collection[RelayedLink]) -> None:
        """Forward nothing more over ``links``, in either direction, and close nothing."""
        with self._lock:
            self._silent |= set(links)
            self._watch_all(links)
        self._ring.send(b"x")

    def heal(self, links: Collection[RelayedLink]) -> None:
        """Forward again over ``links``; close connections that were made meanwhile."""
        with self._lock:
            self._silent -= set(links)
            for half in list(self._halves.values()):
                if half.link in links and half.other is None:
                    self._close(half)
            self._watch_all(links)
        self._ring.send(b"x")

    def drop(self, links: Collection[RelayedLink]) -> None:
        with self._lock:
            for half in list(self._halves.values()):
                if half.link in links:
                    self._close(half)
        self._ring.send(b"x")

    def _serve(self) -> None:
        while not self._over:
            with self._lock:
                wait_s = self._deliver()
            events = self._selector.select(wait_s)
            with self._lock:
                for key, mask in events:
                    self._on_event(key.fileobj, mask)

    def _deliver(self) -> float | None:
        """Deliver what has arrived; return the time until more does (s), or None."""
        now, soonest = time.monotonic(), None
        for half in list(self._halves.values()):
            while half.in_transit and half.in_transit[0][0] <= now:
                _, chunk = half.in_transit.popleft()
                if not chunk:
                    self._close(half)
                    break
                half.bytes_in_transit -= len(chunk)
                half.unsent += chunk
                self._write(half)
            if half.in_transit:
                due = half.in_transit[0][0]
                soonest = due if soonest is None else min(soonest, due)
        return None if soonest is None else max(0.0, soonest - now)

    def _on_event(self, ready: object, mask: int) -> None:
        assert isinstance(ready, socket.socket)
        if ready is self._bell:
            self._bell.recv(READ_BYTES)
            return
        link = self._listeners.get(ready)
        if link is not None:
            self._accept(ready, link)
            return
        half = self._halves.get(ready)
        if half is None or half.link in self._silent:
            return
        if mask & selectors.EVENT_WRITE:
            self._write(half)
        if mask & selectors.EVENT_READ and half.socket in self._halves:
            self._read(half)

    def _accept(self, listener: socket.socket, link: RelayedLink) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = listener.accept()
            near = self._add(link, accepted)
            if link in self._silent:
                self._watch(near)
                return
            try:
                connected = socket.create_connection(("127.0.0.1", self._targets[link]))
            except OSError:
                self._close(near)
                return
            near.other, far = self._add(link, connected), near
            near.other.other = far
            self._watch(near)
            self._watch(near.other)

    def _add(self, link: RelayedLink, sock: socket.socket) -> _Half:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        half = self._halves[sock] = _Half(link, sock)
        return half

    def _read(self, half: _Half) -> None:
        assert half.other is not None
        try:
            chunk = half.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        other = half.other
        if delay_ms := self._delays_ms.get(half.link, 0):
            other.in_transit.append((time.monotonic() + delay_ms / 1000, chunk))
            other.bytes_in_transit += len(chunk)
            half.ended = not chunk
        elif chunk:
            other.unsent += chunk
            self._write(other)
        else:
            self._close(half)
        self._watch(half)

    def _write(self, half: _Half) -> None:
        if half.unsent:
            try:
                del half.unsent[: half.socket.send(half.unsent)]
            except BlockingIOError:
                pass
            except OSError:
                self._close(half)
                return
        self._watch(half)
        if half.other is not None:
            self._watch(half.other)

    def _watch_all(self, links: Collection[RelayedLink]) -> None:
        for half in self._halves.values():
            if half.link in links:
                self._watch(half)

    def _watch(self, half: _Half) -> None:
        """Register for the events that the socket can handle now: none while its link is silent."""
        if half.socket.fileno() < 0:
            return
        events = 0
        if half.socket in self._halves and half.link not in self._silent and half.other:
            events |= selectors.EVENT_WRITE if half.unsent else 0
            queued = len(half.other.unsent) + half.other.bytes_in_transit
            reads = queued < BUFFER_BYTES and not half.ended
            events |= selectors.EVENT_READ if reads else 0
        known = self._selector.get_map().get(half.socket)
        if known is None:
            if events:
                self._selector.register(half.socket, events)
        elif not events:
            self._selector.unregister(half.socket)
        elif known.events != events:
            self._selector.modify(half.socket, events)

    def _close(self, half: _Half) -> None:
        for one in (half, half.other):
            if one is not None and self._halves.pop(one.socket, None) is not None:
                self._watch(one)
                one.socket.close()
