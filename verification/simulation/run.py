"""One run, from a seed to a verdict: its clients, its phases, and the audit at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, NamedTuple

from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.operator_message import Evict, ListLocks, LockList
from fencelock.actors.api.session_message import End, Ended
from fencelock.actors.effect import Effects, Send, Spawn, Wake
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Instant,
    Timer,
    address_of,
    node_of,
    role_of,
)
from fencelock.actors.role import Host, Role
from fencelock.actors.session.event import Close, Closed
from fencelock.actors.session.retained import RetainTerms
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext, ProtocolSettings, make_roles_of
from fencelock.verification.simulation.faults import NO_CRASH, Survival, promise_of
from fencelock.verification.simulation.judge import (
    ClientView,
    LockJudge,
    RetainedJudge,
    judge_progress,
    unserved,
)
from fencelock.verification.simulation.member_changes import AFTER_MS
from fencelock.verification.simulation.nemesis import Adversary, Blow, LeaderNemesis, Nemesis
from fencelock.verification.simulation.plan import RunPlan, draw_plan, with_terms
from fencelock.verification.simulation.replay import TableReplay
from fencelock.verification.simulation.report import RunReport, report_of
from fencelock.verification.simulation.retaining import OWNERS_ROLE
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, ViolationError, sent
from fencelock.verification.simulation.workload import (
    LEVELS,
    ClientPlan,
    Finish,
    LockUser,
    MakeSession,
    client_session,
)
from fencelock.verification.simulation.world import World


class Users:
    """Adds the clients of ``plan`` to ``world``, and lets them come and go.

    Args:
        plan: the numbers of clients and owners, and the times at which clients die or close.
        proxies: the proxies that clients may use; each client begins with another one.
        ttl_ms: TTL of their sessions, 0 if the cluster has no sessions.
        acquisitions: limit of an owner's holds of a lock at once.
        users: the roles of owners. If there are several, each owner of the plan stands for one
            owner of each role.
        prefix: the beginning of the clients' names.

    """

    def __init__(
        self,
        world: World,
        plan: RunPlan,
        proxies: tuple[Address, ...],
        make_session: MakeSession,
        *,
        ttl_ms: int,
        acquisitions: int,
        users: tuple[type[LockUser], ...] = (LockUser,),
        prefix: str = "c",
    ) -> None:
        self.world = world
        self.plan = plan
        self.judge: LockJudge | None = None
        locks = tuple(f"lock-{number}" for number in range(1, plan.locks + 1))
        owners = {
            f"owner-{number}-{place}" if len(users) > 1 else f"owner-{number}": user
            for number in range(1, plan.owners + 1)
            for place, user in enumerate(users)
        }
        names = [f"{prefix}{number + 1}" for number in range(plan.clients)]
        self.dying = names[: len(plan.deaths_ms + plan.closings_ms)]
        """The clients that die, or close, in order."""
        self.names = (*names, *(f"{name}r" for name in self.dying))
        for number, name in enumerate(self.names):
            turned = number % len(proxies)
            turned_proxies = proxies[turned:] + proxies[:turned]
            retain_ms = plan.retain_ms[number % len(plan.retain_ms)] if plan.retain_ms else 0
            client = ClientPlan(
                turned_proxies,
                owners,
                locks,
                make_session,
                ttl_ms,
                acquisitions,
                plan.unawaited_share,
                RetainTerms(retain_ms, plan.cohort) if retain_ms else None,
            )
            world.add(name, client.make_roles(), member=False)
        self.addresses = tuple(address_of(name, one) for name in self.names for one in owners)

    def begin(self) -> None:
        late = self.plan.late_start_ms * NS_PER_MS
        for name, at_ms in zip(self.dying, self.plan.deaths_ms, strict=False):
            self.world.at(max(late, at_ms * NS_PER_MS), self._die, name)
        for name, at_ms in zip(self.dying, self.plan.closings_ms, strict=False):
            self.world.at(max(late, at_ms * NS_PER_MS), self._close, name)

    def finish(self) -> None:
        for user in self.contenders():
            self.world.nodes[node_of(user)].tell(user, Finish())

    def close(self) -> None:
        for name in sorted({node_of(user) for user in self.contenders()}):
            self._tell_to_close(name)

    def contenders(self) -> dict[Address, LockUser]:
        living = (user for user in self.addresses if node_of(user) not in self.dying)
        return {user: self.world.role_at(user) for user in living}

    def waiting(self) -> list[str]:
        return unserved(self.contenders())

    def _die(self, name: str) -> None:
        self.world.fault_counts["death of a client"] += 1
        self.world.crash(name)
        self.world.power_on(f"{name}r")

    def _close(self, name: str) -> None:
        self.world.fault_counts["close of a client"] += 1
        if self.judge is not None:
            self.judge.left(name)
        self._tell_to_close(name)
        self.world.power_on(f"{name}r")

    def _tell_to_close(self, name: str) -> None:
        """Close the session of a client, and before that its retained locks, if it has any."""
        node = self.world.nodes[name]
        owners = address_of(name, OWNERS_ROLE)
        retains = owners in node.scheduler.roles
        node.tell(owners if retains else address_of(name, "session"), Close())


AUDIT_MS = 500


class Audit(Timer):
    """It is time to ask the proxies again."""


AuditorEvent = NodeStatus | LockList | Audit


class Auditor(Role[AuditorEvent]):
    """Asks every proxy for the holds and waits through it, until there are none.

    Where the cluster keeps one table of locks, every proxy is asked for a linearizable list
    of the held locks: a lock that is not held has no waiters.
    """

    def __init__(
        self, address: Address, host: Host, *, proxies: tuple[Address, ...], table: bool = False
    ) -> None:
        super().__init__(address, host)
        self.proxies = proxies
        self.table = table
        self.asked = 0
        self.left: dict[str, str] = dict.fromkeys(proxies, "it never answered")
        """The problems that a proxy still has, by its address."""

    def begin(self, now: Instant) -> Effects:
        return self._ask()

    def handle(self, sender: Address, event: AuditorEvent, now: Instant) -> Effects:
        match event:
            case Audit():
                return self._ask() if self.left else ()
            case NodeStatus(locks=()) | LockList(lines=()):
                self.left.pop(sender, None)
            case NodeStatus(locks=left) | LockList(lines=left):
                if sender in self.left:
                    self.left[sender] = f"it still has {left!r}"
        return ()

    def _ask(self) -> Effects:
        session = node_of(self.address)
        self.asked += 1
        query = (
            ListLocks(session=session, request=self.asked)
            if self.table
            else Describe(session=session)
        )
        return [*(Send(Address(proxy), query) for proxy in self.left), Wake(AUDIT_MS, Audit())]


EVERY_MS = 500
"""Interval at which the operator looks for holds to evict (ms)."""


class Evictions(Judge):
    """Watches how clients close, and evicts what the others left behind.

    `central` keeps a hold until its client's session ends it, however long the client is silent. A
    client that closes while no node answers leaves its holds, and an operator must end them. A hold
    is evicted only if its client's close was not confirmed: the client reported a release or cancel
    without a reply, or sent `End` and received no `Ended`. All other holds must end without help.
    """

    def __init__(self, world: World, server: Address) -> None:
        self.world = world
        self.server = server
        self.requests = count(1)
        self.ending: set[str] = set()
        """The clients that sent `End` and have received no reply."""
        self.unconfirmed: set[str] = set()
        """The clients whose close was not confirmed."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        client = delivered.node
        if client in self.world.members or role_of(delivered.to) != "session":
            return
        if type(delivered.event) is Ended:
            self.ending.discard(client)
        if sent(effects, End):
            self.ending.add(client)
        if any(closed.unanswered or client in self.ending for closed in sent(effects, Closed)):
            self.unconfirmed.add(client)

    def begin(self) -> None:
        """Evict from now on; all nodes are up."""
        server: Any = self.world.role_at(self.server)
        for lock, holding in list(server.held.items()):
            if holding.session in self.unconfirmed:
                self._evict(lock, holding.number)
        self.world.after(EVERY_MS * NS_PER_MS, self.begin)

    def _evict(self, lock: str, fence: int) -> None:
        evict = Evict(
            lock=lock,
            fence=fence,
            operator="operator",
            session="operator",
            request=next(self.requests),
        )
        node = node_of(self.server)
        self.world.nodes[node].tell(address_of(node, "proxy"), evict)


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
    make_roles = make_roles_of(protocol) if isinstance(protocol, str) else protocol
    run = _LockRun(make_roles, seed, plan, chosen, promise, make_session, workload)
    if judges is not None:
        run.world.judges += judges(run.world)
    return report_of(run.world, seed, run.plan, run.play, grants=lambda: run.judge.grants)


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
        self.replay = TableReplay()
        self.world.judges.append(self.replay)
        self.judge = workload.judge(
            members,
            self.users.addresses,
            replay=self.replay,
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
            self.world.run_for(AFTER_MS)
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
        self._demand_replay()

    def _audit(self) -> None:
        address = address_of("auditor", "auditor")

        def make_roles(context: NodeContext) -> RoleSet:
            arguments = {"proxies": self.proxies, "table": self.promise.table}
            return RoleSet((Spawn(address, Auditor, arguments),))

        node = self.world.add("auditor", make_roles, member=False)
        self.world.power_on(node.name)
        auditor: Any = self.world.role_at(address)
        self.world.run_until(lambda: not auditor.left, self.plan.drained_ms)
        if auditor.left:
            text = "; ".join(f"{proxy}: {what}" for proxy, what in auditor.left.items())
            bound_ms = self.plan.drained_ms
            raise ViolationError(f"drain: {bound_ms} ms after everybody was done, {text}")

    def _end_sessions(self) -> None:
        """Close every client, and check that nothing is held in an ended session."""
        self.users.close()

        def held() -> dict[str, Any]:
            server: Any = self.world.role_at(self.server)
            return dict(server.held)

        self.world.run_until(lambda: not held(), self.plan.drained_ms)
        if left := held():
            text = "; ".join(f"{lock!r}: {hold}" for lock, hold in left.items())
            bound_ms = self.plan.drained_ms
            raise ViolationError(f"sessions: {bound_ms} ms after all sessions ended, {text}")

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

    def _demand_replay(self) -> None:
        """Check that the outcomes of commands were compared with those of the model."""
        if self.promise.table and self.replay.compared < self.judge.grants:
            raise ViolationError(
                f"void: {self.replay.compared} outcomes were compared, and there are "
                f"{self.judge.grants} grants"
            )
