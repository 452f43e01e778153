"""Faults of nodes, until the run is healed: partitions, pauses, crashes, clock errors and disks."""

from __future__ import annotations

from collections.abc import Callable

from fencelock.actors.bootstrap_message import GroupConfig, Start, Started
from fencelock.actors.message import NS_PER_MS
from fencelock.verification.simulation.disk import Copy
from fencelock.verification.simulation.drift import PPM
from fencelock.verification.simulation.world import World

HOLDING_SHARE = 0.3
"""Share of partitions that hold frames back, as TCP does, instead of losing them."""


SLOW_SYNC_US = 300_000
"""Time of each sync of a slow disk (us)."""


LULL_MS = 600
"""Pause of all other faults while a member starts from an old copy of its disk (ms)."""

STREAM = "bootstrap"
"""The role that records the journals and starts of other members."""


class Nemesis:
    """Causes the faults that ``world.faults`` sets, at times from its own random stream.

    Args:
        world: the world of the nodes.
        may_crash: the nodes that may be killed.
        voters: the members of the group, or None for all members of the world.

    """

    def __init__(
        self, world: World, may_crash: tuple[str, ...], voters: tuple[str, ...] | None = None
    ) -> None:
        self.world = world
        self.may_crash = may_crash
        self._random = world.streams.nemesis
        self._over = False
        self.disks = DiskFaults(world, may_crash, voters or world.members)

    def begin(self) -> None:
        knobs = self.world.faults
        self._plague(knobs.cut_every_ms, self._cut)
        self._plague(knobs.pause_every_ms, self._pause)
        self._plague(knobs.crash_every_ms, self._crash)
        self._plague(knobs.drift_every_ms, self._drift)
        self._plague(knobs.jump_every_ms, self._jump)
        self._plague(knobs.lose_disk_every_ms, self._lose_disk)
        self._plague(knobs.old_copy_every_ms, self._age_disk)
        self._plague(knobs.slow_disk_every_ms, self._slow_disk)

    def heal(self) -> None:
        """End all faults: links are good, nodes are up and run, clocks are true."""
        self._over = True
        world = self.world
        world.calm = True
        world.network.mend()
        world.slow_disks.clear()
        world.mishap("-", "all faults end")
        for node in world.nodes.values():
            if node.clock.rate != PPM:
                node.run_clock_at(PPM)
            if node.paused:
                node.resume()
            world.power_on(node.name)
        world.links.mend()

    def _plague(self, every_ms: int, strike: Callable[[], None]) -> None:
        if every_ms > 0:
            self.world.after(self._about(every_ms), self._strike, every_ms, strike)

    def _strike(self, every_ms: int, strike: Callable[[], None]) -> None:
        if not self._over:
            if not self.world.calm:
                strike()
            self._plague(every_ms, strike)

    def _about(self, ms: int) -> int:
        """Return a random time with the mean ``ms`` (in ns)."""
        return 1 + int(self._random.expovariate(1.0) * ms * NS_PER_MS)

    def _cut(self) -> None:
        """Stop some links for a while: around one node, between two, or through the middle."""
        names = list(self.world.nodes)
        if len(names) == 1:
            return
        self._random.shuffle(names)
        shape = self._random.choice(("one", "split", "pair"))
        size = 1 if shape != "split" else self._random.randint(1, len(names) - 1)
        here, there = names[:size], names[size:]
        if shape == "pair":
            there = there[:1]
        out = [(a, b) for a in here for b in there]
        back = [(b, a) for a in here for b in there]
        side = self._random.randrange(3)
        one_way = self.world.faults.cut_one_way and side > 0
        links = out if one_way and side == 1 else back if one_way else out + back
        ends = self.world.time + self._about(self.world.faults.cut_ms)
        holds = self._random.random() < HOLDING_SHARE
        self.world.fault_counts["one-way partition" if one_way else "partition"] += 1
        self.world.mishap("-", f"nothing goes from {_pairs(links)} until {ends // NS_PER_MS} ms")
        self.world.cut(links, ends, holds=holds)
        self.world.at(ends, self._end_cut)

    def _end_cut(self) -> None:
        if not self._over:
            self.world.links.mend()

    def _pause(self) -> None:
        node = self.world.nodes[self._random.choice(list(self.world.nodes))]
        length = self._about(self.world.faults.pause_ms)
        if node.up and not node.paused:
            self.world.fault_counts["pause"] += 1
            self.world.pause(node.name, length)

    def _crash(self) -> None:
        if not self.may_crash:
            return
        name = self._random.choice(self.may_crash)
        down = self._about(self.world.faults.down_ms)
        if self.world.nodes[name].up:
            self.world.lose(name, down)

    def _slow_disk(self) -> None:
        name = self._random.choice(self.world.members)
        self.world.fault_counts["slow disk"] += 1
        self.world.mishap(name, "has a slow disk")
        self.world.slow_disks[name] = SLOW_SYNC_US
        length = self._about(self.world.faults.slow_disk_ms)
        self.world.after(length, self._end_slow_disk, name)

    def _end_slow_disk(self, name: str) -> None:
        self.world.slow_disks.pop(name, None)

    def _lose_disk(self) -> None:
        name = self.disks.may_be_lost()
        if name is not None:
            self._without_power(name, lambda: self.disks.lose(name))

    def _age_disk(self) -> None:
        """Copy the disk of a member; or put an earlier copy in its place, and restart it.

        A copy is recognised only if a member that knows of a later start is reachable at the
        restart. So all faults pause then.
        """
        name = self.disks.may_be_aged()
        if name is None:
            return
        self.world.calm = True
        self.world.network.mend()
        self.world.links.mend()
        self._without_power(name, lambda: self.disks.age(name), down=1)
        self.world.after(LULL_MS * NS_PER_MS, self._end_lull)

    def _without_power(
        self, name: str, action: Callable[[], None], *, down: int | None = None
    ) -> None:
        if self.world.nodes[name].up:
            self.world.crash(name)
        action()
        down = down or self._about(self.world.faults.down_ms)
        self.world.after(down, self.world.power_on, name)

    def _end_lull(self) -> None:
        if not self._over:
            self.world.calm = False
            self.world.network.unmend()

    def _drift(self) -> None:
        node = self.world.nodes[self._random.choice(list(self.world.nodes))]
        most = self.world.faults.drift_ppm
        rate = PPM + self._random.randint(-most, most)
        if node.up:
            self.world.fault_counts["clock drift"] += 1
            node.run_clock_at(rate)

    def _jump(self) -> None:
        node = self.world.nodes[self._random.choice(list(self.world.nodes))]
        by_ms = self._random.randint(1, self.world.faults.jump_ms)
        if node.up:
            self.world.fault_counts["clock jump"] += 1
            node.jump_clock(by_ms)


def _pairs(links: list[tuple[str, str]]) -> str:
    return ", ".join(f"{source} to {to}" for source, to in links)


class DiskFaults:
    """Chooses a disk that may be lost or aged now, so that a majority always keeps its own.

    A member loses its disk only once its group is bootstrapped, and known to all others. A
    loss during the bootstrap could leave too few members for a majority, which is safe but
    answers no request.

    Args:
        world: the world of the disks.
        members: the members whose disks may be lost.
        voters: the members of the group: nodes that may join later do not count.

    """

    def __init__(self, world: World, members: tuple[str, ...], voters: tuple[str, ...]) -> None:
        self.world = world
        self.members = tuple(name for name in members if name in voters)
        self.voters = voters
        self.copies: dict[str, Copy] = {}
        """The first copy of each disk."""
        self.replaced: list[str] = []
        """The members that no longer have their first disk."""
        self._random = world.streams.fork("disks")

    def may_be_lost(self) -> str | None:
        """Return a member that may lose its disk now, or None if none may."""
        return self._choose()

    def lose(self, name: str) -> None:
        self.world.nodes[name].disk.lose()
        self._note(name, "loses its disk")

    def may_be_aged(self) -> str | None:
        """Return a member whose disk may be replaced by an old copy now; else copy a disk.

        All others must be up, and must know of a later start than the copy's.
        """
        name = self._choose()
        if name is None:
            return None
        copy = self.copies.setdefault(name, self.world.nodes[name].disk.copy())
        others = [other for other in self.voters if other != name]
        nodes = [self.world.nodes[other] for other in others]
        there = all(node.up and not node.paused for node in nodes)
        old = self._start_of(name, copy)
        if not there or old is None:
            return None
        known = (self._start_of(name, node.disk.copy()) for node in nodes)
        later = all(one is not None and one.incarnation > old.incarnation for one in known)
        return name if later else None

    def age(self, name: str) -> None:
        self.world.nodes[name].disk.restore(self.copies[name])
        self._note(name, "is given an old copy of its disk")

    def _note(self, name: str, what: str) -> None:
        self.replaced.append(name)
        self.world.fault_counts[what] += 1
        self.world.mishap(name, what)
        self.world.disk_replaced(name)

    def _choose(self) -> str | None:
        most = (len(self.voters) - 1) // 2
        if len(self.replaced) >= most or not self.members:
            return None
        name = self._random.choice(self.members)
        others = [other for other in self.voters if other != name]
        known = all(self._knows_group(other) for other in others)
        return name if known and name not in self.replaced else None

    def _knows_group(self, name: str) -> bool:
        records = self.world.nodes[name].disk.records().get(STREAM, ())
        return any(isinstance(record, GroupConfig) for record in records)

    def _start_of(self, name: str, copy: Copy) -> Start | None:
        """Return the latest start of ``name`` that a disk knows of."""
        starts = [
            record.start
            for record in copy.records().get(STREAM, ())
            if isinstance(record, Started) and record.member == name
        ]
        return starts[-1] if starts else None
