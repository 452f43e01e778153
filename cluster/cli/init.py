"""``fencelock init``: writing a first configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fencelock.actors.error import ConfigError
from fencelock.cluster.guarantee import PROMISES

PROTOCOLS = " or ".join(PROMISES)

SAFE_FROM = 3
"""The fewest members of which one may die."""


def init(
    nodes: Annotated[
        int,
        typer.Option(
            help="Number of nodes, named n1, n2, ...; 3 survive the loss of one, 5 of two.", min=1
        ),
    ] = 3,
    protocol: Annotated[str, typer.Option(help=f"The protocol: {PROTOCOLS}.")] = "paxos",
    cluster: Annotated[
        str,
        typer.Option(help="The cluster's name. Nodes and clients of other clusters are refused."),
    ] = "fencelock",
    config: Annotated[Path, typer.Option(help="The file to write.")] = Path("cluster.toml"),
    port: Annotated[
        int, typer.Option(help="n1 listens on the port after this one, n2 on the next, and so on.")
    ] = 4040,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a first [bold]configuration[/bold], with comments.

    For example:

      [cyan]fencelock init[/cyan]

      [cyan]fencelock init --nodes 5 --protocol central --cluster orders --config orders.toml[/cyan]

    """
    # Imported late: the file's checks import pydantic, which no other command's help needs.
    from fencelock.actors.api.membership_message import PORT_MAX  # noqa: PLC0415
    from fencelock.cluster.node.config import NODES_MAX, loopback, starting_config  # noqa: PLC0415

    if nodes > NODES_MAX:
        raise ConfigError(f"--nodes is {nodes}, 1 to {NODES_MAX} are allowed")
    if not 0 <= port <= PORT_MAX - nodes:
        raise ConfigError(
            f"--port is {port}, 0 to {PORT_MAX - nodes} are allowed: the {nodes} nodes listen at "
            "the ports after it"
        )
    addresses = loopback(nodes, port)
    text = starting_config(addresses, cluster=cluster, protocol=protocol)
    mode = "w" if force else "x"
    try:
        with open(config, mode, encoding="utf-8", opener=_private) as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{config} exists already: --force overwrites it") from error
    except OSError as error:
        raise ConfigError(f"{config} cannot be written: {error.strerror}") from error
    typer.echo(f"Wrote {config}: {nodes} nodes of {protocol} on this machine.")
    if protocol == "paxos":
        typer.echo(_losses(nodes))
    if protocol == "bakery":
        typer.echo(_leaders(nodes))
    typer.echo("Change the addresses for other machines. Then, each in a terminal of its own:\n")
    first = " --found" if protocol in ("paxos", "bakery") else ""
    found = config == Path("cluster.toml")  # The commands find it in this folder.
    for node in addresses:
        typer.echo(f"  fencelock serve {'' if found else f'--config {config} '}--id {node}{first}")
    if first:
        typer.echo(
            "\n--found begins the new cluster: leave it out whenever you start a node again."
        )
    connect = f" --connect {','.join(addresses.values())} --cluster {cluster}"
    typer.echo("\nand, to see who leads and who holds what:\n")
    typer.echo(f"  fencelock status{'' if found else connect}")


def _private(path: str, flags: int) -> int:
    """Open a file that, if it is new, only its owner may read."""
    return os.open(path, flags, 0o600)


def _leaders(nodes: int) -> str:
    """Return a text on how many of ``nodes`` lead, and how many of those may die."""
    if nodes < SAFE_FROM:
        return f"Mind: all must be up; with {SAFE_FROM} nodes one may die."
    return (
        "Three of them lead; one leader may die at a time. After two at once locks are granted "
        "again when every duration and grace is over (10 s, unless somebody asked for more)."
    )


def _losses(nodes: int) -> str:
    """Return a text on how many of ``nodes`` members may die, and a better number."""
    spare = (nodes - 1) // 2
    if nodes < SAFE_FROM:
        return f"Mind: all must be up; with {SAFE_FROM} nodes one may die."
    more = "" if nodes % 2 else f", as with {nodes - 1}: the last one adds nothing"
    down = "one of them is" if spare == 1 else f"{spare} of them are"
    return f"Locks are granted while at most {down} down{more}."
