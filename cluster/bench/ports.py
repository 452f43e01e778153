"""Free ports of the loopback interface, for clusters on one machine."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Return ``count`` different TCP ports of 127.0.0.1 on which no process listens now.

    They are not reserved: another process may take one before it is bound.
    """
    with contextlib.ExitStack() as open_sockets:
        ports: list[int] = []
        for _ in range(count):
            probe = open_sockets.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports
