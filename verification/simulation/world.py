"""The simulated world: true time, an agenda, nodes, and what lies between them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from fencelock.actors.effect import Effects
from fencelock.actors.message import NS_PER_MS, NS_PER_US, Address, node_of
from fencelock.cluster.node.topology import MakeRoles, ProtocolSettings
from fencelock.verification.simulation.disk import Disk
from fencelock.verification.simulation.faults import CALM, Faults
from fencelock.verification.simulation.network import Cut, Link, Network, SimulatedLinks
from fencelock.verification.simulation.node import SimulatedNode
from fencelock.verification.simulation.trace import Delivery, Mishap, Trace
from fencelock.verification.simulation.violation import Judge, ViolationError

DELIVERIES_MAX = 5_000_000
"""Deliveries in one run; beyond it something floods the world."""

EPOCH_US = 1_800_000_000_000_000
"""The date at which every run begins, in microseconds since 1970: in January 2027."""

STEP_MS = 50
"""Interval at which a run checks whether something is done."""

LATENESS_US = 200
"""Mean time by which a timer is late: no scheduler is punctual."""


class Streams:
    """All chance of a run, from one seed.

    ``Random`` seeded with a text hashes it with SHA-512, not with ``hash``, so the
    streams are the same under every ``PYTHONHASHSEED``.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.net = self.fork("net")
        self.nemesis = self.fork("nemesis")
        self.disk = self.fork("disk")
        self.clock = self.fork("clock")
        self.nodes = self.fork("nodes")

    def fork(self, name: str) -> Random:
        """Return a new stream of that name; the same name gives the same stream."""
        return Random(f"{self.seed}/{name}")


def about(random: Random, ms: int) -> int:
    """Return a random time with the mean ``ms`` (ns)."""
    return 1 + int(random.expovariate(1.0) * ms * NS_PER_MS)


class World:
    """Runs nodes in one thread, in an order fixed by a seed.

    Args:
        seed: fixes all chance.
        faults: the faults of frames, disks and clocks; a `Nemesis` causes the faults of nodes.

    """

    def __init__(self, seed: int, faults: Faults = CALM) -> None:
        self.time = 0
        """True time since the run began (ns)."""
        self.streams = Streams(seed)
        self.faults = faults
        self.marks: Counter[str] = Counter()
        """Number of times each mark was observed."""
        self.fault_counts: Counter[str] = Counter()
        """Number of times each fault happened."""
        self.network = Network(faults, self.streams.net, self.fault_counts)
        self.trace = Trace()
        self.deliveries = 0
        self.judges: list[Judge] = []
        self.disk_watchers: list[Callable[[str], None]] = []
        """Called with each node whose disk was replaced by another one."""
        self.begin_watchers: list[Callable[[Address, Effects], None]] = []
        """Called with the effects of the first turn of each role."""
        self.members: tuple[str, ...] = ()
        self.nodes: dict[str, SimulatedNode] = {}
        self.links = SimulatedLinks(self.nodes, self.streams.nodes, self.after)
        self.calm = False
        """Whether the faults are over."""
        self.may_found = True
        """Whether an operator wants a group of the nodes that start (``--found``): until there is
        one, since the operator sees that."""
        self.groups: dict[int, str] = {}
        """The groups that were founded, each with the first node that belonged to it."""
        self.founds_once = True
        """Whether that operator acts once, so that a second group is a violation of one-group."""
        self.slow_disks: dict[str, int] = {}
        """The time of each sync of the disks that are slow now (us)."""
        self.may_die_in_sync: frozenset[str] = frozenset()
        """The nodes that may crash while their disk syncs."""
        self._agenda: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def add(
        self,
        name: str,
        make_roles: MakeRoles,
        *,
        member: bool,
        settings: ProtocolSettings | None = None,
    ) -> SimulatedNode:
        """Add a node, switched off. All members must be added before one is switched on."""
        node = SimulatedNode(
            self, name, make_roles, member=member, settings=settings or ProtocolSettings()
        )
        self.nodes[name] = node
        if member:
            self.members = tuple(sorted((*self.members, name)))
        return node

    def make_disk(self, name: str, *, member: bool) -> Disk:
        """Return the disk of a node."""
        return Disk()

    def departs(self, node: SimulatedNode) -> None:
        """Notice that ``node`` is about to send messages; they are still in its scheduler."""

    def power_on(self, name: str) -> None:
        node = self.nodes[name]
        if not node.up:
            node.power_on()
            self.links.begin(node)

    def power_on_all(self) -> None:
        for name in self.nodes:
            self.power_on(name)

    def role_at(self, address: Address) -> Any:
        return self.nodes[node_of(address)].scheduler.roles[address].role

    def crash(self, name: str) -> None:
        node = self.nodes[name]
        if node.up:
            self.fault_counts["crash"] += 1
            node.crash(loses_tail=self.faults.tail_lost)
            self.links.end(node)

    def lose(self, name: str, down: int) -> None:
        """Crash a node, and switch it on after ``down`` ns."""
        self.crash(name)
        self.after(down, self.power_on, name)

    def pause(self, name: str, length: int) -> None:
        """Pause a node that runs for ``length`` ns."""
        node = self.nodes[name]
        node.pause()
        self.after(length, self._resume, name, node.boot)

    def _resume(self, name: str, boot: int) -> None:
        node = self.nodes[name]
        if node.boot == boot and node.paused:
            node.resume()

    def cut(self, links: list[Link], until: int, *, holds: bool) -> None:
        """Stop ``links`` until true time ``until`` (ns), which the nodes at their ends may notice.

        Frames wait for the end if it ``holds`` them, or are lost.
        """
        self.network.cut(links, Cut(until, holds=holds))
        self.links.cut(links)

    def end_cut(self) -> None:
        """Notify the nodes that noticed a cut that it is over, while there are faults."""
        if not self.calm:
            self.links.mend()

    def disk_replaced(self, node: str) -> None:
        """Notify the judges that ``node``, which is off, has another disk, or an old copy."""
        for watch in self.disk_watchers:
            watch(node)

    def at(self, time: int, action: Callable[..., None], *arguments: Any) -> None:
        """Put ``action`` on the agenda for true ``time`` (ns), which is not in the past."""
        assert time >= self.time
        self._count += 1
        heapq.heappush(self._agenda, (time, self._count, action, arguments))

    def after(self, ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.time + ns, action, *arguments)

    def joined(self, node: str, group: int) -> None:
        """Judge one-group: no second group is founded."""
        first = not self.groups
        self.groups.setdefault(group, node)
        if not self.founds_once:
            return
        self.may_found = self.may_found and not first
        if len(self.groups) > 1:
            text = ", ".join(f"{one:x} of {first}" for one, first in self.groups.items())
            raise ViolationError(f"one-group: {node} belongs to group {group:x}; there are {text}")

    def run(self, until: int) -> None:
        """Let everything happen that is due up to true time ``until`` (ns).

        Raises:
            ViolationError: a judge saw a promise broken, or a role raised.

        """
        agenda = self._agenda
        while agenda and agenda[0][0] <= until:
            self.time, _, action, arguments = heapq.heappop(agenda)
            action(*arguments)
        self.time = max(self.time, until)

    def run_for(self, ms: int) -> None:
        """Let everything happen that is due in the next ``ms``, as `run` does."""
        self.run(self.time + ms * NS_PER_MS)

    def run_until(self, done: Callable[[], bool], most_ms: int) -> bool:
        """Run until ``done()``, at most for so long; return whether it is done."""
        end = self.time + most_ms * NS_PER_MS
        while not done():
            if self.time >= end:
                return False
            self.run(min(end, self.time + STEP_MS * NS_PER_MS))
        return True

    def carry(self, source: str, boot: int, to: str, frame: bytes) -> None:
        """Let ``frame`` travel from ``source`` in its life ``boot``, if it is lucky."""
        target = self.nodes.get(to)
        if target is None:
            self.marks["host.no_such_node"] += 1
            return
        for time in self.network.arrivals(source, to, self.time):
            self.at(time, target.arrive, source, boot, frame)

    def date_us(self) -> int:
        """Return the date (us since 1970). Dates are true: they do not drift or jump."""
        return EPOCH_US + self.time // NS_PER_US

    def sync_time(self, node: str, boot: int) -> int:
        """Return how long a disk takes (ns); now and then its node does not live to see it."""
        disk = self.streams.disk
        drawn_us = disk.expovariate(1.0) * self.faults.sync_us
        time = 1 + int(self.slow_disks.get(node, drawn_us) * NS_PER_US)
        dies = disk.randrange(1_000) < self.faults.crash_in_sync_per_mille
        if dies and not self.calm and node in self.may_die_in_sync:
            self.fault_counts["crash in sync"] += 1
            self.after(disk.randrange(time), self._die_in_sync, node, boot)
        return time

    def _die_in_sync(self, name: str, boot: int) -> None:
        if self.nodes[name].boot == boot and not self.calm:
            self.crash(name)
            down = int(self.streams.disk.expovariate(1.0) * self.faults.down_ms * NS_PER_MS)
            self.after(down, self.power_on, name)

    def lateness(self) -> int:
        """Return by how much the next timer is late (ns)."""
        return int(self.streams.clock.expovariate(1.0) * LATENESS_US * NS_PER_US)

    def record(self, delivered: Delivery) -> None:
        self.deliveries += 1
        self.trace.entries.append(delivered)
        if self.deliveries > DELIVERIES_MAX:
            raise ViolationError(f"no end of the run in {DELIVERIES_MAX} deliveries")

    def mishap(self, node: str, what: str) -> None:
        self.trace.entries.append(Mishap(self.time, node, what))
