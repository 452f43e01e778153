"""The loss of founders' disks after the members changed, and an operator who acts by mistake."""

from __future__ import annotations

from fencelock.actors.message import NS_PER_MS
from fencelock.verification.simulation.member_changes import Decided
from fencelock.verification.simulation.world import World

LOOK_MS = 50
"""Interval at which the members are looked at, until one joined that is no founder (ms)."""

AFTER_MS = 1_500
"""Time in which founders may found a second group after the faults have ended (ms)."""

LOSE_FOUNDERS_SHARE = 0.2
"""Share of runs with changes of members in which founders lose their disks."""

DOWN_MS = 300
CUT_MS = 3_000


class FounderLoss:
    """Takes the disks of founders once a later member belongs to the group.

    In half of the runs all founders lose their disks, so that nothing that they have shows that
    there is a group; in the others at least one keeps its disk, and an operator wants to found a
    group on all of them. In half, founders are cut off from all other members meanwhile. The group
    may lose its majority for good, so a run with this fault judges safety only.
    """

    def __init__(self, world: World, decided: Decided, founders: tuple[str, ...]) -> None:
        self.world = world
        self.decided = decided
        self.founders = founders
        self._random = world.streams.fork("founders")

    def begin(self) -> None:
        self.world.after(LOOK_MS * NS_PER_MS, self._look)

    def _look(self) -> None:
        if self.world.calm:
            return
        members = {name for name, _ in self.decided.voters}
        if members <= set(self.founders) or self._random.random() < 1 / 2:
            self.begin()
            return
        cut, whole = self._random.random() < 1 / 2, self._random.random() < 1 / 2
        most = len(self.founders) - 1
        lost = self.founders
        if not whole:
            lost = tuple(
                self._random.sample(self.founders, self._random.randint(min(1, most), most))
            )
        if cut:
            self._cut()
        kind = "all founders" if whole else "some founders"
        self.world.fault_counts[f"{kind} lost their disks{', cut off' if cut else ''}"] += 1
        self.world.mishap("-", f"{', '.join(lost)} lose their disks")
        for name in self.founders:
            self.world.crash(name)
            if name in lost:
                self.world.nodes[name].disk.lose()
                self.world.disk_replaced(name)
        self.world.may_found = bool(most) and not whole  # One alone may lose its disk later.
        for name in self.founders:
            down = self._random.randrange(DOWN_MS * NS_PER_MS)
            self.world.after(down, self.world.power_on, name)

    def _cut(self) -> None:
        ends = self.world.time + CUT_MS * NS_PER_MS
        others = [name for name in self.world.members if name not in self.founders]
        links = [link for a in self.founders for b in others for link in ((a, b), (b, a))]
        self.world.cut(links, ends, holds=False)
