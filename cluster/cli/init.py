"""``holdfast init``: write a configuration to begin from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.actors.error import ConfigError
from holdfast.cluster.guarantee import PROMISES

PROTOCOLS = " or ".join(PROMISES)


def init(
    nodes: Annotated[int, typer.Option(help="How many nodes, n1, n2 and so on.", min=1)] = 3,
    protocol: Annotated[str, typer.Option(help=f"Who grants the locks: {PROTOCOLS}.")] = "lamport",
    cluster: Annotated[
        str, typer.Option(help="The cluster's name; nodes and clients of another are refused.")
    ] = "holdfast",
    config: Annotated[Path, typer.Option(help="The file to write.")] = Path("cluster.toml"),
    port: Annotated[
        int, typer.Option(help="The nodes listen on this machine, at the ports after this one.")
    ] = 4040,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a [bold]configuration[/bold] to begin from, with comments.

    For example:

      [cyan]holdfast init --nodes 3[/cyan]

      [cyan]holdfast init --nodes 5 --protocol central --cluster orders --config orders.toml[/cyan]

    """
    # Imported late: the file's checks come with pydantic, which no other command's help needs.
    from holdfast.cluster.config import loopback, starting_config  # noqa: PLC0415
    from holdfast.cluster.config_file import NODES_MAX, PORT_MAX  # noqa: PLC0415

    if nodes > NODES_MAX:
        raise ConfigError(f"--nodes is {nodes}, 1 to {NODES_MAX} are allowed")
    if not 0 <= port <= PORT_MAX - nodes:
        raise ConfigError(
            f"--port is {port}, 0 to {PORT_MAX - nodes} are allowed: the {nodes} nodes listen at "
            "the ports after it"
        )
    addresses = loopback(nodes, port)
    text = starting_config(addresses, cluster=cluster, protocol=protocol)
    try:
        with config.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{config} exists already: --force overwrites it") from error
    except OSError as error:
        raise ConfigError(f"{config} cannot be written: {error.strerror}") from error
    typer.echo(f"Wrote {config}: {nodes} nodes of {protocol} on this machine.")
    typer.echo("Change the addresses for other machines. Then, each in a terminal of its own:\n")
    for node in addresses:
        typer.echo(f"  holdfast serve --config {config} --id {node}")
    connect = f"--connect {','.join(addresses.values())}"
    typer.echo(f"\nand, to see who holds what:\n\n  holdfast status {connect} --cluster {cluster}")
