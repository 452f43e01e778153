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
"""A direction with so many unsent bytes is not read from until some are sent."""

READ_BYTES = 1 << 16
BACKLOG = 128


class Path(NamedTuple):
    """The side that connects and the side that listens."""

    source: str
    target: str


class _Half:
    """One of the two sockets of a relayed connection."""

    def __init__(self, path: Path, sock: socket.socket) -> None:
        self.path = path
        self.socket = sock
        self.other: _Half | None = None
        self.unsent = bytearray()


class Relays:
    """One relay for each `Path`, all served by one thread, until the ``with`` block ends.

    Args:
        targets: for each path the port on 127.0.0.1 that its relay connects to.

    """

    def __init__(self, targets: dict[Path, int]) -> None:
        self._targets = targets
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        """Guards everything below; the thread holds it except while it waits."""
        self._silent: set[Path] = set()
        self._halves: dict[socket.socket, _Half] = {}
        self._listeners: dict[socket.socket, Path] = {}
        self._over = False
        self.ports: dict[Path, int] = {}
        """Where the source of each path connects to."""
        for path in targets:
            listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
            listener.setblocking(False)
            self._listeners[listener] = path
            self.ports[path] = listener.getsockname()[1]
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

    def silence(self, paths: Collection[Path]) -> None:
        """Forward nothing more over ``paths``, in either direction, and close nothing."""
        with self._lock:
            self._silent |= set(paths)
            self._watch_all(paths)
        self._ring.send(b"x")

    def heal(self, paths: Collection[Path]) -> None:
        """Forward again over ``paths``; a connection that was made meanwhile is closed."""
        with self._lock:
            self._silent -= set(paths)
            for half in list(self._halves.values()):
                if half.path in paths and half.other is None:
                    self._close(half)
            self._watch_all(paths)
        self._ring.send(b"x")

    def drop(self, paths: Collection[Path]) -> None:
        """Close every connection over ``paths``."""
        with self._lock:
            for half in list(self._halves.values()):
                if half.path in paths:
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
        path = self._listeners.get(ready)
        if path is not None:
            self._accept(ready, path)
            return
        half = self._halves.get(ready)
        if half is None or half.path in self._silent:
            return
        if mask & selectors.EVENT_WRITE:
            self._write(half)
        if mask & selectors.EVENT_READ and half.socket in self._halves:
            self._read(half)

    def _accept(self, listener: socket.socket, path: Path) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = listener.accept()
            near = self._add(path, accepted)
            if path in self._silent:
                self._watch(near)
                return
            try:
                connected = socket.create_connection(("127.0.0.1", self._targets[path]))
            except OSError:
                self._close(near)
                return
            near.other, far = self._add(path, connected), near
            near.other.other = far
            self._watch(near)
            self._watch(near.other)

    def _add(self, path: Path, sock: socket.socket) -> _Half:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        half = self._halves[sock] = _Half(path, sock)
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
        """Return what was read; empty, with the connection closed, at its end."""
        try:
            chunk = read()
        except BlockingIOError:
            return b""
        except OSError:
            chunk = b""
        if not chunk:
            self._close(half)
        return chunk

    def _watch_all(self, paths: Collection[Path]) -> None:
        for half in self._halves.values():
            if half.path in paths:
                self._watch(half)

    def _watch(self, half: _Half) -> None:
        """Wait for what the socket can do now: nothing while its path is silent."""
        if half.socket.fileno() < 0:
            return
        events = 0
        if half.socket in self._halves and half.path not in self._silent and half.other:
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
