"""What befalls leaders of `bakery` in particular: one or two die, or are cut off and serve on."""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast.actors.bakery.config import leader_of
from holdfast.actors.message import NS_PER_MS
from holdfast.cluster.simulation.network import Cut
from holdfast.cluster.simulation.world import World

DOWN_MS = 600
"""Mean time until a leader that died begins a new life (ms)."""

CUT_MS = 2_500
"""Mean time for which leaders are cut off (ms): longer than they are trusted."""

SLOW_MS = 150
"""Mean time for which what leaders say to each other is held back (ms)."""


class LeaderHunt:
    """Strikes at those who serve, until misfortune ends. It looks into roles, as no peer can.

    Args:
        world: whose leaders suffer.
        random: a stream of its own.
        every_ms: the mean interval of strikes, 0 for none.

    """

    def __init__(self, world: World, random: Random, every_ms: int) -> None:
        self.world = world
        self._random = random
        self._every_ms = every_ms

    def begin(self) -> None:
        """Begin to strike, if at all."""
        if self._every_ms:
            self._later()

    def _later(self) -> None:
        wait = int(self._random.expovariate(1.0) * self._every_ms * NS_PER_MS)
        self.world.after(1 + wait, self._strike)

    def _strike(self) -> None:
        if self.world.calm:
            return
        self._later()
        leaders = self._serving()
        if not leaders:
            return
        self._random.shuffle(leaders)
        chosen = leaders[: self._random.choice((1, 1, 2))]
        match self._random.choice(("die", "cut", "slow")):
            case "die":
                self._kill(chosen)
            case "cut":
                others = [name for name in self.world.members if name not in chosen]
                self._cut(chosen, others, CUT_MS, holds=False)
            case _:
                self._cut(leaders[:1], leaders[1:2], SLOW_MS, holds=True)

    def _serving(self) -> list[str]:
        serving: list[str] = []
        for name in self.world.members:
            node = self.world.nodes[name]
            if node.up:
                leader: Any = self.world.role_at(leader_of(name))
                serving += [name] if leader.office.serving else []
        return serving

    def _kill(self, names: list[str]) -> None:
        for name in names:
            self.world.faults["leader killed"] += 1
            self.world.crash(name)
            down = int(self._random.expovariate(1.0) * DOWN_MS * NS_PER_MS)
            self.world.after(1 + down, self.world.power_on, name)

    def _cut(self, here: list[str], there: list[str], mean_ms: int, *, holds: bool) -> None:
        links = [(a, b) for a in here for b in there] + [(b, a) for a in here for b in there]
        if not links:
            return
        self.world.faults["slow leaders" if holds else "leaders cut off"] += 1
        length = int(self._random.expovariate(1.0) * mean_ms * NS_PER_MS)
        self.world.network.cut(links, Cut(self.world.time + 1 + length, holds))
