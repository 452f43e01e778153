"""``holdfast bench``: measure on this machine, beside something known, in one run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cluster.bench.idle import share_of_a_core
from holdfast.cluster.bench.report import table_of
from holdfast.cluster.bench.runtime import measure

app = typer.Typer(no_args_is_help=True, help="Measure on this machine, beside something known.")


@app.callback()
def bench() -> None:
    """Measure on this machine, beside something known, in one run.

    Machines are noisy: what counts is the ratio, from rounds in turns, and its median.
    """


@app.command()
def runtime(
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Rounds of each comparison.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line.")
    ] = False,
) -> None:
    """Compare our one-thread runtime with Pykka's own threads; exit 1 if a bar is missed.

    Messages between two roles, questions from one thread and from sixteen, an idle
    node, and ten thousand roles in one process.
    """
    console = Console(stderr=as_json)
    with console.status("measuring") as status:
        figures = measure(
            rounds=rounds,
            idle=share_of_a_core,
            say=lambda what: status.update(f"measuring {what}"),
        )
    console.print(table_of("holdfast bench runtime", "holdfast", "pykka threads", figures))
    if as_json:
        typer.echo(json.dumps([asdict(figure) for figure in figures]))
    if not all(figure.met for figure in figures):
        raise typer.Exit(1)
