"""``fencelock release``: an operator takes a lock from its holder."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from fencelock.actors.api.message import LockStatus
from fencelock.actors.error import ConfigError, NotHeldError
from fencelock.cluster.cli.asking import ClusterOption, ConnectOption, TimeoutOption, asking, target
from fencelock.cluster.cli.locks import holder_lines
from fencelock.cluster.cli.wording import as_plain, in_full

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
