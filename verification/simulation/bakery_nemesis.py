"""Faults for the leaders of `bakery`: lost one at a time or two at once, slow, or cut off."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from fencelock.actors.bakery.config import leader_of
from fencelock.actors.bakery.message import Locked
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import NS_PER_MS
from fencelock.verification.simulation.network import Cut
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge
from fencelock.verification.simulation.world import World

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
        granted = any(type(e) is Send and type(e.message) is Locked for e in effects)
        if granted and self._random.random() < AFTER_GRANT_SHARE:
            self._pending = True
            self.world.after(self._random.randrange(AFTER_GRANT_MS * NS_PER_MS), self._strike)

    def _now_and_then(self) -> None:
        if not self.world.calm:
            self._strike()
            self.begin()

    def _strike(self) -> None:
        self._pending = False
        leaders = self._leaders()
        if self.world.calm or not leaders:
            return
        self._random.shuffle(leaders)
        blow = self._random.choice(self.blows)
        self.world.fault_counts[blow.value] += 1
        strikes: dict[Blow, Callable[[list[str]], None]] = {
            Blow.ONE_LOST: self._lose_one,
            Blow.TWO_LOST: self._lose_two,
            Blow.BOUNCE: self._bounce,
            Blow.SLOW: self._slow,
            Blow.MINORITY: self._part,
            Blow.CUT_OFF: self._cut_off,
            Blow.APART: self._set_apart,
            Blow.DEAF: self._deafen,
        }
        strikes[blow](leaders)

    def _leaders(self) -> list[str]:
        """Return the leaders that serve, or believe that they do, sorted."""
        found: list[str] = []
        for name in self.world.members:
            if self.world.nodes[name].up:
                role: Any = self.world.role_at(leader_of(name))
                if role.epoch_state.serving:
                    found.append(name)
        return found

    def _lose_one(self, leaders: list[str]) -> None:
        self.world.lose(leaders[0], self._about(500))

    def _lose_two(self, leaders: list[str]) -> None:
        for name in leaders[:2]:
            self.world.lose(name, self._about(500))

    def _bounce(self, leaders: list[str]) -> None:
        self.world.lose(leaders[0], self._about(5))

    def _slow(self, leaders: list[str]) -> None:
        """Hold back messages between two of them, for less time than makes them unreachable."""
        links = _between(leaders[:1], leaders[1:2])
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
        self._cut(_between(few, rest), self._about(3_000), holds=self._random.random() < 1 / 2)

    def _cut_off(self, leaders: list[str]) -> None:
        """Let one leader or two serve on without news from the others."""
        few = leaders[: self._random.randint(1, 2)]
        rest = [name for name in self.world.members if name not in few]
        self._cut(_between(few, rest), self._about(2_500), holds=False)

    def _set_apart(self, leaders: list[str]) -> None:
        """Let one miss messages of another, such as renewals, for longer than some leases."""
        self._cut(_between(leaders[:1], leaders[1:2]), self._about(2_000), holds=False)

    def _deafen(self, leaders: list[str]) -> None:
        """Let no leader reach another one; each reaches the other members."""
        now, length = self.world.time, DEAF_MS * NS_PER_MS
        if now >= self.deaf[1]:
            self.deaf = (now, now + length)
            pairs = [(a, b) for a in leaders for b in leaders if a != b]
            self._cut(pairs, length, holds=False)

    def _cut(self, links: list[tuple[str, str]], length: int, *, holds: bool) -> None:
        if not links:
            return
        ends = self.world.time + length
        told = ", ".join(f"{source} to {to}" for source, to in links)
        until = "late" if holds else "lost"
        self.world.mishap("-", f"{told}: everything is {until} until {ends // NS_PER_MS} ms")
        self.world.network.cut(links, Cut(ends, holds=holds))
        if not holds:
            self.world.links.cut(links)
            self.world.at(ends, self._mend)

    def _mend(self) -> None:
        if not self.world.calm:
            self.world.links.mend()

    def _about(self, ms: int) -> int:
        """Return a random time with the mean ``ms`` (in ns)."""
        return 1 + int(self._random.expovariate(1.0) * ms * NS_PER_MS)


def _between(here: list[str], there: list[str]) -> list[tuple[str, str]]:
    """Return the links between two groups of nodes, in both directions."""
    return [link for a in here for b in there for link in ((a, b), (b, a))]
