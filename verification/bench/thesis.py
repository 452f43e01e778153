"""The experiments of the Warlock thesis (chapter 8), repeated on one machine.

Source: Sukumar Yethadka, *A Distributed Lock Manager Using Paxos*, chapter 8: clusters of 3, 5 and
7 servers, a separate server that makes the load, and ten experiments. Here nodes and clients share
one machine, so a figure is the cost of all of them together. The report shows for each what the
author measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from fencelock.verification.bench.job import MIXES, Operation, mix_of
from fencelock.verification.bench.load_result import (
    ALL,
    CLIENTS,
    LoadOptions,
    LoadResult,
    Place,
    as_svg,
)
from fencelock.verification.bench.load_run import measure_load, own_cluster
from fencelock.verification.bench.members import BenchFailedError
from fencelock.verification.bench.report import bar_chart, line_chart

NODES = 3
LONG = "over-time"
"""The experiment whose run is long."""

READS_TIMES_WRITES = 5
"""The author's requirement (6.5): the read load may be more than this many times the write load."""


class Run(NamedTuple):
    """One measured load of an experiment."""

    name: str
    load: LoadOptions
    at: float = 0.0
    """Its place on the horizontal axis, where there is one."""
    nodes: int = NODES
    durable: bool = True


class Experiment(NamedTuple):
    """One experiment. Its key is the file name of its chart."""

    key: str
    title: str
    author: str
    """The author's figures."""
    runs: tuple[Run, ...]
    axis: str = ""
    """The text of the horizontal axis; empty for bars."""
    logarithmic: bool = False


class Measured(NamedTuple):
    """An experiment and the results of its runs, in order."""

    experiment: Experiment
    """With the runs that succeeded."""
    results: tuple[LoadResult, ...]
    failed: tuple[str, ...] = ()
    """The names of the runs that did not."""


TEN = LoadOptions(connections=10, in_flight=10)
"""Ten connections, each of which sends many requests at a time, as in the thesis (8.2.1)."""
HUNDRED = LoadOptions(connections=100, at=Place.SPREAD, local_reads=True)


def _of(mix: str, at: Place, base: LoadOptions = TEN, *, local: bool = False) -> LoadOptions:
    return replace(base, mix=mix_of(mix), at=at, local_reads=local)


_MIXED = _of("thesis", Place.SPREAD, local=True)

EXPERIMENTS = (
    Experiment(
        "kinds",
        "1 to 5: writes, reads and both, at the leader and at all nodes",
        "Some 5,000 writes, 14,000 reads and 8,000 mixed requests a second (2/3 reads, 1/6 writes, "
        "1/6 deletes), with 10 connections and 3 servers of 20 compute units (c1.xlarge). Reads "
        "are answered by any server, which may be behind.",
        (
            Run("1. writes, leader", _of("put", Place.LEADER)),
            Run("2. reads, leader", _of("get", Place.LEADER)),
            Run("2. local reads, leader", _of("get", Place.LEADER, local=True)),
            Run("3. writes, all nodes", _of("put", Place.SPREAD)),
            Run("4. reads, all nodes", _of("get", Place.SPREAD)),
            Run("4. local reads, all nodes", _of("get", Place.SPREAD, local=True)),
            Run("5. mixed, all nodes", _MIXED),
        ),
    ),
    Experiment(
        "connections",
        "6: the number of connections",
        "Throughput rises up to 64 connections and stays there; some requests timed out at 1,024 "
        "(4/5 reads, 1/5 writes).",
        tuple(
            Run(f"{many:,}", replace(HUNDRED, mix=MIXES["reads"], connections=many), many)
            for many in (1, 4, 16, 64, 256, 1_024)
        ),
        "connections",
        logarithmic=True,
    ),
    Experiment(
        "ratio",
        "7: the share of reads",
        "The more reads, the more requests a second, with 100 connections.",
        tuple(
            Run(
                f"{reads} %",
                replace(
                    HUNDRED,
                    mix={
                        kind: share
                        for kind, share in ((Operation.GET, reads), (Operation.PUT, 100 - reads))
                        if share
                    },
                ),
                reads,
            )
            for reads in (0, 20, 50, 80, 90, 100)
        ),
        "reads, percent",
    ),
    Experiment(
        "payload",
        "8: the size of values",
        "A nearly linear fall of throughput, and rise of latency, over exponentially growing sizes "
        "(4/5 reads, 1/5 writes).",
        tuple(
            Run(f"{size:,} bytes", replace(HUNDRED, mix=MIXES["reads"], payload=size), size)
            for size in (16, 64, 256, 1_024, 4_096, 16_384, 65_536)
        ),
        "bytes",
        logarithmic=True,
    ),
    Experiment(
        "durability",
        "9: where the data is",
        "Compared the back ends of the store (ETS, Redis). fencelock has one store, in memory; the "
        "choice is whether its log is synced to disk.",
        (
            Run("fsync, writes", _of("put", Place.LEADER)),
            Run("memory, writes", _of("put", Place.LEADER), durable=False),
            Run("fsync, mixed", _MIXED),
            Run("memory, mixed", _MIXED, durable=False),
        ),
    ),
    Experiment(
        "place",
        "10: the place of the client",
        "Moved the client among the servers. Requests at the master take less time, since they "
        "save a message.",
        tuple(
            Run(f"{kind}, {at}", _of(mix, at, local=local))
            for kind, mix, local in (("writes", "put", False), ("mixed", "thesis", True))
            for at in Place
        ),
    ),
    Experiment(
        "size",
        "The size of the cluster",
        "Used clusters of 3, 5 and 7 servers (m1.large); more servers mean fewer writes (9.4.2).",
        tuple(
            Run(f"{nodes} nodes, {kind}", load, nodes=nodes)
            for kind, load in (("writes", _of("put", Place.LEADER)), ("mixed", _MIXED))
            for nodes in (3, 5, 7)
        ),
    ),
    Experiment(
        LONG,
        "Throughput over time",
        "Each kind ran for an hour, and the throughput stayed the same.",
        (Run("mixed, all nodes", _MIXED),),
    ),
)


def repeat(
    folder: Path, seconds: float, long_s: float, only: Sequence[str], say: Callable[[str], None]
) -> list[Measured]:
    """Make the experiments, and write their report and charts into ``folder``.

    Each run takes ``seconds``, and the run over time ``long_s``. ``only`` has the keys of the
    experiments to make; empty for all.

    Raises:
        BenchFailedError: a node failed.

    """
    chosen = [one for one in EXPERIMENTS if not only or one.key in only]
    found: dict[tuple[str, int], LoadResult] = {}
    clusters = dict.fromkeys((run.nodes, run.durable) for one in chosen for run in one.runs)
    for nodes, durable in clusters:
        say(f"starting {nodes} nodes")
        with tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name, ExitStack() as stack:
            subject = own_cluster(stack, Path(name), "paxos", nodes, durable=durable)
            for one in chosen:
                for number, run in enumerate(one.runs):
                    if (run.nodes, run.durable) != (nodes, durable):
                        continue
                    load = replace(run.load, seconds=long_s if one.key == LONG else seconds)
                    say(f"{one.title}; {run.name}")
                    try:
                        found[one.key, number] = measure_load(subject, load, Path(name), say)
                    except BenchFailedError as error:
                        say(f"{run.name} failed: {error}")
    measured: list[Measured] = []
    for one in chosen:
        numbers = [number for number in range(len(one.runs)) if (one.key, number) in found]
        runs = tuple(one.runs[number] for number in numbers)
        results = tuple(found[one.key, number] for number in numbers)
        if results:
            failed = tuple(run.name for run in one.runs if run not in runs)
            measured.append(Measured(one._replace(runs=runs), results, failed))
    for each in measured:
        for file, text in charts(each):
            (folder / file).write_text(text, encoding="utf-8")
    (folder / "thesis.md").write_text(report(measured), encoding="utf-8")
    return measured


def charts(measured: Measured) -> Iterator[tuple[str, str]]:
    one, results, _ = measured
    about = _conditions(results)
    if one.key == LONG:
        yield f"{one.key}.svg", as_svg(results[0])
    elif not one.axis:
        bars = [(run.name, result.rate) for run, result in zip(one.runs, results, strict=True)]
        yield f"{one.key}.svg", bar_chart(one.title, bars, "operations a second", about)
    else:
        at = [run.at for run in one.runs]
        rates = {ALL: list(zip(at, [result.rate for result in results], strict=True))}
        yield (
            f"{one.key}.svg",
            line_chart(
                one.title,
                rates,
                one.axis,
                "operations a second",
                about,
                logarithmic=one.logarithmic,
            ),
        )
        latency: dict[str, list[tuple[float, float]]] = {}
        for place, result in zip(at, results, strict=True):
            for kind in result.plan.mix:
                of_kind = result.p50_us[kind]
                latency.setdefault(kind, []).append((place, sum(of_kind) / len(of_kind) / 1_000))
        yield (
            f"{one.key}-latency.svg",
            line_chart(one.title, latency, one.axis, "p50, ms", about, logarithmic=one.logarithmic),
        )


def report(measured: Sequence[Measured]) -> str:
    lines = [
        "# The experiments of the Warlock thesis, on one machine",
        "",
        "Written by `fencelock bench thesis`. Nodes and clients share the machine, and on few "
        "cores the clients take more of it than the nodes do. So compare the rows of one table, "
        "not these figures with the author's, who had a machine for each.",
    ]
    for one in measured:
        lines += ["", f"## {one.experiment.title}", "", f"The author: {one.experiment.author}", ""]
        lines += [f"Here: {_conditions(one.results)}", "", *_table(one), ""]
        if one.failed:
            lines += [f"Not measured, since a client process failed: {', '.join(one.failed)}.", ""]
        lines += [f"![{one.experiment.title}]({file})" for file, _ in charts(one)]
        lines += _findings(one)
    return "\n".join([*lines, ""])


def _conditions(results: Sequence[LoadResult]) -> str:
    machine, plan = results[0].machine, results[0].plan
    loads = [result.machine.load for result in results]
    return (
        f"{plan.seconds:g} s each, {results[0].begun[:10]}, {machine.cores} cores "
        f"({machine.processor}), load {min(loads):.1f} to {max(loads):.1f} before, "
        f"append and sync {machine.sync_us:.0f} us"
    )


def _table(measured: Measured) -> Iterator[str]:
    yield "| run | 1/s | p50 ms | p99 ms | errors | nodes, us of processor an operation | clients |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for run, result in zip(measured.experiment.runs, measured.results, strict=True):
        whole = result.latencies[-1]
        used = {one.process: one.us_per_operation for one in result.processes}
        clients = used.pop(CLIENTS, 0.0)
        latency = f"{whole.p50_us / 1e3:.1f} | {whole.p99_us / 1e3:.1f}"
        errors = f"{sum(result.errors.values()):,}"
        cost = f"{sum(used.values()):,.0f} | {clients:,.0f}"
        yield f"| {run.name} | {whole.per_s:,.0f} | {latency} | {errors} | {cost} |"


def _findings(measured: Measured) -> Iterator[str]:
    by_name = {
        run.name: result
        for run, result in zip(measured.experiment.runs, measured.results, strict=True)
    }
    if measured.experiment.key == "kinds" and not measured.failed:
        yield from ["", *_latencies(by_name["5. mixed, all nodes"]), ""]
        yield _reads_and_writes(by_name["1. writes, leader"], by_name["4. local reads, all nodes"])
    if measured.experiment.key == LONG and (trend := measured.results[0].trend) is not None:
        yield ""
        yield (
            f"A line of regression changes by {trend.percent:+.1f} % over the run, with 95 % "
            f"certainty by {trend.low:+.1f} to {trend.high:+.1f} %."
        )


def _latencies(result: LoadResult) -> Iterator[str]:
    yield "| mixed, all nodes | at | p50 ms | p99 ms |"
    yield "| --- | --- | --- | --- |"
    for one in result.latencies[:-1]:
        yield f"| {one.operation} | {one.at} | {one.p50_us / 1e3:.1f} | {one.p99_us / 1e3:.1f} |"


def _reads_and_writes(writes: LoadResult, reads: LoadResult) -> str:
    """Return how many reads are served for a write: measured here, and on machines of their own."""
    leader = max(one.us_per_operation for one in writes.processes if one.process != CLIENTS)
    every = sum(one.us_per_operation for one in reads.processes if one.process != CLIENTS)
    times = NODES * leader / every
    verdict = "meets" if times >= READS_TIMES_WRITES else "misses"
    return (
        f"Local reads at all nodes are {reads.rate / writes.rate:.1f} times the writes here, where "
        f"all share the cores with their clients. A write takes {leader:.0f} us of the leader's "
        f"processor, a local read {every:.0f} us of one node's. So {NODES} nodes with a core each, "
        f"and clients elsewhere, could serve {times:.1f} times as many reads as writes, which "
        f"{verdict} the author's requirement of {READS_TIMES_WRITES}."
    )
