"""``fencelock status``: the status of each reachable node and of its locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from fencelock.actors.api.cluster_message import Elected, NodeStatus
from fencelock.actors.api.lock_message import LockStatus
from fencelock.actors.bakery.config import OFF
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.formatting import (
    MAJORITY_LOST,
    as_plain,
    duration,
    fences_of,
    how_many,
    object_shown,
    person,
    progress_of,
    retained,
    share_of,
)
from fencelock.cluster.cli.screen import Cell, Column, Phrase, Rows, View, json_view, line
from fencelock.cluster.cli.target import LOOK, LookOptions, WatchOption
from fencelock.cluster.guarantee import VOTING

if TYPE_CHECKING:
    from fencelock.cluster.client.client import Client


LISTED = frozenset({"paxos"})
"""Protocols whose locks can all be listed."""


def status(
    given: LookOptions = LOOK,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array, with an object for each node.")
    ] = False,
    roles: Annotated[
        bool,
        typer.Option("--roles", help="Also show each node's roles: events waiting, and state."),
    ] = False,
    ready: Annotated[
        bool,
        typer.Option(
            "--ready", help="Only exit with 0 if a node asked can serve, else with 1: for probes."
        ),
    ] = False,
    watch: WatchOption = False,
) -> None:
    """Show [bold]which nodes are ready[/bold], who leads, and who holds what.

    A node that is silent for 2 s, or for half of --timeout if that is less, is
    shown without an answer.

    Exits with 0 if the cluster serves, with 1 if no node answers, and with 3 if
    it has no leader or no majority, or if its nodes do not belong together.

    For example:

      [cyan]fencelock status[/cyan] (where cluster.toml is)

      [cyan]fencelock status --connect tcp://127.0.0.1:4041,tcp://127.0.0.1:4042 --json[/cyan]

      [cyan]fencelock status --ready --connect tcp://127.0.0.1:4041[/cyan] (a probe)

      [cyan]fencelock status --roles[/cyan] (leader, acceptor, clock, ... of each node)

    """
    asked = len(given.named.target().endpoints)

    def view(operator: Client) -> View:
        surveyed = operator.survey(roles=roles)
        nodes = sorted(surveyed.statuses, key=lambda node: node.node)
        if ready:
            return ready_view(nodes)
        problems = problems_of(nodes, asked=asked)
        mixed = len({node.protocol for node in nodes}) > 1
        code = ExitStatus.UNSERVED if mixed or not any(node.ready for node in nodes) else 0
        if as_json:
            return json_view([as_plain(node) for node in nodes], code)
        parts: list[RenderableType] = [
            line(headline(nodes), "bold"),
            nodes_table(nodes, asked=asked),
        ]
        if roles:
            parts.append(roles_table(nodes))
        parts += [line(f"No answer from {one}.", "yellow") for one in surveyed.silent]
        parts += [line(problem, "red") for problem in problems]
        return View([*parts, *locks_part(nodes)], code)

    given.show(view, watch=watch and not ready, failed=ExitStatus.FAILED)


def ready_view(nodes: Sequence[NodeStatus]) -> View:
    served = [node.node for node in nodes if node.ready]
    if served:
        return View([line(f"ready: {_and(served)}")])
    why = "; ".join(f"{node.node}: {node.detail}" for node in nodes)
    return View([line(f"not ready: {why}")], ExitStatus.FAILED)


def problems_of(nodes: Sequence[NodeStatus], *, asked: int) -> list[str]:
    problems = [mixed(nodes), divided(nodes), quorum_lost(nodes, asked=asked)]
    if not any(problems) and not any(node.ready for node in nodes):
        problems.append(
            "Nothing is served now: no lock is granted or released until a node is ready. An "
            "election takes a second; if this lasts, the reasons above say what is missing."
        )
    return [problem for problem in problems if problem]


def mixed(nodes: Sequence[NodeStatus]) -> str:
    runs: dict[str, list[str]] = {}
    for node in nodes:
        runs.setdefault(node.protocol, []).append(node.node)
    if len(runs) <= 1:
        return ""
    each = [
        f"{_and(names)} run{'s' if len(names) == 1 else ''} {protocol}"
        for protocol, names in sorted(runs.items(), key=lambda run: -len(run[1]))
    ]
    return (
        f"The nodes do not belong together: {'; '.join(each)}. All nodes of a cluster run one "
        "protocol: stop those that run another, and start them with the file of the others."
    )


def divided(nodes: Sequence[NodeStatus]) -> str:
    refusing = {
        node.node: counted.times
        for node in nodes
        for counted in node.counters
        if counted.name == "wire.other_group"
    }
    if not refusing:
        return ""
    each = ", ".join(f"{node} ({times} frames)" for node, times in sorted(refusing.items()))
    return (
        f"There are two groups under this cluster's name: refused by {each}. A second one was "
        "founded while members of the first had no part in it. Stop the nodes of the group that is "
        "to end, and start them with empty folders (docs/operations.md, Founding)."
    )


def locks_part(nodes: Sequence[NodeStatus]) -> list[RenderableType]:
    seen = locks_seen(nodes)
    known = any(node.ready for node in nodes)
    if not seen:
        none = "No lock is held or waited for."
        return [line(none if known else "Which locks are held is not known now.")]
    parts: list[RenderableType] = []
    if not known:
        ages = [lock.age_ms for _, lock in seen if lock.age_ms is not None]
        ago = f" {duration(min(ages))} ago" if ages else ""
        parts.append(line(f"These locks were held{ago}; who holds them now is not known.", "red"))
    parts.append(locks_table(seen))
    if LISTED & {node.protocol for node in nodes}:
        parts.append(
            line("All held locks: fencelock locks. One and its queue: fencelock who NAME.")
        )
    return parts


def headline(nodes: Sequence[NodeStatus]) -> str:
    protocols = " and ".join(sorted({node.protocol for node in nodes}))
    count = len({name for node in nodes for name in node.nodes})
    leaders = sorted({node.leader for node in nodes if node.leader})
    parts = [f"{protocols} on {how_many(count, 'node')}"]
    last = _elected(nodes)
    if last is not None and last.leaders:
        one, ready = len(last.leaders) == 1, any(node.ready for node in nodes)
        verb = ("leads" if one else "lead") if ready else "led"
        parts.append(f"{_and(last.leaders)} {verb} in epoch {last.epoch}")
    elif len(leaders) > 1:
        parts.append(f"{' or '.join(leaders)} leads: an election is under way")
    elif leaders:
        parts.append(f"{leaders[0]} leads")
    elif VOTING & {node.protocol for node in nodes}:
        parts.append("no node leads, as far as these nodes know")
    return "; ".join(parts)


def nodes_table(nodes: Sequence[NodeStatus], *, asked: int) -> Rows:
    """Return a row for each node that answered of those ``asked``, and for each that they name."""
    members = _members(nodes)
    columns = [Column("node"), Column("state", prose=True)]
    if members:
        columns += [Column("leads"), Column("priority", right=True)]
    columns += [Column("up for", right=True), Column("locks", right=True)]
    rows: list[Sequence[Cell]] = []
    for node in nodes:
        seat = members.get(node.node, ("", "") if members else ())
        locks = str(len(node.locks)) if node.ready or node.locks else "?"
        rows.append((node.node, _state(node), *seat, duration(node.uptime_ms), locks))
    missing = sorted({name for node in nodes for name in node.nodes} - {n.node for n in nodes})
    # An address does not name its node: only if all nodes were asked, each missing one was.
    if asked >= len(nodes) + len(missing):
        why = Text("no answer: is it running?", "red")
    else:
        why = Text("not asked, or no answer" if asked > len(nodes) else "not asked", "yellow")
    for name in missing:
        rows.append((name, why, *members.get(name, ("", "") if members else ()), "", ""))
    return Rows(columns, rows)


def quorum_lost(nodes: Sequence[NodeStatus], *, asked: int) -> str:
    """Return a text about a missing majority; empty if a majority answers, or may answer."""
    named = {name for node in nodes for name in node.nodes}
    needed = len(named) // 2 + 1
    votes = {node.protocol for node in nodes} <= VOTING
    if asked < len(named) or len(nodes) >= needed or not votes:
        return ""
    silent = sorted(named - {node.node for node in nodes})
    missing = needed - len(nodes)
    some = f"at least {missing} of " if missing < len(silent) else ""
    return (
        f"There is no majority: {len(nodes)} of {len(named)} nodes answer here, and {needed} are "
        f"needed. Until then no lock is granted or released. Start {some}{_and(silent)} again, "
        f"each with its own data folder. {MAJORITY_LOST}."
    )


def roles_table(nodes: Sequence[NodeStatus]) -> Rows:
    columns = ("node", "role", "kind")
    rows = [
        (
            node.node,
            role.name,
            role.kind,
            str(role.waiting),
            ", ".join(f"{fact.name} {fact.value or 'none'}" for fact in role.summary),
        )
        for node in nodes
        for role in node.roles
    ]
    prose = Column("summary", prose=True)
    return Rows([*map(Column, columns), Column("waiting", right=True), prose], rows)


def locks_seen(nodes: Sequence[NodeStatus]) -> list[tuple[str, LockStatus]]:
    """Return each lock with the node that reports it.

    Where all nodes report the same table, return each lock once and without a node, as
    reported by the node that knows most.
    """
    seen: dict[tuple[str, str], LockStatus] = {}
    for node in nodes:
        for lock in node.locks:
            key = lock.lock, "" if node.protocol in VOTING else node.node
            known = seen.get(key)
            if known is None or (lock.slot, _tells(lock)) > (known.slot, _tells(known)):
                seen[key] = lock
    return [(node, seen[name, node]) for name, node in sorted(seen)]


def _tells(lock: LockStatus) -> tuple[bool, int]:
    """Return the amount of information in a lock's status; the most is shown."""
    return lock.holder is not None, len(lock.waiters)


def locks_table(seen: Sequence[tuple[str, LockStatus]]) -> Rows:
    columns = ("lock", "at", "held by", "fence", "for", "waiting", "needs")
    rows = [_cells(node, lock) for node, lock in seen]
    return Rows([Column(name, right=name in ("fence", "for")) for name in columns], rows)


def _elected(nodes: Sequence[NodeStatus]) -> Elected | None:
    reports = [node.elected for node in nodes if node.elected is not None]
    return max(reports, key=lambda elected: elected.epoch, default=None)


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
    return "off" if priority == OFF else str(priority or "?")


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


def _cells(node: str, lock: LockStatus) -> tuple[Cell, ...]:
    holder: Cell = "-" if lock.left is None else Phrase(progress_of(lock))
    fences: tuple[str, ...] = ()
    held_for: tuple[str, ...] = ()  # It is free, as far as this node knows.
    if lock.holder is not None:
        holders = lock.holders or (lock.holder,)
        holder = tuple(
            f"{person(one)}{share_of(lock, one, wants=False)}{retained(one)}" for one in holders
        )
        fences = tuple(map(fences_of, holders))
        held_for = tuple(duration(one.since_ms) for one in holders)
    waiting = tuple(
        f"{person(one)}{share_of(lock, one, wants=True)} {duration(one.since_ms)}"
        for one in lock.waiters
    )
    needs = tuple(f"{one.node} (silent {duration(one.silent_ms)})" for one in lock.waits_for)
    at = node if lock.holder is None or lock.holder.node != node else ""
    return object_shown(lock.lock), at, holder, fences, held_for, waiting, needs
