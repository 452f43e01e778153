"""One turn of a node, as a generator that leaves the waits to its caller."""

from __future__ import annotations

from collections.abc import Iterator

from fencelock.cluster.host.gateway import Gateway
from fencelock.cluster.host.links import Links
from fencelock.cluster.host.pace import CLIENTS_NS, Pace
from fencelock.cluster.host.scheduler import Scheduler

TURN_MAX = 4_096
"""Role turns before the dispatcher looks at sockets, timers and the disk again."""

FRAMES_MAX = 256
"""Frames taken from the sockets in one turn."""


def turn(scheduler: Scheduler, gateway: Gateway, links: Links, pace: Pace) -> Iterator[None]:
    """Receive messages, ring due timers, run roles until no event waits, and send their messages.

    Yields whenever ``scheduler.records`` must become durable. When it is resumed they are durable,
    and the effects that depend on them are performed. Dispatcher and simulator both run this.
    """
    gateway.take(FRAMES_MAX)
    scheduler.ring_alarms()
    taken = 0
    if links.waiting:
        pace.begin()
        taken = gateway.take_clients(pace.most, CLIENTS_NS)
    scheduler.work(TURN_MAX)
    wrote = bool(scheduler.records)
    while scheduler.records:  # A role that is spawned by a held effect may persist, too.
        gateway.flush()  # What needs no record leaves now: peers work meanwhile.
        scheduler.asks.wake()
        yield
        scheduler.release_held()
    if wrote:  # Others may wait only for the held effects: send them at once.
        gateway.flush()
        scheduler.work(TURN_MAX)
    gateway.flush()
    scheduler.asks.wake()  # After the frames: woken threads compete for this processor.
    if taken:
        pace.end(taken)
