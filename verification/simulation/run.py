"""One run, from a seed to a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from fencelock.actors.effect import Spawn
from fencelock.actors.message import NS_PER_MS, address_of
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext, ProtocolSettings
from fencelock.verification.simulation.adversary import Adversary
from fencelock.verification.simulation.audit import Auditor, Evictions
from fencelock.verification.simulation.bakery_nemesis import Blow, LeaderNemesis
from fencelock.verification.simulation.judge import (
    ClientView,
    LockJudge,
    judge_drain,
    judge_freed,
    judge_progress,
)
from fencelock.verification.simulation.member_changes import AFTER_MS
from fencelock.verification.simulation.nemesis import Nemesis
from fencelock.verification.simulation.plan import RunPlan, draw_plan, with_terms
from fencelock.verification.simulation.promise import NO_CRASH, Survival, promise_of
from fencelock.verification.simulation.report import RunReport, report_of
from fencelock.verification.simulation.retained_judge import RetainedJudge
from fencelock.verification.simulation.users import Users
from fencelock.verification.simulation.violation import Judge, ViolationError
from fencelock.verification.simulation.workload import (
    LEVELS,
    Finish,
    LockUser,
    MakeSession,
    client_session,
)
from fencelock.verification.simulation.world import World


class Workload(NamedTuple):
    """The workload of a run: the role of its users, and their judge."""

    user: type[LockUser]
    judge: Callable[..., LockJudge]
    others: tuple[type[LockUser], ...] = ()
    """The users of the other kinds, in a workload of several kinds."""
    retains: bool = False
    """Whether clients may retain what they acquire."""
    doors: Callable[[NodeContext, tuple[str, ...]], tuple[Spawn, ...]] | None = None
    """Returns further roles of each member, which use the locks of those names."""


LOCKS = Workload(LockUser, LockJudge, retains=True)


def run_seed(
    protocol: str | MakeRoles,
    seed: int,
    *,
    plan: RunPlan | None = None,
    settings: ProtocolSettings | None = None,
    promise: Survival | None = None,
    make_session: MakeSession = client_session,
    judges: Callable[[World], list[Judge]] | None = None,
    workload: Workload = LOCKS,
) -> RunReport:
    """Run one seed and judge it.

    Args:
        protocol: the name of a protocol, or a function that makes its roles (with a bug, say).
        seed: fixes everything.
        plan: the plan to run; drawn from the seed if None.
        settings: for these roles.
        promise: the faults to draw the plan from, and the effect of a crash on a hold; the
            protocol's own promise if None; for a function everything but crashes.
        make_session: returns a client's role ``session``.
        judges: makes further judges for the world before anything happens in it.
        workload: the users and their judge.

    """
    chosen = settings or ProtocolSettings()
    if promise is None:
        promise = Survival(survives=NO_CRASH)
        if isinstance(protocol, str):
            promise = promise_of(protocol, chosen)
    if plan is None:
        plan = draw_plan(seed, promise)
    if promise.leases:
        chosen = with_terms(chosen, seed)
    run = _LockRun(_make_roles(protocol), seed, plan, chosen, promise, make_session, workload)
    if judges is not None:
        run.world.judges += judges(run.world)
    return report_of(run.world, seed, run.plan, run.play, grants=lambda: run.judge.grants)


def _make_roles(protocol: str | MakeRoles) -> MakeRoles:
    if not isinstance(protocol, str):
        return protocol
    from fencelock.cluster.node.topology import make_roles_of  # noqa: PLC0415

    return make_roles_of(protocol)


class _LockRun:
    """The phases of one run, and their state."""

    def __init__(
        self,
        make_roles: MakeRoles,
        seed: int,
        plan: RunPlan,
        settings: ProtocolSettings,
        promise: Survival,
        make_session: MakeSession,
        workload: Workload,
    ) -> None:
        self.seed = seed
        self.workload = workload
        self.plan = plan = plan if workload.retains else replace(plan, retain_ms=())
        self.world = World(seed, plan.faults)
        self.members = members = tuple(f"n{number}" for number in range(1, plan.nodes + 1))
        if workload.doors is not None:
            make_roles = self._with_doors(make_roles, workload.doors)
        for name in members:
            node = self.world.add(name, make_roles, member=True, settings=settings)
            node.dated = plan.dated
        server = settings.central_server or members[0]
        crashing = members if plan.dated or promise.holds_by_session else members[-1:]
        if promise.spares_server:
            crashing = tuple(name for name in crashing if name != server)
        self.server = address_of(server, "server")
        self.proxies = tuple(address_of(name, "proxy") for name in members)
        self.promise = promise
        self.users = Users(
            self.world,
            plan,
            self.proxies,
            make_session,
            ttl_ms=plan.ttl_ms if promise.sessions else 0,
            acquisitions=1 if promise.leases else LEVELS,
            users=(workload.user, *workload.others),
        )
        self.judge = workload.judge(
            members,
            self.users.addresses,
            holds_end_with_node=promise.hold_ends_with_node,
            clients=ClientView(self.world) if promise.sessions else None,
            clocks_true=promise.clocks_true(plan.faults),
        )
        self.users.judge = self.judge
        self.world.judges.append(self.judge)
        retained: RetainedJudge | None = None
        if plan.retain_ms:
            retained = RetainedJudge(ClientView(self.world), self.judge, plan.cohort)
            self.world.judges.append(retained)
        self.evictions = Evictions(self.world, self.server)
        if promise.holds_by_session:
            self.world.judges.append(self.evictions)
        self.nemesis = Nemesis(self.world, crashing)
        self.adversary = Adversary(
            self.world,
            self.judge,
            Random(f"{seed}/adversary"),
            plan.strikes_every_ms,
            plan.ttl_ms,
            retained,
        )
        self.world.may_die_in_sync = frozenset(crashing)

    def _with_doors(
        self,
        make_roles: MakeRoles,
        doors: Callable[[NodeContext, tuple[str, ...]], tuple[Spawn, ...]],
    ) -> MakeRoles:
        locks = tuple(f"lock-{number}" for number in range(1, self.plan.locks + 1))

        def with_doors(context: NodeContext) -> RoleSet:
            role_set = make_roles(context)
            return replace(role_set, roles=(*role_set.roles, *doors(context, locks)))

        return with_doors

    def play(self) -> None:
        """Go through the phases."""
        late = self.plan.late_start_ms * NS_PER_MS
        late_comers = {f"{name}r" for name in self.users.dying}
        for name in self.world.nodes:
            start = self.world.streams.nodes.randint(0, late)
            if name not in late_comers:
                self.world.at(start, self.world.power_on, name)
        self.users.begin()
        self.nemesis.begin()
        self.adversary.begin()
        if self.plan.hunts_every_ms:
            hunter = LeaderNemesis(self.world, tuple(Blow), self.plan.hunts_every_ms)
            self.world.judges.append(hunter)
            hunter.begin()
        self.world.run(self.plan.chaos_ms * NS_PER_MS)
        self.nemesis.heal()
        if self.plan.safety_only:
            self.world.run(self.world.time + AFTER_MS * NS_PER_MS)
            return
        self.users.finish()
        if self.workload.doors is not None:
            for name in self.members:
                self.world.nodes[name].tell(address_of(name, "redis-sockets"), Finish())
        if self.promise.holds_by_session:
            self.evictions.begin()
        self.world.run_until(lambda: not self.users.waiting(), self.plan.served_ms)
        self._demand_single_grants()
        judge_progress(self.users.contenders(), self.plan.served_ms)
        if self.plan.audit:
            self._audit()
        if self.promise.holds_by_session:
            self._end_sessions()
        self._demand_grants()

    def _audit(self) -> None:
        address = address_of("auditor", "auditor")

        def make_roles(context: NodeContext) -> RoleSet:
            arguments = {"proxies": self.proxies, "table": self.promise.table}
            return RoleSet((Spawn(address, Auditor, arguments),))

        node = self.world.add("auditor", make_roles, member=False)
        self.world.power_on(node.name)
        auditor: Any = self.world.role_at(address)
        self.world.run_until(lambda: not auditor.left, self.plan.drained_ms)
        judge_drain(auditor.left, self.plan.drained_ms)

    def _end_sessions(self) -> None:
        """Close every client, and check that nothing is held in an ended session."""
        self.users.close()

        def held() -> dict[str, Any]:
            server: Any = self.world.role_at(self.server)
            return dict(server.held)

        self.world.run_until(lambda: not held(), self.plan.drained_ms)
        judge_freed(held(), self.plan.drained_ms)

    def _demand_single_grants(self) -> None:
        twice = self.world.marks["proxy.granted_twice"]
        if twice:
            raise ViolationError(
                f"mutual exclusion: a node was granted what it held, {twice} times"
            )

    def _demand_grants(self) -> None:
        enough = len(self.users.contenders()) + self.plan.grants_min
        if self.judge.grants < enough:
            raise ViolationError(f"void: {self.judge.grants} grants, {enough} are needed")
