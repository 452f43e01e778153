"""Limits on single clients: those that send too much, or do not read their replies."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loguru import logger

from fencelock.transport.borrowed import acked_bytes, borrow, end_connection, peer_of

WINDOW_NS = 100_000_000
"""Interval over which envelopes of clients are counted (ns, 100 ms)."""

BUSY_MIN = 64
"""Envelopes in a window below which a client is not busy."""

BACKLOG_BYTES = 32 << 10
"""Bytes of a client that wait after a turn, below which it is not busy: some 300 requests. A client
whose threads wait for their locks has one request for each of them."""

BUSY_TIMES = 4
"""A busy client sends more than this many times as much as the least busy one."""

DROPPED_NS = 1_000_000_000
"""A client is busy for this long after a frame of it was dropped (ns, 1 s), also if it connects
anew."""

BACKLOG_FRAMES = 64
"""Frames of a client that wait, below which it is not busy, while the socket has still more. The
threads of one process send their requests together."""

LARGE_BYTES = 4 << 10
"""Replies up to this size are not counted (bytes): the queue of a link bounds their number."""

FLOOD_FRAMES = 2_000
"""Dropped frames of a connection in a second, at which it is closed."""

WARNED_FRAMES = FLOOD_FRAMES // 2
"""Dropped frames at which the sender is told."""

CLOSED_S = 5.0
"""Time for which frames under the routing id of a connection that was closed are dropped (s)."""

CLOSE_AGAIN_S = 0.1
"""Shortest interval between two closings of connections under one routing id (s): frames that were
read before the first may follow it."""

SENDERS_MAX = 4_096
"""Connections of which dropped frames, or unread replies, are counted."""

LOOK_S = 0.1
"""Shortest interval between looks at all unread replies of one key (s)."""

LOG_S = 10.0
"""Shortest interval between log lines about replies that are not read (s)."""


class Load:
    """Counts envelopes by client, to tell the busy clients from the others.

    Where all clients send about as much, none is busy: then long turns serve all of them best. Nor
    is one whose requests are served as fast as they come.

    Attributes:
        busy: the clients that sent much more than others in the last window, and more than was
            served, and those of which frames were dropped; read only.
        counts: the envelopes of each client in this window; the listener adds to it.
        ends: the time at which the listener shall call `end_window` (ns).

    """

    def __init__(self) -> None:
        self.busy: frozenset[str] = frozenset()
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.ends = 0
        self._dropped: dict[str, int] = {}
        """The times until which clients are busy of which a frame was dropped (ns)."""
        self._shared = 0
        """The time until which those clients wait for others (ns)."""
        self._behind: set[str] = set()

    def behind(self, client: str) -> None:
        """Note that `BACKLOG_BYTES` of ``client`` wait after a turn."""
        self._behind.add(client)

    def dropped(self, client: str) -> None:
        """Note that a frame of ``client`` was dropped, as too many wait: it is busy at once."""
        if client not in self._dropped:
            _make_room(self._dropped, client)
        self._dropped[client] = self.ends + DROPPED_NS
        if client not in self.busy and (len(self.counts) > 1 or self._shared >= self.ends):
            self.busy |= {client}

    def end_window(self, now: int) -> None:
        """Find the busy clients, and count anew from ``now`` on (ns)."""
        counts, self.counts = self.counts, defaultdict(int)
        behind, self._behind = self._behind, set()
        recent = now - self.ends < WINDOW_NS
        self.ends = now + WINDOW_NS
        least = max(BUSY_MIN, BUSY_TIMES * min(counts.values(), default=0))
        busy = (one for one in behind if counts.get(one, 0) > least)
        self.busy = frozenset(busy) if recent and len(counts) > 1 else frozenset()
        if self._dropped:
            if len(counts) > 1:
                self._shared = now + DROPPED_NS
            self._dropped = {one: until for one, until in self._dropped.items() if now < until}
            if now < self._shared:
                self.busy |= self._dropped.keys()


@dataclass(slots=True, eq=False)
class _Sent:
    """The large replies that were sent over one connection."""

    client: str
    descriptor: int
    peer: object
    """The address of the other side: a new connection may get the descriptor of a former one."""
    acked: int
    """Bytes that the other side had received at the last look."""
    unread: int = 0
    """Bytes that were sent, and not received at the last look."""
    blocked: bool = False
    """Whether a reply was dropped, and its frames are until it reads."""

    def look(self) -> int | None:
        """Bring ``unread`` up to date; return the change, or None if the connection is closed."""
        acked = borrow(self.descriptor, acked_bytes)
        if acked is None or borrow(self.descriptor, peer_of) != self.peer:
            return None
        before, self.unread = self.unread, max(0, self.unread - (acked - self.acked))
        self.acked = acked  # It also counts smaller replies.
        return self.unread - before


@dataclass(slots=True, eq=False)
class _Owner:
    """The clients that share a quota."""

    clients: set[str] = field(default_factory=set[str])
    unread: int = 0
    """The sum of their unread bytes, as of the last looks."""
    looked: float = 0.0
    """The time of the last look at all of them (s)."""


class UnreadReplies:
    """Bounds the replies that clients have not read, in bytes.

    libzmq bounds them in frames only. But the kernel knows how much the other side has received,
    and we how much we sent.

    Args:
        most: limit of unread replies of a client or, with keys, of all with one key (bytes).
        owner_of: returns the client, or its key.

    """

    def __init__(self, most: int, owner_of: Callable[[str], str] = str) -> None:
        self._most = most
        self._owner_of = owner_of
        self._by_client: dict[str, _Sent] = {}
        self._by_owner: dict[str, _Owner] = {}
        self.blocked = 0
        """Number of clients whose frames are dropped."""
        self._logged = 0.0

    def take(self, client: str, descriptor: int, size: int) -> bool:
        """Count a reply of ``size`` bytes; return False if it must be dropped."""
        name = self._owner_of(client)
        one = self._by_client.get(client)
        if one is None or one.descriptor != descriptor or not self._look(one):
            self._forget(client)
            acked, peer = borrow(descriptor, acked_bytes), borrow(descriptor, peer_of)
            if acked is None:
                return True  # The system does not report it, or the connection is gone.
            one = self._by_client[client] = _Sent(client, descriptor, peer, acked)
            self._by_owner.setdefault(name, _Owner()).clients.add(client)
            if len(self._by_client) > SENDERS_MAX:
                self._forget(next(iter(self._by_client)))
        owner = self._by_owner[name]
        if owner.unread and owner.unread + size > self._most:
            self._look_at_all(owner)
            if owner.unread and owner.unread + size > self._most:
                if not one.blocked and one.unread > self._most // 2:
                    one.blocked = True
                    self.blocked += 1
                self._log(name, owner.unread)
                return False
        one.unread += size
        owner.unread += size
        return True

    def is_blocked(self, client: str) -> bool:
        """Return whether frames of ``client`` are dropped, since it reads too little."""
        one = self._by_client.get(client)
        if one is None or not one.blocked:
            return False
        if self._look(one) and one.unread > self._most // 2:
            return True
        self._forget(client)
        return False

    def _look(self, one: _Sent) -> bool:
        """Bring a count up to date; return whether the connection is open."""
        change = one.look()
        if change is not None:
            self._by_owner[self._owner_of(one.client)].unread += change
        return change is not None

    def _look_at_all(self, owner: _Owner) -> None:
        """Bring the counts of all its clients up to date, but not each time: they may be many."""
        now = time.monotonic()
        if now - owner.looked >= LOOK_S:
            owner.looked = now
            for client in list(owner.clients):
                if not self._look(self._by_client[client]):
                    self._forget(client)

    def _forget(self, client: str) -> None:
        one = self._by_client.pop(client, None)
        if one is not None:
            self.blocked -= one.blocked
            name = self._owner_of(client)
            owner = self._by_owner[name]
            owner.unread -= one.unread
            owner.clients.discard(client)
            if not owner.clients:
                del self._by_owner[name]

    def _log(self, owner: str, unread: int) -> None:
        now = time.monotonic()
        if now - self._logged >= LOG_S:
            self._logged = now
            logger.warning(
                "{!r} does not read its replies: {} KiB wait, the quota is {} KiB; more are "
                "dropped, and frames of clients that do not read",
                owner,
                unread >> 10,
                self._most >> 10,
            )


class Floods:
    """Counts dropped frames by connection, and closes those that go on."""

    def __init__(self) -> None:
        self._dropped: dict[bytes, tuple[float, int, object]] = {}
        """The end of the second (s), the frames dropped in it, and the peer."""
        self._closed: dict[bytes, float] = {}
        """The times until which routing ids of closed connections are refused (s)."""

    def note(self, identity: bytes, descriptor: int) -> int:
        """Count a dropped frame; return how many there were in this second, 0 if it was closed.

        For `CLOSED_S` after that, half as many close the next connection: frames of the former one
        may still arrive, and its descriptor may be another's by then.
        """
        now = time.monotonic()
        ends, count, peer = self._dropped.get(identity, (0.0, 0, None))
        if now >= ends:
            _make_room(self._dropped, identity)
            count = FLOOD_FRAMES // 2 if now < self._closed.get(identity, 0.0) else 0
            ends, peer = now + 1.0, borrow(descriptor, peer_of)
        closes = count == FLOOD_FRAMES
        self._dropped[identity] = now + CLOSE_AGAIN_S if closes else ends, count + 1, peer
        if not closes:
            return count + 1
        if now >= self._closed.get(identity, 0.0):
            _make_room(self._closed, identity)
            self._closed[identity] = now + CLOSED_S
        end_connection(descriptor, peer)
        return 0


def _make_room(senders: dict[Any, Any], sender: object) -> None:
    senders.pop(sender, None)
    if len(senders) >= SENDERS_MAX:
        senders.pop(next(iter(senders)))
