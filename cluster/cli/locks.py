"""``fencelock locks`` and ``fencelock who``: the held locks, their holders and their queues."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fencelock.actors.api.message import Contender, LockStatus
from fencelock.actors.api.session_message import ListedLock
from fencelock.cluster.cli.asking import ClusterOption, ConnectOption, TimeoutOption, asking, target
from fencelock.cluster.cli.wording import address, as_plain, duration, in_full, person

TWICE = 2


def locks(
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only locks whose names begin with this.")
    ] = "",
    connect: ConnectOption = None,
    cluster: ClusterOption = None,
    timeout: TimeoutOption = 5.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array, with an object for each lock.")
    ] = False,
) -> None:
    """List the [bold]locks that are held[/bold], by name. Free locks are not listed.

    For example:

      [cyan]fencelock locks --prefix orders/[/cyan]

      [cyan]fencelock locks --connect tcp://127.0.0.1:4041 --json[/cyan]

    """
    with asking(target(connect, cluster), timeout) as operator:
        held = tuple(operator.locks(prefix))
    if as_json:
        typer.echo(json.dumps([as_plain(lock) for lock in held], indent=2))
    elif held:
        Console().print(held_table(held))
    else:
        typer.echo("No lock is held." if not prefix else f"No lock under {prefix!r} is held.")


def who(
    name: Annotated[str, typer.Argument(help="The lock's name.")],
    connect: ConnectOption = None,
    cluster: ClusterOption = None,
    timeout: TimeoutOption = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show [bold]who holds one lock[/bold], and who waits for it, in order.

    For example:

      [cyan]fencelock who orders/42[/cyan]

    """
    with asking(target(connect, cluster), timeout) as operator:
        status = operator.status(name)
    if as_json:
        typer.echo(json.dumps(as_plain(status), indent=2))
        return
    show(Console(), status)


def show(console: Console, status: LockStatus) -> None:
    """Print who holds a lock, who waits, and what the next grant waits for."""
    for line in holder_lines(status.lock, status.holder):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if status.waiters:
        console.print(queue_table(status.waiters))
    else:
        console.print("Nobody waits for it.")
    for absence in status.waits_for:
        silent = duration(absence.silent_ms)
        console.print(f"The next grant needs {absence.node}, which has been silent for {silent}.")


def holder_lines(name: str, holder: Contender | None) -> Iterator[str]:
    """Yield lines on who holds the lock ``name``, how often, since when, under which fence."""
    if holder is None:
        yield f"{name} is free, or nobody that this node knows of holds it."
        return
    times = "" if holder.times < TWICE else f", {holder.times} times at once"
    yield f"{name} is held by {in_full(holder)}"
    fence = "a fence only its holder knows" if holder.fence is None else f"fence {holder.fence}"
    yield f"for {duration(holder.since_ms)}{times}, under {fence}."


def held_table(held: Iterable[ListedLock]) -> Table:
    """Return a row for each of the ``held`` locks."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for name in ("lock", "held by"):
        table.add_column(name, overflow="fold")
    for name in ("fence", "for", "waiting"):
        table.add_column(name, justify="right", no_wrap=True)  # A truncated fence is a wrong one.
    for lock in held:
        holder = lock.holder
        fence = "" if holder.fence is None else str(holder.fence)
        waiting = str(lock.waiting) if lock.waiting else ""
        cells = (lock.lock, person(holder), fence, duration(holder.since_ms), waiting)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def queue_table(waiters: Iterable[Contender]) -> Table:
    """Return a row for each waiter, in order."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("next", justify="right", no_wrap=True)
    table.add_column("waits for", justify="right", no_wrap=True)
    for name in ("who", "known as"):
        table.add_column(name, overflow="fold")
    for place, waiter in enumerate(waiters, 1):
        cells = (str(place), duration(waiter.since_ms), person(waiter), address(waiter))
        table.add_row(*(Text(cell) for cell in cells))
    return table
