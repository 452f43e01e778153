"""The ``fencelock`` command as Typer has it: assembles the commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from fencelock import __version__
from fencelock.cluster.cli.options import declared_to_typer

HOMES = {
    "dev": "dev",
    "init": "serve",
    "serve": "serve",
    "found": "members",
    "keys": "keys:app",
    "status": "status",
    "lock": "lock",
    "locks": "locks",
    "who": "locks",
    "release": "locks",
    "sessions": "locks:sessions_app",
    "holds": "objects:holds_app",
    "audit": "locks",
    "map": "objects:map_app",
    "barrier": "objects:barrier_app",
    "counter": "objects:counter_app",
    "latch": "objects:latch_app",
    "pool": "objects:pool_app",
    "semaphore": "objects:semaphore_app",
    "rw": "objects:rw_app",
    "election": "objects:election_app",
    "ask": "roles",
    "log": "roles",
    "trace": "roles",
    "members": "members",
    "join": "members",
    "leave": "members",
    "remove": "members",
    "replace": "members",
    "transfer": "members",
    "backup": "backup",
    "restore": "backup",
    "repair": "backup",
}
"""The module of each command, and there the name of the group, if it is one. It is imported when
the command is used: all of them together take longer to import than most take to run."""

LATE = {
    "simulate": ("simulate", "Run a protocol under [bold]simulated faults[/bold], by seed."),
    "bench": ("bench:app", "[bold]Measure[/bold] fencelock on this machine."),
}
"""Commands of `fencelock.verification`: as in `HOMES`, and the text in the list of commands."""


LINE_END = re.compile(r"(?<=\S)\n(?=\S)")
"""An end of a line inside a paragraph of a docstring; lines of examples are indented."""


def _stand_in() -> None:
    """Make a Typer a group, even of one command; stand for a command in the list of commands."""


def _imported(package: str, home: str, name: str) -> Any:
    module, _, group = home.partition(":")
    return getattr(import_module(f"fencelock.{package}.cli.{module}"), group or name)


def built(name: str, part: typer.Typer | Callable[..., None], help_text: str | None = None) -> Any:
    """Return a command, or a group of them, as Click has it."""
    alone = typer.Typer(rich_markup_mode="rich")
    alone.callback()(_stand_in)
    if isinstance(part, typer.Typer):
        own = part.registered_callback  # Such as `fencelock sessions` without a further command.
        for one in (*part.registered_commands, *([own] if own else ())):
            one.callback = one.callback and declared_to_typer(one.callback)
        alone.add_typer(part, name=name)
    else:
        alone.command(name, help=help_text)(declared_to_typer(part))
    command = get_group(alone).commands[name]
    for one in (command, *getattr(command, "commands", {}).values()):
        one.help = LINE_END.sub(" ", one.help or "")  # The terminal's width breaks paragraphs.
    return command


class LateGroup(TyperGroup):
    """Imports a command when it is asked for: ``--help`` and all others start sooner."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*HOMES, *LATE]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in HOMES and cmd_name not in self.commands:
            part = _imported("cluster", HOMES[cmd_name], cmd_name)
            self.commands[cmd_name] = built(cmd_name, part)
        elif cmd_name in LATE:
            self.commands.setdefault(cmd_name, built(cmd_name, _stand_in, LATE[cmd_name][1]))
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put the real command in place of its stand-in, and run it as usual."""
        if args and args[0] in LATE:
            part = _imported("verification", LATE[args[0]][0], args[0])
            self.commands[args[0]] = built(args[0], part)
        elif args and args[0] not in HOMES:
            for name in HOMES:  # Typer suggests one of these.
                self.get_command(ctx, name)
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

    Commands that query a cluster read the addresses of its nodes from
    --connect or from ./cluster.toml.

    """
    del version
