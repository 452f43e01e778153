"""Free ports of the loopback interface, for clusters on one machine."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
from pathlib import Path

from fencelock.transport.posix import posix

_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_240
_LOCAL_FIRST = 32_768
"""Linux's default for the first port of outgoing connections."""
_ENOUGH = 4_096
_DIGITS = 5


def ports_below(local_ports: str) -> range:
    """Return the ports to choose from: those below the ports of outgoing connections.

    A connection could take any other between the choice and the bind, or while its node is down. If
    fewer than `_ENOUGH` are left, the ports are those below Linux's default.

    Args:
        local_ports: the text of Linux's ``ip_local_port_range``; empty on other systems.

    """
    first, *_ = (*map(int, local_ports.split()), _LOCAL_FIRST)
    return range(_FIRST, first if first >= _FIRST + _ENOUGH else _LOCAL_FIRST)


def _ports() -> range:
    try:
        return ports_below(_LOCAL_PORTS.read_text(encoding="ascii"))
    except OSError:  # Another system than Linux.
        return ports_below("")


PORTS = _ports()


def free_ports(count: int) -> list[int]:
    """Return ``count`` TCP ports of 127.0.0.1, in a row, on which no process listens now.

    The processes of a user are given the ports in turn, so no port is given again before it is
    bound. The port after the row is free too and is left out: a node that joins takes it by itself
    (``cluster/node/joining.py``). A file in the folder for temporary files has the next one.

    Raises:
        OSError: there is no such row.
        UnsupportedError: the system has no ``flock``, as Windows.

    """
    fcntl = posix("fcntl", "a choice of free ports")
    name = Path(tempfile.gettempdir()) / f"fencelock-ports-{os.getuid()}"
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "r+b", buffering=0) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # Until it is closed.
        next_port = int(turn.read() or random.choice(PORTS))
        for first in (*range(next_port, PORTS.stop), *PORTS):
            row = range(first, first + count + 1)
            if row.stop <= PORTS.stop and _are_free(row):
                os.pwrite(turn.fileno(), b"%0*d" % (_DIGITS, row.stop), 0)
                return list(row[:count])
    raise OSError(f"no {count} ports of 127.0.0.1 in a row are free")


def _are_free(ports: range) -> bool:
    with contextlib.ExitStack() as probes:
        for port in ports:
            probe = probes.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # Another process has it.
                return False
    return True
