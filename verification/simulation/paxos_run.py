"""One run of the log alone, from a seed to a verdict; and sweeps of many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fencelock.actors.api.membership_message import MemberAction
from fencelock.actors.bakery.config import PRIORITY
from fencelock.actors.effect import Spawn
from fencelock.actors.lease import DRIFT_PPM
from fencelock.actors.membership_target import MemberTarget
from fencelock.actors.message import NS_PER_MS, Address, address_of, node_of
from fencelock.actors.paxos.backend import PaxosBackend
from fencelock.actors.paxos.member import LogOptions, log_roles
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.table.wire import ExtendSessions
from fencelock.actors.timing import TIMING
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import US_PER_MS, MakeRoles, NodeContext
from fencelock.transport.codec import encode
from fencelock.verification.simulation.judge import ClientView, LockJudge, RetainedJudge
from fencelock.verification.simulation.member_changes import AFTER_MS, FounderLoss, MemberChanges
from fencelock.verification.simulation.nemesis import Adversary, Nemesis
from fencelock.verification.simulation.paxos_judge import LogJudge, SessionJudge
from fencelock.verification.simulation.paxos_machine import (
    OPENING,
    LockRegister,
    LogReader,
    Proposer,
    Register,
    reader_of,
)
from fencelock.verification.simulation.paxos_world import LogWorld
from fencelock.verification.simulation.plan import (
    LogPlan,
    RunPlan,
    draw_log_plan,
    draw_members_plan,
    draw_target_plan,
)
from fencelock.verification.simulation.planting import Change, changed
from fencelock.verification.simulation.report import RunReport, report_of
from fencelock.verification.simulation.run import Users
from fencelock.verification.simulation.workload import LEVELS, Finish, client_session

GREET_MS = 300
"""Time for members to greet (ms): links of the simulator are up at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSubject:
    """The subject of a run: the product, or the product with a bug in it."""

    machine: Callable[[], Register] | None = None
    """None for the machine of the plan."""
    change: Change = lambda spawn: spawn
    """Changes the roles of the log."""
    wrong: frozenset[str] = frozenset()
    """Members whose machine is ``planted``: they must be quarantined, and no other."""
    planted: Callable[[], Register] = Register


PRODUCT = LogSubject()


def run_log_seed(
    seed: int,
    *,
    plan: LogPlan | None = None,
    subject: LogSubject = PRODUCT,
    judged: frozenset[str] | None = None,
) -> RunReport:
    """Run the log of one seed and judge it.

    The plan is drawn from the seed if it is None. ``judged`` names the invariants to judge, or is
    None for all.
    """
    run = _LogRun(seed, plan or draw_log_plan(seed), subject, judged)
    judge = run.judge
    return report_of(
        run.world,
        seed,
        run.plan,
        run.play,
        grants=lambda: len(judge.state.answers),
        chosen=lambda: len(judge.choices.chosen),
    )


class _LogRun:
    """The phases of one run, and their state."""

    def __init__(
        self, seed: int, plan: LogPlan, subject: LogSubject, judged: frozenset[str] | None
    ) -> None:
        self.seed = seed
        self.plan = plan
        self.subject = subject
        self.founders = tuple(f"n{number}" for number in range(1, plan.nodes + 1))
        names = range(1, plan.nodes + plan.spares + 1)
        members = tuple(f"n{number}" for number in names)
        self.machine = LockRegister if plan.locks else Register
        self.judge = LogJudge(members, plan, self.machine(), judged, subject.wrong)
        self.world = LogWorld(seed, plan, self.judge)
        self.world.judges.append(self.judge)
        for name in members:
            self.judge.nodes[name] = self.world.add(name, self._member, member=True)
        self.proposers: list[Address] = []
        for number in range(plan.clients):
            turned = number % len(members)
            self._add_client(f"c{number + 1}", members[turned:] + members[:turned])
        self.users = self._add_users(plan.locks, judged) if plan.locks else None
        self.nemesis = Nemesis(self.world, members, self.founders)
        decided = self.judge.votes
        self.changes = MemberChanges(
            self.world,
            decided,
            members,
            plan.change_every_ms,
            (MemberAction.TRANSFER,),
        )
        self.loss = FounderLoss(self.world, decided, self.founders)
        self.world.may_die_in_sync = frozenset(members)

    def _member(self, context: NodeContext) -> RoleSet:
        subject = self.subject
        right = subject.machine or self.machine
        machine = subject.planted() if context.node in subject.wrong else right()
        self.judge.state.begins(context.node, machine)
        reader = reader_of(context.node)
        plan, founders = self.plan, tuple({*self.founders, context.node})
        endpoints = {name: f"tcp://{name}:1" for name in context.nodes if plan.spares}
        serving: tuple[Spawn, ...] = ()
        opening: tuple[bytes, ...] = (OPENING,)
        if isinstance(machine, LockRegister):
            backend = PaxosBackend(context.node, founders, machine.locks.write, endpoints)
            serving = (Spawn(address_of(context.node, "proxy"), Proxy, {"backend": backend}),)
            opening = (OPENING, encode(ExtendSessions(leader=context.node)))
            self.judge.choices.commands.update(opening)
        leases = self.world.streams.fork(f"lease/{context.node}/{context.boot}")
        lease_ms = leases.choice(plan.mixed_leases_ms or (plan.lease_ms,))
        options = LogOptions(
            listener=serving[0].address if serving else reader,
            opening=lambda group: opening,
            timing=TIMING._replace(lease_ms=lease_ms, election_ms=plan.election_ms),
            drift_ppm=plan.drift_ppm,
            log_max=plan.log_max,
            journal_bytes=plan.journal_bytes,
            digest_slots=plan.digest_slots,
            greet_ms=GREET_MS,
            target=MemberTarget(plan.target_members, plan.replace_after_ms),
            priority=PRIORITY,
            endpoints=endpoints,
        )
        (bootstrap,) = log_roles(
            context.node,
            founders,
            context.random,
            machine,
            records=context.records,
            journal=context.journal_id,
            secret=context.journal_secret,
            boot=context.boot,
            date_ms=context.first_stamp // US_PER_MS,
            founding=context.founding,
            options=options,
        )
        chance = self.world.streams.fork(f"reader/{context.node}/{context.boot}")
        reads = Spawn(reader, LogReader, {"random": chance, "most_ms": plan.read_ms})
        return RoleSet((changed(bootstrap, self.subject.change), reads, *serving))

    def _add_client(self, name: str, nodes: tuple[str, ...]) -> None:
        addresses = [address_of(name, f"p{i + 1}") for i in range(self.plan.proposers)]
        self.proposers += addresses
        self.world.add(name, self._client(addresses, nodes), member=False).stands_in = True

    def _client(self, addresses: list[Address], nodes: tuple[str, ...]) -> MakeRoles:
        def make_roles(context: NodeContext) -> RoleSet:
            arguments = {
                "nodes": nodes,
                "ttl_ms": self.plan.ttl_ms,
                "rest_ms": self.plan.rest_ms,
                "random": context.random,
            }
            return RoleSet(tuple(Spawn(address, Proposer, arguments) for address in addresses))

        return make_roles

    def _add_users(self, plan: RunPlan, judged: frozenset[str] | None) -> Users:
        """Add the clients that use locks. Half of the runs name the founders to them only."""
        world, members = self.world, tuple(self.judge.nodes)
        named = self.founders if self.seed % 2 else members
        proxies = tuple(address_of(name, "proxy") for name in named)
        users = Users(
            world,
            plan,
            proxies,
            client_session,
            ttl_ms=plan.ttl_ms,
            acquisitions=LEVELS,
            prefix="u",
        )
        true, view = self.plan.drift_ppm <= DRIFT_PPM, ClientView(world)
        if true:
            world.judges.append(SessionJudge(self.judge.violation_report, view))
        judge = LockJudge(members, users.addresses, clients=view, clocks_true=true)
        if judged is None or "one-holder" in judged:
            world.judges.append(judge)
            retained = RetainedJudge(view, judge, plan.cohort) if plan.retain_ms else None
            if retained is not None:
                world.judges.append(retained)
            chance = world.streams.fork("adversary")
            Adversary(world, judge, chance, plan.strikes_every_ms, plan.ttl_ms, retained).begin()
        return users

    def play(self) -> None:
        self.world.power_on_all()
        self.nemesis.begin()
        self.changes.begin()
        if self.plan.lose_founders:
            self.loss.begin()
        if self.users:
            self.users.begin()
        self.world.run(self.plan.chaos_ms * NS_PER_MS)
        self.nemesis.heal()
        if self.plan.lose_founders:
            self.world.run_for(AFTER_MS)
            return
        readers = [reader_of(member) for member in self.judge.nodes]
        for address in (*self.proposers, *readers):
            self.world.nodes[node_of(address)].tell(address, Finish())
        self._wait(self.plan.answered_ms, "unanswered", self._unanswered)
        if self.users:
            self.users.finish()
            self._wait(self.plan.answered_ms, "not served", self.users.waiting)
            self.users.close()
        self._wait(self.plan.answered_ms, "not changed", self.changes.pending)
        faults = self.plan.faults  # A request that arrives very late extends a session once more.
        late_ms = faults.late_ms if faults.late_per_mille else 0
        self._wait(self.plan.equal_ms + late_ms, "unlike the others", self._unlike)

    def _unanswered(self) -> list[str]:
        return [one for one in self.proposers if not self.world.role_at(one).done]

    def _unlike(self) -> list[str]:
        """Return the members that lack slots, or know a session that should be over."""
        state = self.judge.state
        last = max(self.judge.choices.chosen, default=0)
        return [
            name
            for name, machine in state.machines.items()
            if name not in self.subject.wrong
            if state.applied[name] <= last or not machine.is_drained
        ]

    def _wait(self, most_ms: int, what: str, left: Callable[[], list[str]]) -> None:
        if not self.world.run_until(lambda: not left(), most_ms):
            text = f"{most_ms} ms after all faults ended, {what}: {left()}"
            self.judge.violation_report("all-served-in-the-end", text)


def run_members_seed(seed: int) -> RunReport:
    """Run the log of one seed with changes of the members, and judge it.

    In one of three, operators ask for nothing, and leaders keep the number of members.
    """
    draw = draw_target_plan if seed % 3 == 2 else draw_members_plan  # noqa: PLR2004
    return run_log_seed(seed, plan=draw(seed))
