"""The sockets of a node: a ROUTER for incoming connections, a DEALER to each peer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import zmq

from fencelock.actors.error import ConfigError
from fencelock.actors.message import NS_PER_MS
from fencelock.actors.quota import DEFAULT_QUOTAS, Quotas
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.transport.admission import (
    CLIENT_FRAME_BYTES_MAX,
    Dropped,
    FrameValidator,
    check_client_size,
)
from fencelock.transport.descriptors import CONNECTIONS_MAX, TcpConnection, connection_of
from fencelock.transport.frame import Frame, Mismatch, check_cluster, check_node, encode_frame
from fencelock.transport.keys import (
    MISMATCHES,
    KeyGuard,
    LinkKey,
    ListedKeys,
    mechanism_at,
    why_failed,
)
from fencelock.transport.log import FaultLog, logger
from fencelock.transport.polling import Doorbell, Poller
from fencelock.transport.sockets import (
    HANDSHAKE_FAILURES,
    LINK_EVENTS,
    LOOKUP_THREADS,
    NOBLOCK,
    POLLIN,
    Socket,
    close_socket,
    connected_dealer,
    discard_parts,
    io_context,
    monitored,
    poll_sockets,
    send_part,
)

if TYPE_CHECKING:
    from fencelock.transport.listener import Arrival, Listener
    from fencelock.transport.stream import StreamServer

LinkEvent = LinkUp | LinkDown | LinkRefused

LOOKS = 16
"""Among members a link brings only refusals, since each member sends over its own links. So it is
polled for events only after this many frames, and after each of its first ones."""

RETRY_S = 1.0
"""Pause before a link is tried again whose handshake was refused (s): a key may be added."""

LINKS_DUE_MS = 200
"""Interval of looks for links that are due (ms)."""

LINK_BYTES_MAX = 32 << 20
"""Limit of the bytes that were sent over a link and not received (32 MiB): a second or two of large
frames, then loss. libzmq bounds them in frames only."""

STRANGER_CHARS_MAX = 300
"""Limit of a stranger's explanation that is passed on."""


BEAT_S = 30.0
"""Interval of empty frames over a link that has sent nothing else (s), see `held_bytes`."""

BEAT_POLLS = 64
"""A busy hub checks whether they are due after so many polls."""


LOOK_AFTER, LOOK_EACH = 3, 30
"""A link looks at the mechanism of its peer after so many handshakes that failed without a detail,
some 0.3 s, and again after so many more."""


class Link:
    """The connection to the peer ``node``, which may be up, down, or not yet known to be either.

    Its changes are appended to ``news``.
    """

    def __init__(
        self,
        context: zmq.Context[Socket],
        node: str,
        endpoint: str,
        identity: bytes,
        key: LinkKey | None,
        news: list[LinkEvent],
        poller: Poller,
        lookup_thread: int,
    ) -> None:
        self.node = node
        self.endpoint = endpoint
        self.lookup_thread = lookup_thread
        """The I/O thread of a link to a host name, see `LOOKUP_THREADS`."""
        self._key = key
        self._news = news
        self._poller = poller
        secure = None if key is None else key.secure
        self.dealer = connected_dealer(context, endpoint, identity, secure, lookup_thread)
        self.monitor: Socket = self.dealer.get_monitor_socket(LINK_EVENTS)
        poller.register(self.dealer)
        poller.register(self.monitor)
        self.up: bool | None = None
        self.sent = 0
        self.beaten = 0
        """``sent`` when an empty frame was last due."""
        self.connection = TcpConnection(-1, None)
        """The present one, or the last."""
        self._refusal = ""
        self._unexplained = 0
        """Handshakes that failed without a detail since the link was up."""
        self._why = ""
        """The reason that a look at the peer has found for them."""
        self.retry_at = 0.0
        """The time to connect again (s): libzmq does not after a refused handshake. 0 if none is
        due."""

    def watch(self) -> None:
        """Read the events of the monitor; never blocks."""
        self._poller.used[self.dealer] = POLLIN
        while True:
            try:
                event, value = monitored(self.monitor)
            except zmq.Again:
                return
            if event == zmq.EVENT_CONNECTED:
                self.connection = connection_of(value)
                continue
            self._turned(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
            if event & HANDSHAKE_FAILURES:
                self._failed(event, value)

    def _failed(self, event: int, value: int) -> None:
        """Record a handshake that failed. One without a detail may be a node that stopped."""
        if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self.retry_at = time.monotonic() + RETRY_S
        else:
            self._unexplained += 1
            if self._unexplained % LOOK_EACH == LOOK_AFTER:
                threading.Thread(target=self._look, name="fencelock-look", daemon=True).start()
        why = why_failed(event, value, has_key=self._key is not None) or self._why
        if why:
            self.refused(why, by_key=True)

    def _look(self) -> None:
        """Find out whether the peer has another mechanism; on a thread of its own."""
        mechanism, has_key = mechanism_at(self.endpoint), self._key is not None
        differs = bool(mechanism) and has_key != (mechanism == "CURVE")
        self._why = MISMATCHES[has_key] if differs else ""

    def retry(self) -> None:
        """Connect again after a refused handshake; libzmq repairs broken connections by itself."""
        self.retry_at = 0.0
        self._poller.used |= {self.dealer: POLLIN, self.monitor: POLLIN}
        with suppress(zmq.ZMQError):  # It was never connected.
            self.dealer.disconnect(self.endpoint)
        self.dealer.connect(self.endpoint)

    def _turned(self, up: bool) -> None:
        """Record that the link is ``up`` or down; only a change is an event."""
        if up == self.up:
            return
        self.up = up
        self._refusal = ""
        if up:
            self.retry_at, self._unexplained, self._why = 0.0, 0, ""
            # Reading the events lets libzmq attach the connection; without this, a message sent
            # within the next millisecond would find none.
            self.dealer.getsockopt(zmq.EVENTS)
        self._news.append(LinkUp(node=self.node) if up else LinkDown(node=self.node))

    def refused(self, detail: str, *, by_key: bool = False, cluster: str = "") -> None:
        """Record that the endpoint is not the expected peer; the same text once per link.

        For ``by_key`` and ``cluster`` see `LinkRefused`.
        """
        detail = f"{self.endpoint}: {detail[:STRANGER_CHARS_MAX]}"
        if detail != self._refusal:
            self._refusal = detail
            refused = LinkRefused(node=self.node, detail=detail, by_key=by_key, cluster=cluster)
            self._news.append(refused)

    def close(self) -> None:
        self._poller.unregister(self.dealer)
        self._poller.unregister(self.monitor)
        if self.up:
            self._news.append(LinkDown(node=self.node))
        close_socket(self.dealer)


class SocketHub:
    """All ZeroMQ sockets of one node; used by one thread, but for `ring`.

    Nothing here blocks except `poll`. A frame that cannot be sent is dropped and counted:
    links lose frames, and roles expect that.

    Args:
        node: our id; for a client, its session.
        boot: a number that differs in each life of the node, 0 to 2**64-1.
        listen: the endpoint to bind, ``tcp://address:port``, port 0 for any; None for none.
        peers: the endpoint of each peer, by node id, or by alias if ``client``; `connect` and
            `disconnect` change them.
        client: for a client: a peer's name is an alias of an endpoint, since its node is not known.
        connections_max: limit of connections to ``listen``.
        key: the key of the links that this process opens, if keys are used.
        listed: the keys of connections to ``listen``, if keys are used.
        count: called with a counter's name and its increment.

    Attributes:
        group: the group of this node, 0 while it knows none; read only, see `join`.
        waiting: the clients whose frames wait for `receive_clients`, or their keys; a live view.
        has_events: whether `events` has something to return, or connections to look after.

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
        client: bool = False,
        spins: bool = False,
        connections_max: int = CONNECTIONS_MAX,
        key: LinkKey | None = None,
        listed: ListedKeys | None = None,
        quotas: Quotas = DEFAULT_QUOTAS,
        count: Callable[[str, int], None],
    ) -> None:
        check_cluster(cluster)
        for name in (node, *peers):
            check_node(name)
        self.cluster = cluster
        self.group = 0
        self.endpoint = ""
        self._count = count
        self._key = key
        self._guard = None if listed is None else KeyGuard(node, listed, count)
        self._retries = False
        """Whether a link is to be tried again."""
        self._identity = f"{node}#{boot:x}"
        self._links: dict[str, Link] = {}
        """By peer. Frames of these are a member's: admission and listener look here."""
        self._admission = FrameValidator(node, cluster, client=client, members=self._links)
        self._admission.note_fault = FaultLog(node, time.monotonic_ns, count).note
        self._barred: dict[str, str] = {}
        """The endpoints of peers without a key: over a link to one, the other side would prove only
        that it has the key of the cluster."""
        self._connected = 0
        """Links made so far."""
        self._news: list[LinkEvent] = []
        """The changes of links since the last call of `events`."""
        self._monitors: set[Socket | int] = set()
        self._listener: Listener | None = None
        self.waiting: Collection[str] = ()
        self._doorbell = Doorbell()
        self.ring: Callable[[], None] = self._doorbell.ring
        """Wakes `poll`; from any thread, also after `close`."""
        self._streams: StreamServer | None = None
        self._context = io_context()
        self._poller = Poller(spins=spins)
        self._readable: set[Socket | int] = set()
        self._polls = 0
        self._beat_at = time.monotonic() + BEAT_S
        """The time at which empty frames are due (s)."""
        self.has_events = False
        self._closed = False
        try:
            self._open(listen, peers, connections_max, quotas)
        except BaseException:
            self.close()
            raise

    def join(self, group: int) -> None:
        """Name ``group`` in frames, and refuse those between nodes of another."""
        self.group = self._admission.group = group

    def _open(
        self, listen: str | None, peers: Mapping[str, str], connections_max: int, quotas: Quotas
    ) -> None:
        if listen is not None:
            if self._guard is not None:
                self._guard.start(self._context)
            from fencelock.transport.listener import Listener  # noqa: PLC0415 (clients need none)

            self._listener = Listener(
                self._context,
                listen,
                admission=self._admission,
                members=self._links,
                connections_max=connections_max,
                quotas=quotas,
                poller=self._poller,
                count=self._count,
                ring=self.ring,
                guard=self._guard,
            )
            self.endpoint = self._listener.endpoint
            self.waiting = self._listener.queue.owners
            self._monitors.add(self._listener.connections.monitor)
        for peer, endpoint in sorted(peers.items()):
            self.connect(peer, endpoint)
        self._poller.register(self._doorbell.fd)

    def connect(self, node: str, endpoint: str) -> None:
        """Keep a link to the peer ``node`` at ``endpoint``; one to another endpoint is replaced.

        With keys, there is no link while the peer has none.

        Raises:
            ConfigError: the endpoint cannot be parsed; a former link is closed.
            ValueError: the id is not well-formed.

        """
        check_node(node)
        known = self._links.get(node)
        if endpoint == (known.endpoint if known is not None else self._barred.get(node)):
            return
        self.disconnect(node)
        if self._guard is not None and not self._guard.lists(node):
            self._barred[node] = endpoint
            detail = f"{endpoint}: the list of keys lists no node {node}"
            self._news.append(LinkRefused(node=node, detail=detail, by_key=True))
            return
        # The number tells two links to one node apart: a client may list it twice.
        identity = f"{self._identity}.{self._connected}".encode()
        self._connected += 1
        taken = [link.lookup_thread for link in self._links.values()]
        thread = min(range(LOOKUP_THREADS), key=taken.count)
        link = self._links[node] = Link(
            self._context, node, endpoint, identity, self._key, self._news, self._poller, thread
        )
        self._monitors.add(link.monitor)

    def disconnect(self, node: str) -> None:
        self._barred.pop(node, None)
        link = self._links.pop(node, None)
        if link is not None:
            self._monitors.discard(link.monitor)
            self._readable -= {link.dealer, link.monitor}
            link.close()

    def replace_keys(self, bound: Mapping[str, str]) -> None:
        """Use another list of keys, see `KeyGuard.replace`.

        Close the links to peers without a key, and connect to those that have one again.
        """
        assert self._guard is not None
        assert self._listener is not None
        self._guard.replace(bound, self._listener.connections.open.values())
        links = {node: link.endpoint for node, link in self._links.items()}
        for node, endpoint in {**links, **self._barred}.items():
            if self._guard.lists(node) == (node in self._barred):
                self.disconnect(node)
                try:
                    self.connect(node, endpoint)
                except ConfigError as error:  # The other links must follow their keys.
                    self._news.append(LinkRefused(node=node, detail=str(error)))

    def attach(self, streams: StreamServer) -> None:
        """Poll ``streams``, too, and close them in the end. On the thread that polls."""
        self._streams = streams
        self._poller.register(streams.descriptor)

    def poll(self, timeout_ms: int | None, expects_reply: bool = False) -> None:
        """Sleep until a socket is readable, `ring` was called, or ``timeout_ms`` have passed.

        None is without limit. For ``expects_reply`` see `Poller.poll`. Returns at once if frames of
        clients or news of a link wait. Only sockets that were found ready here are received from.
        """
        listener, tend_ms = self._listener, None
        if listener is not None:
            tend_ms = listener.connections.tend_ms
        if self._news:
            timeout_ms = 0
        elif self.waiting and listener is not None:
            pause_ms = -(-listener.queue.pause_ns() // NS_PER_MS)
            timeout_ms = pause_ms if timeout_ms is None else min(timeout_ms, pause_ms)
        elif tend_ms is not None:
            timeout_ms = tend_ms if timeout_ms is None else min(timeout_ms, tend_ms)
        if self._retries:
            timeout_ms = LINKS_DUE_MS if timeout_ms is None else min(timeout_ms, LINKS_DUE_MS)
        if timeout_ms is None and self._links:
            timeout_ms = round(1000 * BEAT_S)
        readable = self._readable = self._poller.poll(timeout_ms, expects_reply)
        if self._streams is not None and self._streams.descriptor in readable:
            self._streams.ready()
        self._polls += 1
        if not readable or self._polls > BEAT_POLLS:
            self._beat()
        if (bell := self._doorbell.fd) in readable:
            self._doorbell.answer()
            readable.remove(bell)
        news = bool(self._news) or not self._monitors.isdisjoint(readable)
        ended = listener is not None and bool(listener.held.ended)
        self.has_events = news or ended or tend_ms is not None or self._retries

    def _beat(self) -> None:
        """Send an empty frame over each link that has sent nothing for a while."""
        self._polls = 0
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            empty = Frame(self.cluster, 0, 0, ())
            for link in self._links.values():
                if link.up and link.sent == link.beaten:
                    self.send(link.node, empty)
                link.beaten = link.sent

    def receive_members(self, most: int) -> list[Arrival]:
        """Read at most ``most`` frames, dropped ones included; return those of members.

        The frames of clients wait for `receive_clients`.
        """
        arrivals: list[Arrival] = []
        listener, readable = self._listener, self._readable
        if listener is not None:
            if listener.socket in readable:
                listener.read(most, arrivals)
            else:
                listener.held.empties += 1
        if readable:
            links = [*self._links.values()]
            first = self._polls % (len(links) or 1)  # A peer that floods us is not always first.
            for link in links[first:] + links[:first]:
                if link.dealer in readable:
                    most -= self._read(link, most, arrivals)
        return arrivals

    def receive_clients(self, most: int, within_ns: int) -> tuple[list[Arrival], int]:
        if self._listener is None:
            return [], 0
        return self._listener.receive_clients(most, within_ns)

    def _read(self, link: Link, most: int, arrivals: list[Arrival]) -> int:
        """Read at most ``most`` messages of a peer; return how many there were."""
        socket, node = link.dealer, link.node
        for number in range(most):
            try:
                part: zmq.Frame = socket.recv(NOBLOCK, False)  # A frame knows whether more follow.
            except zmq.Again:
                return number
            if part.more:
                while not discard_parts(socket, most):
                    pass
                self._count("wire.malformed", 1)
            else:
                frame = self._admission.admit(node, part.bytes)
                if isinstance(frame, Dropped):
                    self._drop(link, frame)
                else:
                    if frame.newer:
                        self._count("wire.newer_message", frame.newer)
                    arrivals.append((node, frame))
            # Mostly one comes at a time: asking for more is then cheaper than a failed read.
            if number == 0 and not poll_sockets(((socket, POLLIN),), 0):
                return 1
        self._poller.used[socket] = POLLIN  # There may be more.
        return most

    def _drop(self, link: Link, dropped: Dropped) -> None:
        self._count(dropped.counter, 1)
        if dropped.mismatch is Mismatch.QUOTA:
            logger.warning("%s", dropped.detail)
        elif dropped.mismatch is not None:
            link.refused(dropped.detail, cluster=dropped.cluster)

    def events(self) -> list[LinkEvent]:
        """Return the changes of links to peers since the last call, oldest first."""
        self.has_events = False
        if self._listener is not None:
            self._listener.tend(self._readable)
        for link in self._links.values():
            if link.monitor in self._readable:
                link.watch()
            if 0 < link.retry_at <= time.monotonic():
                link.retry()
        self._retries = any(link.retry_at for link in self._links.values())
        news = [*self._news]
        self._news.clear()
        return news

    def unheard(self) -> list[str]:
        """Return the peers to which a link is up, if no frame ever came from any peer."""
        up = [name for name, link in self._links.items() if link.up]
        return [] if any(map(self._admission.has_received, self._links)) else up

    def send(self, link: str, frame: Frame) -> None:
        """Send ``frame`` to a peer or a client; never blocks.

        A frame is dropped and counted if its link does not exist (``wire.unroutable``), has a full
        queue or `LINK_BYTES_MAX` that were not received (``wire.queue_full``), and before it is
        encoded if the client does not read (``wire.client_slow``).

        Raises:
            FrameTooLargeError: it is above the limits of a frame; nothing was sent.
            TypeError: a message has a field that is not of its declared type.
            ValueError: an address is not well-formed.

        """
        peer = self._links.get(link)
        if peer is None:
            if self._listener is None:
                self._count("wire.unroutable", 1)
            else:
                self._listener.send(link, frame)
            return
        client = self._admission.client
        raw = encode_frame(frame, link if client else "", check=not client)
        size, connection = len(raw), peer.connection
        if size > CLIENT_FRAME_BYTES_MAX:
            check_client_size(frame, size, client=client)
        if connection.sent - connection.received + size > LINK_BYTES_MAX:
            connection.look()  # Once in so many bytes, or while the other side does not read.
            if connection.sent - connection.received + size > LINK_BYTES_MAX:
                self._count("wire.queue_full", 1)
                return
        connection.sent += size
        peer.sent += 1
        if client or peer.sent <= LOOKS or peer.sent % LOOKS == 0:
            self._poller.used[peer.dealer] = POLLIN
        try:
            send_part(peer.dealer, raw, NOBLOCK)
        except zmq.Again:
            connection.sent -= size
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
        if self._guard is not None:
            self._guard.close()
        if self._streams is not None:
            self._streams.close()
        self._context.destroy(linger=0)  # Also sockets that an interrupt left half-made.
        self._doorbell.close()
