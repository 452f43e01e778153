"""Free ports of the loopback interface, for clusters on one machine."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
from pathlib import Path

from fencelock.transport.posix import posix

PORTS = range(10_240, 32_768)
"""Ports to choose from. Linux takes those of outgoing connections from 32,768 up, so none of these
is taken by a connection between the choice and the bind."""

_DIGITS = 5


def free_ports(count: int) -> list[int]:
    """Return ``count`` TCP ports of 127.0.0.1, in a row, on which no process listens now.

    The processes of a user are given the ports in turn, so no port is given again before it is
    bound. A file in the folder for temporary files has the next one.

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
            row = range(first, first + count)
            if row.stop <= PORTS.stop and _are_free(row):
                os.pwrite(turn.fileno(), b"%0*d" % (_DIGITS, row.stop), 0)
                return list(row)
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
