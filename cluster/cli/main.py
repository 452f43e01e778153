"""The ``fencelock`` command: assembles the commands and prints errors as one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup
from typer.main import get_group

from fencelock import __version__
from fencelock.actors.error import FencelockError
from fencelock.cluster.cli.backup import backup, restore
from fencelock.cluster.cli.dev import dev
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.found import found
from fencelock.cluster.cli.init import init
from fencelock.cluster.cli.keys import app as keys
from fencelock.cluster.cli.lock import lock
from fencelock.cluster.cli.locks import locks, release, who
from fencelock.cluster.cli.members import join, leave, members, remove, replace, transfer
from fencelock.cluster.cli.quotas import purge, quota, usage
from fencelock.cluster.cli.records import app as sessions
from fencelock.cluster.cli.records import audit
from fencelock.cluster.cli.repair import repair
from fencelock.cluster.cli.roles import ROLE_COMMANDS
from fencelock.cluster.cli.serve import serve
from fencelock.cluster.cli.status import status
from fencelock.cluster.cli.staying import OBJECT_APPS, map_app
from fencelock.cluster.cli.using import USING_APPS
from fencelock.cluster.log import printable


def _stand_in() -> None:
    """Stand for a command in the list of commands."""


LATE = {
    "simulate": "Run a protocol under [bold]simulated faults[/bold], by seed.",
    "bench": "[bold]Measure[/bold] fencelock on this machine.",
}
"""Commands of `fencelock.verification`, each with its text in the list of commands."""


class LateGroup(TyperGroup):
    """Lists the `LATE` commands, and imports one only when it is run: ``--help`` stays quick."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put the real command in place of its stand-in, and run it as usual."""
        if args and args[0] in LATE:
            loaded = typer.Typer(rich_markup_mode="rich")
            loaded.callback()(_stand_in)  # Makes it a group, even of one command.
            import_module(f"fencelock.verification.cli.{args[0]}").add_to(loaded)
            self.commands[args[0]] = get_group(loaded).commands[args[0]]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="fencelock",
    cls=LateGroup,
    rich_markup_mode="rich",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fencelock {__version__}")
        raise typer.Exit


@app.callback()
def fencelock(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """[bold]Distributed locks[/bold] with fencing tokens, over ZeroMQ.

    Try it: [cyan]fencelock dev[/cyan] is a cluster of one node with a live view.

    Run a cluster on this machine in three steps:

      [cyan]fencelock init --nodes 3[/cyan]

      [cyan]fencelock serve --id n1 --found[/cyan] (and n2 and n3, each in its own terminal)

      [cyan]fencelock status[/cyan]

    Commands that query a cluster read the addresses of its nodes from --connect or
    from ./cluster.toml.

    """
    del version


COMMANDS: tuple[Callable[..., None] | typer.Typer, ...] = (
    *(dev, init, serve, found, keys, status, lock, locks, who, release, sessions, audit),
    map_app,
    *OBJECT_APPS,
    *USING_APPS,
    *ROLE_COMMANDS,
    members,
    *(join, leave, remove, replace, transfer, backup, restore, repair),
)
for _of_keys in (quota, usage, purge):
    keys.command()(_of_keys)
for _command in COMMANDS:
    if isinstance(_command, typer.Typer):
        app.add_typer(_command)
    else:
        app.command()(_command)
for _name, _help in LATE.items():
    app.command(_name, help=_help)(_stand_in)


def main() -> None:
    """Run the command line; print errors that a user can mend in red and without a traceback."""
    try:
        app()
    except FencelockError as error:
        text = "\n".join(map(printable, str(error).split("\n")))
        console = Console(stderr=True)
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(ExitStatus.REFUSED)
    except KeyboardInterrupt:
        sys.exit(ExitStatus.INTERRUPTED)
