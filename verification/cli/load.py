"""``fencelock bench load`` and ``compare``: a load on any cluster, and two results side by side."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from fencelock.actors.error import ConfigError
from fencelock.cluster.cli.target import NONE_GIVEN, TargetOptions, asks_cluster
from fencelock.verification.bench.cores import CORES_MAX, CORES_MIN
from fencelock.verification.bench.load_result import (
    LoadResult,
    as_csv,
    as_svg,
    comparison,
    read_result,
    remarks,
    tables,
)
from fencelock.verification.bench.load_run import (
    CONNECTIONS_MAX,
    IN_FLIGHT_MAX,
    NAMES_MAX,
    LoadOptions,
    Place,
    Subject,
    measure_load,
    own_cluster,
    redis_server,
    running_cluster,
)
from fencelock.verification.bench.mix import MIXES, mix_of
from fencelock.verification.bench.thesis import EXPERIMENTS, repeat
from fencelock.verification.cli.common import (
    PROTOCOLS,
    Durability,
    DurabilityOption,
    measuring,
    show,
)

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


@asks_cluster
def load(
    given: TargetOptions = NONE_GIVEN,
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

    The cluster is the one of --connect, as for other commands, or one of its own.
    Entries and locks have names of their own, and are gone at the end.
    Processor time and memory are shown of nodes that run on this machine.
    Ctrl-C ends the run early; what was measured is shown.

    A lock is acquired and released: both together are one operation.

    For example:

      [cyan]fencelock bench load --connect tcp://a:4040,tcp://b:4040 --mix thesis[/cyan]

      [cyan]fencelock bench load --nodes 5 --mix get=9,put=1 --connections 64 --at spread[/cyan]

      [cyan]fencelock bench load --nodes 5 --node-cores 0.1 --mix put --at leader[/cyan]

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
    )
    _check_files(write or [])
    with (
        measuring() as say,
        tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name,
        ExitStack() as stack,
    ):
        folder = Path(name)
        subject: Subject
        chosen = {"--connect": given.connect, "--nodes": nodes, "--redis": redis}
        named = [option for option, value in chosen.items() if value is not None]
        if len(named) > 1:
            raise ConfigError(f"{' and '.join(named)} exclude each other: leave one out")
        if node_cores is not None and (given.connect or redis):
            raise ConfigError(f"--node-cores is for nodes that are started: leave out {named[0]}")
        if redis is not None:
            subject = redis_server(redis)
        elif given.connect is not None:
            subject = running_cluster(stack, given.target())
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
