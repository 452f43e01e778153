"""Releases of `bakery` under loss and lost leaders: a release that took effect is never refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from fencelock.actors.api.message import Reason, Refused
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.tombstones import Tombstones
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import node_of
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.bakery_nemesis import Blow, LeaderNemesis
from fencelock.verification.simulation.bakery_run import draw_bakery_plan
from fencelock.verification.simulation.environment import Judge
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.promise import promise_of
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.world import World

SEEDS = (5, 0)
"""In the first one a release was refused, before the record of the last release was kept."""


class ReleaseJudge:
    """Reports a release that a node refused, although its client relied on the hold.

    A session loses a hold at its deadline by itself, and reports that with another reason.
    """

    def __init__(self, world: World) -> None:
        self.world = world

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        """Judge the replies of a session to its contenders."""
        if delivered.node in self.world.members:
            return
        for effect in effects:
            if (
                isinstance(effect, Send)
                and isinstance(effect.message, Refused)
                and effect.message.reason is Reason.NOT_HELD
                and node_of(effect.to) == delivered.node
            ):
                raise ViolationError(f"release refused: {effect.message.detail}")

    def crashed(self, node: str, boot: int) -> None:
        """Do nothing."""


def run(seed: int) -> str | None:
    """Run one seed with much loss and few blows; return the violation, None if there is none."""
    random, blows = Random(seed), Random(f"{seed}/blows")
    drawn = tuple(blow for blow in Blow if blows.random() < 1 / 2) or tuple(Blow)
    plan = replace(
        draw_bakery_plan(seed),
        nodes=random.choice((3, 5)),
        clients=2,
        owners=1,
        locks=2,
        ttl_ms=3_000,
        chaos_ms=20_000,
        deaths_ms=(),
        strikes_every_ms=0,
        faults=Faults(
            loss_per_mille=random.choice((50, 200)),
            repeat_per_mille=random.choice((0, 300)),
            delay_us=500,
            reordering=random.choice((True, False)),
            late_per_mille=random.choice((0, 100)),
            late_ms=random.choice((300, 1_500)),
        ),
    )

    def judges(world: World) -> list[Judge]:
        nemesis = LeaderNemesis(world, drawn, 2_000)
        nemesis.begin()
        return [nemesis, ReleaseJudge(world)]

    promise = promise_of("bakery", ProtocolSettings())
    return run_seed("bakery", seed, plan=plan, promise=promise, judges=judges).violation


@pytest.mark.parametrize("seed", SEEDS)
def test_no_release_is_refused_while_its_client_relies_on_the_hold(seed: int) -> None:
    assert run(seed) is None


def test_a_leader_that_forgets_the_last_release_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drop: Callable[[Tombstones, str, Who, int, int], None] = Tombstones.drop

    def forgets(self: Tombstones, lock: str, who: Who, request: int, fence: int = 0) -> None:
        drop(self, lock, who, request, fence)
        if fence:
            self._keep(lock, who, self.of(lock, who)._replace(held=0))  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(Tombstones, "drop", forgets)
    assert "release refused" in (run(SEEDS[1]) or "")
