"""Which sockets are worth reading: ZeroMQ's descriptors under one poll of the system.

``zmq.Poller`` asks each socket what it has, before it sleeps and after, and each question is
two system calls within libzmq: with the six sockets of a node that made eighty of them for
one request. But the descriptor of a socket says by itself that there may be news, except
for news that libzmq happened to take in while the socket was used. So a socket is asked
after it was used, and otherwise only if its descriptor says so.

Source: libzmq, zmq_getsockopt(3), ZMQ_FD and ZMQ_EVENTS.
"""

from __future__ import annotations

import os
import select
from time import perf_counter_ns

from fencelock.transport.sockets import Socket, has_news

SPIN_NS = 300_000
"""How long a process that has nothing else to do looks before it sleeps (ns). To be woken on a
virtual machine takes a third of that, and what was in the caches is then gone."""

BRIEF_NS = 2_000_000
"""Only after a wait shorter than this is it worth looking (ns): an idle node sleeps at once."""

CROWDED_NS = 20_000
"""If to yield the processor takes longer (ns), somebody else needs it more."""


class Poller:
    """Sleeps until a socket or a descriptor may have something to read.

    Whoever reads from a socket must do so until nothing is left, or say that it was `used`:
    a descriptor tells of what is new only.

    Args:
        spins: whether to look for `SPIN_NS` before sleeping, while waits are brief and nobody
            else wants the processor. For a process of its own: other threads of the
            interpreter would suffer.

    """

    def __init__(self, *, spins: bool = False) -> None:
        self._spins = spins and len(os.sched_getaffinity(0)) > 1
        self._brief = False
        """Whether the last wait was."""
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
        for descriptor, _ in self._poll.poll(0) if found else self._wait(timeout_ms):
            found.add(self._sources[descriptor])
        return found

    def _wait(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        if not self._spins or timeout_ms == 0:
            return self._poll.poll(timeout_ms)
        began = perf_counter_ns()
        ready = self._spin(began) if self._brief else []
        if not ready:
            ready = self._poll.poll(timeout_ms)
        self._brief = perf_counter_ns() - began < BRIEF_NS
        return ready

    def _spin(self, began: int) -> list[tuple[int, int]]:
        """Look until something is ready, it takes too long, or the processor is wanted."""
        now, ends = began, began + SPIN_NS
        while now < ends:
            ready = self._poll.poll(0)
            if ready:
                return ready
            looked = perf_counter_ns()
            os.sched_yield()
            now = perf_counter_ns()
            if now - looked > CROWDED_NS:
                break
        return []
