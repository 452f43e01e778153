"""Descriptors: the limit of this process, and those of connections that belong to libzmq.

libzmq has no call that closes one connection. Its descriptor is shut down instead: libzmq then sees
it as closed by the other side, and cleans up.

libzmq accepts connections and reads from them before this process knows of them. So to refuse those
of an address for a moment, the kernel has to drop the packets that begin one: a filter of the
listening descriptor (`man 7 socket`, SO_ATTACH_FILTER) does, and the connections that exist do not
notice. TCP tries again after a second, so a client at the same address connects later.
"""

from __future__ import annotations

import contextlib
import os
import socket as tcp
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from errno import EAFNOSUPPORT, EMFILE, ENFILE
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, TypeVar

from fencelock.transport.posix import A_NODE, posix

T = TypeVar("T")

DESCRIPTORS_MAX = 65_536
"""The limit is not raised beyond this: some programs walk through all possible descriptors."""

CONNECTIONS_MAX = 10_000
"""Limit of connections to one node, and of senders of which frames wait (`ClientQueue`)."""

CONNECTIONS_MIN = 16

RESERVED = 128
"""Descriptors that a node keeps free of connections: its sockets, files, links and libraries."""

SPARES = 8
"""Descriptors that are held open, to be given to a file when no other is free."""

BARRED_MAX = 64
"""Limit of addresses that are barred at a time."""

BARRED_S = 5.0
"""The longest time for which an address is barred from now on (s)."""

_BYTES_ACKED = struct.Struct("=120xQ")
"""``tcpi_bytes_acked`` in Linux' ``struct tcp_info``: bytes that the other side has received."""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_PROGRAM = struct.Struct("@HP")
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD, _LOAD_BYTE, _AND, _IF_EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x15, 0x06
"""Instructions of the classic BPF: `man 4 bpf` of the BSDs."""
_NETWORK = -0x100000
"""SKF_NET_OFF: where the header of IP begins."""
_DROP = _INSTRUCTION.pack(_RETURN, 0, 0, 0)
_ACCEPT = _INSTRUCTION.pack(_RETURN, 0, 0, 0xFFFFFFFF)

_UNSPECIFIED = bytes(16)
"""A ``struct sockaddr`` of the family AF_UNSPEC."""


def raise_limit() -> int:
    """Raise the limit of open descriptors of this process as far as it may; return the limit."""
    resource = posix("resource", A_NODE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def connections_max(limit: int) -> int:
    """Return the limit of connections of a node that may open ``limit`` descriptors.

    A quarter stays free beside `RESERVED`: connections are accepted on a thread of libzmq, and
    are counted only afterwards.
    """
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, (limit - RESERVED) * 3 // 4))


class SpareDescriptors:
    """Some open descriptors that are given up, one by one, for a file that must be opened."""

    def __init__(self, size: int = SPARES) -> None:
        self.missing = size
        """The number of descriptors that `fill` has to open."""
        self._kept: list[int] = []
        self.fill()

    def fill(self) -> None:
        """Open the missing descriptors, as far as the limit allows."""
        with contextlib.suppress(OSError):
            while self.missing:
                self._kept.append(os.eventfd(0, os.EFD_CLOEXEC))
                self.missing -= 1

    def spend(self, opening: Callable[[], T]) -> T:
        """Return what ``opening`` returns; while no descriptor is free, give one up and try again.

        Raises:
            OSError: the last error of ``opening``.

        """
        while True:
            try:
                return opening()
            except OSError as error:
                if error.errno not in (EMFILE, ENFILE) or not self._kept:
                    raise
                os.close(self._kept.pop())
                self.missing += 1

    def close(self) -> None:
        """Close all. Calling it twice does nothing."""
        while self._kept:
            os.close(self._kept.pop())


Borrowed = tcp.SocketType
"""A socket of C, without the layer in Python that `tcp.socket` adds: made in half the time."""

NO_SPARES = SpareDescriptors(0)
"""None, for files that are opened while a node starts."""


def borrow(descriptor: int, act: Callable[[Borrowed], T]) -> T | None:
    """Return ``act`` of a descriptor that belongs to libzmq, or None if it is no open connection.

    libzmq may close it at any time, and another file may get its number, so check its peer first.
    """
    try:
        # Without a family, it would ask the kernel for all three. Addresses are read by a family of
        # their own; the one given here only reserves room, and none takes more.
        connection = Borrowed(tcp.AF_UNIX, tcp.SOCK_STREAM, tcp.IPPROTO_TCP, descriptor)
    except (OSError, ValueError):
        return None
    try:
        return act(connection)
    except OSError:
        return None
    finally:
        connection.detach()


def peer_of(connection: Borrowed) -> Any:
    """Return the address of the other side.

    Raises:
        OSError: it is none of TCP: another file has the descriptor.

    """
    peer: Any = connection.getpeername()
    if isinstance(peer, str | bytes):  # Of a UNIX socket.
        raise OSError(EAFNOSUPPORT, f"{peer!r} is no address of TCP")
    return peer


def shown_address(name: tuple[object, ...]) -> str:
    """Return the name of one end of a TCP connection as an address: ``10.0.0.1:4040``."""
    host = str(name[0])
    return f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"


def acked_bytes(connection: Borrowed) -> int | None:
    """Return the bytes that the other side has received; None where that is not reported."""
    info = getattr(tcp, "TCP_INFO", None)
    raw = b"" if info is None else connection.getsockopt(tcp.IPPROTO_TCP, info, _BYTES_ACKED.size)
    return int(_BYTES_ACKED.unpack(raw)[0]) if len(raw) == _BYTES_ACKED.size else None


def connection_of(descriptor: int) -> TcpConnection:
    """Return the connection that has ``descriptor`` now; one that is not open if there is none."""
    acked = borrow(descriptor, acked_bytes)
    return TcpConnection(descriptor, borrow(descriptor, peer_of), acked or 0)


@dataclass(slots=True, eq=False)
class TcpConnection:
    """A connection that belongs to libzmq, and the bytes that were sent over it.

    A new connection may get the descriptor of a former one, so each use checks the other side.
    """

    descriptor: int
    peer: Any
    """The address of the other side; None if the connection had closed before it was known."""
    others: int = 0
    """Bytes that the other side has received and that are not in ``sent``: of the handshake, of
    heartbeats and of headers. If two threads find it at once, the smaller value may stay until the
    next look: then ``received`` is too large by some heartbeats."""
    sent: int = 0
    """Bytes of the frames that were sent. Count a frame before it is sent: else the other side
    could seem to have received bytes of other kinds."""
    received: int = 0
    """Those of ``sent`` that the other side had received at the last look."""

    def is_open(self) -> bool:
        return self.peer is not None and borrow(self.descriptor, peer_of) == self.peer

    def look(self) -> bool:
        """Bring ``received`` up to date; return whether the connection is open.

        Without a connection, or where the system does not count, nothing is unread.
        """
        acked = borrow(self.descriptor, acked_bytes)
        if acked is None or not self.is_open():
            self.received = self.sent
            return False
        self.note(acked)
        return True

    def note(self, acked: int) -> None:
        """Note that the other side has received so many bytes of all kinds."""
        self.others = max(self.others, acked - self.sent)
        self.received = max(self.received, acked - self.others)

    def end(self) -> None:
        """Shut the connection down."""
        if self.is_open():
            borrow(self.descriptor, _shut)

    def abort(self) -> None:
        """End the connection at once, and discard what the kernel holds of it in either direction.

        After a shutdown, libzmq would still read megabytes that came before. A socket that is
        connected to no address (AF_UNSPEC) is reset, and holds nothing.
        """
        if self.is_open():
            # connect(2): Python's makes addresses of a socket's own family only.
            _libc().connect(self.descriptor, _UNSPECIFIED, len(_UNSPECIFIED))
            self.end()  # Where the former does not work.


@cache
def _libc() -> Any:
    import ctypes  # noqa: PLC0415 (only nodes need it)

    return ctypes.CDLL(None)


def _shut(connection: Borrowed) -> None:
    connection.shutdown(tcp.SHUT_RDWR)


class BarredAddresses:
    """Bars addresses from connecting to a listening descriptor; on Linux only.

    Attributes:
        until: the time until which each address is barred (s); read only.

    """

    def __init__(self) -> None:
        self.until: dict[str, float] = {}
        self._descriptor = -1

    def listens(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._attach()

    def bar(self, address: str, seconds: float) -> bool:
        """Bar ``address``, or a network, so much longer; return whether it was not barred."""
        now, known = time.monotonic(), self.until.get(address)
        if known is None and len(self.until) >= BARRED_MAX:
            return False
        self.until[address] = min(max(known or now, now) + seconds, now + BARRED_S)
        if known is None:
            self._attach()
        return known is None

    def tend(self, now: float) -> None:
        passed = [address for address, until in self.until.items() if until <= now]
        for address in passed:
            del self.until[address]
        if passed:
            self._attach()

    def _attach(self) -> None:
        if sys.platform != "linux":
            return
        program = filter_of([ip_network(address) for address in self.until])

        def attach(listening: Borrowed) -> None:
            if not listening.getsockopt(tcp.SOL_SOCKET, tcp.SO_ACCEPTCONN):
                return  # libzmq stopped listening, and another socket has its descriptor.
            if not self.until:
                with contextlib.suppress(FileNotFoundError):
                    listening.setsockopt(tcp.SOL_SOCKET, _SO_DETACH_FILTER, 0)
                return
            import ctypes  # noqa: PLC0415 (only nodes need it)

            buffer = ctypes.create_string_buffer(program, len(program))
            count = len(program) // _INSTRUCTION.size
            given = _PROGRAM.pack(count, ctypes.addressof(buffer))
            listening.setsockopt(tcp.SOL_SOCKET, _SO_ATTACH_FILTER, given)

        borrow(self._descriptor, attach)


def filter_of(networks: list[IPv4Network | IPv6Network]) -> bytes:
    """Return a filter that drops the packets of ``networks``: IPv4 addresses, /64 of IPv6."""
    fours = [int(one.network_address) for one in networks if isinstance(one, IPv4Network)]
    sixes = [int(one.network_address) for one in networks if isinstance(one, IPv6Network)]
    four = _load(12) + b"".join(_if_equal(address, 1) + _DROP for address in fours) + _ACCEPT
    six = b"".join(
        _load(8)
        + _if_equal(address >> 96, 3)
        + _load(12)
        + _if_equal(address >> 64 & 0xFFFFFFFF, 1)
        + _DROP
        for address in sixes
    )
    version = _INSTRUCTION.pack(_LOAD_BYTE, 0, 0, _NETWORK & 0xFFFFFFFF)
    version += _INSTRUCTION.pack(_AND, 0, 0, 0xF0) + _if_equal(0x40, len(four) // 8)
    return version + four + six + _ACCEPT


def _load(offset: int) -> bytes:
    return _INSTRUCTION.pack(_LOAD, 0, 0, _NETWORK + offset & 0xFFFFFFFF)


def _if_equal(value: int, skip: int) -> bytes:
    """Return an instruction that skips ``skip`` others unless ``value`` was loaded."""
    return _INSTRUCTION.pack(_IF_EQUAL, 0, skip, value)
