"""Descriptors of connections that belong to libzmq: asking about them, and ending them.

libzmq has no call that closes one connection. Its descriptor is shut down instead: libzmq then sees
it as closed by the other side, and cleans up.
"""

from __future__ import annotations

import socket as tcp
import struct
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_BYTES_ACKED = struct.Struct("=120xQ")
"""``tcpi_bytes_acked`` in Linux' ``struct tcp_info``: bytes that the other side has received."""


def borrow(descriptor: int, act: Callable[[tcp.socket], T]) -> T | None:
    """Return ``act`` of a descriptor that belongs to libzmq, or None if it is no open connection.

    libzmq may close it at any time, and another file may get its number, so check its peer first.
    """
    try:
        connection = tcp.socket(fileno=descriptor)
    except (OSError, ValueError):
        return None
    try:
        return act(connection)
    except OSError:
        return None
    finally:
        connection.detach()


def peer_of(connection: tcp.socket) -> Any:
    """Return the address of the other side."""
    return connection.getpeername()


def acked_bytes(connection: tcp.socket) -> int | None:
    """Return the bytes that the other side has received; None where that is not reported."""
    info = getattr(tcp, "TCP_INFO", None)
    told = b"" if info is None else connection.getsockopt(tcp.IPPROTO_TCP, info, _BYTES_ACKED.size)
    return int(_BYTES_ACKED.unpack(told)[0]) if len(told) == _BYTES_ACKED.size else None


def shut(descriptor: int, host: str) -> None:
    """Shut a connection down, if the descriptor belongs to one from ``host``."""
    peer = borrow(descriptor, peer_of)
    if peer is not None and peer[0] == host:
        borrow(descriptor, _shut)


def end_connection(descriptor: int, peer: object) -> None:
    """Shut a connection down, if the descriptor still belongs to one to ``peer``."""
    if peer is not None and borrow(descriptor, peer_of) == peer:
        borrow(descriptor, _shut)


def _shut(connection: tcp.socket) -> None:
    connection.shutdown(tcp.SHUT_RDWR)
