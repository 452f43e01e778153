"""Which sockets are worth reading: ZeroMQ's descriptors under one poll of the system.

``zmq.Poller`` asks each socket what it has, before it sleeps and after, and each question is
two system calls within libzmq: with the six sockets of a node that made eighty of them for
one request. But the descriptor of a socket says by itself that there may be news, except
for news that libzmq happened to take in while the socket was used. So a socket is asked
after it was used, and otherwise only if its descriptor says so.

Source: libzmq, zmq_getsockopt(3), ZMQ_FD and ZMQ_EVENTS.
"""

from __future__ import annotations

import select

from holdfast.transport.sockets import Socket, has_news


class Poller:
    """Sleeps until a socket or a descriptor may have something to read.

    Whoever reads from a socket must do so until nothing is left, or say that it was `used`:
    a descriptor tells of what is new only.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._sources: dict[int, Socket | int] = {}
        self._used: dict[Socket, None] = {}

    def register(self, source: Socket | int) -> None:
        """Watch a socket, or a plain descriptor."""
        if isinstance(source, int):
            descriptor = source
        else:
            descriptor = source.FD
            self.used(source)
        self._poll.register(descriptor, select.POLLIN)
        self._sources[descriptor] = source

    def used(self, socket: Socket) -> None:
        """Note that ``socket`` was sent through, or not read to the end."""
        self._used[socket] = None

    def poll(self, timeout_ms: int | None) -> set[Socket | int]:
        """Return what may be readable, after at most ``timeout_ms``; None is without limit.

        A socket among them may turn out to have nothing after all.
        """
        found: set[Socket | int] = set()
        if self._used:
            used, self._used = self._used, {}
            for socket in used:
                if has_news(socket):
                    found.add(socket)
        for descriptor, _ in self._poll.poll(0 if found else timeout_ms):
            found.add(self._sources[descriptor])
        return found
