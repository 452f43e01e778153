"""Faults of nodes, until the run is healed: partitions, pauses, crashes, clock errors and disks.

Chance alone seldom hits a client or a leader at the worst moment, so some attacks look for them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random

from fencelock.actors.bakery.config import leader_of
from fencelock.actors.bakery.wire import Locked
from fencelock.actors.bootstrap_message import GroupConfig, Start, Started
from fencelock.actors.effect import Effects
from fencelock.actors.message import NS_PER_MS, node_of
from fencelock.verification.simulation.disk import Copy
from fencelock.verification.simulation.faults import PPM
from fencelock.verification.simulation.judge import LockJudge, RetainedJudge
from fencelock.verification.simulation.network import Cut, Link, between, in_words
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, sent
from fencelock.verification.simulation.world import World, about

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
        return about(self._random, ms)

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
        self.world.mishap("-", f"nothing goes from {in_words(links)} until {ends // NS_PER_MS} ms")
        self.world.cut(links, ends, holds=holds)
        self.world.at(ends, self.world.end_cut)

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
            self._replace_disk(name, self.disks.lose, self._about(self.world.faults.down_ms))

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
        self._replace_disk(name, self.disks.age, 1)
        self.world.after(LULL_MS * NS_PER_MS, self._end_lull)

    def _replace_disk(self, name: str, replace: Callable[[str], None], down: int) -> None:
        self.world.crash(name)
        replace(name)
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


class DiskFaults:
    """Chooses a disk that may be lost or aged now, so that a majority always keeps its own.

    A member loses its disk only once its group is bootstrapped, and known to all others. A
    loss during the bootstrap could leave too few members for a majority, which is safe but
    answers no request.

    Args:
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
        most = (len(self.voters) - 1) // 2
        if len(self.replaced) >= most or not self.members:
            return None
        name = self._random.choice(self.members)
        others = [other for other in self.voters if other != name]
        known = all(self._knows_group(other) for other in others)
        return name if known and name not in self.replaced else None

    def lose(self, name: str) -> None:
        self.world.nodes[name].disk.lose()
        self._note(name, "loses its disk")

    def may_be_aged(self) -> str | None:
        """Return a member whose disk may be replaced by an old copy now; else copy a disk.

        All others must be up, and must know of a later start than the copy's.
        """
        name = self.may_be_lost()
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


TTLS_MAX = 3
"""Longest strike, in TTLs: some strikes end before the session does, some after."""


class Adversary:
    """Cuts clients off from all members, or pauses them, while they hold or retain a lock.

    Args:
        judge: knows which contenders are inside.
        every_ms: the mean interval of strikes, or 0 for none.
        ttl_ms: of the clients' sessions.
        retained: knows which clients retain a lock, if any do.

    """

    def __init__(
        self,
        world: World,
        judge: LockJudge,
        random: Random,
        every_ms: int,
        ttl_ms: int,
        retained: RetainedJudge | None = None,
    ) -> None:
        self.retained = retained
        self.world, self.judge, self._random = world, judge, random
        self.every_ms, self.ttl_ms = every_ms, ttl_ms

    def begin(self) -> None:
        """Start the attacks, which are repeated at random intervals until the faults end."""
        if self.every_ms > 0:
            self.world.after(about(self._random, self.every_ms), self._strike)

    def _strike(self) -> None:
        if self.world.calm:
            return
        holders = {node_of(hold.contender) for hold in self.judge.inside.values()}
        if self.retained is not None:
            holders |= {client for client, _ in self.retained.holds}
        if holders:
            client = self._random.choice(sorted(holders))
            length = int(self._random.uniform(0.2, TTLS_MAX) * self.ttl_ms * NS_PER_MS)
            strike = self._random.choice((self._isolate, self._pause))
            strike(client, length)
        self.begin()

    def _isolate(self, client: str, length: int) -> None:
        links = between([client], self.world.members)
        holds = self._random.choice((True, False))
        self.world.fault_counts["a holder was cut off"] += 1
        self.world.mishap(client, f"is cut off for {length // NS_PER_MS} ms")
        self.world.cut(links, self.world.time + length, holds=holds)
        self.world.after(length, self.world.end_cut)

    def _pause(self, client: str, length: int) -> None:
        node = self.world.nodes[client]
        if node.up and not node.paused:
            self.world.fault_counts["a holder was paused"] += 1
            self.world.pause(client, length)


AFTER_GRANT_SHARE = 0.1
"""Share of grants that are followed by a strike at once, while their effects are in doubt."""

AFTER_GRANT_MS = 20
"""Longest time from a grant to such a strike (ms)."""


DEAF_MS = 7_000
"""Time for which leaders do not hear each other (ms): longer than their replacement may take."""


class Blow(Enum):
    """A kind of strike at leaders."""

    ONE_LOST = "a leader is lost"
    TWO_LOST = "two leaders are lost at once"
    BOUNCE = "a leader is back before it is missed"
    SLOW = "two leaders hear each other late"
    MINORITY = "a minority of the members, with leaders and clients, is cut off"
    CUT_OFF = "leaders are cut off from all other members, and clients reach them still"
    APART = "two leaders do not hear each other, and everybody hears both"
    DEAF = "no leader hears another one, and everybody hears all"


def serving_leaders(world: World) -> list[str]:
    """Return the leaders of `bakery` that serve, or believe that they do, sorted."""
    up = (name for name in world.members if world.nodes[name].up)
    return [name for name in up if world.role_at(leader_of(name)).epoch_state.serving]


class LeaderNemesis(Judge):
    """Strikes at serving leaders, now and then, and right after grants. It judges nothing."""

    def __init__(self, world: World, blows: tuple[Blow, ...], every_ms: int) -> None:
        self.world = world
        self.blows = blows
        self.every_ms = every_ms
        self._random = world.streams.fork("leaders")
        self._pending = False
        self.deaf = (0, 0)
        """The true times from and until which the leaders do not hear each other (ns)."""

    def begin(self) -> None:
        self.world.after(self._about(self.every_ms), self._now_and_then)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        if self._pending or delivered.to != leader_of(delivered.node):
            return
        if sent(effects, Locked) and self._random.random() < AFTER_GRANT_SHARE:
            self._pending = True
            self.world.after(self._random.randrange(AFTER_GRANT_MS * NS_PER_MS), self._strike)

    def _now_and_then(self) -> None:
        if not self.world.calm:
            self._strike()
            self.begin()

    def _strike(self) -> None:
        self._pending = False
        leaders = serving_leaders(self.world)
        if self.world.calm or not leaders:
            return
        self._random.shuffle(leaders)
        blow = self._random.choice(self.blows)
        self.world.fault_counts[blow.value] += 1
        strikes: dict[Blow, Callable[[list[str]], None]] = {
            Blow.ONE_LOST: lambda few: self._lose(few[:1], 500),
            Blow.TWO_LOST: lambda few: self._lose(few[:2], 500),
            Blow.BOUNCE: lambda few: self._lose(few[:1], 5),
            Blow.SLOW: self._slow,
            Blow.MINORITY: self._part,
            Blow.CUT_OFF: self._cut_off,
            Blow.APART: self._set_apart,
            Blow.DEAF: self._deafen,
        }
        strikes[blow](leaders)

    def _lose(self, leaders: list[str], down_ms: int) -> None:
        for name in leaders:
            self.world.lose(name, self._about(down_ms))

    def _slow(self, leaders: list[str]) -> None:
        """Hold back messages between two of them, for less time than makes them unreachable."""
        links = between(leaders[:1], leaders[1:2])
        self._cut(links, self._random.randint(1, 500) * NS_PER_MS, holds=True)

    def _part(self, leaders: list[str]) -> None:
        """Cut off one or two leaders, but no majority, and half of the clients."""
        members = self.world.members
        most = (len(members) - 1) // 2
        if not most:
            return
        few = leaders[: self._random.randint(1, most)]
        clients = [name for name in self.world.nodes if name not in members]
        few += [name for name in clients if self._random.random() < 1 / 2]
        rest = [name for name in self.world.nodes if name not in few]
        self._cut(between(few, rest), self._about(3_000), holds=self._random.random() < 1 / 2)

    def _cut_off(self, leaders: list[str]) -> None:
        """Let one leader or two serve on without news from the others."""
        few = leaders[: self._random.randint(1, 2)]
        rest = [name for name in self.world.members if name not in few]
        self._cut(between(few, rest), self._about(2_500), holds=False)

    def _set_apart(self, leaders: list[str]) -> None:
        """Let one miss messages of another, such as renewals, for longer than some leases."""
        self._cut(between(leaders[:1], leaders[1:2]), self._about(2_000), holds=False)

    def _deafen(self, leaders: list[str]) -> None:
        """Let no leader reach another one; each reaches the other members."""
        now, length = self.world.time, DEAF_MS * NS_PER_MS
        if now >= self.deaf[1]:
            self.deaf = (now, now + length)
            pairs = [(a, b) for a in leaders for b in leaders if a != b]
            self._cut(pairs, length, holds=False)

    def _cut(self, links: list[Link], length: int, *, holds: bool) -> None:
        if not links:
            return
        ends = self.world.time + length
        what = f"everything is {'late' if holds else 'lost'} until {ends // NS_PER_MS} ms"
        self.world.mishap("-", f"{in_words(links)}: {what}")
        if holds:
            self.world.network.cut(links, Cut(ends, holds=True))
        else:
            self.world.cut(links, ends, holds=False)
            self.world.at(ends, self.world.end_cut)

    def _about(self, ms: int) -> int:
        return about(self._random, ms)
