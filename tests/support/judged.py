"""Simulated runs that a judge ends, that must be clean, or that must find a planted bug."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import pytest
from msgspec.structs import replace

from fencelock.actors.bootstrap import Bootstrap
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.clock import Clock
from fencelock.actors.effect import Spawn
from fencelock.actors.message import NS_PER_MS, Address, Timer
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.leader import Leader
from fencelock.actors.role import Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.nemesis import Blow
from fencelock.verification.simulation.paxos_run import run_log_seed
from fencelock.verification.simulation.plan import LogPlan, RunPlan
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import Workload, run_seed
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.world import World
from support.planted_bugs import Patch, plant


def is_violated(run: Callable[[], object]) -> bool:
    """Return whether a judge finds a violation in ``run``."""
    try:
        run()
    except ViolationError:
        return True
    return False


class JudgedRun(Protocol):
    """Runs a seed with some of the judges."""

    def __call__(self, seed: int, /, *, judged: frozenset[str]) -> RunReport: ...


def assert_seen(judge: str, seeds: Iterable[int], run: JudgedRun, seen_as: str = "") -> None:
    """Fail unless ``judge``, with no other judge, finds a violation in the run of some seed.

    Its report begins with its name, or with ``seen_as``.
    """
    begin = f": {seen_as or f'{judge}, '}"
    others: list[str] = []
    for seed in seeds:
        if violation := run(seed, judged=frozenset({judge})).violation:
            if begin in violation:
                return
            others.append(violation[:400])
    pytest.fail(f"not seen by {judge} in the seeds {seeds}, which saw {others[:3]}")


class PlantedBug(NamedTuple):
    """A bug, and the judge that is to see it."""

    judge: str
    patches: tuple[Patch, ...]
    blows: tuple[Blow, ...] = ()
    """For `bakery`: blows that provoke it."""
    plan: RunPlan | None = None
    """A plan that provokes it, or None for the plan of the seed."""
    first: int = 0
    """The seed with which the search begins, which keeps it short."""
    seen_as: str = ""
    """The beginning of the judge's report, if it is not its name."""
    run: JudgedRun = run_log_seed
    """For `paxos`: runs a seed, for example by a plan that provokes it."""

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for patch in self.patches:
            plant(monkeypatch, *patch)

    def assert_seen(self, monkeypatch: pytest.MonkeyPatch, run: JudgedRun, seeds: int) -> None:
        """Fail unless the judge, with no other judge, sees the bug in one of so many seeds."""
        self.plant(monkeypatch)
        assert_seen(self.judge, range(self.first, self.first + seeds), run, self.seen_as)


def log_run(draw: Callable[[int], LogPlan]) -> JudgedRun:
    """Return a function that runs the log of a seed, by the plan that ``draw`` returns for it."""

    def run(seed: int, /, *, judged: frozenset[str]) -> RunReport:
        return run_log_seed(seed, plan=draw(seed), judged=judged)

    return run


LOSSES = (
    "contender.lost",
    "client.holds_lost",
    "client.session_lost",
    "client.request_moved",
)
"""Events that the seeds of every workload must reach."""

UNHELD = (
    "contender.refused_timed_out",
    "contender.refused_session_expired",
    "contender.refused_unavailable",
    "client.session_lost",
    "client.request_moved",
)
"""Events that the seeds of a workload without holds must reach."""

SEEDS = 4
SEEDS_MAX = 40
SEEDS_FOR_A_MUTANT = 40


def clean(reports: Iterable[RunReport]) -> Counter[str]:
    """Return the marks, the faults and the ``grants`` of runs; none may have a violation."""
    seen: Counter[str] = Counter()
    for report in reports:
        assert report.violation is None, (report.seed, report.violation)
        seen += Counter(report.marks) + Counter(report.faults) + Counter(grants=report.grants)
    return seen


def seen_in(text: str, reports: Iterable[RunReport]) -> bool:
    """Return whether the violation of some run has ``text``."""
    return any(text in (report.violation or "") for report in reports)


def demand_met(
    run: Callable[[int], Iterable[RunReport]], met: Iterable[str], seeds: range, most: int
) -> Counter[str]:
    """Run seeds, which must be clean, until all of ``met`` occurred; return the counts.

    Args:
        run: runs one seed.
        met: marks.
        seeds: run in any case.
        most: the number of seeds, with those that follow, if something has not yet occurred.

    """
    seen: Counter[str] = Counter()
    missing = list(met)
    for seed in range(seeds.start, seeds.start + most):
        if seed >= seeds.stop and not missing:
            break
        seen += clean(run(seed))
        missing = [name for name in missing if not seen[name]]
    assert missing == []
    return seen


def demand_clean(
    workload: Workload, met: Iterable[str], seeds: int = SEEDS, first: int = 0
) -> None:
    """Run seeds of a workload on `paxos`, as `demand_met` does.

    They begin with ``first``, so that events that are rare occur soon.
    """
    demand_met(
        lambda seed: [run_seed("paxos", seed, workload=workload)],
        met,
        range(first, first + seeds),
        SEEDS_MAX,
    )


def demand_caught(
    monkeypatch: pytest.MonkeyPatch,
    workload: Workload,
    patches: Iterable[Patch],
    judge: str,
    first: int = 0,
) -> None:
    """Plant bugs at attributes, and run seeds, from ``first`` on, until the judge finds one."""
    for patch in patches:
        plant(monkeypatch, *patch)
    seeds = range(first, first + SEEDS_FOR_A_MUTANT)
    assert seen_in(judge, (run_seed("paxos", seed, workload=workload) for seed in seeds))


class BelievesOne(Bootstrap):
    """Takes the group that any one node sends."""

    def _is_believed(self, member: str, config: GroupConfig, witnesses: Sequence[str]) -> bool:
        return True


def votes_as_registered(spawn: Spawn) -> Spawn:
    """Let every node vote under the registered id of its member, whichever journal it has."""
    if issubclass(spawn.role, Leader):
        return replace(spawn, arguments={**spawn.arguments, "votes": True})
    if not issubclass(spawn.role, Acceptor):
        return spawn
    voter = spawn.arguments["config"].newest.registered[spawn.address]
    return replace(spawn, arguments={**spawn.arguments, "votes": True, "voter": voter})


N1, N2 = Address("n1/role"), Address("n2/role")
SECOND = 1_000 * NS_PER_MS


class Tock(Timer):
    """A timer of such a role."""

    number: int = 0


def only(role: type[Role[Any]]) -> MakeRoles:
    """Return a function that makes a node with ``role`` and a clock."""

    def make_roles(context: NodeContext) -> RoleSet:
        clock = Spawn(Address(f"{context.node}/clock"), Clock)
        return RoleSet((clock, Spawn(Address(f"{context.node}/role"), role)))

    return make_roles


def world_of(*makers: MakeRoles, seed: int = 1, faults: Faults | None = None) -> World:
    """Return a world in which a node of each kind runs."""
    world = World(seed, faults or Faults())
    for number, make_roles in enumerate(makers, start=1):
        world.add(f"n{number}", make_roles, member=True)
    world.power_on_all()
    return world
