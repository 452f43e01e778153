"""Sleeping until something happens: a poller of ZeroMQ sockets, and a doorbell for other threads.

``zmq.Poller`` asks each socket for its events before and after it sleeps, and each question is
two system calls within libzmq: with the six sockets of a node that made eighty of them for one
request. But a socket's descriptor shows by itself that there may be events, except for those
that libzmq happened to read while the socket was used. So the poller asks a socket after it
was used, and otherwise only if its descriptor is readable.

Source: libzmq, zmq_getsockopt(3), ZMQ_FD and ZMQ_EVENTS.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket as tcp
import sys
import threading
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from time import perf_counter_ns

from fencelock.transport.sockets import POLLIN, Socket, poll_sockets

SPIN_NS = 300_000
"""Time for which a process with no other work polls before it sleeps (ns). Waking up on a virtual
machine takes a third of that, and the caches are then cold."""

LONG_TURN_NS = 1_000_000
"""After a turn that took longer (ns) a process sleeps at once: that turn served many requests, so
the next ones also share the cost of waking up, and their clients need the processor. A turn for one
request is shorter, its write to the disk included. Exception: if the turn sent frames before it
waited for the disk, as a leader sends its proposals, replies may come any moment. Then it polls
first, however long the turn was."""

BRIEF_NS = 2_000_000
"""Unless a reply is expected, spinning pays only after a wait shorter than this (ns)."""

POLL_MS_MAX = 24 * 3_600_000
"""Longest sleep for a limit (ms, a day): its caller sleeps again. The operating system refuses a
limit of more than 31 bits, which is 25 days."""

ONE = (1).to_bytes(8, sys.byteorder)
"""The bytes written to ring the bell; an ``eventfd`` takes eight."""

CROWDED_NS = 20_000
"""If yielding the processor takes longer (ns), another process needs it more."""


class SelectPoll:
    """``select.poll``, where there is none, as on Windows."""

    def __init__(self) -> None:
        self._selector = selectors.SelectSelector()
        self.unregister = self._selector.unregister

    def register(self, descriptor: int, events: int) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ)

    def poll(self, timeout_ms: float | None) -> list[tuple[int, int]]:
        ready = self._selector.select(None if timeout_ms is None else timeout_ms / 1000)
        return [(key.fd, events) for key, events in ready]


class Poller:
    """Sleeps until a socket or a descriptor may have something to read.

    A caller that reads from a socket must read until nothing is left, or add it to ``used``: a
    descriptor only signals new events.

    Args:
        spins: whether to poll for `SPIN_NS` before sleeping, while waits and turns are brief or a
            reply is expected, and no other process wants the processor. For a process of its own:
            other threads of the interpreter would suffer.

    Attributes:
        used: the sockets that were sent through, or not read to the end, since the last `poll`,
            each with `POLLIN`, as `poll_sockets` takes them.

    """

    def __init__(self, *, spins: bool = False) -> None:
        self._spins = (
            spins and hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
        )
        self._brief = False
        self._woke_at = 0
        """When the last wait ended (ns)."""
        self._poll = select.poll() if hasattr(select, "poll") else SelectPoll()
        self._sources: dict[int, Socket | int] = {}
        self.used: dict[Socket, int] = {}

    def register(self, source: Socket | int) -> None:
        if isinstance(source, int):
            descriptor = source
        else:
            descriptor = source.FD
            self.used[source] = POLLIN
        self._poll.register(descriptor, POLLIN)
        self._sources[descriptor] = source

    def unregister(self, source: Socket) -> None:
        """Stop watching a socket; it must still be open."""
        self.used.pop(source, None)
        descriptor = source.FD
        self._poll.unregister(descriptor)
        del self._sources[descriptor]

    def poll(self, timeout_ms: int | None, expects_reply: bool = False) -> set[Socket | int]:
        """Return the sources that may be readable, after at most ``timeout_ms`` (None: no limit).

        It returns none after `POLL_MS_MAX` at the latest, unless there is no limit. A socket among
        them may turn out to have nothing after all. ``expects_reply`` says that a reply may come
        soon: then it polls before it sleeps, also after a long wait or turn.
        """
        found: set[Socket | int] = set()
        if self.used:
            found.update(map(itemgetter(0), poll_sockets(list(self.used.items()), 0)))
            self.used.clear()
        if found:
            timeout_ms = 0
        elif timeout_ms is not None:
            timeout_ms = min(timeout_ms, POLL_MS_MAX)
        spins = self._spins and timeout_ms != 0
        ready = self._wait(timeout_ms, expects_reply) if spins else self._poll.poll(timeout_ms)
        for descriptor, _ in ready:
            found.add(self._sources[descriptor])
        return found

    def _wait(self, timeout_ms: int | None, expects_reply: bool) -> list[tuple[int, int]]:
        """Sleep; poll first if a reply is expected, or the last wait and the turn were brief."""
        began = perf_counter_ns()
        spins = expects_reply or (self._brief and began - self._woke_at < LONG_TURN_NS)
        ready = self._spin(began) if spins else []
        if not ready:
            ready = self._poll.poll(timeout_ms)
        self._woke_at = perf_counter_ns()
        self._brief = self._woke_at - began < BRIEF_NS
        return ready

    def _spin(self, began: int) -> list[tuple[int, int]]:
        """Poll until something is ready, it takes too long, or the processor is wanted."""
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


class Doorbell:
    """A file descriptor that is readable from `ring` until `answer`.

    It is an ``eventfd``, or where there is none, as on macOS and Windows, one of a pair of sockets.

    Several rings before the answer are one wake-up and one write. The woken thread must
    answer first and look for work after, or it loses a ring.
    """

    def __init__(self) -> None:
        self._write: Callable[[bytes], object]
        self._read: Callable[[int], object]
        self._closing: list[Callable[[], object]]
        if hasattr(os, "eventfd"):
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._write, self._read = partial(os.write, self.fd), partial(os.read, self.fd)
            self._closing = [partial(os.close, self.fd)]
        else:
            ours, theirs = tcp.socketpair()
            ours.setblocking(False)
            theirs.setblocking(False)
            self.fd = ours.fileno()
            self._write, self._read = theirs.send, ours.recv
            self._closing = [ours.close, theirs.close]
        self._lock = threading.Lock()
        self._rung = False
        self._open = True

    def ring(self) -> None:
        """Make the descriptor readable; from any thread, also after `close`."""
        if self._rung:
            return
        with self._lock:  # Against `close`: a closed descriptor's number may be another's by now.
            if self._open and not self._rung:
                self._write(ONE)  # First: an interrupt must not leave the bell deaf.
                self._rung = True

    def answer(self) -> None:
        """Make the descriptor wait for the next `ring`; from the owning thread."""
        with self._lock:
            self._rung = False
            with contextlib.suppress(BlockingIOError):
                self._read(len(ONE))

    def close(self) -> None:
        """Free the descriptor; from the owning thread."""
        with self._lock:
            if self._open:
                self._open = False
                for close in self._closing:
                    close()
