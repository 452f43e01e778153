"""``fencelock repair``: mends the journal of a stopped node.

It finds and removes votes that no honest member can have, or lets the node skip a poison command.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fencelock.cluster.cli.screen import confirm
from fencelock.cluster.cli.serve import NodeIdOption

if TYPE_CHECKING:
    from fencelock.cluster.node.journal_rules import Impossible

SHOWN_MAX = 20
"""Maximum votes that are listed."""

SENT = (
    "A member that was broken or forged sent them, or this disk was altered: find out which node "
    "logs them as the sender, and replace that node. "
)

WHY = {
    "paxos": (
        "They are not chosen: every honest member refuses such a proposal, so no majority has it, "
        f"and what the cluster has acknowledged does not depend on it. {SENT}Without these votes "
        "the node keeps all its promises, and all its other votes. In place of an impossible lease "
        "it waits for the longest that can be configured."
    ),
    "bakery": (
        f"No honest leader votes for such leases. {SENT}The node keeps all its promises, and knows "
        "who leads. In place of each such lease it reports the longest that can be configured, two "
        "weeks. If two leaders are lost at once, the cluster may wait for that: then replace this "
        "node instead. Move its folder away, start it with an empty one, and run: fencelock replace"
    ),
}
"""Why it is safe to remove what a journal of each protocol cannot have."""


def repair(
    node_id: NodeIdOption,
    config: Annotated[Path, typer.Option(help="The cluster's configuration.")] = Path(
        "cluster.toml"
    ),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    skip: Annotated[
        int | None,
        typer.Option(
            "--skip",
            metavar="SLOT",
            min=1,
            help="Instead: refuse the commands of this slot of the log that damage the table.",
        ),
    ] = None,
    operator: Annotated[
        str, typer.Option(help="With --skip: your name, for the journal. Default: the user's.")
    ] = "",
) -> None:
    """Remove from the journal of a [bold]stopped node[/bold] votes that no honest member can have.

    It shows them, explains why it is safe, asks, and keeps a copy of the data folder
    beside it. If the journal cannot be mended, it says how to replace the node.

    With --skip (`paxos`) it lets a member go on that stops at a [bold]poison command[/bold]: a
    bug makes it raise in the middle of a change of the table, so every member stops at
    its slot, which the log names. Stop all members, run this for each of them, and
    start them again. They apply the slot as always. If a command damages the table, they
    return to the table before the slot, and refuse that command alone. "fencelock audit"
    shows it. A skip of a sound slot has no effect, and a member that you forgot stops
    again, so members never differ.

    For example:

      [cyan]fencelock repair --id n1[/cyan] (where n1 is stopped)

      [cyan]fencelock repair --id n1 --skip 41233[/cyan] (and for n2 and n3)

    """
    from fencelock.cluster.node import repair as repairing  # noqa: PLC0415 (pydantic: not for --help)
    from fencelock.cluster.node.config import load  # noqa: PLC0415

    read = load(config)
    if skip is not None:
        by = operator or getpass.getuser()
        typer.echo(repairing.skip_slot(read, node_id, skip, by))
        return

    def allow(wrong: Sequence[Impossible]) -> None:
        _explain(node_id, wrong, WHY[read.protocol])
        if not yes:
            confirm("Remove them?", declined="Nothing was removed.")

    removed = repairing.remove_votes(read, node_id, allow)
    if removed is None:
        typer.echo(f"The journal of {node_id} has no vote that an honest member cannot have.")
        return
    typer.echo(
        f"{removed.votes} removed. The folder as it was: {removed.copy}. Start {node_id} now."
    )


def _explain(node: str, wrong: Sequence[Impossible], why: str) -> None:
    typer.echo(f"The journal of {node} has {len(wrong)} votes that no honest member can have:")
    for one in wrong[:SHOWN_MAX]:
        typer.echo(f"  {one.why}")
    if len(wrong) > SHOWN_MAX:
        typer.echo(f"  and {len(wrong) - SHOWN_MAX} more")
    typer.echo(why)
