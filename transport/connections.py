"""The TCP connections to a listening socket: counted, and ended if silent or too many.

libzmq accepts connections on its own thread, without a limit. Its monitor reports each with its
descriptor, and a frame knows the descriptor it came over (`descriptors`).
"""

from __future__ import annotations

import contextlib
import socket as tcp
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network
from itertools import islice
from typing import Any

import zmq
from loguru import logger
from zmq.utils.monitor import parse_monitor_message

from fencelock.transport.descriptors import BarredAddresses, borrow, end_connection, peer_of
from fencelock.transport.held_bytes import HeldBytes
from fencelock.transport.sockets import HANDSHAKE_MS, NOBLOCK, Socket

SILENT_S = HANDSHAKE_MS / 1000
"""A connection that has never sent a frame is closed after this much silence (s)."""

LOOK_S = 0.5
"""Interval between checks for silent connections (s)."""

LOG_S = 10.0
"""Shortest interval between log lines of a full node (s)."""

PAUSE_S = 1.0
"""Pause before a node that ran out of descriptors listens again (s)."""

EVENTS_MAX = 16
"""Events of connections that one turn processes; each takes some 30 us."""

LOOKS_MAX = 8
"""Limit of silent connections that one turn checks."""

LOOK_ON_S = 0.002
"""Pause before the checks continue if more connections are left (s)."""

_LAST_DATA_RECEIVED = struct.Struct("=52xI")
"""``tcpi_last_data_recv`` in Linux' ``struct tcp_info``: time since data came (ms)."""

SPARE = 64
"""Connections beyond a limit that are kept until they send a frame, since they may be members'."""


@dataclass(slots=True)
class Silent:
    """Connections that have not sent a frame yet, by descriptor, oldest first."""

    fresh: dict[int, NewConnection] = field(default_factory=dict[int, "NewConnection"])
    """Those that have sent nothing."""
    beating: dict[int, NewConnection] = field(default_factory=dict[int, "NewConnection"])
    """Those that have sent heartbeats."""

    def __len__(self) -> int:
        return len(self.fresh) + len(self.beating)

    def oldest(self) -> tuple[int, NewConnection] | None:
        """Return the connection to be ended first, or None if there is none."""
        return next(iter(self.fresh.items()), next(iter(self.beating.items()), None))

    def forget(self, descriptor: int) -> NewConnection | None:
        """Remove a connection, and return it."""
        return self.fresh.pop(descriptor, None) or self.beating.pop(descriptor, None)


@dataclass(slots=True, eq=False)
class OfAddress:
    """The connections from one address that count."""

    counted: set[int] = field(default_factory=set[int])
    """Their descriptors. The latest link of each member does not count."""
    silent: Silent = field(default_factory=Silent)


@dataclass(slots=True)
class NewConnection:
    """A connection that has not sent a frame yet."""

    peer: Any
    since: float
    """The time of its acceptance (s)."""
    of_address: OfAddress


class Connections:
    """Counts connections to ``router``, and ends those that are silent or too many.

    Too many are ended in this order: connections that have sent nothing, longest first; those
    that only send heartbeats; the newest, when it sends a frame and is no member's. So a stranger
    who opens connections takes no place of a client that uses its own. If the process still runs
    out of descriptors, the node stops listening for a moment, since libzmq would try to accept the
    next one all the time.

    Args:
        router: bound.
        monitor: the monitor given to `bound_router`.
        most: limit of connections that are kept.
        most_of_address: limit of those from one address, see `counted_address`.
        count: called with a counter's name and its increment.
        held: told of each connection.
        failed: receives the event and the value of each failed handshake, where keys are used.

    Attributes:
        fresh: the connections that have sent nothing so far, by descriptor, oldest first.
        beating: those that have sent heartbeats, but no frame.
        is_behind: whether events may wait, so that frames come over connections not known yet.
        tend_ms: time until the next call of `tend` is due (ms), or None if none is.

    """

    def __init__(
        self,
        router: Socket,
        monitor: Socket,
        most: int,
        most_of_address: int,
        count: Callable[[str, int], None],
        held: HeldBytes,
        failed: Callable[[int, int], None] | None = None,
    ) -> None:
        self._router = router
        self._held = held
        self._failed = failed
        self._barred = BarredAddresses()
        self.monitor = monitor
        self._most = most
        self._most_of_address = most_of_address
        self._addresses: dict[int, str] = {}
        """The address of each connection, by descriptor."""
        self._by_address: dict[str, OfAddress] = {}
        self._members: dict[str, int] = {}
        """The latest link of each member."""
        self._count = count
        self.endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._silent = Silent()
        self.fresh, self.beating = self._silent.fresh, self._silent.beating
        self.is_behind = False
        self._early: dict[int, str] = {}
        """Descriptors over which a frame came whose event has not been processed yet, with the
        member that sent it, or ""."""
        self._open: dict[int, Any] = {}
        """The other side of each connection, by descriptor."""
        self._ended: set[int] = set()
        """Those of ``_open`` that were shut down; libzmq has not yet reported their end."""
        self._resume = 0.0
        """The time to listen again (s), 0 while listening."""
        self._due = 0.0
        self._logged = 0.0
        self._address_logged = 0.0
        self.tend_ms: int | None = None
        self._refused = 0
        """Connections ended for lack of room since the last line in the log."""

    def spoke(self, descriptor: int, member: str) -> bool:
        """Record a good frame over ``descriptor``, of ``member`` if that is not empty.

        Returns:
            Whether the frame may be used. It may not if it is a client's over a connection that is
            one too many.

        """
        if descriptor in self._ended and not member:
            return False  # It came before the connection was ended.
        one = self._forget(descriptor)
        if self.is_behind:  # The descriptor may belong to a connection not known yet.
            self._early[descriptor] = member
        if member:
            self._set_apart(descriptor, member)
        return bool(member) or one is None or not self._refuse(descriptor, one.peer, one.of_address)

    def _forget(self, descriptor: int) -> NewConnection | None:
        one = self._silent.forget(descriptor)
        if one is not None:
            one.of_address.silent.forget(descriptor)
        return one

    def watch(self) -> bool:
        """Process events of the monitor; return whether there may be more (`is_behind`)."""
        self.is_behind = True
        for _ in range(EVENTS_MAX):
            try:
                parts = self.monitor.recv_multipart(NOBLOCK)
            except zmq.Again:
                self.is_behind = False
                self._early.clear()
                return False
            news = parse_monitor_message(parts)
            event, descriptor = int(news["event"]), int(news["value"])
            self.tend_ms = self.tend_ms or 1
            if event == zmq.EVENT_ACCEPTED:
                self._accepted(descriptor)
            elif event == zmq.EVENT_DISCONNECTED:
                self._closed(descriptor)
            elif event == zmq.EVENT_ACCEPT_FAILED:
                self._stop_listening()
            elif event == zmq.EVENT_LISTENING:
                self._barred.listens(descriptor)
            elif self._failed is not None:
                self._failed(event, descriptor)
        return True

    def _accepted(self, descriptor: int) -> None:
        self._closed(descriptor)  # The end of a former one is not always reported.
        member = self._early.pop(descriptor, None)
        peer = self._open[descriptor] = borrow(descriptor, peer_of)
        if peer is None:
            return
        self._held.opened(descriptor, peer)
        address = self._addresses[descriptor] = counted_address(peer[0])
        of_address = self._by_address.setdefault(address, OfAddress())
        of_address.counted.add(descriptor)
        if member:
            self._set_apart(descriptor, member)
        elif member is None:
            one = NewConnection(peer, time.monotonic(), of_address)
            self.fresh[descriptor] = of_address.silent.fresh[descriptor] = one
        elif self._refuse(descriptor, peer, of_address):
            return
        if len(of_address.counted) > self._most_of_address:
            if self._make_room(of_address.silent, self._most_of_address):
                self._note_address_full(address)
        elif len(self._open) - len(self._ended) > self._most and self._make_room(
            self._silent, self._most
        ):
            self._note_full()

    def _closed(self, descriptor: int) -> None:
        """Forget a connection."""
        if self._open.pop(descriptor, None) is not None:
            self._held.closed(descriptor)
        self._ended.discard(descriptor)
        self._forget(descriptor)
        address = self._addresses.pop(descriptor, None)
        if address is not None:
            self._discount(descriptor, address)
        for member, latest in list(self._members.items()):
            if latest == descriptor:
                del self._members[member]

    def _discount(self, descriptor: int, address: str) -> None:
        of_address = self._by_address.get(address)
        if of_address is not None:
            of_address.counted.discard(descriptor)
            if not of_address.counted:
                del self._by_address[address]

    def _set_apart(self, descriptor: int, member: str) -> None:
        """Do not count the latest link of a member; count the former one again."""
        former = self._members.get(member)
        address = self._addresses.get(descriptor)
        if former == descriptor or address is None:
            return
        self._members[member] = descriptor
        self._held.is_member(descriptor)
        self._discount(descriptor, address)
        address = None if former is None else self._addresses.get(former)
        if former is not None and address is not None:
            self._by_address.setdefault(address, OfAddress()).counted.add(former)

    def _refuse(self, descriptor: int, peer: Any, of_address: OfAddress) -> bool:
        """End a connection that is used, if there are too many; return whether that was so."""
        used = len(of_address.counted) - len(of_address.silent)
        if used > self._most_of_address:
            self._note_address_full(counted_address(peer[0]))
        elif len(self._open) - len(self._ended) - len(self._silent) > self._most:
            self._note_full()
        else:
            return False
        self._shut(descriptor, peer)
        return True

    def bar(self, host: str, seconds: float) -> None:
        """Accept no connection from ``host`` for so much longer."""
        address = counted_address(host)
        if self._barred.bar(address, seconds):
            self._count("wire.address_barred", 1)
            self._held.end_larger(
                [one for one, of in self._addresses.items() if of == address],
                "it is from the address of one that sent several parts",
            )
        self.tend_ms = self.tend_ms or 1

    def _make_room(self, silent: Silent, most: int) -> bool:
        """End the oldest connection in ``silent``; return False if there is room to spare."""
        oldest = silent.oldest()
        if oldest is None or len(silent) <= min(SPARE, most // 4):
            return False
        descriptor, one = oldest
        if borrow(descriptor, peer_of) != one.peer:
            self._closed(descriptor)  # It has ended, which is not always reported.
            return False
        self._end(descriptor)
        return True

    def _note_address_full(self, address: str) -> None:
        self._count("wire.address_full", 1)
        now = time.monotonic()
        if now - self._address_logged >= LOG_S:
            self._address_logged = now
            logger.warning(
                "{}: {} connections from {}, the quota of one address; more are closed "
                "([limits] connections)",
                self.endpoint,
                self._most_of_address,
                address,
            )

    def _note_full(self) -> None:
        self._refused += 1
        self._count("wire.connections_full", 1)

    def _end(self, descriptor: int) -> None:
        """Shut a silent connection down, if the descriptor still belongs to it."""
        one = self._forget(descriptor)
        if one is not None:
            self._shut(descriptor, one.peer)

    def _shut(self, descriptor: int, peer: Any) -> None:
        address = self._addresses.pop(descriptor, None)
        if address is not None:
            self._discount(descriptor, address)
        self._ended.add(descriptor)
        end_connection(descriptor, peer)

    def _stop_listening(self) -> None:
        self._count("wire.descriptors_exhausted", 1)
        if self._resume:
            return
        with contextlib.suppress(zmq.ZMQError):
            self._router.unbind(self.endpoint)
        self._resume = time.monotonic() + PAUSE_S
        logger.error(
            "{}: out of descriptors with {} connections; no new ones for a moment. Raise the limit "
            "of open files (ulimit -n, LimitNOFILE)",
            self.endpoint,
            len(self._open),
        )

    def tend(self) -> None:
        """End silent connections, listen again after a pause, and log that the node is full."""
        now = time.monotonic()
        if now >= self._due:
            self._tend(now)
        waits = self._resume > 0 or self._refused > 0 or len(self.fresh) > 0
        waits = waits or len(self._barred.until) > 0
        self.tend_ms = max(1, round(1000 * (self._due - now))) if waits else None

    def _tend(self, now: float) -> None:
        self._due = now + LOOK_S
        if self._resume and now >= self._resume:
            self._listen_again(now)
        if self._barred.until:
            self._barred.tend(now)
        for descriptor, one in list(islice(self.fresh.items(), LOOKS_MAX)):
            if now - one.since < SILENT_S:
                break
            self._look(descriptor, one)
        else:
            if self.fresh:
                self._due = now + LOOK_ON_S
        if self._refused and now - self._logged >= LOG_S:
            logger.warning(
                "{}: {} connections, the limit; ended {} more. Close clients that are not needed, "
                "or raise the limit of open files (ulimit -n, LimitNOFILE)",
                self.endpoint,
                self._most,
                self._refused,
            )
            self._logged, self._refused = now, 0

    def _look(self, descriptor: int, one: NewConnection) -> None:
        """End a connection that has been silent; keep one that sends heartbeats."""
        if borrow(descriptor, peer_of) == one.peer and borrow(descriptor, _heard):
            self._forget(descriptor)
            self.beating[descriptor] = one.of_address.silent.beating[descriptor] = one
        else:
            self._count("wire.silent_closed", 1)
            self._end(descriptor)

    def _listen_again(self, now: float) -> None:
        self._resume = now + PAUSE_S
        # libzmq closed all connections when it stopped listening, and reported the end of none.
        for descriptor, peer in list(self._open.items()):
            if peer is None or borrow(descriptor, peer_of) != peer:
                self._closed(descriptor)
        if len(self._open) >= self._most:
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


def _heard(connection: tcp.socket) -> bool:
    """Return whether data came within `SILENT_S`; true where the system does not report it."""
    info = getattr(tcp, "TCP_INFO", None)
    if info is None:
        return True
    told = connection.getsockopt(tcp.IPPROTO_TCP, info, _LAST_DATA_RECEIVED.size)
    silent_ms: int = _LAST_DATA_RECEIVED.unpack(told)[0]
    return silent_ms < 1000 * SILENT_S
