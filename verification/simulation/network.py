"""The network between nodes: frames are lost, repeated, late, out of order, or cut off."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import NamedTuple

from fencelock.actors.message import NS_PER_MS, NS_PER_US
from fencelock.verification.simulation.faults import Faults


class Cut(NamedTuple):
    """A link that carries nothing for a while."""

    until: int
    """True time (ns)."""
    holds: bool
    """Whether frames wait for the end, as behind TCP, or are lost."""


class Network:
    """Decides the fate of each frame."""

    def __init__(self, faults: Faults, random: Random, fault_counts: Counter[str]) -> None:
        self.faults = faults
        self.fault_counts = fault_counts
        self.calm = False
        """Whether all links are good from now on."""
        self.clear_at = 0
        """Time by which all frames have arrived that were on their way when the faults ended. A
        link that keeps the order delivers nothing before the frames that a cut has held back."""
        self._random = random
        self._cuts: dict[tuple[str, str], Cut] = {}
        self._last: dict[tuple[str, str], int] = {}

    def cut(self, links: list[tuple[str, str]], cut: Cut) -> None:
        """Stop ``links``, each from its first node to its second."""
        for link in links:
            self._cuts[link] = cut

    def mend(self) -> None:
        """Make every link good and keep it so. Frames in flight still arrive."""
        self.calm = True
        self.clear_at = max(self._last.values(), default=0)
        self._cuts.clear()

    def unmend(self) -> None:
        self.calm = False

    def arrivals(self, source: str, to: str, time: int) -> list[int]:
        """Return the times at which a frame that leaves now arrives: none, one or several (ns)."""
        link = (source, to)
        ready = time
        if self._cuts:
            cut = self._cuts.get(link)
            if cut is not None and cut.until <= time:
                del self._cuts[link]
            elif cut is not None:
                if not cut.holds:
                    self.fault_counts["cut off"] += 1
                    return []
                self.fault_counts["held by a cut"] += 1
                ready = cut.until
        if self.calm:
            return [self._in_order(link, ready)]
        times = [ready]
        if self._happens(self.faults.loss_per_mille):
            self.fault_counts["lost"] += 1
            times = []
        if self._happens(self.faults.repeat_per_mille):
            self.fault_counts["repeated"] += 1
            times.append(ready)
        return [self._arrival(link, at) for at in times]

    def _happens(self, per_mille: int) -> bool:
        return per_mille > 0 and self._random.randrange(1_000) < per_mille

    def _arrival(self, link: tuple[str, str], ready: int) -> int:
        if self._happens(self.faults.late_per_mille):
            self.fault_counts["very late"] += 1
            return ready + self._random.randrange(self.faults.late_ms * NS_PER_MS)
        if not self.faults.reordering:
            return self._in_order(link, ready)
        mean = self.faults.delay_us * NS_PER_US
        arrival = ready + int(self._random.expovariate(1.0) * mean)
        if arrival < self._last.get(link, 0):
            self.fault_counts["overtaken"] += 1
        self._last[link] = max(arrival, self._last.get(link, 0))
        return arrival

    def _in_order(self, link: tuple[str, str], ready: int) -> int:
        arrival = max(ready + self.faults.delay_us * NS_PER_US, self._last.get(link, 0))
        if not self.faults.reordering:
            self._last[link] = arrival
            return arrival
        return ready + self.faults.delay_us * NS_PER_US
