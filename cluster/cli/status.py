"""``fencelock status``: the status of each reachable node and of its locks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fencelock.actors.api.message import LockStatus, NodeStatus
from fencelock.actors.api.self_report import Elected
from fencelock.cluster.cli.asking import (
    ClusterOption,
    ConnectOption,
    TimeoutOption,
    as_plain,
    asking,
    duration,
    object_shown,
    person,
    target,
)

TABLED = frozenset({"bakery", "paxos"})
"""Protocols whose nodes share one table of locks: each lock is shown once."""

LISTED = frozenset({"paxos"})
"""Protocols whose locks can all be listed."""

PRIORITY_OFF = 15

NODE_WIDTH_MAX = 20
"""Width of the node column (columns); a longer id is folded, so that the state fits beside it."""


def status(
    connect: ConnectOption = None,
    cluster: ClusterOption = None,
    timeout: TimeoutOption = 5.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array, with an object for each node.")
    ] = False,
    roles: Annotated[
        bool,
        typer.Option("--roles", help="Also show each node's roles: events waiting, and state."),
    ] = False,
) -> None:
    """Show [bold]which nodes are ready[/bold], who leads, and who holds what.

    Exits with 1 when no node answers.

    For example:

      [cyan]fencelock status[/cyan] (where cluster.toml is)

      [cyan]fencelock status --connect tcp://127.0.0.1:4041,tcp://127.0.0.1:4042 --json[/cyan]

      [cyan]fencelock status --roles[/cyan] (leader, acceptor, clock, ... of each node)

    """
    where = target(connect, cluster)
    with asking(where, timeout) as operator:
        nodes = sorted(operator.describe(roles=roles), key=lambda node: node.node)
    if as_json:
        typer.echo(json.dumps([as_plain(node) for node in nodes], indent=2))
        return
    console = Console()
    console.print(Text(headline(nodes), "bold"))
    console.print(nodes_table(nodes, asked=len(where.endpoints)))
    if roles:
        console.print(roles_table(nodes))
    lost = quorum_lost(nodes, asked=len(where.addresses))
    if lost:
        console.print(Text(lost, "red"))
    seen = locks_seen(nodes)
    console.print(locks_table(seen) if seen else "No lock is held or waited for.")
    if seen and LISTED & {node.protocol for node in nodes}:
        console.print("All held locks: fencelock locks. One with its queue: fencelock who NAME.")


def headline(nodes: Sequence[NodeStatus]) -> str:
    """Return the protocol, the number of nodes and the leader, as far as the nodes agree."""
    protocols = " and ".join(sorted({node.protocol for node in nodes}))
    count = len({name for node in nodes for name in node.nodes})
    masters = sorted({node.master for node in nodes if node.master})
    parts = [f"{protocols} on {count} node{'' if count == 1 else 's'}"]
    last = _elected(nodes)
    if last is not None and last.leaders:
        one, ready = len(last.leaders) == 1, any(node.ready for node in nodes)
        verb = ("leads" if one else "lead") if ready else "led"
        parts.append(f"{_and(last.leaders)} {verb} in epoch {last.epoch}")
    elif len(masters) > 1:
        parts.append(f"{' or '.join(masters)} leads: an election is under way")
    elif masters:
        parts.append(f"{masters[0]} leads")
    elif TABLED & {node.protocol for node in nodes}:
        parts.append("nobody leads that these nodes know of")
    return "; ".join(parts)


def nodes_table(nodes: Sequence[NodeStatus], *, asked: int) -> Table:
    """Return a row for each node that answered of those ``asked``, and for each that they name."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("node", max_width=NODE_WIDTH_MAX, overflow="fold")
    table.add_column("state", overflow="fold")
    members = _members(nodes)
    if members:
        table.add_column("leads", no_wrap=True)
        table.add_column("priority", justify="right", no_wrap=True)
    table.add_column("up for", justify="right", no_wrap=True)
    table.add_column("locks", justify="right", no_wrap=True)
    for node in nodes:
        seat = members.get(node.node, ())
        up = duration(node.uptime_ms)
        table.add_row(node.node, _state(node), *seat, up, str(len(node.locks)))
    missing = sorted({name for node in nodes for name in node.nodes} - {n.node for n in nodes})
    # An address does not name its node: only if all nodes were asked, each missing one was.
    if asked >= len(nodes) + len(missing):
        why = Text("no answer: is it running?", "red")
    else:
        why = Text("not asked, or no answer" if asked > len(nodes) else "not asked", "yellow")
    for name in missing:
        table.add_row(name, why, *members.get(name, ()), "", "")
    return table


def quorum_lost(nodes: Sequence[NodeStatus], *, asked: int) -> str:
    """Return what it means that so few nodes answer; empty if a majority does, or may do."""
    named = {name for node in nodes for name in node.nodes}
    needed = len(named) // 2 + 1
    tabled = {node.protocol for node in nodes} <= TABLED
    if asked < len(named) or len(nodes) >= needed or not tabled:
        return ""
    silent = _and(sorted(named - {node.node for node in nodes}))
    return (
        f"There is no majority: {len(nodes)} of {len(named)} nodes answer here, and {needed} are "
        f"needed. Until then no lock is granted or released. Start {silent}, each with its own "
        'data folder. If too many of them are lost for good, see "Loss of a majority" in '
        "docs/operations.md: take a backup of what is left before anything else."
    )


def roles_table(nodes: Sequence[NodeStatus]) -> Table:
    """Return a row for each role of each node."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("node", max_width=NODE_WIDTH_MAX, overflow="fold")
    table.add_column("role", overflow="fold")
    table.add_column("kind", overflow="fold")
    table.add_column("waiting", justify="right", no_wrap=True)
    table.add_column("summary", overflow="fold")
    for node in nodes:
        for role in node.roles:
            summary = ", ".join(f"{fact.name} {fact.value}" for fact in role.summary)
            cells = (node.node, role.name, role.kind, str(role.waiting), summary)
            table.add_row(*map(Text, cells))
    return table


def locks_seen(nodes: Sequence[NodeStatus]) -> list[tuple[str, LockStatus]]:
    """Return each lock with the node that reports it.

    Where all nodes report the same table, return each lock once and without a node, as
    reported by the node that knows most.
    """
    seen: dict[tuple[str, str], LockStatus] = {}
    for node in nodes:
        for lock in node.locks:
            key = lock.lock, "" if node.protocol in TABLED else node.node
            known = seen.get(key)
            if known is None or (lock.slot, _tells(lock)) > (known.slot, _tells(known)):
                seen[key] = lock
    return [(node, seen[name, node]) for name, node in sorted(seen)]


def _tells(lock: LockStatus) -> tuple[bool, int]:
    """Return the amount of information in a lock's status; the most is shown."""
    return lock.holder is not None, len(lock.waiters)


def locks_table(seen: Sequence[tuple[str, LockStatus]]) -> Table:
    """Return a row for each lock and node that reports it, without columns that are empty."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    rows = [_cells(node, lock) for node, lock in seen]
    for place, name in enumerate(("lock", "at", "held by", "fence", "for", "waiting", "needs")):
        if not any(row[place] for row in rows):
            continue
        whole = name in ("fence", "for")  # A truncated fence would be a wrong one.
        table.add_column(name, no_wrap=whole, overflow="fold")
    for row in rows:
        kept = [cell for place, cell in enumerate(row) if any(other[place] for other in rows)]
        table.add_row(*(Text(cell) for cell in kept))
    return table


def _elected(nodes: Sequence[NodeStatus]) -> Elected | None:
    """Return the latest election that a node reports, None where there is none."""
    told = [node.elected for node in nodes if node.elected is not None]
    return max(told, key=lambda elected: elected.epoch, default=None)


def _members(nodes: Sequence[NodeStatus]) -> dict[str, tuple[str, str]]:
    """Return whether each member that may be elected leads, and its priority."""
    last = _elected(nodes)
    if last is None:
        return {}
    seen = [one for node in nodes if node.elected for one in node.elected.members]
    priorities = {one.node: one.priority for one in seen if one.priority}
    seats = {leader: f"seat {seat}" for seat, leader in enumerate(last.leaders, 1)}
    return {
        one.node: (seats.get(one.node, "no"), _priority(priorities.get(one.node, 0)))
        for one in last.members
    }


def _priority(priority: int) -> str:
    return "off" if priority == PRIORITY_OFF else str(priority or "?")


def _and(names: Sequence[str]) -> str:
    """Return ``names`` joined as in a sentence: ``n1, n2 and n3``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _state(node: NodeStatus) -> Text:
    state = Text("ready", "green") if node.ready else Text("not ready", "red")
    more = node.detail.removeprefix(state.plain)
    if more.startswith(","):
        state.append(more)
    elif more:
        state.append(f": {node.detail}")
    return state


def _cells(node: str, lock: LockStatus) -> tuple[str, ...]:
    holder, fence, held_for = "-", "", ""  # It is free, as far as this node knows.
    if lock.holder is not None:
        holder, held_for = person(lock.holder), duration(lock.holder.since_ms)
        fence = "" if lock.holder.fence is None else str(lock.holder.fence)
    waiting = "\n".join(f"{person(one)} {duration(one.since_ms)}" for one in lock.waiters)
    needs = "\n".join(f"{one.node} (silent {duration(one.silent_ms)})" for one in lock.waits_for)
    at = node if lock.holder is None or lock.holder.node != node else ""
    return object_shown(lock.lock), at, holder, fence, held_for, waiting, needs
