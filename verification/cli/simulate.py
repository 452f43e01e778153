"""``fencelock simulate``: run a protocol in virtual time under every fault it must survive."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fencelock.actors.error import ConfigError
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.serve import PROTOCOL_NAMES
from fencelock.cluster.node.node import check_assertions
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation import bakery_run, paxos_run
from fencelock.verification.simulation.faults import in_words, promise_of
from fencelock.verification.simulation.objects import WORKLOADS, workload_of
from fencelock.verification.simulation.report import RunReport, Total, reports
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.transcript import SCENES, Recorder
from fencelock.verification.simulation.violation import Judge
from fencelock.verification.simulation.world import World

_Seeds = dict[str, Callable[..., RunReport]]
"""The function that runs a seed, by protocol."""

SEEDS_MAX = 1_000_000
GRANTS_MIN = 5
"""Grants per seed on average: a sweep with fewer proves nothing and fails."""
SHOWN_MAX = 40
"""Limit of marks in the summary."""


def simulate(
    protocol: Annotated[
        str, typer.Option("--protocol", "-p", help=f"The protocol: {PROTOCOL_NAMES}.")
    ] = "paxos",
    seeds: Annotated[
        str, typer.Option(help="The seeds from A to B, both included.", metavar="A..B")
    ] = "0..99",
    seed: Annotated[int | None, typer.Option(min=0, help="One seed, instead of --seeds.")] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print every delivery of --seed, one per line.")
    ] = False,
    central_journal: Annotated[
        bool, typer.Option(help="central: give the server a journal, and also crash it.")
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Number of processes that share the seeds.")
    ] = 1,
    log: Annotated[
        bool, typer.Option("--log", help="paxos: the log alone; check its invariants one by one.")
    ] = False,
    judged: Annotated[
        bool, typer.Option("--judged", help="bakery: more faults; check its invariants one by one.")
    ] = False,
    objects: Annotated[
        str,
        typer.Option(
            "--objects",
            help="Objects that clients use instead of locks. paxos: "
            f"{', '.join(one.word for one in WORKLOADS)}, or all; bakery: rwlocks.",
        ),
    ] = "",
    members: Annotated[
        bool,
        typer.Option(
            "--members",
            help="paxos, bakery: locks in use while operators or leaders change members.",
        ),
    ] = False,
    copies: Annotated[
        bool,
        typer.Option(
            "--copies",
            help="bakery: members are lost at once, leaders first, while a majority lives; with "
            "--members: members change around five.",
        ),
    ] = False,
    transcript: Annotated[
        str,
        typer.Option(
            "--transcript",
            help="Print every event and effect of a short scene of paxos: acquire or leader-death.",
            metavar="SCENE",
        ),
    ] = "",
    diagram: Annotated[
        Path | None,
        typer.Option(
            "--diagram",
            help="Write a space-time diagram of --seed to this file, as SVG: the messages around "
            "the first grant.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Simulate a protocol: [bold]one seed fixes everything[/bold] that happens in a run.

    A run has the faults that the protocol promises to survive: messages are lost,
    repeated, delayed and reordered; links are cut in one or both directions;
    nodes pause, crash and lose unsynced writes; clocks drift and jump. Judges
    outside the roles check that at most one client holds a lock, that fences
    rise, and that every client is served once the faults end.

    Stops at the first seed that fails, prints its command, and exits with 1.

    For example:

      [cyan]fencelock simulate --seeds 0..1999 --workers 2[/cyan]

      [cyan]fencelock simulate --protocol central --seed 7 --trace[/cyan]

      [cyan]fencelock simulate --protocol bakery --judged --seeds 0..1999 --workers 2[/cyan]

      [cyan]fencelock simulate --transcript leader-death[/cyan]

      [cyan]fencelock simulate --protocol lamport --seed 3 --diagram lamport.svg[/cyan]

    """
    check_assertions()
    given = {
        "--transcript": bool(transcript),
        "--log": log,
        "--members --copies": members and copies,
        "--members": members and not copies,
        "--copies": copies and not members,
        "--judged": judged,
        "--objects": bool(objects),
    }
    kinds = [options for options, is_given in given.items() if is_given]
    if len(kinds) > 1 and kinds != ["--judged", "--objects"]:  # The judges of bakery see objects.
        raise ConfigError(f"{' and '.join(kinds)} are different simulations: give one of them")
    if central_journal and protocol != "central":
        raise ConfigError(
            f"--central-journal is for protocol central, which has one server, not {protocol}"
        )
    if transcript:
        typer.echo(_transcript(transcript), nl=False)
        return
    settings = ProtocolSettings(central_journal=central_journal)
    promise = promise_of(protocol, settings)
    plain = not kinds or kinds == ["--objects"]
    if objects or not kinds:
        runs = _plain_runs(protocol, settings, objects, judged=judged)
    else:
        runs = _special_runs(protocol, kinds[0])
    if diagram is not None and not plain:
        raise ConfigError(f"--diagram is not for {kinds[0]}: leave one out")
    if seed is not None:
        _one(runs, seed, trace=trace, diagram=diagram)
        return
    if trace or diagram is not None:
        raise ConfigError("--trace and --diagram show one seed: add --seed")
    first, last = seed_range(seeds)
    console = Console()
    if plain:
        console.print(f"{protocol} must survive: {in_words(promise)}", highlight=False)
    _many(console, runs, range(first, last + 1), workers)


def _transcript(name: str) -> str:
    if name not in SCENES:
        raise ConfigError(f"--transcript is {name!r}, there are {', '.join(SCENES)}")
    return SCENES[name].text()


def seed_range(text: str) -> tuple[int, int]:
    """Return the ends of ``A..B``, or of ``A``, which is a range of one.

    Raises:
        ConfigError: it is neither, or it is empty or longer than `SEEDS_MAX`.

    """
    found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text)
    if found is None:
        raise ConfigError(f"--seeds is {text!r}, two numbers as in 0..99 are allowed")
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if last < first:
        raise ConfigError(f"--seeds is {text!r}, the second may not be below the first")
    if last - first >= SEEDS_MAX:
        raise ConfigError(f"--seeds is {text!r}, at most {SEEDS_MAX:,} seeds are allowed")
    return first, last


@dataclass(frozen=True, slots=True)
class _Runs:
    """One kind of simulation: its title, its options and its function."""

    title: str
    options: str
    """The options of the command that repeats it."""
    answers: str
    """The name of its count of answers."""
    one: Callable[..., RunReport]
    """Called with the seed; that of a plain run also with ``judges``."""


def _plain_runs(protocol: str, settings: ProtocolSettings, word: str, *, judged: bool) -> _Runs:
    """Return the runs with locks, or with the objects that ``word`` names."""
    title, options = protocol, f"--protocol {protocol}"
    options += " --central-journal" if settings.central_journal else ""
    one: Callable[..., RunReport] = partial(run_seed, protocol, settings=settings)
    if judged:
        one = bakery_run.run_bakery_seed
    if word:
        title, options = f"objects of {protocol}: {word}", f"{options} --objects {word}"
        one = partial(one, workload=workload_of(word, protocol))
    return _Runs(title, options + (" --judged" if judged else ""), "grants", one)


def _special_runs(protocol: str, options: str) -> _Runs:
    members: _Seeds = {"paxos": paxos_run.run_members_seed, "bakery": bakery_run.run_members_seed}
    kinds: dict[str, tuple[str, _Seeds, str]] = {
        "--log": ("the log of {}", {"paxos": paxos_run.run_log_seed}, "which has one"),
        "--judged": (
            "{}, judged",
            {"bakery": bakery_run.run_bakery_seed},
            "which has such judges",
        ),
        "--members": ("the changing members of {}", members, "whose members change"),
        "--copies": (
            "the copies of {}",
            {"bakery": bakery_run.run_survivors_seed},
            "whose members keep some",
        ),
        "--members --copies": (
            "changing copies of {}",
            {"bakery": bakery_run.run_copies_seed},
            "whose members keep some",
        ),
    }
    title, runs, which = kinds[options]
    if protocol not in runs:
        raise ConfigError(f"{options} is for {' and '.join(runs)}, {which}, not {protocol}")
    return _Runs(
        title=title.format(protocol),
        options=f"--protocol {protocol} {options}",
        answers="answers" if protocol == "paxos" else "grants",
        one=runs[protocol],
    )


def _one(runs: _Runs, seed: int, *, trace: bool, diagram: Path | None) -> None:
    if diagram is None:
        report = runs.one(seed)
    else:
        recorder = Recorder()

        def judges(_: World) -> list[Judge]:
            return [recorder]

        report = runs.one(seed, judges=judges)
        diagram.write_text(recorder.drawn(f"{runs.title}, seed {seed}"), encoding="utf-8")
    if trace:
        for line in report.trace():
            typer.echo(line)
    typer.echo(f"seed {seed}: {report.plan}")
    if report.violation is not None:
        typer.echo(f"seed {seed} fails at {report.violation}", err=True)
        raise typer.Exit(ExitStatus.FAILED)
    typer.echo(
        f"seed {seed} is clean: {report.deliveries} deliveries, {report.grants} "
        f"{runs.answers}, {report.virtual_ms} virtual ms"
    )


def _many(console: Console, runs: _Runs, seeds: range, workers: int) -> None:
    total = Total()
    began = time.monotonic()
    outcomes = reports(runs.one, seeds, workers)
    watched = track(
        outcomes,
        description=f"{runs.title} {seeds[0]}..{seeds[-1]}",
        total=len(seeds),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    for outcome in watched:
        total.add(outcome)
        if outcome.violation is not None:
            outcomes.close()
            typer.echo(f"seed {outcome.seed} fails at {outcome.violation}")
            command = f"fencelock simulate {runs.options} --seed {outcome.seed} --trace"
            typer.echo(f"repeat it: {command}")
            raise typer.Exit(ExitStatus.FAILED)
    _tell_total(console, runs.title, total, time.monotonic() - began)
    if total.grants < GRANTS_MIN * total.seeds:
        typer.echo(f"void: {total.grants} grants, {GRANTS_MIN} a seed are needed")
        raise typer.Exit(ExitStatus.FAILED)


def _tell_total(console: Console, title: str, total: Total, seconds: float) -> None:
    table = Table(title=f"{title}: {total.seeds} seeds without a violation")
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_row("deliveries", f"{total.deliveries:,}")
    table.add_row("deliveries a second", f"{total.deliveries / max(seconds, 1e-9):,.0f}")
    table.add_row("grants", f"{total.grants:,}")
    table.add_row("virtual seconds", f"{total.virtual_ms / 1000:,.0f}")
    table.add_row("seconds", f"{seconds:,.1f}", end_section=True)
    _add_rows(table, "fault", total.faults)
    table.add_section()
    _add_rows(table, "mark", total.marks)
    console.print(table)


def _add_rows(table: Table, kind: str, counts: Mapping[str, int]) -> None:
    for name, count in sorted(counts.items())[:SHOWN_MAX]:
        table.add_row(f"{kind}: {name}", f"{count:,}")
