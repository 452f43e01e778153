"""A run of `bakery` under special faults, with a judge that sees everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NamedTuple

from fencelock.actors.effect import Spawn
from fencelock.actors.lease import DRIFT_PPM
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.simulation.bakery_judge import BakeryJudge
from fencelock.cluster.simulation.bakery_nemesis import Blow, LeaderNemesis
from fencelock.cluster.simulation.environment import Judge
from fencelock.cluster.simulation.faults import Faults
from fencelock.cluster.simulation.member_changes import MemberChanges
from fencelock.cluster.simulation.plan import RunPlan
from fencelock.cluster.simulation.planting import planted
from fencelock.cluster.simulation.promise import promise_of
from fencelock.cluster.simulation.report import RunReport
from fencelock.cluster.simulation.run import LOCKS, Workload, run_seed
from fencelock.cluster.simulation.world import World
from fencelock.cluster.topology import NodeContext, ProtocolSettings, bakery

Change = Callable[[Spawn], Spawn]
"""Puts another role in the place of a member's role."""

EVERY_MS = (150, 400, 1_000)


def draw_bakery_plan(seed: int) -> RunPlan:
    """Return the plan of ``seed``: three members or more, few locks, clocks as declared."""
    random = Random(f"{seed}/bakery plan")
    ttl_ms = random.choice((500, 1_000, 3_000))
    chaos_ms = random.choice((2_000, 4_000, 8_000))
    clients = random.randint(2, 4)
    return RunPlan(
        nodes=random.choice((3, 3, 4, 5, 5)),
        clients=clients,
        owners=random.choice((1, 1, 2)),
        locks=random.choice((1, 1, 2)),
        chaos_ms=chaos_ms,
        ttl_ms=ttl_ms,
        strikes_every_ms=random.choice((0, 0, 2 * ttl_ms)),
        deaths_ms=tuple(
            random.randrange(chaos_ms) for _ in range(random.choice((0, 0, 1, clients)))
        ),
        faults=Faults(
            loss_per_mille=random.choice((0, 0, 10, 100)),
            repeat_per_mille=random.choice((0, 0, 10, 300)),
            delay_us=random.choice((200, 2_000, 10_000)),
            reordering=random.random() < 1 / 2,
            late_per_mille=random.choice((0, 0, 5, 20)),
            late_ms=random.choice((500, 5_000)),
            pause_every_ms=random.choice((0, 0, 1_000)),
            pause_ms=random.choice((20, 200, 1_500)),
            crash_in_sync_per_mille=random.choice((0, 0, 10)),
            tail_lost=random.random() < 1 / 2,
            sync_us=random.choice((100, 2_000, 20_000)),
            drift_every_ms=random.choice((0, 300)),
            drift_ppm=DRIFT_PPM,
        ),
    )


def run_bakery_seed(
    seed: int,
    *,
    plan: RunPlan | None = None,
    blows: tuple[Blow, ...] = (),
    change: Change = lambda spawn: spawn,
    judged: frozenset[str] | None = None,
    workload: Workload = LOCKS,
) -> RunReport:
    """Run one seed and judge it.

    Args:
        seed: fixes everything.
        plan: the plan to run; drawn from the seed if None.
        blows: the strikes at leaders; drawn from the seed if there are none.
        change: changes the roles of members, for example to plant a bug.
        judged: the invariants of `bakery` to judge, by number, or None for all. Exclusion, fences
            and progress are judged always.
        workload: the kind of users, and their judge.

    """
    random = Random(f"{seed}/blows")
    drawn = tuple(blow for blow in Blow if random.random() < 1 / 2) or tuple(Blow)
    every_ms = random.choice(EVERY_MS)

    def judges(world: World) -> list[Judge]:
        nemesis = LeaderNemesis(world, blows or drawn, every_ms)
        nemesis.begin()
        return [BakeryJudge(world, judged), nemesis]

    return run_seed(
        planted(bakery, change),
        seed,
        plan=plan or draw_bakery_plan(seed),
        promise=promise_of("bakery", ProtocolSettings()),
        judges=judges,
        workload=workload,
    )


class MembersPlan(NamedTuple):
    """A plan during which the members change."""

    plan: RunPlan
    founders: int
    change_every_ms: int


def draw_members_plan(seed: int) -> MembersPlan:
    """Return the plan of ``seed``: up to three nodes more than found the cluster."""
    random = Random(f"{seed}/bakery members")
    founders, spares = random.choice((1, 2, 3, 3, 4)), random.choice((1, 2, 3))
    plan = replace(draw_bakery_plan(seed), nodes=founders + spares)
    return MembersPlan(plan, founders, random.choice((200, 500, 1_500)))


def run_members_seed(
    seed: int,
    *,
    plan: MembersPlan | None = None,
    change: Change = lambda spawn: spawn,
    judged: frozenset[str] | None = None,
) -> RunReport:
    """Run one seed, during which the members change, and judge it; see `run_bakery_seed`."""
    members_plan = plan or draw_members_plan(seed)
    nodes = tuple(f"n{number}" for number in range(1, members_plan.plan.nodes + 1))
    founders = nodes[: members_plan.founders]
    random = Random(f"{seed}/blows")
    blows = tuple(blow for blow in Blow if random.random() < 1 / 2) or tuple(Blow)
    every_ms = random.choice(EVERY_MS)

    def recipe(seat: NodeContext) -> RoleSet:
        """Set up a node that knows the founders, and itself."""
        return bakery(replace(seat, nodes=tuple(sorted({*founders, seat.node}))))

    def judges(world: World) -> list[Judge]:
        nemesis, judge = LeaderNemesis(world, blows, every_ms), BakeryJudge(world, judged)
        nemesis.begin()
        decided = judge.election.changes
        MemberChanges(world, decided, founders, nodes, members_plan.change_every_ms).begin()
        return [judge, nemesis]

    return run_seed(
        planted(recipe, change),
        seed,
        plan=members_plan.plan,
        promise=promise_of("bakery", ProtocolSettings()),
        judges=judges,
    )
