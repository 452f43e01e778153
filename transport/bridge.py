"""Where a node meets the network: a ROUTER for all who come, a DEALER to each peer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import zmq

from holdfast.actors.link import LinkDown, LinkRefused, LinkUp
from holdfast.transport.admission import Admission, Dropped, link_of
from holdfast.transport.clients import Clients
from holdfast.transport.doorbell import Doorbell
from holdfast.transport.frame import Frame, encode_frame
from holdfast.transport.link import Link
from holdfast.transport.name import check_cluster, check_node
from holdfast.transport.poller import Poller
from holdfast.transport.sockets import (
    NOBLOCK,
    NOBLOCK_MORE,
    Socket,
    bound_router,
    close_socket,
    has_news,
    only_part,
    send_part,
)

__all__ = ["Arrival", "Bridge"]


class Arrival(NamedTuple):
    """A frame that passed every check, and the link it came over."""

    link: str
    """The peer's node id or its alias, or the client's id."""
    frame: Frame


class Bridge:
    """All ZeroMQ sockets of one node; used by one thread, but for `ring`.

    Nothing here blocks except `poll`. What cannot be sent is dropped and counted: links
    lose things, and roles know it.

    Args:
        node: our id; a client's is its session.
        boot: tells this life of the node from earlier ones, 0 to 2**64-1.
        cluster: the id every frame must carry.
        listen: the endpoint to bind, ``tcp://address:port``, port 0 for any; None for none.
        peers: the endpoint of each peer, by node id, or by alias if ``gates``.
        gates: the client's way: a peer's name is an alias, the node behind it is not known.
        spins: see `Poller`.
        count: called with a counter's name and by how much it rises.

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
        count: Callable[[str, int], None],
    ) -> None:
        check_cluster(cluster)
        for name in (node, *peers):
            check_node(name)
        self.cluster = cluster
        self.endpoint = ""
        self._count = count
        self._admission = Admission(node, cluster, gates=gates)
        self._clients = Clients()
        self._links: dict[str, Link] = {}
        self._monitors: set[Socket | int] = set()
        self._router: Socket | None = None
        self._sources: deque[tuple[Socket, Link | None]] = deque()
        self._doorbell = Doorbell()
        self._context: zmq.Context[Socket] = zmq.Context()
        self._poller = Poller(spins=spins)
        self._readable: set[Socket | int] = set()
        self._looked_for_frames = self._looked_for_events = self._news_waits = False
        self._closed = False
        try:
            self._open(node, boot, listen, peers)
        except BaseException:
            self.close()
            raise

    def _open(self, node: str, boot: int, listen: str | None, peers: Mapping[str, str]) -> None:
        if listen is not None:
            self._router = bound_router(self._context, listen)
            self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
            self._poller.register(self._router)
            self._sources.append((self._router, None))
        for number, (peer, endpoint) in enumerate(sorted(peers.items())):
            # The number tells two links to one node apart: a client may list it twice.
            identity = f"{node}#{boot:x}.{number}".encode()
            link = Link(self._context, peer, endpoint, identity)
            self._links[peer] = link
            self._sources.append((link.dealer, link))
            self._poller.register(link.dealer)
            self._poller.register(link.monitor)
            self._monitors.add(link.monitor)
        self._poller.register(self._doorbell.fd)

    def poll(self, timeout_ms: int | None) -> None:
        """Sleep until a socket is readable, `ring` was called, or ``timeout_ms`` are over.

        None is without limit. Returns at once for what was readable before and not received,
        and for news that only `receive` could find.
        """
        self._look(0 if self._news_waits else timeout_ms)
        if self._doorbell.fd in self._readable:
            self._doorbell.answer()

    def _look(self, timeout_ms: int | None) -> None:
        self._readable = self._poller.poll(timeout_ms)
        self._looked_for_frames = self._looked_for_events = True

    def ring(self) -> None:
        """Wake `poll`; from any thread, also after `close`."""
        self._doorbell.ring()

    def receive(self, most: int) -> list[Arrival]:
        """Return what arrived; read, with what has to be dropped, at most ``most`` frames."""
        if not self._looked_for_frames:
            self._look(0)
        self._looked_for_frames = False
        arrivals: list[Arrival] = []
        self._sources.rotate()  # Whoever floods us may not always be read first.
        for socket, link in self._sources:
            if socket in self._readable:
                most -= self._read(socket, link, most, arrivals)
        return arrivals

    def _read(self, socket: Socket, link: Link | None, most: int, arrivals: list[Arrival]) -> int:
        """Read at most ``most`` messages of ``socket``; return how many it were."""
        for number in range(most):
            try:
                identity = socket.recv(NOBLOCK) if link is None else b""
                raw = only_part(socket)
            except zmq.Again:
                return number
            if raw is None:
                self._count("wire.malformed", 1)
            elif link is None:
                self._on_router(identity, raw, arrivals)
            else:
                self._on_dealer(link, raw, arrivals)
            # Mostly one comes at a time, and then to ask costs less than to be refused.
            if number == 0 and not has_news(socket):
                return 1
        self._poller.used(socket)  # There may be more.
        return most

    def _on_dealer(self, link: Link, raw: bytes, arrivals: list[Arrival]) -> None:
        frame = self._admission.admit(link.node, raw)
        if isinstance(frame, Frame):
            arrivals.append(Arrival(link.node, frame))
            return
        self._count(frame.counter, 1)
        if frame.mismatch is not None:
            link.refused(frame.detail)
            self._news_waits = True

    def _on_router(self, identity: bytes, raw: bytes, arrivals: list[Arrival]) -> None:
        name = link_of(identity)
        if name is None:
            self._count("wire.malformed", 1)
            return
        frame = self._admission.admit(name, raw)
        if isinstance(frame, Dropped):
            self._count(frame.counter, 1)
            self._tell(name, identity, frame)
            return
        if name not in self._links and self._clients.heard(name, identity):
            self._count("wire.client_forgotten", 1)
        arrivals.append(Arrival(name, frame))

    def _tell(self, name: str, identity: bytes, dropped: Dropped) -> None:
        """Answer a frame of another version or cluster, unless it is a refusal itself."""
        if dropped.mismatch is None or dropped.counter == "wire.rejected":
            return
        refusal = self._admission.refusal(name, dropped.mismatch, dropped.detail)
        self._answer(identity, encode_frame(refusal))

    def events(self) -> list[LinkUp | LinkDown | LinkRefused]:
        """Return how links to peers changed since the last call, oldest first for each."""
        if not self._looked_for_events:
            self._look(0)
        self._looked_for_events = False
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

        Dropped and counted: what goes to a link that is not there (``wire.unroutable``) and
        to one whose queue is full (``wire.queue_full``).

        Raises:
            FrameTooLargeError: it is above the limits of a frame; nothing was sent.
            TypeError: a message has a field of another type than it declares.
            ValueError: an address is not well-formed.

        """
        raw = encode_frame(frame, link if self._admission.gates else "")
        peer = self._links.get(link)
        if peer is None:
            self._send_to_client(link, raw)
            return
        self._poller.used(peer.dealer)
        try:
            send_part(peer.dealer, raw, NOBLOCK)
        except zmq.Again:
            self._count("wire.queue_full" if peer.up else "wire.unroutable", 1)

    def _send_to_client(self, client: str, raw: bytes) -> None:
        identity = self._clients.identity(client)
        if identity is None:
            self._count("wire.unroutable", 1)
        elif not self._answer(identity, raw):
            self._clients.gone(client)

    def _answer(self, identity: bytes, raw: bytes) -> bool:
        """Send ``raw`` by the ROUTER; return whether there is such a connection."""
        if self._router is None:
            return False
        self._poller.used(self._router)
        try:
            send_part(self._router, identity, NOBLOCK_MORE)
            send_part(self._router, raw, NOBLOCK)
        except zmq.Again:
            self._count("wire.queue_full", 1)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._count("wire.unroutable", 1)
            return False
        return True

    def close(self) -> None:
        """Close every socket and the context; from the owning thread. What waits is dropped."""
        if self._closed:
            return
        self._closed = True
        for link in self._links.values():
            link.close()
        if self._router is not None:
            close_socket(self._router)
        self._context.destroy(linger=0)  # With what an interrupt left half-made, if one did.
        self._doorbell.close()
