"""``fencelock bench``: measurements on this machine, beside a known reference, in one run."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fencelock.actors.error import ConfigError
from fencelock.actors.timing import ROUND_TRIP_MS_MAX
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.target import TargetOptions
from fencelock.cluster.guarantee import PROMISES
from fencelock.verification.bench import locks as lock_bench
from fencelock.verification.bench import objects as object_bench
from fencelock.verification.bench import profile as pair_profile
from fencelock.verification.bench.bakery import compare as compare_bakery
from fencelock.verification.bench.bakery import steps_table
from fencelock.verification.bench.failover import LeaderDeath, measure_deaths
from fencelock.verification.bench.job import MIXES, mix_of
from fencelock.verification.bench.load_result import (
    CONNECTIONS_MAX,
    IN_FLIGHT_MAX,
    NAMES_MAX,
    RATE_MAX,
    RATE_MIN,
    LoadOptions,
    LoadResult,
    Place,
    as_csv,
    as_svg,
    comparison,
    read_result,
    remarks,
    tables,
)
from fencelock.verification.bench.load_run import (
    Subject,
    measure_load,
    own_cluster,
    redis_server,
    running_cluster,
)
from fencelock.verification.bench.locks import LockBenchPlan, Part
from fencelock.verification.bench.machine import CORES_MAX, CORES_MIN
from fencelock.verification.bench.objects import ObjectPart
from fencelock.verification.bench.report import readings_table, table_of
from fencelock.verification.bench.runtime import measure, share_of_a_core
from fencelock.verification.bench.thesis import EXPERIMENTS, repeat

PROTOCOLS = ", ".join(PROMISES)


class Durability(StrEnum):
    """The places where nodes keep their journals."""

    FSYNC = "fsync"
    MEMORY = "memory"


DurabilityOption = Annotated[
    Durability, typer.Option(help="Sync every write to disk, or keep everything in memory.")
]


@contextlib.contextmanager
def measuring(as_json: bool = False) -> Generator[Callable[[str], None]]:
    """Yield what shows the current measurement: on a terminal in place, in a log as lines.

    SIGTERM ends it in order, as Ctrl-C does, so that no process is left behind.
    """

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    console = Console(stderr=as_json)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        if console.is_terminal:
            with console.status("measuring") as status:
                yield status.update
        else:
            yield lambda what: console.print(what, soft_wrap=True)
    finally:
        signal.signal(signal.SIGTERM, before)


def show(
    texts: Sequence[Table | str],
    plain: object = None,
    as_json: bool = False,
    *,
    met: bool = True,
) -> None:
    """Print results, on standard error if ``plain`` follows as JSON; exit 1 if a bar is missed."""
    console = Console(stderr=as_json)
    for text in texts:
        console.print(text, soft_wrap=isinstance(text, str))
    if as_json:
        typer.echo(json.dumps(plain))
    if not met:
        raise typer.Exit(ExitStatus.FAILED)


OWN_NODES = 3

FileOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--write",
        help="Write the result to this file: all of it as .json, the series as .csv, a chart of "
        "throughput over time as .svg. Can be repeated.",
        metavar="FILE",
    ),
]


def load(
    connect: Annotated[
        str | None,
        typer.Option(
            help="A running cluster, by addresses of its nodes, separated by commas. "
            "FENCELOCK_CONNECT does not count: a load is put on no cluster that is not named.",
            metavar="ADDRESSES",
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The name of that cluster.", envvar="FENCELOCK_CLUSTER")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Your key file, if it uses keys.", envvar="FENCELOCK_KEY", metavar="FILE"
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=9, help="Instead, start so many nodes here. The default, without --connect."
        ),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(help="Instead, a Redis server, with redis-py's Lock.", metavar="URL"),
    ] = None,
    mix: Annotated[
        str,
        typer.Option(help=f"The operations: {', '.join(MIXES)}; or shares, as in get=4,put=1."),
    ] = "lock",
    connections: Annotated[
        int, typer.Option(min=1, max=CONNECTIONS_MAX, help="The number of clients.")
    ] = 10,
    in_flight: Annotated[
        int, typer.Option(min=1, max=IN_FLIGHT_MAX, help="Operations of each client at a time.")
    ] = 1,
    at: Annotated[
        Place,
        typer.Option(help="Where clients stay. free: they choose, and move to the leader."),
    ] = Place.FREE,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="The duration (s).")] = 10.0,
    rate: Annotated[
        float | None,
        typer.Option(
            min=RATE_MIN,
            max=RATE_MAX,
            help="Begin so many operations a second in all, and measure each from when it was due. "
            "By default, the next one of a client begins when the last one ends.",
        ),
    ] = None,
    payload: Annotated[int, typer.Option(min=0, help="The size of values (bytes).")] = 100,
    names: Annotated[
        int, typer.Option(min=1, max=NAMES_MAX, help="Locks or entries that each client uses.")
    ] = 10,
    shared: Annotated[
        bool, typer.Option("--shared", help="All clients use the same locks and entries.")
    ] = False,
    local_reads: Annotated[
        bool,
        typer.Option("--local-reads", help="A get may be answered by any node, up to 1 s late."),
    ] = False,
    protocol: Annotated[
        str, typer.Option(help=f"The protocol of nodes that are started: {PROTOCOLS}.")
    ] = "paxos",
    durability: DurabilityOption = Durability.FSYNC,
    observers: Annotated[
        int, typer.Option(min=0, max=5, help="Further nodes to start, which only read.")
    ] = 0,
    node_cores: Annotated[
        float | None,
        typer.Option(
            min=CORES_MIN,
            max=CORES_MAX,
            help="Limit each node that is started to so much of a core, as if nodes and clients "
            "had machines of their own. Linux, as root.",
        ),
    ] = None,
    flat: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Exit with 1 unless throughput changed by less than this over the run (%), with "
            "95 % certainty.",
        ),
    ] = None,
    write: FileOption = None,
) -> None:
    """Put a [bold]load[/bold] on a cluster, and show its throughput and latency.

    The cluster is the one of --connect, or one of its own.
    Entries and locks have names of their own, and are gone at the end.
    Processor time and memory are shown of nodes that run on this machine.
    Ctrl-C ends the run early; what was measured is shown.

    A lock is acquired and released: both together are one operation.

    For example:

      [cyan]fencelock bench load --connect tcp://a:4040,tcp://b:4040 --mix thesis[/cyan]

      [cyan]fencelock bench load --nodes 5 --mix get=9,put=1 --connections 64 --at spread[/cyan]

      [cyan]fencelock bench load --nodes 5 --node-cores 0.1 --mix put --at leader[/cyan]

      [cyan]fencelock bench load --rate 2000 --seconds 60 --write result.json[/cyan]

      [cyan]fencelock bench load --seconds 3600 --flat 5 --write hour.json --write hour.svg[/cyan]

      [cyan]fencelock bench load --redis redis://127.0.0.1:6379 --mix lock[/cyan]

    """
    options = LoadOptions(
        mix=mix_of(mix),
        connections=connections,
        in_flight=in_flight,
        names=names,
        shared=shared,
        payload=payload,
        local_reads=local_reads,
        at=at,
        seconds=seconds,
        rate=rate,
    )
    _check_files(write or [])
    with (
        measuring() as say,
        tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name,
        ExitStack() as stack,
    ):
        folder = Path(name)
        subject: Subject
        chosen = {"--connect": connect, "--nodes": nodes, "--redis": redis}
        named = [option for option, value in chosen.items() if value is not None]
        if len(named) > 1:
            raise ConfigError(f"{' and '.join(named)} exclude each other: leave one out")
        if node_cores is not None and (connect or redis):
            raise ConfigError(f"--node-cores is for nodes that are started: leave out {named[0]}")
        if redis is not None:
            subject = redis_server(redis)
        elif connect is not None:
            subject = running_cluster(stack, TargetOptions(connect, cluster, key).target())
        else:
            say(f"starting {nodes or OWN_NODES} nodes")
            durable = durability is Durability.FSYNC
            subject = own_cluster(
                stack,
                folder,
                protocol,
                nodes or OWN_NODES,
                durable=durable,
                observers=observers,
                node_cores=node_cores,
            )
        result = measure_load(subject, options, folder, say)
    for file in write or []:
        write_result(result, file)
    steady = result.trend is not None and result.trend.within(flat or 0)
    show([*tables(result), *remarks(result)], met=flat is None or steady)


def compare(
    before: Annotated[Path, typer.Argument(help="A result of `bench load --write`, as .json.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """Show two results of `fencelock bench load` [bold]side by side[/bold].

    Both are JSON files. Ratios are after by before.

    For example:

      [cyan]fencelock bench compare before.json after.json[/cyan]

    """
    Console().print(comparison(read_result(before), read_result(after)))


def thesis(
    folder: Annotated[Path, typer.Argument(help="Where to write the report and its charts.")],
    seconds: Annotated[float, typer.Option(min=1, max=3_600, help="Each run (s).")] = 10.0,
    long: Annotated[
        float, typer.Option(min=1, max=86_400, help="The run that shows throughput over time (s).")
    ] = 600.0,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this: {', '.join(one.key for one in EXPERIMENTS)}."),
    ] = None,
) -> None:
    """Repeat the ten experiments of the [bold]Warlock thesis[/bold] on this machine.

    Some 40 runs, on clusters of 3, 5 and 7 nodes: a quarter of an hour, and the long run.
    The report, thesis.md, shows what the author measured beside what was measured here.

    For example:

      [cyan]fencelock bench thesis ./thesis --seconds 30 --long 3600[/cyan]

    """
    unknown = set(only or ()) - {one.key for one in EXPERIMENTS}
    if unknown:
        raise ConfigError(f"--only: there is no experiment {', '.join(sorted(unknown))}")
    folder.mkdir(parents=True, exist_ok=True)
    with measuring() as say:
        repeat(folder, seconds, long, only or (), say)
    show([f"written: {folder / 'thesis.md'}"])


def _check_files(files: list[Path]) -> None:
    for file in files:
        if file.suffix not in (".json", ".csv", ".svg"):
            raise ConfigError(f"--write is {file}: give a name that ends in .json, .csv or .svg")
        if not file.absolute().parent.is_dir():
            raise ConfigError(f"--write is {file}: there is no folder {file.parent}")


def write_result(result: LoadResult, file: Path) -> None:
    match file.suffix:
        case ".csv":
            text = as_csv(result)
        case ".svg":
            text = as_svg(result)
        case _:
            text = msgspec.json.format(msgspec.json.encode(result)).decode() + "\n"
    file.write_text(text, encoding="utf-8")


JsonOption = Annotated[
    bool, typer.Option("--json", help="End with one JSON object on the last line.")
]
SecondsOption = Annotated[
    float, typer.Option(min=0.2, max=3600, help="How long each measurement takes (s).")
]
RoundsOption = Annotated[int, typer.Option(min=1, max=50, help="Rounds of each comparison.")]


app = typer.Typer(no_args_is_help=True, help="Measure fencelock on this machine.")


@app.callback()
def bench() -> None:
    """Measure fencelock on this machine.

    Machines are noisy. Trust ratios between alternating rounds of one run, and their medians.
    """


@app.command()
def runtime(
    rounds: RoundsOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Compare our one-thread runtime with Pykka's own threads; exit 1 if a bar is missed.

    The command measures messages between two roles, requests from one thread and
    from sixteen, an idle node, and ten thousand roles in one process.
    """
    with measuring(as_json) as say:
        figures = measure(rounds=rounds, idle=share_of_a_core, say=say)
    table = table_of("fencelock bench runtime", "fencelock", "pykka threads", figures)
    met = all(figure.met for figure in figures)
    show([table], [asdict(figure) for figure in figures], as_json, met=met)


@app.command()
def locks(
    protocol: Annotated[str, typer.Option(help=f"The protocol: {PROTOCOLS}.")] = "paxos",
    nodes: Annotated[int, typer.Option(min=1, max=9, help="Number of node processes.")] = 3,
    durability: DurabilityOption = Durability.FSYNC,
    seconds: SecondsOption = 5.0,
    kills: Annotated[
        int, typer.Option(min=1, max=1000, help="Failover: how often the leader is killed.")
    ] = 5,
    held: Annotated[
        int, typer.Option(min=100, max=200_000, help="Memory: the number of locks held.")
    ] = 100_000,
    only: Annotated[
        list[Part] | None, typer.Option(help="Measure only this; may be given several times.")
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Instead, show where the time of a single client's pair goes."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure [bold]locks[/bold] over real node and client processes on this machine.

    A pair is an acquire and its release. Nodes listen on loopback and keep their
    journals in a temporary folder; set TMPDIR to choose it. The command removes
    everything at its end, also on Ctrl-C. Failover, reads and memory are measured
    for paxos only, and failover only with fsync.

    For example:

      [cyan]fencelock bench locks --seconds 10[/cyan]

      [cyan]fencelock bench locks --only failover --kills 10 --json[/cyan]

      [cyan]fencelock bench locks --profile[/cyan]

    """
    plan = LockBenchPlan(
        protocol=protocol,
        nodes=nodes,
        durable=durability is Durability.FSYNC,
        seconds=seconds,
        kills=kills,
        held=held,
        parts=tuple(part for part in Part if not only or part in only),
    )
    if profile:
        _profile(plan, as_json)
        return
    with measuring(as_json) as say:
        report = lock_bench.measure(plan, say)
    table = readings_table(f"fencelock bench locks, {plan.in_words()}", report.readings)
    show([table, report.machine.in_words()], report.as_plain(), as_json)


@app.command()
def failover(
    kind: Annotated[
        list[LeaderDeath] | None,
        typer.Option(help="Measure only this; may be given several times."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=3, max=9, help="Number of node processes.")] = 3,
    times: Annotated[int, typer.Option(min=1, max=1000, help="How often the leader dies.")] = 10,
    one_way_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=ROUND_TRIP_MS_MAX // 2,
            help="Delay of every message, between nodes and to clients (ms). Above 25, the nodes' "
            "round_trip_ms is twice as long.",
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure for how long no lock is granted when the leader of paxos dies.

    The leader is killed, stopped, or cut off silently. Nodes and clients are
    processes that connect through relays, which can stop forwarding. The time
    counts from the last grant before the death to the first after it.
    """
    with measuring(as_json) as say:
        readings = measure_deaths(tuple(kind or LeaderDeath), nodes, times, say, one_way_ms)
    rounds = {reading.key: reading.rounds for reading in readings}
    figures = {reading.key: reading.value for reading in readings}
    table = readings_table(f"fencelock bench failover, {nodes} nodes", readings)
    show([table], {"figures": figures, "rounds": rounds}, as_json)


@app.command()
def bakery(
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Compare [bold]bakery[/bold] with paxos in memory; exit 1 if a bar is missed.

    Three nodes of each run in turns. The command measures a pair (acquire and
    release) and hand-overs of one lock between clients. It also counts the
    messages of a lock and shows them beside the steps in the protocol's source.
    Then five nodes whose members that do not lead keep copies run in turns with
    five nodes without copies.
    """
    with measuring(as_json) as say:
        compared = compare_bakery(rounds, seconds, say)
    shown: list[Table | str] = [
        table_of("fencelock bench bakery", "bakery", "paxos", compared.figures),
        table_of("five members", "copies", "no copies", compared.copied),
        steps_table(compared.per_lock),
        compared.machine.in_words(),
    ]
    show(shown, compared.as_plain(), as_json, met=compared.met)


@app.command()
def objects(
    rounds: RoundsOption = 10,
    seconds: SecondsOption = 1.0,
    only: Annotated[
        list[ObjectPart] | None, typer.Option(help="Measure only this. Can be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare [bold]objects[/bold] of paxos with its locks; exit 1 if a bar is missed.

    pairs: 100 threads acquire and release a semaphore or a read/write lock,
    compared with a lock; two locks by lock_all, compared with two locks one by
    one; one read/write lock that all threads read, compared with one for each.
    Three nodes sync to disk. The kinds take turns of --seconds, and the medians
    of the turns count.

    watches: changes of one election that 10,000 watchers receive per second, and
    1,000 beside 9,000 whose elections do not change, compared with 1,000 alone.

    barrier: the time of one generation of a barrier of 64 parties.

    cost: processor time of a pair in a table with 100,000 other objects, or with
    10,000 waiters or sessions, compared with 100 of them.

    For example:

      [cyan]fencelock bench objects[/cyan]

      [cyan]fencelock bench objects --only cost --json[/cyan]

    """
    with measuring(as_json) as say:
        report = object_bench.measure(tuple(only or ObjectPart), rounds, seconds, say)
    table = table_of("fencelock bench objects", "measured", "beside", report.figures)
    show([table, report.machine.in_words()], report.as_plain(), as_json, met=report.met)


app.command("load")(load)
app.command("compare")(compare)
app.command("thesis")(thesis)


def _profile(plan: LockBenchPlan, as_json: bool) -> None:
    with measuring(as_json) as say:
        found = pair_profile.profile(
            plan.protocol,
            plan.nodes,
            durable=plan.durable,
            seconds=plan.seconds,
            title=f"fencelock bench locks --profile, {plan.in_words()}",
            say=say,
        )
    tables = [pair_profile.profile_table(found), pair_profile.steps_table(found)]
    show([*tables, found.in_words(), found.machine.in_words()], found.as_plain(), as_json)
