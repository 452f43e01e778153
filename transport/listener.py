"""The ROUTER of a node: members' frames are decoded at once, clients' wait for their turn."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, cast

import zmq
from loguru import logger

from fencelock.actors.proxy.access import key_of
from fencelock.actors.quota import Quotas
from fencelock.actors.repeated import Repetitions, times_text
from fencelock.transport.admission import CLIENT_BYTES_MAX, Dropped, FrameValidator, link_of
from fencelock.transport.borrowed import borrow, peer_of
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.client_load import (
    BACKLOG_BYTES,
    BACKLOG_FRAMES,
    CLOSED_S,
    FLOOD_FRAMES,
    LARGE_BYTES,
    WARNED_FRAMES,
    Floods,
    Load,
    UnreadReplies,
)
from fencelock.transport.clients import CLIENTS_MAX, Clients
from fencelock.transport.connections import Connections
from fencelock.transport.frame import Frame, Mismatch, encode_frame
from fencelock.transport.held_bytes import HeldBytes
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

DROPPED_BYTES = 8 * WEIGHT_BYTES
"""A frame that is dropped unread counts as this many bytes."""

PARTS_MAX = 2048
"""Parts of a message that are discarded in one turn."""

BARRED_S = 0.1
BARRED_PART_S = 20e-6
"""An address is barred for so long after a message of several parts, and for so much longer for
each of its parts (s). Discarding one takes 0.6 us: so it takes at most 3 % of the node's time."""

MUTED_S = 1.0
"""Time for which frames of a sender are discarded unread after one that no version of ours
sends (s)."""

MUTED_MAX = 1024
"""Limit of senders that are muted at a time."""

SHARE = 32
"""Envelopes of one client that are taken at once while other clients wait."""

BUSY_PAUSES = 4
"""Busy clients wait for this many times as long as the turn took that served them last."""

BUSY_PAUSE_NS = 10_000_000
"""Longest pause of busy clients after a turn that served them (ns, 10 ms)."""

BUSY_SHARE = 16
"""Envelopes of all busy clients that are taken in one turn. A request of another client crosses
some four turns, so the length of turns is its latency."""

NEW_SHARE = 16
"""Envelopes of new clients that are taken in one turn, of all but the first after those of others:
they may be many."""

_SRCFD = int(zmq.SRCFD)

_OTHER, _BUSY, _NEW = range(3)
"""Kinds of clients; of the last two a turn takes a limited number of envelopes."""


CLIENT_FRAMES_MAX = 256
"""Limit of waiting frames of one owner; more are dropped, and the clients send them again."""

KEY_FRAMES_MAX = 4_096
"""The same limit with keys: many processes may share a key, and send at once."""

CLIENT_WAITING_MAX = 2 << 20
"""Limit of waiting frames of one owner (bytes, 2 MiB)."""

WAITING_MAX = 32 << 20
"""Limit of waiting frames of all clients (bytes, 32 MiB)."""


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
    client: str = ""
    """The client's id."""


new_queued_frame: Callable[[tuple[bytes, int, bytes, None, str]], QueuedFrame] = partial(
    cast("Any", tuple).__new__, QueuedFrame
)
"""Makes a queued frame; its own constructor is Python code."""


class ClientQueue:
    """The waiting frames of clients, by owner: the client or, with keys, its key.

    `take` serves one owner after the other. So an owner that sends much waits longer itself, and
    others wait for at most one frame of it.

    Args:
        known: the clients that are not new, a live view; without it none is new.
        most: limit of waiting frames of one owner.

    Attributes:
        frames: the waiting frames of each owner, the next one first; read only.
        new: those of owners whose client is not known, until the first is taken; read only.
        sizes: the bytes that wait of each owner; read only.
        size: the sum of these.

    """

    def __init__(self, known: Collection[str] | None = None, most: int = CLIENT_FRAMES_MAX) -> None:
        self.frames: OrderedDict[str, deque[QueuedFrame]] = OrderedDict()
        self.new: OrderedDict[str, deque[QueuedFrame]] = OrderedDict()
        self.sizes: dict[str, int] = {}
        self.size = 0
        self._known = known
        self._most = most

    def put(self, owner: str, waiting: QueuedFrame) -> bool:
        """Add a frame; return False if there is no room for it."""
        size = len(waiting.raw)
        frames = self.frames.get(owner)
        if frames is None and self.new:
            frames = self.new.get(owner)
        if frames is None:
            if self.size + size > WAITING_MAX or len(self.sizes) >= CLIENTS_MAX:
                return False
            known = self._known is None or waiting.client in self._known
            (self.frames if known else self.new)[owner] = deque((waiting,))
            self.sizes[owner] = size
        else:
            used = self.sizes[owner] + size
            full = used > CLIENT_WAITING_MAX or self.size + size > WAITING_MAX
            if full or len(frames) >= self._most:
                return False
            frames.append(waiting)
            self.sizes[owner] = used
        self.size += size
        return True

    def first_beside(self, busy: Collection[str]) -> str:
        """Return the next owner that is not ``busy``, else the next one."""
        return next((one for one in self.frames if one not in busy), next(iter(self.frames)))

    def backlogs(self, least: int) -> list[str]:
        """Return the owners of which ``least`` bytes or more wait."""
        return [owner for owner, size in self.sizes.items() if size >= least]

    def put_back(self, owner: str, rest: QueuedFrame) -> None:
        """Make the rest of a frame the next of ``owner``, after all others' turns."""
        self.frames.setdefault(owner, deque()).appendleft(rest)
        self.sizes.setdefault(owner, 0)

    def take(self, owner: str = "") -> tuple[str, QueuedFrame]:
        """Return the next frame and its owner, or that of ``owner``; there must be one."""
        if owner:
            frames = self.frames.pop(owner, None) or self.new.pop(owner)
        else:
            owner, frames = self.frames.popitem(last=False)
        waiting = frames.popleft()
        size = len(waiting.raw)
        self.size -= size
        if frames:
            self.frames[owner] = frames
            self.sizes[owner] -= size
        else:
            del self.sizes[owner]
        return owner, waiting


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
        quotas: see `Quotas`.
        poller: notified when the socket was used.
        count: called with a counter's name and its increment.
        guard: checks keys, where they are used.
        ring: wakes the thread that uses the listener; from any thread.

    Attributes:
        held: bounds what libzmq holds of each connection.
        waiting: the clients that have frames waiting, or their keys; a live view.
        owner_of: returns the owner of a client's share: itself or, with keys, its key.

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
        quotas: Quotas,
        poller: Poller,
        count: Callable[[str, int], None],
        guard: KeyGuard | None = None,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        self._admission = admission
        self._members = members
        self._poller = poller
        self._count = count
        self._clients = Clients(self._is_open)
        frames_max = CLIENT_FRAMES_MAX if guard is None else KEY_FRAMES_MAX
        self._queue = ClientQueue(self._clients.known, frames_max)
        self._load = Load()
        self.owner_of: Callable[[str], str] = str if guard is None else key_of
        self.unread = UnreadReplies(quotas.unread_kib << 10, self.owner_of)
        self._floods = Floods()
        self._taken = Repetitions()
        self._busy_since = 0
        """The time at which busy clients were served last (ns), 0 once their pause is known."""
        self._busy_from = 0
        """The time from which busy clients are served again (ns)."""
        self.waiting: Collection[str] = self._queue.sizes
        self._discarded = ""
        """The address that sent a message of which parts are still to be discarded, or ""."""
        self._muted: dict[bytes, float] = {}
        """Times until which frames under a routing id are discarded (s)."""
        monitor = connection_monitor(context)
        self._guard = guard
        secure = None if guard is None else guard.secure
        self.socket = bound_router(context, endpoint, monitor, secure)
        endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.held = HeldBytes(endpoint, ring, count, curve=guard is not None)
        self.connections = Connections(
            self.socket, monitor, connections_max, quotas.connections, count, self.held
        )
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
        self.held.tend()
        if self._guard is not None:
            self._guard.tend()

    def read(self, most: int, arrivals: list[Arrival]) -> int:
        """Read about ``most`` frames, counting large ones as several; return how many are left."""
        socket = self.socket
        first = True
        while most > 0:
            if self._discarded and not self._discard():
                most = 0
                break
            try:
                identity = socket.recv(NOBLOCK)
                part: zmq.Frame = socket.recv(NOBLOCK, False)  # A frame knows whether more follow.
            except zmq.Again:
                self.held.empties += 1
                return most - 1
            if part.more:
                self._count("wire.malformed", 1)
                self._end_sender(part)
                most -= 1
            else:
                most -= 1 + self._sort(identity, part, arrivals) // WEIGHT_BYTES
            # Mostly one comes at a time: asking for more is then cheaper than a failed read.
            if first and not self._discarded and not socket.get(EVENTS) & POLLIN:
                self.held.empties += 1
                return most
            first = False
        self._poller.used[socket] = None  # There may be more.
        for name, waiting in self._queue.frames.items():
            if len(waiting) >= BACKLOG_FRAMES:
                self._load.behind(name)
        return most

    def _end_sender(self, part: zmq.Frame) -> None:
        """End the connection of the first of several parts: no version of ours sends that.

        A part of an old version of ZMTP, as garbage may seem to be, names no connection.
        """
        try:
            source = int(part.get(_SRCFD))
        except zmq.ZMQError:
            self._count("wire.malformed", 1)
            return
        self.held.end(source, borrow(source, peer_of), "it sent a frame of several parts")
        self._discarded = str(part.get("Peer-Address"))
        self.connections.bar(self._discarded, BARRED_S)

    def _discard(self) -> bool:
        """Discard some of the parts; return whether these were the last."""
        self.connections.bar(self._discarded, PARTS_MAX * BARRED_PART_S)
        if not discard_parts(self.socket, PARTS_MAX):
            return False
        self._discarded = ""
        return True

    def _sort(self, identity: bytes, part: zmq.Frame, arrivals: list[Arrival]) -> int:
        """Decode a member's frame; queue a client's. Return the bytes that it counts as."""
        name = link_of(identity)
        if name is None:
            self._count("wire.malformed", 1)
            return 0
        if self._guard is not None and not self._guard.admits(name, identity, part):
            return 0
        try:
            source = int(part.get(_SRCFD))
        except zmq.ZMQError:  # Of an old version of ZMTP: we speak none.
            self._count("wire.malformed", 1)
            return 0
        size, held = len(part), self.held
        held.taken[source] += size + (held.extra if size <= held.short_max else held.extra_long)
        if self._muted and self._is_muted(identity):
            return self._drop_unread("wire.muted", name, identity, source)
        member = name in self._members
        if size > (FRAME_BYTES_MAX if member else CLIENT_BYTES_MAX):
            self._count("wire.oversized", 1)
            self._mute(identity)
            return 0
        if not member:
            if self.unread.blocked and self.unread.is_blocked(name):
                return self._drop_unread("wire.client_slow", name, identity, source)
            owner = self.owner_of(name)
            waits = owner in self.waiting
            if waits and self._clients.is_taken(name, identity):  # It may not use up its share.
                return self._drop_unread("wire.client_id_taken", name, identity, source)
            waiting = new_queued_frame((identity, source, part.bytes, None, name))
            if not self._queue.put(owner, waiting):
                if waits:  # Else the frames of others fill the queue.
                    self._load.dropped(owner)
                return self._drop_unread("wire.client_flooded", name, identity, source)
            return size
        frame = self._admitted(name, identity, source, part.bytes)
        if frame is not None:
            arrivals.append(new_arrival((name, frame)))
        return size

    def _drop_unread(self, counter: str, name: str, identity: bytes, descriptor: int) -> int:
        """Drop a frame; close the connection of a sender of which too many were dropped.

        The frames of its next connections are dropped, too, for `CLOSED_S`. Return the bytes that
        the frame counts as: a flood must not make turns long.
        """
        self._count(counter, 1)
        dropped = self._floods.note(identity, descriptor)
        if not dropped:
            self._count("wire.flood_closed", 1)
            if identity not in self._muted:
                self._mute(identity, CLOSED_S)
        elif dropped == WARNED_FRAMES and counter != "wire.muted":
            text = f"client {name!r}: {dropped} frames were dropped within a second, the quota is "
            text = f"{text}{FLOOD_FRAMES}; then its connection is closed"
            refusal = self._admission.refusal(name, Mismatch.QUOTA, text)
            self._answer(identity, descriptor, encode_frame(refusal))
        return DROPPED_BYTES

    def _admitted(self, name: str, identity: bytes, source: int, raw: bytes) -> Frame | None:
        """Decode and check a frame; return None if it is dropped."""
        frame = self._admission.admit(name, raw)
        if isinstance(frame, Dropped):
            self._dropped(name, identity, source, frame, raw)
            return None
        connections = self.connections
        if connections.fresh or connections.beating or connections.is_behind:
            used = connections.spoke(source, name if name in self._members else "")
            if not used:
                return None
        if frame.newer:
            self._count("wire.newer_message", frame.newer)
        return frame

    def _mute(self, identity: bytes, seconds: float = MUTED_S) -> None:
        """Discard frames under ``identity`` for a while.

        A routing id contains the boot of its process, so a sender that does not know it cannot
        have another muted.
        """
        if len(self._muted) >= MUTED_MAX:
            self._muted.pop(next(iter(self._muted)))
        self._muted[identity] = time.monotonic() + seconds

    def _is_muted(self, identity: bytes) -> bool:
        until = self._muted.get(identity)
        if until is None:
            return False
        if time.monotonic() < until:
            return True
        del self._muted[identity]
        return False

    def receive_clients(self, most: int, within_ns: int) -> tuple[list[Arrival], int]:
        """Decode frames of clients, each client, or each key, in turn.

        Args:
            most: envelopes to return; a frame that is dropped counts as one.
            within_ns: no frame is begun after this time.

        Returns:
            The frames that passed, and how much of ``most`` was used.

        """
        queue, arrivals, left = self._queue, list[Arrival](), most
        others, new, load = queue.sizes, queue.new, self._load
        rooms = [most, BUSY_SHARE, min(NEW_SHARE, max(1, most // 2))]
        new_room = rooms[_NEW]
        if load.busy and self._busy_left_ns() > 0:
            rooms[_BUSY] = 0
        ends = 0
        while left > 0 and others:
            kind, first = _OTHER, ""
            if load.busy or new:
                kind, first = self._next(rooms, first_new=rooms[_NEW] == new_room)
                if rooms[kind] <= 0:
                    break
            owner, waiting = queue.take(first)
            name = waiting.client
            frame = waiting.rest or self._opened(name, waiting)
            if frame is None:
                taken = 1
            else:
                room = min(left, SHARE) if others else left
                if kind:
                    room = min(room, rooms[kind])
                envelopes = frame.envelopes
                if len(envelopes) > room:
                    rest = frame._replace(envelopes=envelopes[room:])
                    queue.put_back(owner, waiting._replace(raw=b"", rest=rest))
                    frame = frame._replace(envelopes=envelopes[:room])
                taken = len(frame.envelopes) or 1
                arrivals.append(new_arrival((name, frame)))
            left -= taken
            rooms[kind] -= taken
            now = time.perf_counter_ns()
            if now >= load.ends:
                load.end_window(now)
            load.counts[owner] += taken
            ends = ends or now + within_ns
            if now >= ends and others:
                break
        if queue.size >= BACKLOG_BYTES:
            for name in queue.backlogs(BACKLOG_BYTES):
                load.behind(name)
        return arrivals, most - left

    def _next(self, rooms: list[int], *, first_new: bool) -> tuple[int, str]:
        """Return the kind of the client whose turn is next, and its name."""
        busy, frames, new = self._load.busy, self._queue.frames, self._queue.new
        # One of the new ones goes first, so that they are served at all.
        if new and (not frames or first_new):
            return _NEW, next(iter(new))
        first = self._queue.first_beside(busy)
        if first not in busy:
            return _OTHER, first
        if rooms[_BUSY] > 0:
            self._busy_since = time.perf_counter_ns()
        elif new:
            return _NEW, next(iter(new))
        return _BUSY, first

    def pause_ms(self) -> int:
        """Return how long no frame of a client that waits shall be taken (ms).

        Busy clients have a fifth of the time, see `BUSY_PAUSES`.
        """
        busy = self._load.busy
        if not busy or self._queue.new or self._queue.first_beside(busy) not in busy:
            return 0
        left = self._busy_left_ns()
        return 1 + left // 1_000_000 if left > 0 else 0

    def _busy_left_ns(self) -> int:
        """Return the rest of the pause of busy clients, 0 or less if it is over (ns)."""
        now = time.perf_counter_ns()
        if self._busy_since:
            self._busy_from = now + min(BUSY_PAUSES * (now - self._busy_since), BUSY_PAUSE_NS)
            self._busy_since = 0
        return self._busy_from - now

    def _opened(self, name: str, waiting: QueuedFrame) -> Frame | None:
        """Decode a client's frame; return None if it is dropped."""
        identity = waiting.identity
        if self._muted and self._is_muted(identity):
            self._count("wire.muted", 1)
            return None
        clients, source = self._clients, waiting.source
        known = clients.connection(name)
        is_usual = known == (identity, source)
        if not is_usual and clients.is_taken(name, identity):
            self._refuse_taken(name, identity, source)
            return None
        frame = self._admitted(name, identity, source, waiting.raw)
        if frame is None:
            return None
        if is_usual:
            clients.used(name)
        elif clients.heard(name, identity, source):
            self._count("wire.client_forgotten", 1)
        return frame

    def _refuse_taken(self, name: str, identity: bytes, source: int) -> None:
        """Notify a process that another one uses its id; log the latest once an interval."""
        self._count("wire.client_id_taken", 1)
        text = f"another process uses the client id {name!r} over an open connection"
        refusal = self._admission.refusal(name, Mismatch.ID_TAKEN, text)
        self._answer(identity, source, encode_frame(refusal))
        count, node = self._taken.add("", time.monotonic_ns()), self._admission.node
        if count:
            text = f"{node} refused frames: {text}{times_text(count)}"
            logger.bind(node=node, event="client_id_taken", count=count).warning("{}", text)

    def _dropped(
        self, name: str, identity: bytes, source: int, dropped: Dropped, raw: bytes
    ) -> None:
        """Count a dropped frame, and notify its sender if that can help."""
        self._count(dropped.counter, 1)
        if dropped.hostile:
            self._mute(identity)
        elif dropped.counter == "wire.malformed" and name not in self._members:
            replies = self._admission.field_refusals(name, raw)
            if replies is not None:
                self._answer(identity, source, encode_frame(replies))
        if dropped.mismatch is not None and dropped.counter != "wire.rejected":
            refusal = self._admission.refusal(name, dropped.mismatch, dropped.detail)
            self._answer(identity, source, encode_frame(refusal))

    def drops(self, client: str) -> bool:
        """Return whether frames for ``client`` are dropped, since it does not read; count one."""
        slow = self.unread.is_blocked(client)
        if slow:
            self._count("wire.client_slow", 1)
        return slow

    def send(self, client: str, raw: bytes) -> None:
        """Send ``raw`` to ``client`` by the connection that it used last."""
        connection = self._clients.connection(client)
        if connection is None:
            self._count("wire.unroutable", 1)
            return
        identity, descriptor = connection
        if len(raw) > LARGE_BYTES and not self.unread.take(client, descriptor, len(raw)):
            self._count("wire.client_slow", 1)
        elif not self._answer(identity, descriptor, raw):
            self._clients.gone(client)

    def _answer(self, identity: bytes, descriptor: int, raw: bytes) -> bool:
        """Send ``raw``; return whether the connection exists."""
        self._poller.used[self.socket] = None
        try:
            send_part(self.socket, identity, NOBLOCK_MORE)
            send_part(self.socket, raw, NOBLOCK)
            self.held.sent[descriptor] += len(raw)
        except zmq.Again:
            self._count("wire.queue_full", 1)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._count("wire.unroutable", 1)
            return False
        return True

    def _is_open(self, identity: bytes) -> bool:
        """Return whether the connection exists. Only a message to it tells: an empty frame."""
        return self._answer(identity, -1, encode_frame(Frame(self._admission.cluster, 0, 0, ())))

    def close(self) -> None:
        """Close the socket and its monitor."""
        self.held.close()
        self.connections.close()
        close_socket(self.socket)
