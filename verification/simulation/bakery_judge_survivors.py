"""A run in which a minority of the members is lost again and again, and the judge of its rest."""

from __future__ import annotations

from typing import Any

from fencelock.actors.bakery.config import leader_of, quorum
from fencelock.actors.bakery.message import Lead
from fencelock.actors.bakery.proxy_message import Locked
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import NS_PER_MS, Instant, ms_between
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport
from fencelock.verification.simulation.world import World

REPLACED_MS = 5_000
"""Time within which the survivors must grant locks again (ms)."""

WHOLE_MS = 2_000
"""Time for which all members run before some are lost (ms): each has all copies by then."""

DOWN_MS = 1_500
"""Mean time for which lost members are down (ms)."""

POLL_MS = 100


class MinorityLosses:
    """Loses as many members at once as leaves a majority: all leaders, if these are no more.

    It judges survivors-suffice: no new leaders begin with empty tables, and locks are granted again
    within `REPLACED_MS`. Users must ask for locks all the time.
    """

    def __init__(self, world: World, violation_report: ViolationReport) -> None:
        self.world = world
        self.violation_report = violation_report
        self.granted_at = 0
        self.whole_since = 0
        self._random = world.streams.fork("survivors")
        world.after(POLL_MS * NS_PER_MS, self._poll)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        for effect in effects:
            if type(effect) is not Send:
                continue
            message = effect.message
            if type(message) is Locked:
                self.granted_at = self.world.time
            elif type(message) is Lead and message.empty and message.former.epoch:
                self.violation_report(
                    "survivors-suffice", f"epoch {message.epoch} is to begin with empty tables"
                )

    def crashed(self, node: str, boot: int) -> None:
        self.whole_since = self.world.time

    def _poll(self) -> None:
        world = self.world
        if world.calm:
            return
        waited_ms = ms_between(Instant(self.granted_at), Instant(world.time))
        if self.granted_at and waited_ms > REPLACED_MS:
            self.violation_report("survivors-suffice", f"nothing was granted for {waited_ms} ms")
        if not all(world.nodes[name].up for name in world.members):
            self.whole_since = world.time
        elif ms_between(Instant(self.whole_since), Instant(world.time)) > WHOLE_MS:
            self._lose_minority()
        world.after(POLL_MS * NS_PER_MS, self._poll)

    def _lose_minority(self) -> None:
        """Crash leaders first, at one moment, and let them run again later, one after the other."""
        leading: list[str] = []
        for name in self.world.members:
            role: Any = self.world.role_at(leader_of(name))
            if role.epoch_state.serving:
                leading.append(name)
        others = [name for name in self.world.members if name not in leading]
        self._random.shuffle(leading)
        self._random.shuffle(others)
        most = len(self.world.members) - quorum(len(self.world.members))
        lost = [*leading, *others][:most]
        self.world.fault_counts[f"{len(lost)} members are lost at once"] += 1
        for name in lost:
            down = 1 + int(self._random.expovariate(1.0) * DOWN_MS * NS_PER_MS)
            self.world.lose(name, down)
