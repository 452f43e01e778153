"""A measured load: connections of several processes, at a running cluster or one of its own."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from fencelock.actors.error import ConfigError, UnavailableError
from fencelock.cluster.client.client import Client, connect_to
from fencelock.cluster.client.settings import Target
from fencelock.verification.bench.job import OPERATION_S, Job, JobKind, Operation, redis_module
from fencelock.verification.bench.load import CONNECT_S, LOCAL_AGE_MS
from fencelock.verification.bench.load_result import (
    ALL,
    CLIENTS,
    Latencies,
    LoadOptions,
    LoadResult,
    Place,
    ProcessUse,
    latency_of,
    quantile_us,
    trend_of,
)
from fencelock.verification.bench.machine import (
    CoreShares,
    listener_at,
    processor_s,
    resident_bytes,
    this_machine,
)
from fencelock.verification.bench.members import (
    BenchFailedError,
    NodeProcesses,
    described,
    leader_among,
)
from fencelock.verification.bench.workers import LATE_S, READY_S, WorkerProcess, started

CONNECT_S_EACH = 0.2
"""Extra time for each connection (s): they are opened together, and share the machine."""

CONNECTIONS_A_PROCESS = 256
"""One process uses one core, and more of them than cores only compete."""

PROCESSES_MIN = 2
"""Processes that make the load, where there are as many connections."""

ANSWER_S = 5.0
"""Timeout for the first answer of a node that is said to run (s)."""


class Interval(NamedTuple):
    """The measurements of one interval."""

    seconds: float
    """Its duration: a busy process ends it late."""
    took: dict[tuple[str, str], Latencies]
    """Latencies by operation and role of the node."""
    errors: Counter[str]
    cores: dict[str, float]
    memory_mb: dict[str, float]


@dataclass(slots=True)
class Subject:
    """The cluster or server that a load is for.

    Attributes:
        address: all addresses for clients, or the URL of a Redis server.
        key: the file of the clients' key, empty without.
        nodes: addresses of nodes, by name.
        pids: the nodes that run on this machine, by name.
        watcher: asks who leads; None for a Redis server.

    """

    words: str
    address: str
    cluster: str = ""
    key: str = ""
    nodes: dict[str, str] = field(default_factory=dict[str, str])
    pids: dict[str, int] = field(default_factory=dict[str, int])
    watcher: Client | None = None

    def leader(self) -> str:
        """Return the node that leads; empty without one."""
        return "" if self.watcher is None else leader_among(described(self.watcher))

    def places(self, at: Place) -> tuple[str, ...]:
        """Return the addresses at which connections stay; none if they may choose.

        Raises:
            ConfigError: there is no such node among those that are known.

        """
        leader = self.leader()
        nodes = [
            address
            for node, address in self.nodes.items()
            if at is Place.SPREAD or (node == leader) == (at is Place.LEADER)
        ]
        if at is Place.FREE:
            return ()
        if not nodes or (not leader and at is not Place.SPREAD):
            raise ConfigError(f"--at is {at}, and no such node is among {self.address}")
        return tuple(nodes)


def own_cluster(
    stack: ExitStack,
    folder: Path,
    protocol: str,
    nodes: int,
    *,
    durable: bool,
    observers: int = 0,
    node_cores: float | None = None,
) -> Subject:
    """Start nodes that end with ``stack``; their files are in ``folder``.

    Each gets ``node_cores`` of a core once it is ready, and all that it finds if that is None.
    ``observers`` are further nodes, which only read.

    Raises:
        BenchFailedError: a node failed.
        ConfigError: the protocol cannot run so, or the system cannot limit processes.

    """
    shares = None if node_cores is None else stack.enter_context(CoreShares(node_cores))
    members = NodeProcesses(folder, protocol, nodes, durable=durable, observers=observers)
    stack.enter_context(members)
    watcher = stack.enter_context(members.ready_client())
    kept = {"paxos": "fsync", "central": "journal"}.get(protocol, "") if durable else "memory"
    more = f"{observers} observer{'s' if observers > 1 else ''}" if observers else ""
    share = "" if node_cores is None else f"{node_cores:g} cores each"
    words = ", ".join(part for part in (f"{nodes} nodes of {protocol}", more, kept, share) if part)
    pids = {node: process.pid for node, process in members.processes.items()}
    if shares is not None:
        for pid in pids.values():
            shares.limit(pid)
    return Subject(words, members.connect, members.cluster, "", members.addresses, pids, watcher)


def running_cluster(stack: ExitStack, where: Target) -> Subject:
    """Connect to a cluster that runs; the connection ends with ``stack``.

    Raises:
        UnavailableError: none of its nodes answers.

    """
    watcher = stack.enter_context(connect_to(where, timeout=ANSWER_S))
    nodes: dict[str, str] = {}
    for endpoint in where.endpoints:
        one = where._replace(addresses=endpoint)
        try:
            with connect_to(one, timeout=ANSWER_S, stay=True) as client:
                nodes |= {status.node: endpoint for status in client.describe()}
        except UnavailableError:
            continue
    found = {node: listener_at(endpoint) for node, endpoint in nodes.items()}
    pids = {node: pid for node, pid in found.items() if pid is not None}
    words = f'cluster "{where.cluster}" of {watcher.protocol}, {len(nodes)} nodes'
    key = "" if where.key is None else str(where.key)
    return Subject(words, where.addresses, where.cluster, key, nodes, pids, watcher)


def redis_server(url: str) -> Subject:
    """Return the Redis server at ``url``, or another one that speaks its protocol.

    Raises:
        ConfigError: the URL is not usable, or redis-py is not installed.
        UnavailableError: it does not answer.

    """
    redis = redis_module()
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=CONNECT_S)
    except ValueError as error:
        raise ConfigError(f"--redis is {url!r}: {error}") from None
    try:
        client.ping()
    except redis.RedisError as error:
        raise UnavailableError(f"--redis: {url} does not answer: {error}") from None
    host = client.connection_pool.connection_kwargs.get("host")
    port = client.connection_pool.connection_kwargs.get("port")
    pid = None if host is None else listener_at(f"tcp://{host}:{port}")
    return Subject(f"Redis protocol at {url}", url, pids={} if pid is None else {"redis": pid})


def measure_load(
    subject: Subject, options: LoadOptions, folder: Path, say: Callable[[str], None]
) -> LoadResult:
    """Put the load on ``subject``, and return what was measured.

    If it is interrupted, the result has the intervals before that. The logs of client processes
    are in ``folder``.

    Raises:
        BenchFailedError: a client process failed, or nothing was served.
        ConfigError: the load does not fit the subject.

    """
    if subject.watcher is None and set(options.mix) != {Operation.LOCK}:
        raise ConfigError("--redis takes --mix lock only: maps are fencelock's own")
    run = _Run(subject, options, folder, say)
    run.measure()
    return run.result()


class _Run:
    """One run and its intervals."""

    def __init__(
        self, subject: Subject, options: LoadOptions, folder: Path, say: Callable[[str], None]
    ) -> None:
        self._subject = subject
        self._options = options
        self._folder = folder
        self._say = say
        self._machine = this_machine(folder)
        self._begun = datetime.now(UTC).isoformat(timespec="seconds")
        self._names = {address: node for node, address in subject.nodes.items()}
        self._leader = subject.leader()
        self._used_s: dict[str, float] = {}
        self._total_s: Counter[str] = Counter()
        self._intervals: list[Interval] = []

    def measure(self) -> None:
        options = self._options
        self._say(f"connecting {options.connections} clients")
        with ExitStack() as stack:
            workers = [
                started(stack, job, self._folder, f"load-{number}")
                for number, job in enumerate(self._jobs())
            ]
            for worker in workers:
                worker.answer(READY_S + CONNECT_S_EACH * options.connections)
            for worker in workers:
                worker.tell()
            try:
                self._collect(workers)
                for worker in workers:  # It closes its connections.
                    worker.answer(LATE_S)
            except KeyboardInterrupt:
                if not self._intervals:
                    raise

    def _collect(self, workers: Sequence[WorkerProcess]) -> None:
        options = self._options
        done = 0
        for number in range(options.points + 1):
            limit = options.point_s + self._warm_s + 2 * OPERATION_S + LATE_S
            lines = [worker.answer(limit) for worker in workers]
            one = self._interval(lines, first=number == 0)
            if number == 0:
                continue  # The time to warm up.
            self._intervals.append(one)
            done = sum(each.total() for each in one.took.values())
            at, rate = number * options.point_s, done / one.seconds
            self._say(f"measuring, {at:,.0f} of {options.seconds:,.0f} s, {rate:,.0f}/s")

    @property
    def _warm_s(self) -> float:
        return min(5.0, self._options.seconds / 5)

    def _jobs(self) -> list[Job]:
        options, subject = self._options, self._subject
        processes = max(
            min(PROCESSES_MIN, options.connections),
            -(-options.connections // CONNECTIONS_A_PROCESS),
        )
        job = Job(
            kind=JobKind.MIXED,
            address=subject.address,
            cluster=subject.cluster,
            key=subject.key,
            seconds=options.point_s,
            warm_s=self._warm_s,
            rounds=options.points,
            lock=f"bench-{token_hex(4)}",
            shared=options.shared,
            age_ms=LOCAL_AGE_MS if options.local_reads else None,
            mix=dict(options.mix),
            places=() if subject.watcher is None else subject.places(options.at),
            in_flight=options.in_flight,
            names=options.names,
            payload=options.payload,
            period_s=options.period_s,
        )
        ends = [options.connections * part // processes for part in range(processes + 1)]
        return [replace(job, first=first, at_once=end - first) for first, end in pairwise(ends)]

    def _interval(self, lines: Sequence[dict[str, Any]], *, first: bool) -> Interval:
        """Return what ``lines`` of all processes and a look at the nodes have of an interval."""
        took = defaultdict[tuple[str, str], Latencies](Counter)
        errors: Counter[str] = Counter()
        for line in lines:
            for operation, place, bucket, times in line["took"]:
                took[operation, self._role_of(place)][bucket] += times
            for operation, error, times in line["errors"]:
                errors[f"{operation} {error}"] += times
        used = {CLIENTS: sum(float(line["processor_s"]) for line in lines)}
        memory = {CLIENTS: sum(int(line["memory"]) for line in lines) / 1e6}
        for node, pid in self._subject.pids.items():
            used[node] = processor_s(pid)
            memory[node] = resident_bytes(pid) / 1e6
        spent = {name: seconds - self._used_s.get(name, seconds) for name, seconds in used.items()}
        self._used_s = used
        if not first:
            self._total_s.update(spent)
        self._leader = self._subject.leader() or self._leader
        seconds = statistics.fmean(float(line["seconds"]) for line in lines)
        cores = {name: used_s / seconds for name, used_s in spent.items()}
        return Interval(seconds, dict(took), errors, cores, memory)

    def _role_of(self, place: str) -> str:
        if not place:
            return ""
        return self._role(self._names.get(place, ""))

    def _role(self, node: str) -> str:
        if node == CLIENTS or not self._leader:
            return ""
        return "leader" if node == self._leader else "follower"

    def result(self) -> LoadResult:
        intervals = self._intervals
        seconds = sum(one.seconds for one in intervals)
        total = defaultdict[tuple[str, str], Latencies](Counter)
        for one in intervals:
            for key, latencies in one.took.items():
                total[key].update(latencies)
        times = sum(latencies.total() for latencies in total.values())
        errors = sum((one.errors for one in intervals), Counter[str]())
        if not times:
            raise BenchFailedError(f"no operation was served; errors: {dict(errors) or 'none'}")
        operations = [str(one) for one in self._options.mix]
        whole = sum(total.values(), Latencies())
        by_operation = [{name: _of(one, name) for name in [*operations, ALL]} for one in intervals]
        series = [*operations, ALL]
        rates = {
            name: [
                found[name].total() / one.seconds
                for one, found in zip(intervals, by_operation, strict=True)
            ]
            for name in series
        }
        return LoadResult(
            plan=self._options.plan(self._subject.words),
            machine=self._machine,
            begun=self._begun,
            latencies=[
                *(latency_of(*key, total[key], seconds) for key in sorted(total)),
                latency_of(ALL, "", whole, seconds),
            ],
            errors=dict(errors),
            processes=[
                ProcessUse(
                    process=name,
                    at=self._role(name) if name in self._subject.nodes else "",
                    cores=spent / seconds,
                    us_per_operation=1e6 * spent / times,
                    memory_mb=max((one.memory_mb.get(name, 0.0) for one in intervals), default=0.0),
                )
                for name, spent in self._total_s.items()
            ],
            at_s=list(accumulate(one.seconds for one in intervals)),
            per_s=rates,
            p50_us={name: [quantile_us(one[name], 0.5) for one in by_operation] for name in series},
            p99_us={
                name: [quantile_us(one[name], 0.99) for one in by_operation] for name in series
            },
            failed=[one.errors.total() for one in intervals],
            cores=_columns([one.cores for one in intervals]),
            memory_mb=_columns([one.memory_mb for one in intervals]),
            trend=trend_of(rates[ALL]),
        )


def _of(interval: Interval, operation: str) -> Latencies:
    """Return the latencies of one operation, or of all, at all nodes."""
    latencies = Latencies()
    for (name, _), found in interval.took.items():
        if operation in (name, ALL):
            latencies.update(found)
    return latencies


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
