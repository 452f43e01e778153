"""Free ports of the loopback interface, for clusters on one machine."""

from __future__ import annotations

import contextlib
import random
import socket

PORTS = range(10_240, 32_768)
"""Ports to choose from. Linux takes those of outgoing connections from 32,768 up, so none of these
is taken by a connection between the choice and the bind."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` different TCP ports of 127.0.0.1 on which no process listens now.

    They are not reserved, but drawn at random: it is unlikely that another process draws one of
    them before it is bound.
    """
    with contextlib.ExitStack() as open_sockets:
        ports: list[int] = []
        for port in random.sample(PORTS, len(PORTS)):
            if len(ports) == count:
                break
            probe = open_sockets.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # Another process has it.
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    if len(ports) < count:
        raise OSError(f"fewer than {count} ports of 127.0.0.1 are free")
    return ports
