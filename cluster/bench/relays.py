"""TCP relays between nodes and clients, each of which can fall silent without closing anything.

A relay that is silent accepts connections and forwards nothing, not even that a peer closed its
end. For both sides that looks like a cable that was pulled. Needs no privileges.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Collection
from typing import NamedTuple, Self

BUFFER_BYTES = 1 << 20
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


class Relays:
    """One relay for each `RelayedLink`, all served by one thread, until the ``with`` block ends.

    Args:
        targets: for each link the port on 127.0.0.1 that its relay connects to.

    """

    def __init__(self, targets: dict[RelayedLink, int]) -> None:
        self._targets = targets
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
        """Close every connection over ``links``."""
        with self._lock:
            for half in list(self._halves.values()):
                if half.link in links:
                    self._close(half)
        self._ring.send(b"x")

    def _serve(self) -> None:
        while not self._over:
            events = self._selector.select()
            with self._lock:
                for key, mask in events:
                    self._on_event(key.fileobj, mask)

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
        if not (chunk := self._tried(half, lambda: half.socket.recv(READ_BYTES))):
            return
        half.other.unsent += chunk
        self._write(half.other)
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

    def _tried(self, half: _Half, read: Callable[[], bytes]) -> bytes:
        """Return the bytes read; at the end, close the connection and return none."""
        try:
            chunk = read()
        except BlockingIOError:
            return b""
        except OSError:
            chunk = b""
        if not chunk:
            self._close(half)
        return chunk

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
            events |= selectors.EVENT_READ if len(half.other.unsent) < BUFFER_BYTES else 0
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
