"""Addresses from which a listening socket accepts no connection for a moment.

libzmq accepts connections and reads from them before this process knows of them. So the kernel has
to drop the packets that begin one: a filter of the listening descriptor (`man 7 socket`,
SO_ATTACH_FILTER) does, and the connections that exist do not notice. TCP tries again after a
second, so a client at the same address connects later.
"""

from __future__ import annotations

import ctypes
import socket as tcp
import struct
import sys
import time
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network

from fencelock.transport.borrowed import borrow

BARRED_MAX = 64
"""Limit of addresses that are barred at a time."""

BARRED_S = 5.0
"""The longest time for which an address is barred from now on (s)."""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_PROGRAM = struct.Struct("@HP")
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD, _LOAD_BYTE, _AND, _IF_EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x15, 0x06
"""Instructions of the classic BPF: `man 4 bpf` of the BSDs."""
_NETWORK = -0x100000
"""SKF_NET_OFF: where the header of IP begins."""
_DROP = _INSTRUCTION.pack(_RETURN, 0, 0, 0)
_ACCEPT = _INSTRUCTION.pack(_RETURN, 0, 0, 0xFFFFFFFF)


class BarredAddresses:
    """Bars addresses from connecting to a listening descriptor; on Linux only.

    Attributes:
        until: the time until which each address is barred (s); read only.

    """

    def __init__(self) -> None:
        self.until: dict[str, float] = {}
        self._descriptor = -1

    def listens(self, descriptor: int) -> None:
        """Note the descriptor that accepts connections."""
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
        """Admit the addresses again whose time has passed."""
        passed = [address for address, until in self.until.items() if until <= now]
        for address in passed:
            del self.until[address]
        if passed:
            self._attach()

    def _attach(self) -> None:
        if sys.platform != "linux":
            return
        program = filter_of([ip_network(address) for address in self.until])

        def attach(listening: tcp.socket) -> None:
            if not listening.getsockopt(tcp.SOL_SOCKET, tcp.SO_ACCEPTCONN):
                return  # libzmq stopped listening, and another socket has its descriptor.
            if not self.until:
                with suppress(FileNotFoundError):
                    listening.setsockopt(tcp.SOL_SOCKET, _SO_DETACH_FILTER, 0)
                return
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
