"""``fencelock bench``: measurements on this machine, beside a known reference, in one run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from fencelock.actors.timing import ROUND_TRIP_MS_MAX
from fencelock.verification.bench import locks as lock_bench
from fencelock.verification.bench import objects as object_bench
from fencelock.verification.bench import profile as pair_profile
from fencelock.verification.bench.bakery import compare, steps_table
from fencelock.verification.bench.deaths import LeaderDeath
from fencelock.verification.bench.failover import measure_deaths
from fencelock.verification.bench.locks import LockBenchPlan, Part
from fencelock.verification.bench.objects import ObjectPart
from fencelock.verification.bench.report import readings_table, table_of
from fencelock.verification.bench.runtime import measure, share_of_a_core
from fencelock.verification.cli.common import (
    PROTOCOLS,
    Durability,
    DurabilityOption,
    measuring,
    show,
)
from fencelock.verification.cli.load import compare as compare_results
from fencelock.verification.cli.load import load, thesis

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
        comparison = compare(rounds, seconds, say)
    shown: list[Table | str] = [
        table_of("fencelock bench bakery", "bakery", "paxos", comparison.figures),
        table_of("five members", "copies", "no copies", comparison.copied),
        steps_table(comparison.per_lock),
        comparison.machine.in_words(),
    ]
    show(shown, comparison.as_plain(), as_json, met=comparison.met)


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
app.command("compare")(compare_results)
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


def add_to(group: typer.Typer) -> None:
    group.add_typer(app, name="bench")
