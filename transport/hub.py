"""The sockets of a node: a ROUTER for incoming connections, a DEALER to each peer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping

import zmq

from fencelock.actors.link import LinkDown, LinkRefused, LinkUp
from fencelock.transport.bounds import CLIENT_BYTES_MAX
from fencelock.transport.descriptors import CONNECTIONS_MAX
from fencelock.transport.doorbell import Doorbell
from fencelock.transport.frame import Frame, FrameTooLargeError, encode_frame
from fencelock.transport.frame_validator import FrameValidator
from fencelock.transport.link import Link
from fencelock.transport.listener import Arrival, Listener
from fencelock.transport.name import check_cluster, check_node
from fencelock.transport.poller import Poller
from fencelock.transport.sockets import (
    NOBLOCK,
    Socket,
    discard_parts,
    has_news,
    only_part,
    send_part,
)

__all__ = ["Arrival", "SocketHub"]

READ_NS = 10_000_000
"""Time for decoding frames of clients in `SocketHub.receive` (ns)."""


class SocketHub:
    """All ZeroMQ sockets of one node; used by one thread, but for `ring`.

    Nothing here blocks except `poll`. A frame that cannot be sent is dropped and counted:
    links lose frames, and roles expect that.

    Args:
        node: our id; a client's is its session.
        boot: tells this life of the node from earlier ones, 0 to 2**64-1.
        cluster: the cluster id of every frame.
        listen: the endpoint to bind, ``tcp://address:port``, port 0 for any; None for none.
        peers: the endpoint of each peer, by node id, or by alias if ``gates``.
        gates: for a client: a peer's name is an alias of an endpoint, whose node is not known.
        spins: see `Poller`.
        connections_max: limit of connections to ``listen``.
        count: called with a counter's name and its increment.

    Attributes:
        waiting: the clients whose frames wait for `receive_clients`; a live view.

    Raises:
        ConfigError: an endpoint cannot be bound or parsed.
        ValueError: an id or the cluster id is not well-formed.

    """

    def __init__(
        self,
        *,
        node: str,
        boot: int,
        cluster: str,
        listen: str | None,
        peers: Mapping[str, str],
        gates: bool = False,
        spins: bool = False,
        connections_max: int = CONNECTIONS_MAX,
        count: Callable[[str, int], None],
    ) -> None:
        check_cluster(cluster)
        for name in (node, *peers):
            check_node(name)
        self.cluster = cluster
        self.endpoint = ""
        self._count = count
        self._admission = FrameValidator(node, cluster, gates=gates, members=frozenset(peers))
        self._links: dict[str, Link] = {}
        self._monitors: set[Socket | int] = set()
        self._listener: Listener | None = None
        self.waiting: Collection[str] = ()
        self._sources: deque[Link] = deque()
        self._doorbell = Doorbell()
        self._context: zmq.Context[Socket] = zmq.Context()
        self._poller = Poller(spins=spins)
        self._readable: set[Socket | int] = set()
        self._looked_for_frames = self._looked_for_events = self._news_waits = False
        self._closed = False
        try:
            self._open(node, boot, listen, peers, connections_max)
        except BaseException:
            self.close()
            raise

    def _open(
        self,
        node: str,
        boot: int,
        listen: str | None,
        peers: Mapping[str, str],
        connections_max: int,
    ) -> None:
        if listen is not None:
            self._listener = Listener(
                self._context,
                listen,
                self._admission,
                frozenset(peers),
                connections_max,
                self._poller,
                self._count,
            )
            self.endpoint = self._listener.endpoint
            self.waiting = self._listener.waiting
        for number, (peer, endpoint) in enumerate(sorted(peers.items())):
            # The number tells two links to one node apart: a client may list it twice.
            identity = f"{node}#{boot:x}.{number}".encode()
            link = Link(self._context, peer, endpoint, identity)
            self._links[peer] = link
            self._sources.append(link)
            self._poller.register(link.dealer)
            self._poller.register(link.monitor)
            self._monitors.add(link.monitor)
        self._poller.register(self._doorbell.fd)

    def poll(self, timeout_ms: int | None) -> None:
        """Sleep until a socket is readable, `ring` was called, or ``timeout_ms`` have passed.

        None is without limit. Returns at once if a socket was readable before and not read, if
        clients' frames wait, or if there are events that only `receive` could find.
        """
        listener = self._listener
        if self._news_waits or self.waiting:
            timeout_ms = 0
        elif listener is not None and (tend_ms := listener.connections.tend_ms) is not None:
            timeout_ms = tend_ms if timeout_ms is None else min(timeout_ms, tend_ms)
        self._look(timeout_ms)
        if self._doorbell.fd in self._readable:
            self._doorbell.answer()

    def _look(self, timeout_ms: int | None) -> None:
        self._readable = self._poller.poll(timeout_ms)
        self._looked_for_frames = self._looked_for_events = True

    def ring(self) -> None:
        """Wake `poll`; from any thread, also after `close`."""
        self._doorbell.ring()

    def receive(self, most: int) -> list[Arrival]:
        """Return received frames: members', then clients'; read at most ``most`` of each."""
        arrivals = self.receive_members(most)
        return [*arrivals, *self.receive_clients(most, READ_NS)[0]]

    def receive_members(self, most: int) -> list[Arrival]:
        """Read at most ``most`` frames, dropped ones included; return those of members.

        The frames of clients wait for `receive_clients`.
        """
        if not self._looked_for_frames:
            self._look(0)
        self._looked_for_frames = False
        arrivals: list[Arrival] = []
        listener = self._listener
        if listener is not None and listener.socket in self._readable:
            listener.read(most, arrivals)
        self._sources.rotate()  # A peer that floods us must not always be read first.
        for link in self._sources:
            if link.dealer in self._readable:
                most -= self._read(link, most, arrivals)
        return arrivals

    def receive_clients(self, most: int, within_ns: int) -> tuple[list[Arrival], int]:
        """Return waiting frames of clients, each client in turn; see `Listener`."""
        if self._listener is None:
            return [], 0
        return self._listener.receive_clients(most, within_ns)

    def _read(self, link: Link, most: int, arrivals: list[Arrival]) -> int:
        """Read at most ``most`` messages of a peer; return how many there were."""
        socket = link.dealer
        for number in range(most):
            try:
                part = only_part(socket)
            except zmq.Again:
                return number
            if part is None:
                while not discard_parts(socket, most):
                    pass
                self._count("wire.malformed", 1)
            else:
                self._on_dealer(link, part.bytes, arrivals)
            # Mostly one comes at a time: asking for more is then cheaper than a failed read.
            if number == 0 and not has_news(socket):
                return 1
        self._poller.used(socket)  # There may be more.
        return most

    def _on_dealer(self, link: Link, raw: bytes, arrivals: list[Arrival]) -> None:
        frame = self._admission.admit(link.node, raw)
        if isinstance(frame, Frame):
            if frame.newer:
                self._count("wire.newer_message", frame.newer)
            arrivals.append(Arrival(link.node, frame))
            return
        self._count(frame.counter, 1)
        if frame.mismatch is not None:
            link.refused(frame.detail)
            self._news_waits = True

    def events(self) -> list[LinkUp | LinkDown | LinkRefused]:
        """Return the changes of links to peers since the last call, oldest first for each."""
        if not self._looked_for_events:
            self._look(0)
        self._looked_for_events = False
        listener = self._listener
        if listener is not None:
            connections = listener.connections
            if connections.tend_ms is not None or connections.monitor in self._readable:
                listener.tend(self._readable)
        if not self._news_waits and self._monitors.isdisjoint(self._readable):
            return []
        self._news_waits = False
        news: list[LinkUp | LinkDown | LinkRefused] = []
        for link in self._links.values():
            if link.monitor in self._readable:
                link.watch()
                self._poller.used(link.dealer)
            news += link.news()
        return news

    def send(self, link: str, frame: Frame) -> None:
        """Send ``frame`` to a peer or a client; never blocks.

        A frame is dropped and counted if its link does not exist (``wire.unroutable``) or has a
        full queue (``wire.queue_full``).

        Raises:
            FrameTooLargeError: it is above the limits of a frame; nothing was sent.
            TypeError: a message has a field that is not of its declared type.
            ValueError: an address is not well-formed.

        """
        gates = self._admission.gates
        raw = encode_frame(frame, link if gates else "")
        if gates and len(raw) > CLIENT_BYTES_MAX:
            raise FrameTooLargeError(f"frame of {len(raw)} bytes, at most {CLIENT_BYTES_MAX}")
        peer = self._links.get(link)
        if peer is None:
            if self._listener is None:
                self._count("wire.unroutable", 1)
            else:
                self._listener.send(link, raw)
            return
        self._poller.used(peer.dealer)
        try:
            send_part(peer.dealer, raw, NOBLOCK)
        except zmq.Again:
            self._count("wire.queue_full" if peer.up else "wire.unroutable", 1)

    def close(self) -> None:
        """Close every socket and the context, dropping waiting frames; from the owning thread."""
        if self._closed:
            return
        self._closed = True
        for link in self._links.values():
            link.close()
        if self._listener is not None:
            self._listener.close()
        self._context.destroy(linger=0)  # Also sockets that an interrupt left half-made.
        self._doorbell.close()
