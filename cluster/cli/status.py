"""``holdfast status``: what each node that can be reached says of itself and of its locks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.actors.error import UnavailableError, WrongClusterError
from holdfast.actors.lock.message import Contender, LockStatus, NodeStatus

EXIT_NO_ANSWER = 1
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def status(
    connect: Annotated[
        str, typer.Option(help="Addresses of nodes, with commas between.", metavar="ADDRESSES")
    ],
    cluster: Annotated[str, typer.Option(help="The cluster's name.")] = "holdfast",
    timeout: Annotated[float, typer.Option(help="How long to wait for a first answer (s).")] = 5.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array, with an object for each node.")
    ] = False,
) -> None:
    """Show [bold]who holds what[/bold], who waits, and for whom.

    Exits with 1 when no node answers.

    For example:

      [cyan]holdfast status --connect tcp://127.0.0.1:4041[/cyan]

      [cyan]holdfast status --connect tcp://127.0.0.1:4041,tcp://127.0.0.1:4042 --json[/cyan]

    """
    from holdfast.cluster import client, settings  # noqa: PLC0415 (sockets: not for --help)

    try:
        with client.connect(connect, cluster=cluster, timeout=timeout) as session:
            nodes = sorted(session.describe(), key=lambda node: node.node)
    except WrongClusterError:
        raise  # Somebody answers; it is the question that must change.
    except UnavailableError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_NO_ANSWER) from error
    if as_json:
        typer.echo(json.dumps([as_plain(node) for node in nodes], indent=2))
        return
    console = Console()
    console.print(nodes_table(nodes, asked=len(settings.parse_addresses(connect))))
    if any(node.locks for node in nodes):
        console.print(locks_table(nodes))
    else:
        console.print("No lock is held or waited for.")


def as_plain(value: Any) -> Any:
    """Return a message, with all that is in it, as what JSON knows: fields become keys."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: as_plain(getattr(value, name)) for name in names if name not in _ENVELOPE}
    if hasattr(value, "_asdict"):
        return {name: as_plain(part) for name, part in value._asdict().items()}
    if isinstance(value, tuple):
        return [as_plain(part) for part in cast("Sequence[object]", value)]
    return value


_ENVELOPE = frozenset({"session", "request"})
"""Fields of an answer that say whose question it answers: of no use to who reads it."""


def nodes_table(nodes: Sequence[NodeStatus], *, asked: int) -> Table:
    """Return a row for each node that answered of those ``asked``, and for each that they name."""
    table = Table("node", "protocol", "state", "up for", "locks", title="Nodes")
    for node in nodes:
        state = Text("ready", "green") if node.ready else Text("not ready", "red")
        if node.detail != state.plain:
            state.append(f": {node.detail}")
        up_for = duration(node.uptime_ms)
        table.add_row(node.node, node.protocol, state, up_for, str(len(node.locks)))
    missing = sorted({name for node in nodes for name in node.nodes} - {n.node for n in nodes})
    # An address does not say whose it is: only when all were asked, each missing one was.
    if asked >= len(nodes) + len(missing):
        why = Text("no answer", "red")
    else:
        why = Text("not asked, or no answer" if asked > len(nodes) else "not asked", "yellow")
    for name in missing:
        table.add_row(name, "", why, "", "")
    return table


def locks_table(nodes: Sequence[NodeStatus]) -> Table:
    """Return a row for each lock and node through which it is held or waited for."""
    table = Table(title="Locks")
    for name in ("lock", "asked at", "held by", "fence", "for", "waiting", "needs"):
        table.add_column(name, overflow="fold")  # A fence that is cut short would be a wrong one.
    for node in nodes:
        for lock in node.locks:
            table.add_row(*(Text(cell) for cell in _cells(node.node, lock)))
    return table


def duration(ms: int) -> str:
    """Return ``ms`` milliseconds in the two largest units that fit, like ``2h 5m``."""
    if ms < 1_000:  # noqa: PLR2004 (a second)
        return f"{ms}ms"
    parts: list[str] = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:  # noqa: PLR2004 (as the docstring says)
            break
    return " ".join(part for part in parts if part[0] != "0")


def _cells(node: str, lock: LockStatus) -> Iterator[str]:
    holder = lock.holder
    yield lock.lock
    yield node
    yield "-" if holder is None else _name(holder)  # Nobody, or nobody this node knows of.
    yield "" if holder is None or holder.fence is None else str(holder.fence)
    yield "" if holder is None else duration(holder.since_ms)
    yield "\n".join(f"{_name(waiter)} {duration(waiter.since_ms)}" for waiter in lock.waiters)
    yield "\n".join(f"{who.node} (silent {duration(who.silent_ms)})" for who in lock.waits_for)


def _name(contender: Contender) -> str:
    parts = (contender.node, contender.session, contender.owner)
    return "/".join(part for part in parts if part)
