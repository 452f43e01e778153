"""A server of plain TCP connections beside the sockets of a hub, for a protocol that is not ours.

It belongs to one thread, which polls one descriptor for all connections: that of an ``epoll``. The
role that serves the protocol receives `Received` with what was read, and answers by `Transmit`.
Nothing more is read from a connection until a `Transmit` asks for it, so a client that sends faster
than it is served waits in its own socket. What clients do not receive is bounded twice: for each,
and for all together.
"""

from __future__ import annotations

import select
import socket as tcp
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from errno import EADDRINUSE, EMFILE, ENFILE

from fencelock.actors.error import ConfigError
from fencelock.actors.message import Local
from fencelock.actors.redis.event import Disconnected, HalfClosed, Opened, Received, Transmit
from fencelock.transport.descriptors import (
    CONNECTIONS_MAX,
    CONNECTIONS_MIN,
    RESERVED,
    connections_max,
    shown_address,
)
from fencelock.transport.sockets import LISTEN_BACKLOG

READ_BYTES = 16 << 10
"""The most that is read from a connection at a time (bytes)."""

STREAM_EVENTS_MAX = 256
"""Connections that are looked at in one turn; epoll takes the others first in the next."""

ACCEPTS_MAX = 64
"""Connections that are accepted in one turn."""

UNREAD_ALL_BYTES_MAX = 64 << 20
"""Limit of what all clients together were sent and have not received (64 MiB)."""

RESUME_BYTES = 64 << 10
"""Nothing is read from a client that has not received so much (bytes)."""

FULL = b"-ERR max number of clients reached\r\n"

_OPTIONS = (
    (tcp.IPPROTO_TCP, tcp.TCP_NODELAY, 1),
    (tcp.SOL_SOCKET, tcp.SO_KEEPALIVE, 1),
    (tcp.IPPROTO_TCP, tcp.TCP_KEEPIDLE, 60),
    (tcp.IPPROTO_TCP, tcp.TCP_KEEPINTVL, 20),
    (tcp.IPPROTO_TCP, tcp.TCP_KEEPCNT, 3),
)
"""Of connections: a client that is gone without a word is noticed after two minutes."""

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_NEW = select.EPOLLIN | select.EPOLLET
"""Reported once for what waits to be accepted, until `StreamServer._accept_more`: if the process
has no descriptor for it, that must not keep the thread busy."""
_ENDED = select.EPOLLHUP | select.EPOLLERR


def streams_max(limit: int) -> int:
    """Return the limit of connections, if the process may open ``limit`` descriptors.

    It is three quarters of what the connections of other clients leave: see `connections_max`.
    """
    left = limit - RESERVED - connections_max(limit)
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, left * 3 // 4))


class Stream:
    """One connection."""

    __slots__ = ("closes", "host", "mask", "number", "reads", "socket", "unsent")

    def __init__(self, number: int, socket: tcp.socket, host: str) -> None:
        self.number = number
        self.socket = socket
        self.host = host
        self.unsent = bytearray()
        self.reads = True
        """Whether the role wants more bytes."""
        self.closes = False
        self.mask = _IN
        """The events that the epoll reports."""


class StreamServer:
    """Accepts TCP connections, and passes bytes between them and a role.

    Args:
        address: ``tcp://host:port``, port 0 for any.
        post: delivers an event to the role; returns False if it cannot take one now.
        count: called with a counter's name and its increment.
        fault: called with an exception of ours that cost a connection, and what was being done.
        connections_each: limit of those from one address.
        unread_bytes: limit of what a client was sent and has not received when it is sent more.

    Attributes:
        descriptor: readable when `ready` has something to do.
        address: where it listens.

    Raises:
        ConfigError: it cannot listen there.

    """

    def __init__(
        self,
        address: str,
        *,
        post: Callable[[Local], bool],
        count: Callable[[str, int], None],
        fault: Callable[[str, Exception], None],
        connections: int = CONNECTIONS_MAX,
        connections_each: int = CONNECTIONS_MAX,
        unread_bytes: int,
    ) -> None:
        self._post = post
        self._count = count
        self._fault = fault
        self._most, self._most_each = connections, connections_each
        self._unread_bytes = unread_bytes
        self._streams: dict[int, Stream] = {}
        """By descriptor."""
        self._by_number: dict[int, Stream] = {}
        self._hosts: Counter[str] = Counter()
        self._accepted = 0
        self._turn = 0
        self._unsent = 0
        """The bytes that wait for all clients."""
        self._socket = _bound(address)
        name = self._socket.getsockname()
        self.address = f"tcp://{shown_address(name)}"
        self._epoll = select.epoll()
        self._epoll.register(self._socket.fileno(), _NEW)
        self.descriptor = self._epoll.fileno()

    def ready(self) -> None:
        """Accept, read and send what there is, within the limits of a turn."""
        listening = self._socket.fileno()
        self._turn += 1
        for descriptor, events in self._epoll.poll(0, STREAM_EVENTS_MAX):
            if descriptor == listening:
                self._accept()
                continue
            stream = self._streams.get(descriptor)
            if stream is not None:
                try:
                    self._look(stream, events)
                except Exception as error:  # noqa: BLE001  # It costs the connection.
                    self._fault(f"looking at {stream.host}", error)
                    self._end(stream)

    def _look(self, stream: Stream, events: int) -> None:
        """Send to a client, and read from it, as far as ``events`` say that it can be done."""
        if events & _OUT and not self._send(stream):
            return
        if events & _IN and stream.mask & _IN:
            self._read(stream)
        elif events & _ENDED:
            self._end(stream)

    def transmit(self, event: Transmit) -> None:
        stream = self._by_number.get(event.connection)
        if stream is None:
            return
        if len(stream.unsent) > self._unread_bytes:
            self._count("redis.client_slow", 1)
            self._end(stream)
            return
        stream.closes = event.closes
        stream.reads = event.reads
        if event.data:
            stream.unsent += event.data
            self._unsent += len(event.data)
            if not self._send(stream):
                return
        elif event.closes and not stream.unsent:
            self._drop(stream)
            return
        self._watch(stream)
        while self._unsent > UNREAD_ALL_BYTES_MAX:
            self._count("redis.client_slow", 1)
            self._end(max(self._streams.values(), key=lambda one: len(one.unsent)))

    def close(self) -> None:
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._socket.close()
        self._epoll.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                socket, peer = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (EMFILE, ENFILE):
                    self._count("redis.no_descriptor", 1)
                    return  # Until a connection is closed, or another client comes.
                continue  # The client is gone already.
            host = str(peer[0])
            socket.setblocking(False)
            if len(self._streams) >= self._most or self._hosts[host] >= self._most_each:
                self._count("redis.connections_full", 1)
                with socket:
                    _try_send(socket, FULL)
                continue
            self._accepted += 1
            if not self._post(Opened(connection=self._accepted, peer=shown_address(peer))):
                socket.close()
                break
            for level, option, value in _OPTIONS:
                with suppress(OSError):  # It was reset meanwhile.
                    socket.setsockopt(level, option, value)
            stream = Stream(self._accepted, socket, host)
            self._streams[socket.fileno()] = self._by_number[stream.number] = stream
            self._hosts[host] += 1
            self._epoll.register(socket.fileno(), stream.mask)
        self._accept_more()

    def _accept_more(self) -> None:
        self._epoll.modify(self._socket.fileno(), _NEW)

    def _read(self, stream: Stream) -> None:
        wanted = stream.reads and len(stream.unsent) <= RESUME_BYTES
        try:
            # If none are wanted, look whether it was closed: a client that waits may be gone.
            data = stream.socket.recv(READ_BYTES if wanted else 1, 0 if wanted else tcp.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            self._end(stream)
            return
        if not wanted:
            self._mask(stream, stream.mask & ~_IN)
            if not data:
                self._post(HalfClosed(connection=stream.number))
        elif not data:
            self._end(stream)
        else:
            stream.reads = False
            event = Received(
                connection=stream.number,
                data=data,
                date_ms=time.time_ns() // 1_000_000,
                turn=self._turn,
            )
            if not self._post(event):
                self._end(stream)

    def _send(self, stream: Stream) -> bool:
        """Send what waits for a client; return whether the connection is still open."""
        sent = _try_send(stream.socket, stream.unsent)
        if sent is None:
            self._end(stream)
            return False
        del stream.unsent[:sent]
        self._unsent -= sent
        if stream.closes and not stream.unsent:
            self._drop(stream)
            return False
        self._watch(stream)
        return True

    def _watch(self, stream: Stream) -> None:
        """Choose the events that the epoll reports.

        A client that waits for its reply stays watched: mostly it sends nothing meanwhile.
        """
        mask = stream.mask | _IN if stream.reads else stream.mask
        mask = mask | _OUT if stream.unsent else mask & ~_OUT
        if stream.closes or len(stream.unsent) > RESUME_BYTES:
            mask &= ~_IN
        self._mask(stream, mask)

    def _mask(self, stream: Stream, mask: int) -> None:
        if mask != stream.mask:
            stream.mask = mask
            self._epoll.modify(stream.socket.fileno(), mask)

    def _end(self, stream: Stream) -> None:
        """Close a connection that the role did not close."""
        if stream.socket.fileno() in self._streams:
            self._drop(stream)
            self._post(Disconnected(connection=stream.number))

    def _drop(self, stream: Stream) -> None:
        descriptor = stream.socket.fileno()
        del self._streams[descriptor], self._by_number[stream.number]
        self._unsent -= len(stream.unsent)
        self._hosts[stream.host] -= 1
        if not self._hosts[stream.host]:
            del self._hosts[stream.host]
        self._epoll.unregister(descriptor)
        stream.socket.close()
        self._accept_more()


def _try_send(socket: tcp.socket, data: bytes | bytearray) -> int | None:
    """Send some of ``data``; return how much, or None if the connection is closed."""
    try:
        return socket.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return None


def _bound(address: str) -> tcp.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    try:
        family = tcp.AF_INET6 if ":" in host else tcp.AF_INET
        where = ("" if host == "*" else host, int(port))
        return _listening(family, where)
    except OSError as error:
        taken = "another program listens there: stop it, or choose another port"
        why = taken if error.errno == EADDRINUSE else error.strerror
        raise ConfigError(f"redis.address: cannot listen at {address}: {why}") from error


def _listening(family: tcp.AddressFamily, where: tuple[str, int]) -> tcp.socket:
    socket = tcp.socket(family, tcp.SOCK_STREAM)
    try:
        socket.setsockopt(tcp.SOL_SOCKET, tcp.SO_REUSEADDR, 1)
        socket.bind(where)
        socket.listen(LISTEN_BACKLOG)
        socket.setblocking(False)
    except BaseException:
        socket.close()
        raise
    return socket
