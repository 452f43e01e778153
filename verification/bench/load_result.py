"""The result of a measured load: kept as JSON, and shown as tables, CSV and charts."""

from __future__ import annotations

import csv
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from io import StringIO
from pathlib import Path

import msgspec
from msgspec import Struct, field
from rich.table import Table

from fencelock.actors.api.map import ENTRY_VALUE_BYTES_MAX
from fencelock.actors.error import ConfigError
from fencelock.verification.bench.job import Operation
from fencelock.verification.bench.machine import MachineInfo
from fencelock.verification.bench.mixed import us_of
from fencelock.verification.bench.report import line_chart

BATCHES = 20
"""Parts of a run over which a line is fitted: each is long enough to be independent of the next."""

T_975 = 2.101
"""The 97.5 % quantile of Student's t with `BATCHES` - 2 degrees of freedom."""

CLIENTS = "clients"
"""The processes that make the load, in the place of a node."""

ALL = "all"
"""All operations together, in the place of one."""

Latencies = Counter[int]
"""The number of operations by bucket of latency."""


CONNECTIONS_MAX = 1_024
IN_FLIGHT_MAX = 256
NAMES_MAX = 1_000
SECONDS_MAX = 86_400.0
RATE_MIN, RATE_MAX = 1.0, 1e6

POINTS_MIN, POINTS_MAX = 20, 600
"""Points of a series: intervals are a second, or as long as these bounds need."""


class Place(StrEnum):
    """The nodes of the connections."""

    FREE = "free"
    """Each client chooses its node, as clients do by default: it moves to the leader."""
    LEADER = "leader"
    FOLLOWER = "follower"
    """At the followers, in turn."""
    SPREAD = "spread"
    """At all nodes, in turn."""


class LoadOptions(Struct, frozen=True, kw_only=True):
    """A load, whatever it is for.

    Attributes:
        connections: the number of clients, 1 to `CONNECTIONS_MAX`.
        in_flight: operations of each at a time, 1 to `IN_FLIGHT_MAX`.
        names: locks or entries that each uses, 1 to `NAMES_MAX`.
        shared: whether all use the same.
        payload: the size of values (bytes), up to that of an entry.
        local_reads: whether reads may be a second old, from the node of the connection.
        seconds: the duration (s).
        rate: operations that begin in a second, `RATE_MIN` to `RATE_MAX`; None if the next one of a
            client begins when the last one ends.

    Raises:
        ConfigError: something is out of its limits.

    """

    mix: dict[Operation, int] = field(default_factory=lambda: {Operation.LOCK: 1})
    connections: int = 10
    in_flight: int = 1
    names: int = 10
    shared: bool = False
    payload: int = 100
    local_reads: bool = False
    at: Place = Place.FREE
    seconds: float = 10.0
    rate: float | None = None

    def __post_init__(self) -> None:
        limits: dict[str, tuple[float, float, float]] = {
            "connections": (self.connections, 1, CONNECTIONS_MAX),
            "in-flight": (self.in_flight, 1, IN_FLIGHT_MAX),
            "names": (self.names, 1, NAMES_MAX),
            "payload": (self.payload, 0, ENTRY_VALUE_BYTES_MAX),
            "seconds": (self.seconds, 1, SECONDS_MAX),
        }
        if self.rate is not None:
            limits["rate"] = self.rate, RATE_MIN, RATE_MAX
        for name, (value, low, high) in limits.items():
            if not low <= value <= high:
                raise ConfigError(f"--{name} is {value:g}, and must be from {low:,} to {high:,g}")

    @property
    def point_s(self) -> float:
        """The time between two points of the series (s)."""
        return max(self.seconds / POINTS_MAX, min(1.0, self.seconds / POINTS_MIN))

    @property
    def period_s(self) -> float:
        """The time between two operations of one thread (s); 0 without a rate."""
        return self.connections * self.in_flight / self.rate if self.rate else 0.0

    @property
    def points(self) -> int:
        return round(self.seconds / self.point_s)

    def plan(self, subject: str) -> LoadPlan:
        return LoadPlan(**msgspec.structs.asdict(self), subject=subject, interval_s=self.point_s)


class LoadPlan(LoadOptions, frozen=True, kw_only=True):
    """A load, and what it is for.

    Attributes:
        subject: what is measured, in words: the cluster, or the Redis server.
        interval_s: the time between two points of the series.

    """

    subject: str
    interval_s: float

    def in_words(self) -> str:
        whole = sum(self.mix.values())
        shares = [f"{100 * share / whole:.0f} % {one}" for one, share in self.mix.items()]
        size = f" of {self.payload} bytes" if set(self.mix) != {Operation.LOCK} else ""
        local = ", local reads" if self.local_reads and Operation.GET in self.mix else ""
        many = f"{self.connections} connection{'s' if self.connections > 1 else ''}"
        many += f" x {self.in_flight}" if self.in_flight > 1 else ""
        rate = f", {self.rate:,g}/s" if self.rate else ""
        return f"{self.subject}: {', '.join(shares)}{size}{local}, {many}, {self.at}{rate}"


class Latency(Struct, frozen=True):
    """Operations of one kind at nodes of one role.

    Attributes:
        operation: the kind, or `ALL`.
        at: leader or follower; empty if clients choose their nodes.
        p50_us: the median of their latency, within 1 % as the others (us).

    """

    operation: str
    at: str
    times: int
    per_s: float
    p50_us: float
    p95_us: float
    p99_us: float
    max_us: float


class ProcessUse(Struct, frozen=True):
    """The use of this machine by a node, or by the `CLIENTS`.

    Attributes:
        at: leader or follower.
        cores: processor time for each second: 1 is one core.
        us_per_operation: processor time for each operation of the whole load (us).
        memory_mb: the most resident memory.

    """

    process: str
    at: str
    cores: float
    us_per_operation: float
    memory_mb: float


class Trend(Struct, frozen=True):
    """The change of throughput from the begin to the end of a run, by a line of regression.

    Attributes:
        percent: of the mean.
        low: the end of the interval that has the true change with 95 % certainty.
        high: its other end.

    """

    percent: float
    low: float
    high: float

    def within(self, percent: float) -> bool:
        """Return whether the throughput was flat: the whole interval is within ``percent``."""
        return -percent <= self.low and self.high <= percent


class LoadResult(Struct, frozen=True, kw_only=True):
    """All that was measured.

    Attributes:
        machine: of the clients, and its state before.
        begun: the date and time of the start (UTC, ISO 8601).
        latencies: for each operation and role, and for `ALL`.
        errors: the number of errors by ``operation error``.
        processes: the nodes that run on this machine, and the clients.
        at_s: the end of each interval (s).
        per_s: operations a second in each interval, by operation and for `ALL`.
        p50_us: medians, and ``p99_us`` 99th percentiles, in each interval (us); 0 without any.
        failed: errors in each interval.
        cores: processor time of each process in each interval, in cores.
        memory_mb: resident memory of each process at the end of each interval.
        trend: None of a run with fewer than `BATCHES` intervals.

    """

    plan: LoadPlan
    machine: MachineInfo
    begun: str
    latencies: list[Latency]
    errors: dict[str, int]
    processes: list[ProcessUse]
    at_s: list[float]
    per_s: dict[str, list[float]]
    p50_us: dict[str, list[float]]
    p99_us: dict[str, list[float]]
    failed: list[int]
    cores: dict[str, list[float]]
    memory_mb: dict[str, list[float]]
    trend: Trend | None

    @property
    def rate(self) -> float:
        return next((one.per_s for one in self.latencies if one.operation == ALL), 0.0)


def quantile_us(latencies: Latencies, share: float) -> float:
    """Return the latency that ``share`` of the operations did not exceed (us); 0 without any."""
    wanted = math.ceil(share * latencies.total())
    for bucket in sorted(latencies):
        wanted -= latencies[bucket]
        if wanted <= 0:
            return us_of(bucket)
    return 0.0


def latency_of(operation: str, at: str, latencies: Latencies, seconds: float) -> Latency:
    shares = (quantile_us(latencies, share) for share in (0.5, 0.95, 0.99, 1.0))
    times = latencies.total()
    return Latency(operation, at, times, times / seconds, *shares)


def trend_of(rates: Sequence[float]) -> Trend | None:
    """Fit a line to the throughput over the run; None if there are fewer than `BATCHES` rates.

    Rates of neighbouring seconds depend on each other. So the line is fitted to the means of
    `BATCHES` parts, whose errors hardly do.
    """
    size = len(rates) // BATCHES
    if not size or not any(rates):
        return None
    means = [statistics.fmean(rates[n * size : (n + 1) * size]) for n in range(BATCHES)]
    places = range(BATCHES)
    slope, start = statistics.linear_regression(places, means)
    squares = sum((mean - start - slope * at) ** 2 for at, mean in zip(places, means, strict=True))
    middle = (BATCHES - 1) / 2
    error = math.sqrt(squares / (BATCHES - 2) / sum((at - middle) ** 2 for at in places))
    whole = 100 * (BATCHES - 1) / statistics.fmean(means)
    bound = T_975 * error
    return Trend(whole * slope, whole * (slope - bound), whole * (slope + bound))


def read_result(path: Path) -> LoadResult:
    """Return the result in a file that ``--json`` wrote.

    Raises:
        ConfigError: there is no such file, or it has no such result.

    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=LoadResult)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is no result of `fencelock bench load`: {error}") from error


def as_csv(result: LoadResult) -> str:
    columns: dict[str, Sequence[float]] = {"seconds": result.at_s}
    columns |= {f"{name} 1/s": rates for name, rates in result.per_s.items()}
    columns |= {f"{name} p50 us": values for name, values in result.p50_us.items()}
    columns |= {f"{name} p99 us": values for name, values in result.p99_us.items()}
    columns["errors"] = result.failed
    columns |= {f"{name} cores": values for name, values in result.cores.items()}
    columns |= {f"{name} MB": values for name, values in result.memory_mb.items()}
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [f"{value:.6g}" for value in row] for row in zip(*columns.values(), strict=True)
    )
    return text.getvalue()


def as_svg(result: LoadResult) -> str:
    series = {
        name: list(zip(result.at_s, rates, strict=True))
        for name, rates in result.per_s.items()
        if name != ALL or len(result.plan.mix) > 1
    }
    machine = result.machine
    about = f"{result.begun[:10]}, {machine.cores} cores, load {machine.load:.1f} before"
    return line_chart(result.plan.in_words(), series, "seconds", "operations a second", about)


def tables(result: LoadResult) -> list[Table]:
    found = Table(title=result.plan.in_words())
    for head in ("operation", "at", "times", "1/s", "p50 us", "p95 us", "p99 us", "max us"):
        found.add_column(head, justify="left" if head in ("operation", "at") else "right")
    for one in result.latencies:
        figures = (one.times, one.per_s, one.p50_us, one.p95_us, one.p99_us, one.max_us)
        found.add_row(one.operation, one.at, *(f"{figure:,.0f}" for figure in figures))
    shown = [found]
    if result.processes:
        used = Table(title="processor time and memory")
        for head in ("process", "at", "cores", "us an operation", "MB"):
            used.add_column(head, justify="left" if head in ("process", "at") else "right")
        for use in result.processes:
            cells = (f"{use.cores:.2f}", f"{use.us_per_operation:.0f}", f"{use.memory_mb:.0f}")
            used.add_row(use.process, use.at, *cells)
        shown.append(used)
    return shown


def remarks(result: LoadResult) -> list[str]:
    errors = ", ".join(f"{times:,} x {what}" for what, times in sorted(result.errors.items()))
    lines = [f"errors: {errors or 'none'}"]
    if result.trend is not None:
        lines.append(
            f"throughput changed by {result.trend.percent:+.1f} % over the run, "
            f"{result.trend.low:+.1f} to {result.trend.high:+.1f} % with 95 % certainty"
        )
    return [*lines, result.machine.in_words()]


def comparison(before: LoadResult, after: LoadResult) -> Table:
    """Return a table of two results beside each other; ratios are after by before."""
    compared = Table(title=f"before: {before.plan.in_words()}\nafter: {after.plan.in_words()}")
    for head in ("operation", "at", "figure", "before", "after", "ratio"):
        compared.add_column(
            head, justify="right" if head in ("before", "after", "ratio") else "left"
        )
    earlier = {(one.operation, one.at): one for one in before.latencies}
    for one in after.latencies:
        other = earlier.get((one.operation, one.at))
        for figure in ("per_s", "p50_us", "p99_us"):
            new = float(getattr(one, figure))
            old = float(getattr(other, figure)) if other is not None else 0.0
            ratio = f"{new / old:.2f}x" if old else ""
            cells = (f"{old:,.0f}" if other is not None else "", f"{new:,.0f}", ratio)
            compared.add_row(one.operation, one.at, figure, *cells)
    return compared
