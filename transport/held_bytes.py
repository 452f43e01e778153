"""Bounds on the bytes that a process holds for each connection to a ROUTER.

libzmq bounds its queues in messages. It collects the parts of a message until the last one has
come, and each part takes 64 bytes of memory, also an empty one of 2 bytes. So a peer that sends
parts and no end fills the memory of this process, and the socket never delivers any of it. A peer
that does not read its replies fills it from the other side.

The kernel knows how many bytes came over a connection and were read from it: libzmq has read
``tcpi_bytes_received`` less those that still wait (`FIONREAD`). The listener counts the bytes of
the frames that it took. The difference is what libzmq *holds*. In the same way, bytes that were
sent and that the other side has not acknowledged (``tcpi_bytes_acked``) are *unread*.

A thread of its own compares these figures, because the node's thread may wait for its disk while
libzmq goes on receiving. The thread looks at the connections in turn, the more often the
more processor time the process has used, since libzmq cannot receive much without using
some. So an idle node hardly wakes for it, and in a busy one it takes a few percent of the time.

A connection is ended when

- *unfinished*: it holds more than a frame may have, and the listener has since found the ROUTER
  empty. So these bytes belong to a message that has not ended. A frame has one part only.
- *waiting*: it holds more than `CLIENT_HELD_MAX` of any kind. Members are exempt.
- *all held*: all connections hold more than `HELD_MAX`, and this one holds the most.
- *all unread*: more than `UNREAD_MAX` is unread in all, and this one has the most.
- *stalled*: more than `STALLED_BYTES` wait for it, and it has read nothing for `STALLED_S`.
- *deaf*: more than `DEAF_BYTES` wait for it, and in `DEAF_S` it read nothing, but sent more than
  that. Many such clients would take the time of the others, for replies that nobody reads.

A client that is only paused, or cut off, sends nothing, and is not deaf. One is *silent* if more
than `SILENT_BYTES` wait for it, and in `SILENT_S` it read nothing, but sent more than that. Its
frames wait behind those of others. It keeps its connection: a network that loses packets may be the
reason.

libzmq answers heartbeats itself, so the count of what a connection holds grows slowly. When the
listener takes a frame that was incomplete at an earlier look, nothing from before that look is
held any more, and the count is corrected. So every link sends an empty frame now and then
(`hub.BEAT_S`).

A message of several parts that has ended ends its connection as well (`HeldBytes.end`).

`UnreadReplies` is the quota of unread bytes of each client, or key, and is checked
before a large reply is sent.
"""

from __future__ import annotations

import socket as tcp
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fencelock.actors.repeated import Repetitions
from fencelock.transport.admission import CLIENT_FRAME_BYTES_MAX
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.connections import Connection
from fencelock.transport.descriptors import Borrowed, borrow, shown_address
from fencelock.transport.log import logger
from fencelock.transport.posix import A_NODE, posix

HELD_LOOK_S = 0.05
"""Interval of looks (s): libzmq takes some 1 MiB of parts within it."""

IDLE_S = 0.1
"""The same for a process that used less than `IDLE_NS` of processor time since the last look."""

IDLE_NS = 5_000_000

SUSPECT_S = 0.002
"""The same while a connection may have sent a part of a message that does not end (s)."""

LOOKS_PER_MS = 12
"""Connections that are looked at for each millisecond of processor time used (3 us each): 10,000
within 0.8 s of it, in which libzmq takes `HELD_MAX`."""

UNREAD_LOOK_S = 0.1
UNREAD_LOOK_EACH_S = 150e-6
"""Interval between looks at connections with unread replies, and what each of them adds to it (s):
a look takes 3 to 8 us."""

SLACK_BYTES = 56 << 10
"""Bytes that a connection may hold beside a frame: its next ones, heartbeats, the handshake."""

CLIENT_HELD_MAX = 4 << 20
"""Limit of the bytes that a client's connection holds (4 MiB): of a client 2 MiB wait to be
decoded, and more is dropped."""

UNFINISHED_BARRED_S = 1.0
"""The address of a message that does not end is barred for so long (s)."""

LARGER_BYTES = 8 << 10
"""A connection that holds more than this is ended with another of its address (8 KiB)."""

HELD_MAX = 16 << 20
"""Limit of the bytes that all connections hold (16 MiB): in empty parts they take 512 MiB."""

UNREAD_MAX = 64 << 20
"""Limit of the bytes that all connections have not read (64 MiB)."""

STALLED_BYTES = 64 << 10
STALLED_S = 10.0
"""A connection is ended if more bytes than that wait for it, and it reads nothing for this time."""

SILENT_BYTES, DEAF_BYTES = 1 << 10, 4 << 10
SILENT_S, DEAF_S = 0.2, 1.0
"""See the module. The kernel of a client that does not read still receives more than that for it,
unless its buffer was made small."""

LARGE_BYTES = 4 << 10
"""Replies up to this size are not refused for a quota (bytes): the queue of a link bounds their
number."""

QUOTA_LOOK_S = 0.1
"""Shortest interval between looks at all unread replies of one key (s)."""

UNLOOKED_BYTES = 64 << 10
"""Replies that may be sent to a client, within its quota, between two looks at what it has read."""

SHORT_MAX = 255
"""Bytes of a ZMTP frame whose header has 2 bytes; of a larger one it has 9."""

CURVE_BYTES = 33
"""Bytes that CURVE adds to a frame: a command's name, a nonce, an authenticator and flags."""

_COUNTS = struct.Struct("=120xQQ")
"""``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in Linux' ``struct tcp_info``."""

MEMBER_MOST = FRAME_BYTES_MAX + SLACK_BYTES
CLIENT_MOST = CLIENT_FRAME_BYTES_MAX + SLACK_BYTES
"""The most that a connection may hold (bytes): a frame, and some more."""


class Ended(NamedTuple):
    """A connection that was ended."""

    connection: Connection
    why: str
    unfinished: bool = False


class HeldBytes:
    """Ends connections for which too many bytes are held, see the module.

    Args:
        ring: wakes the listener; from any thread.
        count: called with a counter's name and its increment, on the listener's thread.
        curve: whether the connections use CURVE.

    Attributes:
        empties: how often the listener found the ROUTER empty; it adds to it.
        extra: bytes that a short frame has on the wire beside its own.
        extra_long: the same of a frame above `short_max`.

    """

    def __init__(
        self,
        endpoint: str,
        ring: Callable[[], None],
        count: Callable[[str, int], None],
        *,
        curve: bool,
    ) -> None:
        for module in ("termios", "fcntl"):  # Later no descriptor may be left to import them.
            posix(module, A_NODE)
        self._endpoint, self._ring, self._count = endpoint, ring, count
        self.empties = 0
        added = CURVE_BYTES if curve else 0
        self.short_max, self.extra, self.extra_long = SHORT_MAX - added, added + 2, added + 9
        self._opened: deque[Connection] = deque()
        """New connections since the last look."""
        self._beside_barred: deque[tuple[Sequence[Connection], str]] = deque()
        self._turns: deque[Connection] = deque()
        """Connections in the order of the next looks, also some that were closed."""
        self._suspects: dict[Connection, tuple[int, int]] = {}
        """The ``read`` of connections that hold more than a frame, and ``empties`` at that time."""
        self._readers: set[Connection] = set()
        """Those with much to read."""
        self._readers_due = 0.0
        self._held = 0
        self.ended: deque[Ended] = deque()
        """The connections that were ended, until `tend`."""
        self._lines = Repetitions()
        self._stops = threading.Event()
        self._used_ns = 0
        self._thread = threading.Thread(target=self._run, name="fencelock-held-bytes", daemon=True)
        self._counts = hasattr(tcp, "TCP_INFO")
        if self._counts:
            self._thread.start()

    def watch(self, one: Connection) -> None:
        """Begin to look at a connection, if the system counts its bytes."""
        if self._counts:
            self._opened.append(one)

    def end(self, one: Connection, why: str, *, unfinished: bool = False) -> None:
        one.watched = False
        one.abort()
        self.ended.append(Ended(one, why, unfinished))

    def end_larger(self, connections: Sequence[Connection], why: str) -> None:
        """End those of ``connections`` that hold more than `LARGER_BYTES`."""
        if self._counts:
            self._beside_barred.append((connections, why))

    def tend(self) -> set[str]:
        """Count and log the connections that were ended.

        Returns:
            The addresses to be barred for `UNFINISHED_BARRED_S`.

        """
        barred = set[str]()
        while self.ended:
            self._count("wire.held_closed", 1)
            last = self.ended.popleft()
            peer = last.connection.peer
            if last.unfinished:
                barred.add(peer[0])
            if count := self._lines.add("", time.monotonic_ns()):
                logger.warning(
                    "%s: closed %s connections that took too much memory, the latest from %s: %s",
                    self._endpoint,
                    count,
                    shown_address(peer),
                    last.why,
                )
        return barred

    def close(self) -> None:
        """End the thread. Calling it twice does nothing."""
        self._stops.set()
        if self._thread.is_alive():
            self._thread.join()

    def _pause(self) -> bool:
        """Sleep until the next look is due; return whether there is one.

        A process that uses no processor time receives nothing, so its looks are rare.
        """
        if self._suspects:
            return not self._stops.wait(SUSPECT_S)
        used_ns, self._used_ns = self._used_ns, time.process_time_ns()
        idle = not self._readers and self._used_ns - used_ns < IDLE_NS
        return not self._stops.wait(IDLE_S if idle else HELD_LOOK_S)

    def _run(self) -> None:
        used_ns = time.process_time_ns()
        while self._pause():
            turns = self._turns
            while self._opened:
                turns.appendleft(self._opened.popleft())
            while self._beside_barred:
                self._end_larger(*self._beside_barred.popleft())
            now_ns = time.process_time_ns()
            looks = min((now_ns - used_ns) * LOOKS_PER_MS // 1_000_000, len(turns))
            if looks:
                used_ns = now_ns
            for one in [turns.popleft() for _ in range(looks)]:
                if one.watched:
                    turns.append(one)
                    self._look(one)
                else:
                    self._hold(one, 0)
            self._judge()
            if self._suspects:
                self._ring()  # It shall find out whether the ROUTER is empty.

    def _end_larger(self, connections: Sequence[Connection], why: str) -> None:
        for one in connections:
            if one.watched and not one.was_member:
                self._look(one)
                if one.held > LARGER_BYTES:
                    self._end(one, f"{one.held >> 10} KiB of it wait, and {why}")

    def _look(self, one: Connection) -> None:
        """Bring what is known of a connection up to date."""
        acked, read = counts_of(one.descriptor)
        one.read = max(one.read, read)
        empties = self.empties  # Before `taken`, which then has all that was complete.
        taken = one.taken
        self._find_held(one, taken)
        if one.mark_taken is None:
            if empties >= one.mark_empties + 2:
                one.mark_taken = taken
        elif taken > one.mark_taken:  # All frames since then were complete only after the mark.
            gone = one.held - (one.read - one.mark - (taken - one.mark_taken))
            if gone > 0:
                one.passed += gone
                self._find_held(one, taken)
            one.mark, one.mark_empties, one.mark_taken = one.read, empties, None
        if acked != one.acked:
            one.acked, one.acked_at, one.taken_then = acked, time.monotonic(), taken
        if one.held > _most(one) and one not in self._suspects:
            self._suspects[one] = one.read, empties
        one.note(acked)
        if one.sent - one.received > SILENT_BYTES and one not in self._readers:
            self._readers.add(one)
            one.acked_at, one.taken_then = time.monotonic(), taken  # Silence counts from now.

    def _find_held(self, one: Connection, taken: int) -> None:
        held = one.read - taken - one.passed
        if held < 0:  # `read` is older than ``taken``: more has come since. Count again.
            one.read = max(one.read, counts_of(one.descriptor)[1])
            held = one.read - taken - one.passed
        if held < 0:  # A frame of the former connection of this descriptor was taken.
            one.passed += held
            held = 0
        self._hold(one, held)

    def _hold(self, one: Connection, held: int) -> None:
        """Note what a connection holds: nothing once it is not watched."""
        self._held += held - one.held
        one.held = held

    def _judge(self) -> None:
        """End the connections of which too much is held."""
        for one, (read, empties) in list(self._suspects.items()):
            if not one.watched:
                del self._suspects[one]
                continue
            taken = one.taken
            self._find_held(one, taken)
            if one.held > CLIENT_HELD_MAX and not one.was_member:
                self._end(one, f"{one.held >> 10} KiB of it wait, the limit is 4 MiB")
            elif self.empties >= empties + 2:
                del self._suspects[one]
                unfinished = read - taken - one.passed
                if unfinished > _most(one):
                    self._end(
                        one,
                        f"it sent {unfinished >> 10} KiB of one message without its end; a frame "
                        f"has one part of at most {(_most(one) - SLACK_BYTES) >> 10} KiB",
                        unfinished=True,
                    )
                else:
                    self._look(one)
        while self._held > HELD_MAX:
            for one in self._turns:
                if one.watched:
                    self._find_held(one, one.taken)
                else:
                    self._hold(one, 0)
            if self._held > HELD_MAX:
                most = max(self._turns, key=lambda one: one.held)
                text = f"{self._held >> 20} MiB of all connections wait, the limit is 16 MiB, and "
                self._end(most, f"{text}{most.held >> 10} KiB of it")
        if self._readers and time.monotonic() >= self._readers_due:
            self._judge_readers()

    def _judge_readers(self) -> None:
        """End the connections that read too little."""
        now = time.monotonic()
        self._readers_due = now + UNREAD_LOOK_S + UNREAD_LOOK_EACH_S * len(self._readers)
        unread: dict[Connection, int] = {}
        for one in list(self._readers):
            if not one.watched:
                self._readers.remove(one)
                continue
            self._look(one)
            waits = one.sent - one.received
            silent_s = now - one.acked_at
            sent = one.taken - one.taken_then
            if waits <= SILENT_BYTES:
                self._readers.remove(one)
                one.silent = False
            elif silent_s > STALLED_S and waits > STALLED_BYTES:
                self._end(one, f"it read nothing for {STALLED_S:.0f} s; {waits >> 10} KiB wait")
            elif silent_s > DEAF_S and min(waits, sent) > DEAF_BYTES and not one.was_member:
                text = f"it read nothing for {DEAF_S:.0f} s, in which it sent {sent >> 10} KiB"
                self._end(one, f"{text}; {waits >> 10} KiB wait")
            else:
                unread[one] = waits
                one.silent = silent_s > SILENT_S and sent > SILENT_BYTES and not one.was_member
        total = sum(unread.values())
        while total > UNREAD_MAX:
            one = max(unread, key=unread.__getitem__)
            waits = unread.pop(one)
            text = f"{total >> 20} MiB of replies are not read, the limit is 64 MiB, and "
            self._end(one, f"{text}{waits >> 10} KiB of it")
            total -= waits

    def _end(self, one: Connection, why: str, *, unfinished: bool = False) -> None:
        self._hold(one, 0)
        self.end(one, why, unfinished=unfinished)
        self._ring()


def _most(one: Connection) -> int:
    return MEMBER_MOST if one.was_member else CLIENT_MOST


def counts_of(descriptor: int) -> tuple[int, int]:
    """Return the bytes that the other side acknowledged, and those that libzmq read from it.

    Returns:
        Zeros if there is no such connection any more, or the system does not count.

    """
    counts = borrow(descriptor, _counts_of)
    return (0, 0) if counts is None else counts


def _counts_of(connection: Borrowed) -> tuple[int, int]:
    info = connection.getsockopt(tcp.IPPROTO_TCP, tcp.TCP_INFO, _COUNTS.size)
    unread = posix("termios", A_NODE).FIONREAD
    waiting = posix("fcntl", A_NODE).ioctl(connection, unread, bytes(4))  # Last: rather too many.
    if len(info) < _COUNTS.size:
        return 0, 0
    acked, received = _COUNTS.unpack(info)
    return acked, received - int.from_bytes(waiting, sys.byteorder)


class Quota:
    """What a client, or all with one key, may leave unread.

    Attributes:
        connections: those that were sent large replies.

    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.connections: set[Connection] = set()
        self._looked_at = 0.0
        """The time of the last look at all connections (s)."""

    def unread(self) -> int:
        return sum(one.sent - one.received for one in self.connections)

    def look(self) -> None:
        """Look at all connections, but not each time: they may be many."""
        now = time.monotonic()
        if now - self._looked_at >= QUOTA_LOOK_S:
            self._looked_at = now
            for one in self.connections:
                one.look()


class UnreadReplies:
    """Bounds the replies that clients have not read, in bytes.

    Args:
        most: limit of unread replies of a client or, with keys, of all with one key (bytes).

    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._unlooked = min(UNLOOKED_BYTES, most // 16)
        self._quotas: dict[str, Quota] = {}
        """By owner: a client, or its key."""
        self._lines = Repetitions()

    def admits(self, one: Connection, size: int) -> bool:
        """Return whether a large reply of ``size`` bytes may be sent."""
        quota = one.quota
        if quota is None:
            quota = one.quota = self._quotas.setdefault(one.owner, Quota(one.owner))
            quota.connections.add(one)
        if one.sent - one.received > self._unlooked:
            one.look()
        if self._has_room(quota, size):
            return True
        quota.look()
        if self._has_room(quota, size):
            return True
        one.blocked = one.blocked or one.sent - one.received > self._most // 2
        self._log(quota)
        return False

    def is_blocked(self, one: Connection) -> bool:
        """Return whether frames of a connection are dropped, since it reads too little."""
        one.blocked = one.blocked and one.look() and one.sent - one.received > self._most // 2
        return one.blocked

    def closed(self, one: Connection) -> None:
        if one.quota is not None:
            one.quota.connections.discard(one)
            if not one.quota.connections:
                del self._quotas[one.quota.owner]

    def _has_room(self, quota: Quota, size: int) -> bool:
        """Return whether a reply fits; one above the quota does if nothing large is unread."""
        unread = quota.unread()
        return unread <= LARGE_BYTES or unread + size <= self._most

    def _log(self, quota: Quota) -> None:
        if self._lines.add("", time.monotonic_ns()):
            logger.warning(
                "%r does not read its replies: %s KiB wait, the quota is %s KiB; more are "
                "dropped, and frames of clients that do not read",
                quota.owner,
                quota.unread() >> 10,
                self._most >> 10,
            )
