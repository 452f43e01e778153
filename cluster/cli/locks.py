"""``fencelock locks``, ``who`` and ``release``: held locks, their queues, taking one away."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fencelock.actors.api.message import Contender, LockStatus
from fencelock.actors.api.session_message import ListedLock
from fencelock.actors.error import ConfigError, NotHeldError
from fencelock.cluster.cli.asking import (
    ClusterOption,
    ConnectOption,
    TimeoutOption,
    address,
    as_plain,
    asking,
    duration,
    in_full,
    object_shown,
    person,
    target,
)

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
        cells = (object_shown(lock.lock), person(holder), fence, duration(holder.since_ms), waiting)
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


EXIT_KEPT = 1
"""The operator did not confirm: the holder keeps the lock."""

CONSEQUENCES = """\
If you release it by force, the next waiter gets it at once, under a new fence. The former
holder is notified, but may go on writing: only storage that checks fences stops its writes.
"""


def release(
    name: Annotated[str, typer.Argument(help="The lock's name.")],
    fence: Annotated[
        int,
        typer.Option(
            "--fence",
            help="The fence of the hold, as `fencelock who NAME` shows it: a later hold "
            "has another fence and is not released.",
        ),
    ],
    operator: Annotated[
        str | None,
        typer.Option("--operator", help="Your name, for the record. Default: USER@HOST."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    connect: ConnectOption = None,
    cluster: ClusterOption = None,
    timeout: TimeoutOption = 5.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was done as one JSON object.")
    ] = False,
) -> None:
    """Take a lock [bold]by force[/bold] from its holder, and give it to the next waiter.

    Use it for a holder that is alive and does not release its lock. On paxos, the
    lock of a dead client is freed when the client's session ends, and the
    cluster's log records forced releases with the operator. On central, the lock
    of a dead client stays held until an operator releases it.

    For example:

      [cyan]fencelock who orders/42[/cyan]

      [cyan]fencelock release orders/42 --fence 17 --operator alice[/cyan]

    """
    if not yes and not at_terminal():
        raise ConfigError("nobody is here to confirm: look with `fencelock who`, then add --yes")
    with asking(target(connect, cluster), timeout) as asked:
        if not yes:
            _confirm(asked.status(name), fence)
        former = asked.evict(name, fence, operator)
    if as_json:
        done = {"lock": name, "fence": fence, "holder": as_plain(former)}
        typer.echo(json.dumps(done, indent=2))
        return
    typer.echo(f"{name} was taken from {in_full(former)}, who held it under fence {fence}.")


def at_terminal() -> bool:
    """Return whether there is a user who can be asked."""
    return sys.stdin.isatty()


def _confirm(status: LockStatus, fence: int) -> None:
    """Print what would be done, and return if the user confirms it.

    Raises:
        NotHeldError: there is nothing to do: no client holds the lock under ``fence``.
        typer.Exit: the user does not confirm.

    """
    holder = status.holder
    if holder is None:
        raise NotHeldError(f"{status.lock} is not held: there is nothing to release")
    if holder.fence != fence:
        raise NotHeldError(
            f"{status.lock} is held by {in_full(holder)} under fence {holder.fence}, not {fence}: "
            f"nothing was released. If you mean this holder, say --fence {holder.fence}"
        )
    for line in holder_lines(status.lock, holder):
        typer.echo(line, err=True)
    typer.echo(f"{len(status.waiters)} wait for it.\n\n{CONSEQUENCES}", err=True)
    if not typer.confirm("Release it?", err=True):
        typer.echo("Nothing was released.", err=True)
        raise typer.Exit(EXIT_KEPT)
