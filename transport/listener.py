"""The ROUTER of a node: members' frames are decoded at once, clients' wait for their turn.

The order of clients and the reasons for it are in `client_queue`; which connections are kept, in
`connections`; and how many bytes wait for each, in `held_bytes`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection

import zmq

from fencelock.actors.proxy.access import key_of
from fencelock.actors.quota import Quotas
from fencelock.actors.repeated import Repetitions, times_text
from fencelock.transport.admission import (
    CLIENT_FRAME_BYTES_MAX,
    Dropped,
    FrameValidator,
    check_client_size,
    link_of,
)
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.client_queue import (
    CLIENT_FRAMES_MAX,
    FLOOD_FRAMES,
    KEY_FRAMES_MAX,
    WARNED_FRAMES,
    ClientQueue,
    Floods,
)
from fencelock.transport.connections import SETTLED, Connection, Connections, State
from fencelock.transport.descriptors import CONNECTIONS_MAX
from fencelock.transport.frame import Frame, Mismatch, encode_frame
from fencelock.transport.held_bytes import (
    LARGE_BYTES,
    UNFINISHED_BARRED_S,
    HeldBytes,
    UnreadReplies,
)
from fencelock.transport.keys import KeyGuard
from fencelock.transport.log import note
from fencelock.transport.polling import Poller
from fencelock.transport.sockets import (
    NOBLOCK,
    NOBLOCK_MORE,
    POLLIN,
    Socket,
    bound_router,
    close_socket,
    connection_monitor,
    discard_parts,
    poll_sockets,
    send_part,
)

WEIGHT_BYTES = 4 << 10
"""A frame counts once more per so many bytes (4 KiB): large ones end a turn sooner."""

DROPPED_BYTES = 4 * WEIGHT_BYTES
"""A frame that is dropped unread counts as this many bytes."""

DISCARDED_PARTS_MAX = 2048
"""Parts of a message that are discarded in one turn."""

PARTS_BARRED_S = 0.1
PARTS_BARRED_EACH_S = 20e-6
"""Time for which an address is barred after a message of several parts, and more for each
part (s). Discarding one takes 0.6 us: so it takes at most 3 % of the node's time."""

OPEN_S = 1.0
"""Time for which a connection that was found open is taken to be open (s)."""

_SRCFD = int(zmq.SRCFD)


Arrival = tuple[str, Frame]
"""A frame that passed every check, with the link that it came over: the peer's node id or its
alias, or the client's id. A plain tuple, since each frame makes one."""


class Listener:
    """The socket that clients and members connect to, and the frames received over it.

    A frame's sender is known by its routing id before anything in it is read. A member's frame is
    decoded at once; a client's must be small, and waits for `receive_clients`.

    Args:
        endpoint: the endpoint to bind; `bound_router` raises a `ConfigError` if it cannot.
        members: the ids of peers; a live view.
        count: called with a counter's name and its increment.
        ring: wakes the thread that uses the listener; from any thread.

    """

    def __init__(
        self,
        context: zmq.Context[Socket],
        endpoint: str,
        *,
        admission: FrameValidator,
        members: Collection[str],
        connections_max: int,
        quotas: Quotas,
        poller: Poller,
        count: Callable[[str, int], None],
        ring: Callable[[], None],
        guard: KeyGuard | None,
    ) -> None:
        self._admission = admission
        self._members = members
        self._poller = poller
        self._count = count
        self._guard = guard
        self._clients = Clients(self._is_open)
        self._owner_of: Callable[[str], str] = str if guard is None else key_of
        frames_max = CLIENT_FRAMES_MAX if guard is None else KEY_FRAMES_MAX
        self.queue = ClientQueue(self._clients.known, frames_max)
        self._unread = UnreadReplies(quotas.unread_kib << 10)
        self._floods = Floods()
        self._taken = Repetitions()
        self._discarded = ""
        """The address that sent a message of which parts are still to be discarded, or ""."""
        monitor = connection_monitor(context)
        self.socket = bound_router(
            context, endpoint, monitor, None if guard is None else guard.secure
        )
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.held = HeldBytes(self.endpoint, ring, count, curve=guard is not None)
        self.connections = Connections(
            self.socket,
            monitor,
            connections_max,
            quotas.connections,
            count,
            self.held.watch,
            self._unread.closed,
            None if guard is None else guard.failed,
        )
        poller.register(self.socket)
        poller.register(monitor)

    def tend(self, readable: Collection[Socket | int]) -> None:
        """Look after connections; ``readable`` are the sockets that have something to read."""
        connections = self.connections
        if connections.monitor in readable and connections.watch():
            self._poller.used[connections.monitor] = POLLIN
        connections.tend()
        for host in self.held.tend():
            self._bar(host, UNFINISHED_BARRED_S)
        if self._guard is not None:
            self._guard.tend()

    def _bar(self, host: str, seconds: float) -> None:
        """Bar an address for a while; where it is not barred yet, end its larger connections."""
        if others := self.connections.bar(host, seconds):
            self.held.end_larger(others, "it is from the address of one that sent several parts")

    def read(self, most: int, arrivals: list[Arrival]) -> None:
        """Read about ``most`` frames, counting large ones as several; add those of members."""
        socket, held = self.socket, self.held
        first = True
        while most > 0:
            if self._discarded and not self._discard():
                break
            try:
                identity = socket.recv(NOBLOCK)
                part: zmq.Frame = socket.recv(NOBLOCK, False)  # A frame knows whether more follow.
            except zmq.Again:
                held.empties += 1
                return
            if part.more:
                self._count("wire.malformed", 1)
                self._end_sender(identity, part)
                most -= 1
            else:
                most -= 1 + self._sort(identity, part, arrivals) // WEIGHT_BYTES
            # Mostly one comes at a time: asking for more is then cheaper than a failed read.
            if first and not self._discarded and not poll_sockets(((socket, POLLIN),), 0):
                held.empties += 1
                return
            first = False
        self._poller.used[socket] = POLLIN  # There may be more.

    def _end_sender(self, identity: bytes, part: zmq.Frame) -> None:
        """End the connection of the first of several parts: no version of ours sends that.

        Garbage may look like an old version of ZMTP; such a part names no connection.
        """
        try:
            source = int(part.get(_SRCFD))
        except zmq.ZMQError:
            self._count("wire.malformed", 1)
            return
        self._discarded = str(part.get("Peer-Address"))
        one = self.connections.over(source, identity, self._discarded)
        self.held.end(one, "it sent a frame of several parts")
        self._bar(self._discarded, PARTS_BARRED_S)

    def _discard(self) -> bool:
        """Discard some of the parts; return whether these were the last."""
        self._bar(self._discarded, DISCARDED_PARTS_MAX * PARTS_BARRED_EACH_S)
        if not discard_parts(self.socket, DISCARDED_PARTS_MAX):
            return False
        self._discarded = ""
        return True

    def _sort(  # noqa: PLR0912  (the path of every frame)
        self, identity: bytes, part: zmq.Frame, arrivals: list[Arrival]
    ) -> int:
        """Decode a member's frame; queue a client's. Return the bytes that it counts as."""
        try:
            source = int(part.get(_SRCFD))
        except zmq.ZMQError:  # Of an old version of ZMTP: we speak none.
            self._count("wire.malformed", 1)
            return 0
        connections, held, floods, size = self.connections, self.held, self._floods, len(part)
        one = connections.open.get(source)
        if (
            one is None
            or one.identity != identity
            or one.state is State.ENDED
            or connections.is_behind
        ):
            host = str(part.get("Peer-Address"))
            one = self._introduced(connections.over(source, identity, host))
        name = one.name
        if not name:
            # libzmq made that id: the peer sent none, or connected again before this was read.
            made_here = identity.startswith(b"\x00")
            self._count("wire.unnamed" if made_here else "wire.malformed", 1)
            return 0
        one.taken += size + (held.extra if size <= held.short_max else held.extra_long)
        if self._guard is not None and not self._guard.admits(one, part):
            return 0
        if floods.senders and floods.is_muted(one):
            return self._drop_unread("wire.muted", one)
        member = name in self._members
        if size > (FRAME_BYTES_MAX if member else CLIENT_FRAME_BYTES_MAX):
            self._count("wire.oversized", 1)
            floods.mute(one)
            return 0
        raw = part.bytes
        if member:
            frame = self._admission.admit(name, raw)
            if isinstance(frame, Dropped):
                self._dropped(one, frame, raw)
            elif one.state is State.MEMBER or connections.use(one, member=True):
                if frame.newer:
                    self._count("wire.newer_message", frame.newer)
                arrivals.append((name, frame))
            return size
        if one.blocked and self._unread.is_blocked(one):
            return self._drop_unread("wire.client_slow", one)
        if one.owner in self.queue.owners and self._clients.is_taken(one):
            return self._drop_unread("wire.client_id_taken", one)
        if not self.queue.put(one, raw):
            return self._drop_unread("wire.client_flooded", one)
        return size

    def _introduced(self, one: Connection) -> Connection:
        """Return a connection over which a frame came, with the names of its sender."""
        if not one.name:
            one.name = link_of(one.identity) or ""
            one.owner = self._owner_of(one.name)
        return one

    def _drop_unread(self, counter: str, one: Connection) -> int:
        """Drop a frame; close the connection of a sender of which too many were dropped.

        Return the bytes that the frame counts as: a flood must not make turns long.
        """
        self._count(counter, 1)
        dropped = self._floods.note(one)
        if not dropped:
            self._count("wire.flood_closed", 1)
        elif dropped == WARNED_FRAMES and counter != "wire.muted":
            text = f"client {one.name!r}: {dropped} frames were dropped within a second, the quota "
            text = f"{text}is {FLOOD_FRAMES}; then its connection is closed"
            self._refuse(one, Mismatch.QUOTA, text)
        return DROPPED_BYTES

    def receive_clients(self, most: int, within_ns: int) -> tuple[list[Arrival], int]:
        """Decode frames of clients, each client, or each key, in turn, see `ClientQueue.serve`."""
        served, used = self.queue.serve(most, within_ns, self._opened)
        return [(one.name, frame) for one, frame in served], used

    def _opened(self, one: Connection, raw: bytes) -> Frame | None:
        if self._floods.senders and self._floods.is_muted(one):
            self._count("wire.muted", 1)
            return None
        clients, name = self._clients, one.name
        is_usual = clients.connection(name) is one
        if not is_usual and clients.is_taken(one):
            self._refuse_taken(one)
            return None
        frame = self._admission.admit(name, raw)
        if isinstance(frame, Dropped):
            self._dropped(one, frame, raw)
            return None
        member = name in self._members
        if one.state not in SETTLED and not self.connections.use(one, member=member):
            return None
        if frame.newer:
            self._count("wire.newer_message", frame.newer)
        if is_usual:
            clients.used(name)
        elif clients.note(one):
            self._count("wire.client_forgotten", 1)
        return frame

    def _refuse_taken(self, one: Connection) -> None:
        """Notify a process that another one uses its id; log the latest once an interval."""
        self._count("wire.client_id_taken", 1)
        text = f"another process uses the client id {one.name!r} over an open connection"
        self._refuse(one, Mismatch.ID_TAKEN, text)
        count, node = self._taken.add("", time.monotonic_ns()), self._admission.node
        if count:
            text = f"{node} refused frames: {text}{times_text(count)}"
            note(node, "WARNING", text, event="client_id_taken", count=count)

    def _dropped(self, one: Connection, dropped: Dropped, raw: bytes) -> None:
        """Count a dropped frame, and notify its sender if that can help."""
        self._count(dropped.counter, 1)
        if dropped.hostile:
            self._floods.mute(one)
        elif dropped.counter == "wire.malformed" and one.name not in self._members:
            replies = self._admission.field_refusals(one.name, raw)
            if replies is not None:
                self._reply(one, encode_frame(replies))
        if dropped.mismatch is not None and dropped.counter != "wire.rejected":
            self._refuse(one, dropped.mismatch, dropped.detail)

    def _refuse(self, one: Connection, mismatch: Mismatch, detail: str) -> None:
        refusal = self._admission.refusal(one.name, mismatch, detail)
        self._reply(one, encode_frame(refusal))

    def send(self, client: str, frame: Frame) -> None:
        """Send ``frame`` to ``client`` by the connection that it used last, see `SocketHub.send`.

        Whether the client reads is checked before the frame is encoded.
        """
        one = self._clients.connection(client)
        if one is None:
            self._count("wire.unroutable", 1)
            return
        if one.blocked and self._unread.is_blocked(one):
            self._count("wire.client_slow", 1)
            return
        raw = encode_frame(frame, check=False)
        size = len(raw)
        if size > CLIENT_FRAME_BYTES_MAX:
            check_client_size(frame, size, client=False)
        if size > LARGE_BYTES and one.gone:  # Nothing would count what is unread.
            self._count("wire.unroutable", 1)
            self._clients.gone(client)
        elif size > LARGE_BYTES and not self._unread.admits(one, size):
            self._count("wire.client_slow", 1)
        elif not self._reply(one, raw):
            self._clients.gone(client)

    def _reply(self, one: Connection, raw: bytes) -> bool:
        """Send ``raw``; return whether the connection exists."""
        self._poller.used[self.socket] = POLLIN
        one.sent += len(raw)  # First, see `TcpConnection.sent`.
        try:
            send_part(self.socket, one.identity, NOBLOCK_MORE)
            send_part(self.socket, raw, NOBLOCK)
        except zmq.ZMQError as error:
            one.sent -= len(raw)
            if error.errno == zmq.EAGAIN:
                self._count("wire.queue_full", 1)
            elif error.errno == zmq.EHOSTUNREACH:
                self._count("wire.unroutable", 1)
                return False
            else:
                raise
        return True

    def _is_open(self, one: Connection) -> bool:
        """Return whether the connection exists. Only a message to it tells: an empty frame."""
        return self._reply(one, encode_frame(Frame(self._admission.cluster, 0, 0, ())))

    def close(self) -> None:
        self.held.close()
        self.connections.close()
        close_socket(self.socket)


class Clients:
    """The connection last used by each client.

    Args:
        is_open: returns whether there is a connection with the routing id of this one.
        most: limit of clients. A forgotten one is known again once it sends.

    """

    def __init__(self, is_open: Callable[[Connection], bool], most: int = CONNECTIONS_MAX) -> None:
        self._is_open = is_open
        self._most = most
        self._connections: OrderedDict[str, Connection] = OrderedDict()
        self.known: Collection[str] = self._connections
        self.connection: Callable[[str], Connection | None] = self._connections.get
        """Returns the connection of a client, or None for an unknown client."""
        self.used: Callable[[str], None] = self._connections.move_to_end
        """Records that a known client used its connection again."""

    def note(self, one: Connection) -> bool:
        """Record a message of a client; return whether another client was forgotten for it."""
        self._connections[one.name] = one
        self._connections.move_to_end(one.name)
        if len(self._connections) <= self._most:
            return False
        self.gone(next(iter(self._connections)))
        return True

    def is_taken(self, one: Connection) -> bool:
        """Return whether another process uses the id of a client over an open connection.

        The routing ids of one process differ after the first dot of their boot part only. Only
        libzmq knows which connections are open: a descriptor does not tell, since the last frames
        of a closed connection may be read when another one has its descriptor already.
        """
        known = self._connections.get(one.name)
        if known is None or known is one:
            return False
        if known.identity.partition(b".")[0] == one.identity.partition(b".")[0]:
            return False
        now = time.monotonic()
        if now < known.open_until:
            return True
        if not self._is_open(known):
            self.gone(one.name)
            return False
        known.open_until = now + OPEN_S
        return True

    def gone(self, client: str) -> None:
        self._connections.pop(client, None)

    def __len__(self) -> int:
        return len(self._connections)
