"""The ROUTER of a node: members' frames are decoded at once, clients' wait for their turn."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, cast

import zmq

from fencelock.transport.admission import CLIENT_BYTES_MAX, Dropped, FrameValidator, link_of
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.connections import Connections
from fencelock.transport.frame import Frame, encode_frame
from fencelock.transport.keys import KeyGuard
from fencelock.transport.polling import Poller
from fencelock.transport.sockets import (
    EVENTS,
    NOBLOCK,
    NOBLOCK_MORE,
    POLLIN,
    Socket,
    bound_router,
    close_socket,
    connection_monitor,
    discard_parts,
    send_part,
)

WEIGHT_BYTES = 4 << 10
"""A frame counts once more for each of these (bytes, 4 KiB): large ones end a turn sooner."""

PARTS_MAX = 256
"""Parts of a message that are discarded in one turn."""

MUTED_S = 1.0
"""Time for which frames of a sender are discarded unread after one that no version of ours
sends (s)."""

MUTED_MAX = 1024
"""Limit of senders that are muted at a time."""

SHARE = 32
"""Envelopes of one client that are taken at once while other clients wait."""

_SRCFD = int(zmq.SRCFD)


CLIENT_FRAMES_MAX = 256
"""Limit of waiting frames of one client; more are dropped, and the client sends them again."""

CLIENT_WAITING_MAX = 32 * CLIENT_BYTES_MAX
"""Limit of waiting frames of one client (bytes, 2 MiB)."""

WAITING_MAX = 512 * CLIENT_BYTES_MAX
"""Limit of waiting frames of all clients (bytes, 32 MiB)."""

CLIENTS_MAX = 10_000
"""Limit of clients that a node remembers. A forgotten one is known again when it sends."""


class Arrival(NamedTuple):
    """A frame that passed every check, and the link it came over."""

    link: str
    """The peer's node id or its alias, or the client's id."""
    frame: Frame


new_arrival: Callable[[tuple[str, Frame]], Arrival] = partial(cast("Any", tuple).__new__, Arrival)
"""Makes an arrival; its own constructor is Python code."""


class QueuedFrame(NamedTuple):
    """A frame as it arrived, or the rest of one that was decoded."""

    identity: bytes
    """The routing id of its connection."""
    source: int
    """The descriptor of its connection."""
    raw: bytes
    rest: Frame | None = None


new_queued_frame: Callable[[tuple[bytes, int, bytes, Frame | None]], QueuedFrame] = partial(
    cast("Any", tuple).__new__, QueuedFrame
)
"""Makes a queued frame; its own constructor is Python code."""


class ClientQueue:
    """The waiting frames of clients, by client.

    `take` serves one client after the other. So a client that sends much waits longer itself, and
    others wait for at most one frame of it.

    Attributes:
        frames: the waiting frames of each client, the next client first; read only.

    """

    def __init__(self) -> None:
        self.frames: OrderedDict[str, deque[QueuedFrame]] = OrderedDict()
        self._bytes: dict[str, int] = {}
        self._total = 0

    def put(self, client: str, waiting: QueuedFrame) -> bool:
        """Add a frame; return False if there is no room for it."""
        size = len(waiting.raw)
        frames = self.frames.get(client)
        if frames is None:
            if self._total + size > WAITING_MAX:
                return False
            self.frames[client] = deque((waiting,))
            self._bytes[client] = size
        else:
            used = self._bytes[client] + size
            full = used > CLIENT_WAITING_MAX or self._total + size > WAITING_MAX
            if full or len(frames) >= CLIENT_FRAMES_MAX:
                return False
            frames.append(waiting)
            self._bytes[client] = used
        self._total += size
        return True

    def put_back(self, client: str, rest: QueuedFrame) -> None:
        """Make the rest of a frame the next of ``client``, after all others' turns."""
        self.frames.setdefault(client, deque()).appendleft(rest)
        self._bytes.setdefault(client, 0)

    def take(self) -> tuple[str, QueuedFrame]:
        """Return the next frame and its client; there must be one."""
        client, frames = self.frames.popitem(last=False)
        waiting = frames.popleft()
        size = len(waiting.raw)
        self._total -= size
        if frames:
            self.frames[client] = frames
            self._bytes[client] -= size
        else:
            del self._bytes[client]
        return client, waiting


class Clients:
    """The routing id last seen for each client id."""

    def __init__(self, most: int = CLIENTS_MAX) -> None:
        self._most = most
        self._identities: OrderedDict[str, bytes] = OrderedDict()
        self.identity: Callable[[str], bytes | None] = self._identities.get
        """Returns the routing id of a client, or None for an unknown client."""

    def heard(self, client: str, identity: bytes) -> bool:
        """Record a message of ``client``; return whether another client was forgotten for it."""
        self._identities[client] = identity
        self._identities.move_to_end(client)
        if len(self._identities) <= self._most:
            return False
        self._identities.popitem(last=False)
        return True

    def gone(self, client: str) -> None:
        """Forget ``client``: its connection is closed."""
        self._identities.pop(client, None)

    def __len__(self) -> int:
        return len(self._identities)


class Listener:
    """The socket that clients and members connect to, and the frames received over it.

    A frame's sender is known by its routing id before anything in it is read. A member's frame is
    decoded at once; a client's must be small, and waits for `receive_clients`.

    Args:
        context: makes the socket.
        endpoint: the endpoint to bind.
        admission: checks frames.
        members: the ids of peers.
        connections_max: see `Connections`.
        poller: notified when the socket was used.
        count: called with a counter's name and its increment.
        guard: checks keys, where they are used.

    Attributes:
        waiting: the clients that have frames waiting; a live view.

    Raises:
        ConfigError: the endpoint cannot be bound.

    """

    def __init__(
        self,
        context: zmq.Context[Socket],
        endpoint: str,
        admission: FrameValidator,
        members: Collection[str],
        connections_max: int,
        poller: Poller,
        count: Callable[[str, int], None],
        guard: KeyGuard | None = None,
    ) -> None:
        self._admission = admission
        self._members = members
        self._poller = poller
        self._count = count
        self._clients = Clients()
        self._queue = ClientQueue()
        self.waiting: Collection[str] = self._queue.frames
        self._amid_message = False
        """Whether parts of a message that has too many are still to be discarded."""
        self._muted: dict[bytes, float] = {}
        """Times until which frames under a routing id are discarded (s)."""
        monitor = connection_monitor(context)
        self._guard = guard
        secure = None if guard is None else guard.secure
        self.socket = bound_router(context, endpoint, monitor, secure)
        self.connections = Connections(self.socket, monitor, connections_max, count)
        if guard is not None:
            guard.count = count
            self.connections.failed = guard.failed
        self.endpoint = self.connections.endpoint
        poller.register(self.socket)
        poller.register(self.connections.monitor)

    def tend(self, readable: Collection[Socket | int]) -> None:
        """Look after connections; ``readable`` are the sockets that have something to read."""
        connections = self.connections
        if connections.monitor in readable and connections.watch():
            self._poller.used[connections.monitor] = None
        connections.tend()
        if self._guard is not None:
            self._guard.tend()

    def read(self, most: int, arrivals: list[Arrival]) -> int:
        """Read about ``most`` frames, counting large ones as several; return how many are left."""
        socket = self.socket
        first = True
        while most > 0:
            if self._amid_message and not self._discard():
                most = 0
                break
            try:
                identity = socket.recv(NOBLOCK)
                part: zmq.Frame = socket.recv(NOBLOCK, False)  # A frame knows whether more follow.
            except zmq.Again:
                return most - 1
            if part.more:
                self._amid_message = True
                self._count("wire.malformed", 1)
                most -= 1
            else:
                most -= 1 + self._sort(identity, part, arrivals) // WEIGHT_BYTES
            # Mostly one comes at a time: asking for more is then cheaper than a failed read.
            if first and not self._amid_message and not socket.get(EVENTS) & POLLIN:
                return most
            first = False
        self._poller.used[socket] = None  # There may be more.
        return most

    def _discard(self) -> bool:
        self._amid_message = not discard_parts(self.socket, PARTS_MAX)
        return not self._amid_message

    def _sort(self, identity: bytes, part: zmq.Frame, arrivals: list[Arrival]) -> int:
        """Decode a member's frame; queue a client's. Return the number of decoded bytes."""
        name = link_of(identity)
        if name is None:
            self._count("wire.malformed", 1)
            return 0
        if self._guard is not None and not self._guard.admits(name, identity, part):
            return 0
        if self._muted and self._is_muted(identity):
            self._count("wire.muted", 1)
            return 0
        size, member = len(part), name in self._members
        if size > (FRAME_BYTES_MAX if member else CLIENT_BYTES_MAX):
            self._count("wire.oversized", 1)
            self._mute(identity)
            return 0
        source = -1
        connections = self.connections
        if connections.fresh or connections.beating or connections.is_behind:
            source = int(part.get(_SRCFD))
        if not member:
            if not self._queue.put(name, new_queued_frame((identity, source, part.bytes, None))):
                self._count("wire.client_flooded", 1)
            return size
        frame = self._admitted(name, identity, source, part.bytes)
        if frame is not None:
            arrivals.append(new_arrival((name, frame)))
        return size

    def _admitted(self, name: str, identity: bytes, source: int, raw: bytes) -> Frame | None:
        """Decode and check a frame; return None if it is dropped."""
        frame = self._admission.admit(name, raw)
        if isinstance(frame, Dropped):
            self._dropped(name, identity, frame)
            return None
        if source >= 0:
            self.connections.spoke(source)
        if frame.newer:
            self._count("wire.newer_message", frame.newer)
        return frame

    def _mute(self, identity: bytes) -> None:
        """Discard frames under ``identity`` for a while.

        A routing id contains the boot of its process, so a sender that does not know it cannot
        have another muted.
        """
        if len(self._muted) >= MUTED_MAX:
            self._muted.pop(next(iter(self._muted)))
        self._muted[identity] = time.monotonic() + MUTED_S

    def _is_muted(self, identity: bytes) -> bool:
        until = self._muted.get(identity)
        if until is None:
            return False
        if time.monotonic() < until:
            return True
        del self._muted[identity]
        return False

    def receive_clients(self, most: int, within_ns: int) -> tuple[list[Arrival], int]:
        """Decode frames of clients, each client in turn.

        Args:
            most: envelopes to return; a frame that is dropped counts as one.
            within_ns: no frame is begun after this time.

        Returns:
            The frames that passed, and how much of ``most`` was used.

        """
        queue, arrivals, left = self._queue, list[Arrival](), most
        others = queue.frames
        ends = 0
        while left > 0 and others:
            name, waiting = queue.take()
            frame = waiting.rest or self._opened(name, waiting)
            if frame is None:
                left -= 1
            else:
                room = min(left, SHARE) if others else left
                envelopes = frame.envelopes
                if len(envelopes) > room:
                    rest = frame._replace(envelopes=envelopes[room:])
                    queue.put_back(name, waiting._replace(raw=b"", rest=rest))
                    frame = frame._replace(envelopes=envelopes[:room])
                left -= len(frame.envelopes) or 1
                arrivals.append(new_arrival((name, frame)))
            if others:
                now = time.perf_counter_ns()
                ends = ends or now + within_ns
                if now >= ends:
                    break
        return arrivals, most - left

    def _opened(self, name: str, waiting: QueuedFrame) -> Frame | None:
        """Decode a client's frame; return None if it is dropped."""
        identity = waiting.identity
        if self._muted and self._is_muted(identity):
            self._count("wire.muted", 1)
            return None
        frame = self._admitted(name, identity, waiting.source, waiting.raw)
        if frame is not None and self._clients.heard(name, identity):
            self._count("wire.client_forgotten", 1)
        return frame

    def _dropped(self, name: str, identity: bytes, dropped: Dropped) -> None:
        """Count a dropped frame, and notify its sender if that can help."""
        self._count(dropped.counter, 1)
        if dropped.hostile:
            self._mute(identity)
        if dropped.mismatch is not None and dropped.counter != "wire.rejected":
            refusal = self._admission.refusal(name, dropped.mismatch, dropped.detail)
            self._answer(identity, encode_frame(refusal))

    def send(self, client: str, raw: bytes) -> None:
        """Send ``raw`` to ``client`` by the connection that it used last."""
        identity = self._clients.identity(client)
        if identity is None:
            self._count("wire.unroutable", 1)
        elif not self._answer(identity, raw):
            self._clients.gone(client)

    def _answer(self, identity: bytes, raw: bytes) -> bool:
        """Send ``raw``; return whether the connection exists."""
        self._poller.used[self.socket] = None
        try:
            send_part(self.socket, identity, NOBLOCK_MORE)
            send_part(self.socket, raw, NOBLOCK)
        except zmq.Again:
            self._count("wire.queue_full", 1)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._count("wire.unroutable", 1)
            return False
        return True

    def close(self) -> None:
        """Close the socket and its monitor."""
        self.connections.close()
        close_socket(self.socket)
