"""The TCP connections to a listening socket: counted, and ended if silent or too many.

libzmq accepts connections on its own thread, without a limit. Its monitor reports each with its
descriptor, and a frame knows the descriptor it came over (`descriptors`).

A `Connection` has all that is known of one connection. `Connections` opens it when libzmq reports
it, or when a frame comes over it before that, and closes it when libzmq reports its end, when
another connection has its descriptor, or when a look shows that it has ended.
"""

from __future__ import annotations

import contextlib
import socket as tcp
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv6Address, IPv6Network
from itertools import chain, islice
from typing import TYPE_CHECKING

import zmq

from fencelock.actors.repeated import Repetitions
from fencelock.transport.descriptors import (
    BarredAddresses,
    Borrowed,
    TcpConnection,
    borrow,
    peer_of,
)
from fencelock.transport.log import logger
from fencelock.transport.sockets import HANDSHAKE_MS, Socket, monitored

if TYPE_CHECKING:
    from fencelock.transport.held_bytes import Quota

SILENT_S = HANDSHAKE_MS / 1000
"""A connection that has never sent a frame is closed after this much silence (s)."""

SILENT_LOOK_S = 0.5
"""Interval between checks for silent connections (s)."""

NO_DESCRIPTORS_S = 1.0
"""Pause before a node that ran out of descriptors listens again (s)."""

CONNECTION_EVENTS_MAX = 16
"""Events of connections that one turn processes; each takes some 30 us."""

LOOKS_MAX = 8
"""Limit of silent connections that one turn checks."""

LOOK_ON_S = 0.002
"""Pause before the checks continue if more connections are left (s)."""

_LAST_DATA_RECEIVED = struct.Struct("=52xI")
"""``tcpi_last_data_recv`` in Linux' ``struct tcp_info``: time since data came (ms)."""

SPARE = 64
"""Connections beyond a limit that are kept until they send a frame, since they may be members'."""


class State(IntEnum):
    """The states of a connection, see `Connections`."""

    FRESH, BEATING, USED, MEMBER, ENDED = range(5)


COUNTED = (State.FRESH, State.BEATING, State.USED)
"""The states in which a connection counts for its address."""


SETTLED = (State.USED, State.MEMBER)
"""The states of connections over which frames came that could be used."""


@dataclass(slots=True, eq=False)
class Connection(TcpConnection):
    """A connection that libzmq has, as far as it has reported.

    The fields below `watched` belong to the thread of `held_bytes`, which explains them.
    """

    address: str = field(init=False)
    """The address under which it counts: the host, or a whole network."""
    since: float = field(default_factory=time.monotonic)
    """The time of its acceptance (s)."""
    state: State = State.FRESH
    was_member: bool = False
    gone: bool = field(init=False)
    announced: bool = False
    """Whether libzmq has reported its acceptance."""
    identity: bytes = b""
    """The routing id of the other side, once a frame came."""
    name: str = ""
    """The id of the client or member in it, or nothing if there is none."""
    owner: str = ""
    """The client or, with keys, its key: see `client_queue`."""
    user: str = ""
    """The public key of the other side, once a frame of it was admitted."""
    open_until: float = 0.0
    """The time until which it is taken to be open, although another process uses its id (s)."""
    taken: int = 0
    """Bytes of the frames that the listener took, as they are on the wire."""
    quota: Quota | None = None
    """What its owner may leave unread, once it was sent a large reply."""
    blocked: bool = False
    """Whether a reply was dropped, and its frames are until it reads."""

    watched: bool = True
    """Whether its bytes are looked at: until it is closed, or ended for them."""
    silent: bool = False
    held: int = 0
    passed: int = 0
    """Bytes that were read, never taken as a frame, and are gone, such as heartbeats."""
    read: int = 0
    """Bytes that libzmq had read from it at the last look."""
    acked: int = 0
    acked_at: float = 0.0
    """When ``acked`` last changed, or when `SILENT_BYTES` were first unread since (s)."""
    taken_then: int = 0
    """The bytes that had been taken at that time."""
    mark: int = 0
    """An earlier ``read``."""
    mark_empties: int = 0
    mark_taken: int | None = None
    """The bytes taken when all frames within ``mark`` had been; None if not known yet."""

    def __post_init__(self) -> None:
        self.gone = self.peer is None
        self.address = "" if self.gone else counted_address(self.peer[0])


class Group:
    """All connections, or those from one address, by state, each oldest first."""

    def __init__(self) -> None:
        self.by_state: list[dict[int, Connection]] = [{} for _ in State]

    def count(self, *states: State) -> int:
        return sum([len(self.by_state[state]) for state in states])

    def oldest_silent(self) -> Connection | None:
        """Return the connection to be ended first, or None if there is none."""
        fresh, beating = self.by_state[State.FRESH], self.by_state[State.BEATING]
        return next(iter((fresh or beating).values()), None)


class Connections:
    """Counts connections to ``router``, and ends those that are silent or too many.

    A connection is in one of these states until it is closed.

        FRESH    it has sent nothing: BEATING after `SILENT_S`, or ENDED without heartbeats
        BEATING  it has sent heartbeats, but no frame
        USED     it has sent a frame; from FRESH, BEATING and MEMBER
        MEMBER   the latest link of a member; from any but ENDED. A later one makes it USED
        ENDED    it was shut down; from any

    Excess ones are ended in this order: FRESH ones, oldest first; BEATING ones; the newest, when it
    becomes USED. So a stranger who opens connections takes no place of a client that uses its own.
    If the process still runs out of descriptors, the node stops listening for a moment, since
    libzmq would try to accept the next one all the time.

    Args:
        router: bound, with ``monitor``.
        most: limit of connections that are kept.
        most_of_address: limit of those from one address, see `counted_address`.
        count: called with a counter's name and its increment.
        opened: called with each new connection.
        closed: called with each connection that has ended.
        failed: receives the event and the value of each failed handshake, where keys are used.

    Attributes:
        open: all connections, by descriptor; read only.
        is_behind: whether events may wait: then a frame may come over a connection that is not
            known yet, and has the descriptor and the routing id of a former one.
        tend_ms: time until the next call of `tend` is due (ms), or None if none is.

    """

    def __init__(
        self,
        router: Socket,
        monitor: Socket,
        most: int,
        most_of_address: int,
        count: Callable[[str, int], None],
        opened: Callable[[Connection], None],
        closed: Callable[[Connection], None],
        failed: Callable[[int, int], None] | None = None,
    ) -> None:
        self._router = router
        self._note_opened = opened
        self._note_closed = closed
        self._failed = failed
        self._barred = BarredAddresses()
        self.monitor = monitor
        self._most = most
        self._most_of_address = most_of_address
        self.open: dict[int, Connection] = {}
        self._all = Group()
        self._by_address: dict[str, Group] = {}
        self._members: dict[str, Connection] = {}
        """The latest link of each member."""
        self._count = count
        self.endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._fresh = self._all.by_state[State.FRESH]
        self.is_behind = False
        self._resume = 0.0
        """The time to listen again (s), 0 while listening."""
        self._due = 0.0
        self._lines = Repetitions()
        self.tend_ms: int | None = None

    def over(self, descriptor: int, identity: bytes, host: str) -> Connection:
        """Return the connection over which a frame from ``host`` came; one that is gone if closed.

        While no events wait, the caller may use the one that `open` has, if it has that routing id
        and was not ended.

        The last frames of a closed connection may be read when another one has its descriptor
        already. If both have the same host, they name that other one wrongly. Its next frame has
        another routing id: it goes on as a new `Connection`, since waiting frames have the former.
        """
        former = self.open.get(descriptor)
        one = self._look_up(descriptor) or former
        if one is None or (one.peer is not None and one.peer[0] != host):
            return Connection(descriptor, None, identity=identity)
        if one.identity not in (b"", identity):
            one = self._renamed(one)
        one.identity = identity
        return one

    def _renamed(self, known: Connection) -> Connection:
        """Return an open connection anew, without its names, and with the counts of its bytes."""
        if known.gone:
            return Connection(known.descriptor, None)
        self._closed(known)
        one = Connection(known.descriptor, known.peer, known.others, known.sent, known.received)
        one.announced, one.taken = known.announced, known.taken
        return self._opened(one)

    def use(self, one: Connection, *, member: bool) -> bool:
        """Note a good frame over a connection, of a member or a client.

        It changes nothing if the state is MEMBER, or USED and the frame is a client's.

        Returns:
            Whether the frame may be used. It may not if it is a client's over a connection that is
            one too many.

        """
        if one.state is State.ENDED:
            return member  # It came before the connection was ended.
        if one.gone:
            return True
        if member:
            self._set_apart(one)
        elif one.state not in SETTLED:
            self._move(one, State.USED)
            return not self._is_too_many(one)
        return True

    def _move(self, one: Connection, state: State | None) -> None:
        """Change the state of a connection; None if it is gone."""
        group = self._by_address[one.address]
        for by_state in (self._all.by_state, group.by_state):
            by_state[one.state].pop(one.descriptor, None)
            if state is not None:
                by_state[state][one.descriptor] = one
        if state is not None:
            one.state = state
        elif not group.count(*State):
            del self._by_address[one.address]

    def watch(self) -> bool:
        """Process events of the monitor; return whether there may be more (`is_behind`)."""
        self.is_behind = True
        for _ in range(CONNECTION_EVENTS_MAX):
            try:
                event, descriptor = monitored(self.monitor)
            except zmq.Again:
                self.is_behind = False
                return False
            self.tend_ms = self.tend_ms or 1
            if event == zmq.EVENT_ACCEPTED:
                one = self._look_up(descriptor)
                if one is not None:
                    one.announced = True
            elif event == zmq.EVENT_DISCONNECTED:
                one = self.open.get(descriptor)
                if one is not None and one.announced:  # Else it was a former one.
                    self._closed(one)
            elif event == zmq.EVENT_ACCEPT_FAILED:
                self._stop_listening()
            elif event == zmq.EVENT_LISTENING:
                self._barred.listens(descriptor)
            elif self._failed is not None:
                self._failed(event, descriptor)
        return True

    def _look_up(self, descriptor: int) -> Connection | None:
        """Return the connection that has ``descriptor`` now, which may be new, or None."""
        peer, known = borrow(descriptor, peer_of), self.open.get(descriptor)
        if known is not None:
            if known.peer == peer:
                return known
            self._closed(known)  # The end of a former one is not always reported.
        return None if peer is None else self._opened(Connection(descriptor, peer))

    def _opened(self, one: Connection) -> Connection:
        self.open[one.descriptor] = one
        of_address = self._by_address.setdefault(one.address, Group())
        self._move(one, State.FRESH)
        self._note_opened(one)
        if of_address.count(*COUNTED) > self._most_of_address:
            if self._make_room(of_address, self._most_of_address):
                self._note_address_full(one.address)
        elif self._all.count(*COUNTED, State.MEMBER) > self._most and self._make_room(
            self._all, self._most
        ):
            self._note_full()
        return one

    def _closed(self, one: Connection) -> None:
        del self.open[one.descriptor]
        one.gone, one.watched = True, False
        self._move(one, None)
        if self._members.get(one.name) is one:
            del self._members[one.name]
        self._note_closed(one)

    def _set_apart(self, one: Connection) -> None:
        """Do not count the latest link of a member; count the former one again."""
        former = self._members.get(one.name)
        if former is one:
            return
        self._members[one.name] = one
        one.was_member = True
        self._move(one, State.MEMBER)
        if former is not None and former.state is State.MEMBER:
            self._move(former, State.USED)

    def _is_too_many(self, one: Connection) -> bool:
        """End a connection that is used, if there are too many; return whether that was so."""
        if self._by_address[one.address].count(State.USED) > self._most_of_address:
            self._note_address_full(one.address)
        elif self._all.count(State.USED, State.MEMBER) > self._most:
            self._note_full()
        else:
            return False
        self._shut(one)
        return True

    def bar(self, host: str, seconds: float) -> list[Connection]:
        """Bar an address from connecting; if it was not barred, return its connections."""
        address = counted_address(host)
        self.tend_ms = self.tend_ms or 1
        if not self._barred.bar(address, seconds):
            return []
        self._count("wire.address_barred", 1)
        of_address = self._by_address.get(address, Group())
        return [*chain.from_iterable(each.values() for each in of_address.by_state)]

    def _make_room(self, group: Group, most: int) -> bool:
        """End the oldest silent connection of ``group``; return False if there is room to spare."""
        oldest = group.oldest_silent()
        spare = min(SPARE, most // 4)
        if oldest is None or group.count(State.FRESH, State.BEATING) <= spare:
            return False
        if not oldest.is_open():
            self._closed(oldest)  # It has ended, which is not always reported.
            return False
        self._shut(oldest)
        return True

    def _note_address_full(self, address: str) -> None:
        self._count("wire.address_full", 1)
        if self._lines.add("address_full", time.monotonic_ns()):
            logger.warning(
                "%s: %s connections from %s, the quota of one address; more are closed "
                "([limits] connections)",
                self.endpoint,
                self._most_of_address,
                address,
            )

    def _note_full(self) -> None:
        self._count("wire.connections_full", 1)
        if count := self._lines.add("connections_full", time.monotonic_ns()):
            logger.warning(
                "%s: %s connections, the limit; ended %s more. Close clients that are not needed, "
                "or raise the limit of open files (ulimit -n, LimitNOFILE)",
                self.endpoint,
                self._most,
                count,
            )

    def _shut(self, one: Connection) -> None:
        self._move(one, State.ENDED)
        one.end()

    def _stop_listening(self) -> None:
        self._count("wire.descriptors_exhausted", 1)
        if self._resume:
            return
        with contextlib.suppress(zmq.ZMQError):
            self._router.unbind(self.endpoint)
        self._resume = time.monotonic() + NO_DESCRIPTORS_S
        logger.error(
            "%s: out of descriptors with %s connections; no new ones for a moment. Raise the limit "
            "of open files (ulimit -n, LimitNOFILE)",
            self.endpoint,
            len(self.open),
        )

    def tend(self) -> None:
        """End silent connections, and listen again after a pause."""
        now = time.monotonic()
        if now >= self._due:
            self._tend(now)
        waits = self._resume > 0 or self._fresh or self._barred.until
        self.tend_ms = max(1, round(1000 * (self._due - now))) if waits else None

    def _tend(self, now: float) -> None:
        self._due = now + SILENT_LOOK_S
        if self._resume and now >= self._resume:
            self._listen_again(now)
        if self._barred.until:
            self._barred.tend(now)
        for one in list(islice(self._fresh.values(), LOOKS_MAX)):
            if now - one.since < SILENT_S:
                break
            self._look(one)
        else:
            if self._fresh:
                self._due = now + LOOK_ON_S

    def _look(self, one: Connection) -> None:
        """End a connection that has been silent; keep one that sends heartbeats."""
        if one.is_open() and borrow(one.descriptor, _has_received):
            self._move(one, State.BEATING)
        else:
            self._count("wire.silent_closed", 1)
            self._shut(one)

    def _listen_again(self, now: float) -> None:
        self._resume = now + NO_DESCRIPTORS_S
        # libzmq closed all connections when it stopped listening, and reported the end of none.
        for one in list(self.open.values()):
            if not one.is_open():
                self._closed(one)
        if len(self.open) >= self._most:
            return
        with contextlib.suppress(zmq.ZMQError):  # Another process has the port; tried again.
            self._router.bind(self.endpoint)
            self._resume = 0.0

    def close(self) -> None:
        """Close the monitor; before the ROUTER."""
        self._router.disable_monitor()
        self.monitor.close(linger=0)


def counted_address(host: str) -> str:
    """Return what ``host`` counts as: an IPv6 address as its first 64 bits, all of them its own."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or IPv6Network((int(address), 64), strict=False))


def _has_received(connection: Borrowed) -> bool:
    """Return whether data came within `SILENT_S`; true where the system does not report it."""
    info = getattr(tcp, "TCP_INFO", None)
    if info is None:
        return True
    raw = connection.getsockopt(tcp.IPPROTO_TCP, info, _LAST_DATA_RECEIVED.size)
    silent_ms: int = _LAST_DATA_RECEIVED.unpack(raw)[0]
    return silent_ms < 1000 * SILENT_S
