"""Locks as users experience them: real nodes, client processes of their own, and a clock."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from fencelock.cluster.client.client import Client
from fencelock.cluster.client.settings import RETAIN_S_MAX
from fencelock.verification.bench.failover import DOWN_S, failover
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.load import CONNECT_S, LOCAL_AGE_MS
from fencelock.verification.bench.machine import MachineInfo, resident_bytes, this_machine
from fencelock.verification.bench.members import NodeProcesses, described, leader_among
from fencelock.verification.bench.report import NotedFigure
from fencelock.verification.bench.workers import bare_round_trips, measured, per_s, started

PROCESSES = 2
"""Client processes: a session may hold 100,000 locks, and two acquire them faster."""
THREADS = 64
"""Threads of each process, each on its own lock; as many ask for the status of one lock."""
RIVALS = 4
"""Threads of each process, all on one lock."""
TASKS = 256
IDLE_LOCKS = 9_900
"""Locks that one client retains at a time: almost as many as it may."""


LOCK_EACH = f"{PROCESSES} processes x {THREADS} threads, a lock each"
ONE_LOCK = f"{PROCESSES} processes x {RIVALS} threads, one lock"

FIGURES = {
    "pair_p50_us": ("pair, p50", "us"),
    "pair_p99_us": ("pair, p99", "us"),
    "fresh_pair_p50_us": ("pair, new lock, p50", "us"),
    "unconfirmed_pair_p50_us": ("pair, release not confirmed, p50", "us"),
    "retained_pair_p50_us": ("pair, retained, p50", "us"),
    "retained_task_pair_us": ("pair, retained, asyncio, mean", "us"),
    "retained_pairs_per_s": ("throughput, retained", "pairs/s"),
    "retained_idle_bytes": ("an idle retained lock", "bytes"),
    "retained_handovers_0_per_s": ("hand-over, retained", "grants/s"),
    "retained_handovers_16_per_s": ("hand-over, retained", "grants/s"),
    "pairs_per_s": ("throughput", "pairs/s"),
    "handovers_per_s": ("hand-over", "grants/s"),
    "tasks_pairs_per_s": ("asyncio", "pairs/s"),
    "bare_p50_us": ("bare round trip, p50", "us"),
    "bare_p99_us": ("bare round trip, p99", "us"),
    "bare_piped_per_s": ("bare round trips", "1/s"),
    "failover_gap_ms": ("failover gap", "ms"),
    "failover_client_gap_ms": ("failover gap, worst client", "ms"),
    "reads_linearizable_per_s": ("linearizable reads", "reads/s"),
    "reads_local_leader_per_s": ("local reads, leader", "reads/s"),
    "reads_local_per_s": ("local reads, follower", "reads/s"),
    "held_bytes_per_lock": ("memory of a held lock", "bytes"),
    "false_elections": ("false elections", ""),
}
"""The name of each figure for people and its unit, by its name for programs."""


def noted(key: str, value: float, note: str = "", rounds: tuple[float, ...] = ()) -> NotedFigure:
    """Return the figure of that name in `FIGURES`."""
    what, unit = FIGURES[key]
    return NotedFigure(key, what, value, unit, note, rounds)


class Part(StrEnum):
    """One of the measurements."""

    PAIR = "pair"
    UNCONFIRMED = "unconfirmed"
    RETAINED = "retained"
    THROUGHPUT = "throughput"
    HANDOVER = "handover"
    TASKS = "tasks"
    FAILOVER = "failover"
    READS = "reads"
    HELD = "held"


ONLY_PAXOS = frozenset({Part.RETAINED, Part.FAILOVER, Part.READS, Part.HELD})
"""Parts for `paxos` alone: other protocols have no retained locks, no failover, one kind of reads,
and no table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBenchPlan:
    """The measurements to make.

    Attributes:
        seconds: how long each measurement takes, above 0; as much as a fifth more to warm up.
        kills: of the leader, 1 or more.
        held: the number of locks held when memory is measured, 100 or more.
        parts: the measurements, in this order.

    """

    protocol: str = "paxos"
    nodes: int = 3
    durable: bool = True
    seconds: float = 5.0
    kills: int = 5
    held: int = 100_000
    parts: tuple[Part, ...] = tuple(Part)

    def has(self, part: Part) -> bool:
        if part is Part.FAILOVER and not self.durable:
            return False  # A node that restarts without its memory does not vote any more.
        return self.protocol == "paxos" or part not in ONLY_PAXOS

    def in_words(self) -> str:
        kept = {"paxos": "fsync", "central": "journal"}.get(self.protocol, "")
        kept = kept if self.durable or not kept else "memory"
        nodes = f"{self.nodes} node{'s' if self.nodes > 1 else ''}"
        return ", ".join(part for part in (self.protocol, nodes, kept) if part)


@dataclass(frozen=True, slots=True)
class LockBenchReport:
    """All results of a run, and the machine."""

    plan: LockBenchPlan
    machine: MachineInfo
    readings: tuple[NotedFigure, ...]

    def as_plain(self) -> dict[str, Any]:
        return {
            "plan": asdict(self.plan),
            "machine": asdict(self.machine),
            "figures": {one.key: round(one.value, 3) for one in self.readings},
            "rounds": {one.key: one.rounds for one in self.readings if one.rounds},
        }


def measure(plan: LockBenchPlan, say: Callable[[str], None]) -> LockBenchReport:
    """Start a cluster, make the measurements of ``plan``, and leave nothing running.

    Raises:
        BenchFailedError: a process failed, or was not served at all; the text explains it.
        fencelock.ConfigError: the protocol cannot run so.

    """
    parts = [part for part in plan.parts if plan.has(part)]
    readings: list[NotedFigure] = []
    with tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name:
        machine = this_machine(Path(name))
        shared = [part for part in parts if part is not Part.HELD]
        if shared:
            readings += _in_one_cluster(plan, shared, Path(name), say)
        if Part.HELD in parts:  # On fresh nodes: all that they did before would use memory.
            folder = Path(name, "held")
            folder.mkdir()
            readings.append(held_reading(folder, plan.held, plan.nodes, plan.durable, say))
    return LockBenchReport(plan, machine, tuple(readings))


def _in_one_cluster(
    plan: LockBenchPlan, parts: Sequence[Part], folder: Path, say: Callable[[str], None]
) -> list[NotedFigure]:
    say(f"starting {plan.nodes} nodes")
    with ExitStack() as stack:
        members = NodeProcesses(folder, plan.protocol, plan.nodes, durable=plan.durable)
        stack.enter_context(members)
        watcher = members.ready_client()
        stack.enter_context(watcher)
        bench = _Bench(plan, members, watcher, say)
        readings = [reading for part in parts for reading in bench.run(part)]
        return [*readings, *bench.elections()]


class _Bench:
    """The measurements over one running cluster."""

    def __init__(
        self,
        plan: LockBenchPlan,
        members: NodeProcesses,
        watcher: Client,
        say: Callable[[str], None],
    ) -> None:
        self.plan = plan
        self.members = members
        self.watcher = watcher
        self.say = say
        self.pairs_per_s: float | None = None
        """The throughput, once it is measured."""
        self.elected = 0
        """Elections while no node was killed."""
        self.job = Job(
            kind=JobKind.RATE,
            address=members.connect,
            cluster=members.cluster,
            seconds=plan.seconds,
            warm_s=plan.seconds / 5,
        )

    def run(self, part: Part) -> list[NotedFigure]:
        before = self._elections_so_far()
        self.say(f"measuring {part.value}")
        readings = self._run(part)
        if part is not Part.FAILOVER:
            self.elected += self._elections_so_far() - before
        return readings

    def elections(self) -> list[NotedFigure]:
        """Return the number of unnecessary elections, for protocols with a leader."""
        if self.plan.protocol != "paxos":
            return []
        return [noted("false_elections", self.elected, "while no node was killed")]

    def _elections_so_far(self) -> int:
        return sum(
            counted.times
            for status in self.members.wait_until_ready(self.watcher)
            for counted in status.counters
            if counted.name == "paxos.leadership_begun"
        )

    def _run(self, part: Part) -> list[NotedFigure]:
        runs = {
            Part.PAIR: self._pair,
            Part.UNCONFIRMED: self._unconfirmed,
            Part.RETAINED: self._retained,
            Part.THROUGHPUT: self._throughput,
            Part.HANDOVER: self._handover,
            Part.TASKS: self._tasks,
            Part.FAILOVER: self._failover,
            Part.READS: self._reads,
        }
        return runs[part]()  # `Part.HELD` has its own nodes.

    def _pair(self) -> list[NotedFigure]:
        (took,) = self._measured(replace(self.job, kind=JobKind.PAIR))
        note = f"1 client, 1 lock, {took['times']:,.0f} pairs"
        return [
            noted("pair_p50_us", took["p50_us"], note),
            noted("pair_p99_us", took["p99_us"]),
        ]

    def _unconfirmed(self) -> list[NotedFigure]:
        """Measure pairs of fresh locks, with releases that are confirmed and with others."""
        job = replace(self.job, kind=JobKind.PAIR, fresh=True)
        (confirmed,) = self._measured(replace(job, lock="confirmed"))
        (took,) = self._measured(replace(job, lock="unconfirmed", confirm=False))
        ratio = took["p50_us"] / confirmed["p50_us"]
        note = f"1 client, a new lock each time, {confirmed['times']:,.0f} pairs"
        same = f"the same with confirm_release=False: {ratio:.2f}x, {took['times']:,.0f} pairs"
        return [
            noted("fresh_pair_p50_us", confirmed["p50_us"], note),
            noted("unconfirmed_pair_p50_us", took["p50_us"], same),
        ]

    def _retained(self) -> list[NotedFigure]:
        kept = replace(self.job, retain=1.0, lock="kept")
        (one,) = self._measured(replace(kept, kind=JobKind.PAIR))
        (task,) = self._measured(replace(kept, kind=JobKind.TASKS, lock="kept-task"))
        own = [
            replace(kept, at_once=THREADS, lock=f"kept-own-{number}") for number in range(PROCESSES)
        ]
        many = per_s(self._measured(*own))
        idle_job = replace(kept, kind=JobKind.RETAIN, lock="kept-idle", retain=RETAIN_S_MAX)
        (idle,) = self._measured(replace(idle_job, locks=IDLE_LOCKS, at_once=THREADS))
        mean_us = 1e6 * task["seconds"] / task["times"]
        by_client = f"1 client, 1 lock, retain=1, {one['times']:,.0f} pairs"
        by_task = f"1 task, 1 lock, retain=1, {task['times']:,.0f} pairs"
        of_idle = f"memory of the client for each of {IDLE_LOCKS:,}, with its name"
        figures = [
            noted("retained_pair_p50_us", one["p50_us"], by_client),
            noted("retained_task_pair_us", mean_us, by_task),
            noted("retained_pairs_per_s", many, f"{LOCK_EACH}, retain=1"),
            noted("retained_idle_bytes", idle["bytes"], of_idle),
        ]
        rival = replace(kept, at_once=RIVALS, lock="kept-one", shared=True)
        for cohort in (0, 16):
            rate = per_s(self._measured(*[replace(rival, cohort=cohort)] * PROCESSES))
            note = f"{ONE_LOCK}, retain=1, cohort={cohort}"
            figures.append(noted(f"retained_handovers_{cohort}_per_s", rate, note))
        return figures

    def _throughput(self) -> list[NotedFigure]:
        jobs = [
            replace(self.job, at_once=THREADS, lock=f"own-{number}") for number in range(PROCESSES)
        ]
        self.pairs_per_s = per_s(self._measured(*jobs))
        return [noted("pairs_per_s", self.pairs_per_s, LOCK_EACH)]

    def _handover(self) -> list[NotedFigure]:
        job = replace(self.job, at_once=RIVALS, lock="one", shared=True)
        return [noted("handovers_per_s", per_s(self._measured(*[job] * PROCESSES)), ONE_LOCK)]

    def _tasks(self) -> list[NotedFigure]:
        job = replace(self.job, kind=JobKind.TASKS, at_once=TASKS, lock="task")
        rate = per_s(self._measured(job))
        self.say("measuring a bare ROUTER and DEALER")
        bare = bare_round_trips(self.members.folder, self.plan.seconds, TASKS)
        ratio = rate * bare["p50_us"] / 1e6
        note = f"1 process x {TASKS} tasks, {ratio:.2f}x the bare round trips"
        return [
            noted("tasks_pairs_per_s", rate, note),
            noted("bare_p50_us", bare["p50_us"], "ROUTER, DEALER"),
            noted("bare_p99_us", bare["p99_us"]),
            noted("bare_piped_per_s", bare["piped_per_s"], f"{TASKS} under way"),
        ]

    def _failover(self) -> list[NotedFigure]:
        members, kills = self.members, self.plan.kills
        seen = failover(
            members,
            self.watcher,
            kills,
            lambda leader: (members.kill(leader), lambda: members.start(leader)),
            DOWN_S,
            lambda number: self.say(f"measuring failover, kill {number} of {kills}"),
        )
        note = f"{kills} times kill -9 of the leader, median; {seen.in_words()}"
        return [
            noted("failover_gap_ms", seen.gap_ms, note, seen.gaps_ms),
            noted("failover_client_gap_ms", seen.client_gap_ms, "", seen.client_gaps_ms),
        ]

    def _reads(self) -> list[NotedFigure]:
        """Measure linearizable reads at the leader, then local ones there and at a follower."""
        leader = leader_among(described(self.watcher))
        others = [node for node in self.members.names if node != leader]
        kinds: list[tuple[str, str, int | None]] = [
            ("reads_linearizable_per_s", leader, None),
            ("reads_local_leader_per_s", leader, LOCAL_AGE_MS),
        ]
        if others:
            kinds.append(("reads_local_per_s", others[0], LOCAL_AGE_MS))
        rates: dict[str, float] = {}
        readings: list[NotedFigure] = []
        with self.watcher.lock("seen"):
            for key, node, age_ms in kinds:
                self.say(f"measuring {FIGURES[key][0]}")
                one = replace(
                    self.job,
                    kind=JobKind.READ,
                    address=self.members.addresses[node],
                    at_once=THREADS,
                    lock="seen",
                    shared=True,
                    age_ms=age_ms,
                )
                rates[key] = per_s(self._measured(*[one] * PROCESSES))
                note = f"{PROCESSES} processes x {THREADS} threads, at {node}"
                note += _beside(key, rates, self.pairs_per_s)
                readings.append(noted(key, rates[key], note))
        return readings

    def _measured(self, *jobs: Job) -> list[dict[str, float]]:
        return measured(self.members.folder, jobs)


def _beside(key: str, rates: dict[str, float], pairs_per_s: float | None) -> str:
    if key == "reads_linearizable_per_s" and pairs_per_s:
        return f", {rates[key] / pairs_per_s:.1f}x the pairs of the throughput"
    if key == "reads_local_per_s":
        return f", {rates[key] / rates['reads_local_leader_per_s']:.2f}x the leader's"
    return ""


HELD_TASKS = 128
"""Acquires in flight in each process."""

HELD_PARTS = 10
"""Progress is reported after each of so many parts of the locks."""

SETTLE_S = 2.0
"""Time for nodes to finish background writes (s); a snapshot takes memory for a moment."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The cost of held locks.

    Attributes:
        locks: the number of held locks.
        seconds: the time to acquire them.
        before: resident memory of each node before the first (bytes), by node.
        after: the same with all of them held.

    """

    locks: int
    seconds: float
    before: dict[str, int]
    after: dict[str, int]

    @property
    def bytes_a_lock(self) -> dict[str, float]:
        """The growth for each lock, by node. It includes memory that does not depend on locks."""
        return {node: (self.after[node] - size) / self.locks for node, size in self.before.items()}

    def in_words(self) -> str:
        node = max(self.bytes_a_lock, key=lambda one: self.bytes_a_lock[one])
        before, after = (f"{size[node] / 1e6:.0f}" for size in (self.before, self.after))
        return f"{self.locks:,} held; the largest, {node}, from {before} to {after} MB resident"


def held_reading(
    folder: Path, locks: int, nodes: int, durable: bool, say: Callable[[str], None]
) -> NotedFigure:
    """Start nodes in ``folder``, have ``locks`` locks held, and return the bytes of one."""
    say(f"starting {nodes} nodes")
    with NodeProcesses(folder, "paxos", nodes, durable=durable) as members:
        found = held(members, locks, say)
    each = tuple(round(size, 1) for size in found.bytes_a_lock.values())
    return noted("held_bytes_per_lock", max(each), found.in_words(), each)


def held(members: NodeProcesses, locks: int, say: Callable[[str], None]) -> HeldMemory:
    """Let clients acquire and keep ``locks`` locks; return the cost at each node.

    The nodes are fresh, without other clients. The number is `PROCESSES` x `HELD_PARTS` or more,
    and is rounded to whole parts.
    """
    most = -(-locks // (PROCESSES * HELD_PARTS))
    job = Job(
        kind=JobKind.HOLD,
        address=members.connect,
        cluster=members.cluster,
        at_once=HELD_TASKS,
        locks=most,
        seconds=CONNECT_S,
    )
    with ExitStack() as stack:
        watcher = stack.enter_context(members.ready_client())
        workers = [
            started(stack, replace(job, lock=f"held-{n}"), members.folder, f"hold-{n}")
            for n in range(PROCESSES)
        ]
        for worker in workers:
            worker.wait_until_ready()
        before = {node: resident_bytes(members.processes[node].pid) for node in members.names}
        began, total = time.monotonic(), 0
        for _ in range(HELD_PARTS):
            say(f"measuring held locks, {total:,} of {most * PROCESSES * HELD_PARTS:,}")
            for worker in workers:
                worker.tell()
            total += sum(worker.result()["times"] for worker in workers)
        seconds = time.monotonic() - began
        time.sleep(SETTLE_S)
        members.wait_until_ready(watcher)
        after = {node: resident_bytes(members.processes[node].pid) for node in members.names}
    return HeldMemory(total, seconds, before, after)
