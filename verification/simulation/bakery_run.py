"""A run of `bakery` under special faults, with a judge that sees everything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.bakery.config import Terms
from fencelock.actors.effect import Send
from fencelock.actors.lease import DRIFT_PPM
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext, ProtocolSettings, bakery
from fencelock.verification.simulation.bakery_judge import BakeryJudge, MinorityLosses, SeatsJudge
from fencelock.verification.simulation.faults import Faults, promise_of
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.member_changes import (
    LOSE_FOUNDERS_SHARE,
    FounderLoss,
    MemberChanges,
)
from fencelock.verification.simulation.nemesis import Blow, LeaderNemesis
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.planting import Change, planted
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import LOCKS, Workload, run_seed
from fencelock.verification.simulation.violation import Judge
from fencelock.verification.simulation.workload import LockUser
from fencelock.verification.simulation.world import World

EVERY_MS = (150, 400, 1_000)

DEAF_SHARE = 0.25
"""Share of runs in which leaders do not hear each other for seconds."""


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


def _draw_blows(seed: int) -> tuple[tuple[Blow, ...], int]:
    """Return the kinds of strikes at leaders, and their mean interval (ms)."""
    random, brief = Random(f"{seed}/blows"), [blow for blow in Blow if blow is not Blow.DEAF]
    blows = [blow for blow in brief if random.random() < 1 / 2] or brief
    deaf = [Blow.DEAF] if Random(f"{seed}/deaf").random() < DEAF_SHARE else []
    return (*blows, *deaf), random.choice(EVERY_MS)


def _run(
    seed: int,
    plan: RunPlan,
    judges: Callable[[World], list[Judge]],
    make_roles: MakeRoles = bakery,
    **options: Any,
) -> RunReport:
    promise = promise_of("bakery", ProtocolSettings())
    return run_seed(make_roles, seed, plan=plan, promise=promise, judges=judges, **options)


def run_bakery_seed(
    seed: int,
    *,
    plan: RunPlan | None = None,
    blows: tuple[Blow, ...] = (),
    judged: frozenset[str] | None = None,
    workload: Workload = LOCKS,
) -> RunReport:
    """Run one seed and judge it.

    The plan and the strikes at leaders are drawn from the seed if there are none. ``judged`` names
    the invariants of `bakery` to judge, or is None for all. Exclusion, fences and progress are
    judged always.
    """
    drawn, every_ms = _draw_blows(seed)

    def judges(world: World) -> list[Judge]:
        nemesis = LeaderNemesis(world, blows or drawn, every_ms)
        nemesis.begin()
        return [BakeryJudge(world, judged), nemesis]

    return _run(seed, plan or draw_bakery_plan(seed), judges, workload=workload)


class LongLockUser(LockUser):
    """A user that asks for longer durations now and then, and usually releases long before."""

    def _ask(self, wait_ms: int | None) -> Send:
        sent = super()._ask(wait_ms)
        assert isinstance(sent.message, Acquire)
        hold_ms = self.random.choice(LONG_MS)
        return Send(sent.to, replace(sent.message, hold_ms=hold_ms))


LONG_MS = (0, 0, 6_000, 12_000)
"""Durations that these users ask for (ms); 0 is the default."""

LONG_LOCKS = Workload(LongLockUser, LockJudge)


def run_deaf_seed(seed: int) -> RunReport:
    """Run one seed in which the leaders do not reach each other now and then, and nothing else."""
    plan = RunPlan(nodes=5, clients=4, owners=2, locks=6, chaos_ms=12_000)

    def judges(world: World) -> list[Judge]:
        nemesis, judge = LeaderNemesis(world, (Blow.DEAF,), 1_000), BakeryJudge(world)
        nemesis.begin()
        return [judge, nemesis, SeatsJudge(world, judge.violation_report, nemesis)]

    return _run(seed, plan, judges)


def run_survivors_seed(seed: int, *, judged: frozenset[str] | None = None) -> RunReport:
    """Run one seed in which members are lost, leaders first, while a majority lives."""
    plan = RunPlan(
        nodes=Random(f"{seed}/survivors").choice((5, 6, 7)),
        clients=4,
        owners=2,
        locks=4,
        chaos_ms=12_000,
        faults=Faults(delay_us=2_000, reordering=True),
    )

    def judges(world: World) -> list[Judge]:
        judge = BakeryJudge(world, judged)
        return [judge, MinorityLosses(world, judge.violation_report)]

    terms = Terms(hold_ms=20_000, grace_ms=10_000, least_ms=1, wait_ms=None)
    return _run(seed, plan, judges, settings=ProtocolSettings(bakery_terms=terms))


class MembersPlan(NamedTuple):
    """A plan during which the members change."""

    plan: RunPlan
    founders: int
    change_every_ms: int


def draw_members_plan(seed: int) -> MembersPlan:
    """Return the plan of ``seed``: up to three nodes more than found the cluster.

    In those that judge safety only, founders lose their disks after the members changed.
    """
    random = Random(f"{seed}/bakery members")
    founders, spares = random.choice((1, 2, 3, 3, 4)), random.choice((1, 2, 3))
    loses = Random(f"{seed}/founders").random() < LOSE_FOUNDERS_SHARE
    plan = dataclasses.replace(draw_bakery_plan(seed), nodes=founders + spares, safety_only=loses)
    return MembersPlan(plan, founders, random.choice((200, 500, 1_500)))


def draw_copies_plan(seed: int) -> MembersPlan:
    """Return the plan of ``seed``: members change around five, from which on there are copies."""
    random = Random(f"{seed}/bakery copies")
    founders, spares = random.choice((4, 5, 5, 6)), random.choice((1, 1, 2))
    plan = dataclasses.replace(draw_bakery_plan(seed), nodes=founders + spares)
    return MembersPlan(plan, founders, random.choice((500, 1_500, 3_000)))


def run_copies_seed(seed: int) -> RunReport:
    return run_members_seed(seed, plan=draw_copies_plan(seed))


def run_members_seed(
    seed: int,
    *,
    plan: MembersPlan | None = None,
    change: Change = lambda spawn: spawn,
    judged: frozenset[str] | None = None,
) -> RunReport:
    members_plan = plan or draw_members_plan(seed)
    nodes = tuple(f"n{number}" for number in range(1, members_plan.plan.nodes + 1))
    founders = nodes[: members_plan.founders]
    blows, every_ms = _draw_blows(seed)

    def make_roles(context: NodeContext) -> RoleSet:
        """Set up a node that knows the founders, and itself."""
        return bakery(dataclasses.replace(context, nodes=tuple(sorted({*founders, context.node}))))

    def judges(world: World) -> list[Judge]:
        nemesis, judge = LeaderNemesis(world, blows, every_ms), BakeryJudge(world, judged)
        nemesis.begin()
        decided = judge.election.changes
        MemberChanges(world, decided, nodes, members_plan.change_every_ms).begin()
        if members_plan.plan.safety_only:
            FounderLoss(world, decided, founders).begin()
        return [judge, nemesis]

    return _run(seed, members_plan.plan, judges, planted(make_roles, change))
