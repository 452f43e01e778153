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
    """Return ``count`` different TCP ports of 127.0.0.1 on which no process listens now.

    All processes of a user take the ports in turn: the next one is in a file of the folder for
    temporary files. So nobody else is given a port before it is bound.

    Raises:
        OSError: fewer ports are free.
        UnsupportedError: the system has no ``flock``, as Windows.

    """
    fcntl = posix("fcntl", "a choice of free ports")
    name = Path(tempfile.gettempdir()) / f"fencelock-ports-{os.getuid()}"
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "r+b", buffering=0) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # Until it is closed.
        start = int(turn.read() or random.choice(PORTS))
        ports = _unbound(count, start)
        os.pwrite(turn.fileno(), b"%0*d" % (_DIGITS, ports[-1] + 1), 0)
    return ports


def _unbound(count: int, start: int) -> list[int]:
    """Return the first ``count`` ports from ``start`` on that are free."""
    with contextlib.ExitStack() as probes:
        ports: list[int] = []
        for step in range(len(PORTS)):
            if len(ports) == count:
                break
            port = PORTS[(start - PORTS.start + step) % len(PORTS)]
            probe = probes.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # Another process has it.
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    if len(ports) < count:
        raise OSError(f"fewer than {count} ports of 127.0.0.1 are free")
    return ports
