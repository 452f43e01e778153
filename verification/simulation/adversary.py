"""Attacks on clients that have a lock: chance alone seldom hits them at the worst moment."""

from __future__ import annotations

from random import Random

from fencelock.actors.message import NS_PER_MS, node_of
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.retained_judge import RetainedJudge
from fencelock.verification.simulation.world import World

TTLS_MAX = 3
"""Longest strike, in TTLs: some strikes end before the session does, some after."""


class Adversary:
    """Cuts clients off from all members, or pauses them, while they hold or retain a lock.

    Args:
        world: the world of the clients.
        judge: knows which contenders are inside.
        random: draws the time, the client and the kind of a strike.
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
            pause = int(self._random.expovariate(1.0) * self.every_ms * NS_PER_MS)
            self.world.after(1 + pause, self._strike)

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
        links = [
            link for member in self.world.members for link in ((client, member), (member, client))
        ]
        holds = self._random.choice((True, False))
        self.world.fault_counts["a holder was cut off"] += 1
        self.world.mishap(client, f"is cut off for {length // NS_PER_MS} ms")
        self.world.cut(links, self.world.time + length, holds=holds)
        self.world.after(length, self._reconnect)

    def _reconnect(self) -> None:
        if not self.world.calm:
            self.world.links.mend()

    def _pause(self, client: str, length: int) -> None:
        node = self.world.nodes[client]
        if node.up and not node.paused:
            self.world.fault_counts["a holder was paused"] += 1
            self.world.pause(client, length)
