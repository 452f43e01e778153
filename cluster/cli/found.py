"""``fencelock found``: begins a new cluster of the nodes that wait for one."""

from __future__ import annotations

from typing import Annotated

import typer

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction
from fencelock.actors.error import ConfigError
from fencelock.cluster.cli.members import JsonOption, carry_out
from fencelock.cluster.cli.saying import say
from fencelock.cluster.cli.screen import confirm
from fencelock.cluster.cli.target import ASK, AskOptions, asks_cluster

FOUNDED = frozenset({"paxos", "bakery"})
"""The protocols whose clusters are founded."""

MEANING = (
    "This begins a new cluster of {nodes}: it has no locks. If it has run before, its nodes have "
    "lost their disks: members that joined later may still run, and this would begin a second "
    "cluster beside theirs"
)


@asks_cluster
def found(
    given: AskOptions = ASK,
    wait: Annotated[float, typer.Option("--wait", help="How long to wait for the nodes (s).")] = 60,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Begin [bold]a new cluster[/bold] of the configured nodes, once, when all of them run.

    Nodes with empty data folders wait for this command, since they cannot know
    whether their cluster is new or has only lost their disks. It does nothing if
    any of them knows the cluster, or a member that joined later can be reached. If
    the command gives up, nothing is begun later. `fencelock serve --found`, given to each node,
    does the same at its start.

    For example:

      [cyan]fencelock serve --id n1[/cyan] (and n2 and n3, each on its machine)

      [cyan]fencelock found[/cyan]

    """
    with given.connected() as operator:
        nodes = operator.survey().statuses
        others = sorted({node.protocol for node in nodes} - FOUNDED)
        if others:
            raise ConfigError(f"{others[0]} needs no founding: its nodes serve once they run")
        names = sorted({name for node in nodes for name in node.nodes})
        if not any(node.ready for node in nodes) and not yes:
            say(MEANING.format(nodes=", ".join(names)), err=True)
            confirm("Begin it?", declined="Nothing was begun.")
        change = ChangeMembers(action=MemberAction.FOUND, node=names[0])
        carry_out(operator, change, wait, as_json=as_json)
