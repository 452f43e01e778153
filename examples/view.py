"""What examples/cluster.py shows: who holds what, who waits, for people and for pipes."""

from __future__ import annotations

from contenders import Contenders
from local_cluster import master_of
from rich.console import Group
from rich.table import Table
from rich.text import Text

from holdfast import Contender, LockStatus, NodeStatus


def screen(statuses: tuple[NodeStatus, ...], contenders: Contenders, left_s: float) -> Group:
    """Return the live view of a terminal."""
    locks = Table(title="locks", expand=True)
    for column in ("lock", "held by", "through", "fence", "for", "waiting"):
        # A fence that is cut short would be a wrong one.
        locks.add_column(column, min_width=18 if column == "fence" else None)
    for name, parts in by_lock(statuses).items():
        holder = holder_of(parts)
        waiting = [f"{w.node}: {w.owner}" for part in parts for w in part.waiters]
        locks.add_row(
            name,
            named(holder) if holder else "",
            holder.node if holder else "",
            str(holder.fence) if holder else "",
            f"{holder.since_ms} ms" if holder else "",
            ", ".join(waiting),
        )
    nodes = Table(title="nodes", expand=True)
    for column in ("node", "protocol", "ready", "leads", "up"):
        nodes.add_column(column)
    master = master_of(statuses)
    for status in statuses:
        ready = Text("yes", "green") if status.ready else Text(status.detail, "yellow")
        leads = Text("master", "cyan") if status.node == master else Text()
        up = f"{status.uptime_ms / 1000:.1f} s"
        nodes.add_row(status.node, status.protocol, ready, leads, up)
    for name in sorted({name for status in statuses for name in status.nodes} - heard(statuses)):
        nodes.add_row(name, "", Text("no answer", "red"), "", "")
    return Group(locks, nodes, Text(summary(contenders) + f"; {max(0.0, left_s):.0f} s to go"))


def plain_line(statuses: tuple[NodeStatus, ...], contenders: Contenders) -> str:
    """Return one line for a pipe or a log."""
    held: list[str] = []
    for name, parts in by_lock(statuses).items():
        holder = holder_of(parts)
        waiting = sum(len(part.waiters) for part in parts)
        who = f"{named(holder)} (fence {holder.fence})" if holder else "nobody"
        held.append(f"{name}: {who}, {waiting} waiting")
    master = master_of(statuses)
    nodes = [f"master {master}"] if master else []
    missing = {name for status in statuses for name in status.nodes} - heard(statuses)
    nodes += [f"no answer from {name}" for name in sorted(missing)]
    return " | ".join([summary(contenders), *nodes, *held])


def heard(statuses: tuple[NodeStatus, ...]) -> set[str]:
    """Return the nodes that answered."""
    return {status.node for status in statuses}


def by_lock(statuses: tuple[NodeStatus, ...]) -> dict[str, list[LockStatus]]:
    """Return what is known of each lock, sorted by lock.

    Where there is a log every node knows all, and the one that is furthest says it; else
    each node says what it knows of those that wait through it.
    """
    found: dict[str, list[LockStatus]] = {}
    for status in statuses:
        for lock in status.locks:
            found.setdefault(lock.lock, []).append(lock)
    for name, parts in found.items():
        newest = max(parts, key=lambda part: part.slot)
        if newest.slot:
            found[name] = [newest]
    return dict(sorted(found.items()))


def summary(contenders: Contenders) -> str:
    """Return how many grants there were so far."""
    return f"{sum(contenders.grants.values())} grants by {len(contenders.names)} clients"


def holder_of(parts: list[LockStatus]) -> Contender | None:
    """Return who holds a lock: the node it is held through knows it by name, others do not."""
    known = [part.holder for part in parts if part.holder is not None]
    return max(known, key=lambda holder: holder.owner != "", default=None)


def named(holder: Contender) -> str:
    """Return a holder by name, or by its node where the name is not known."""
    return holder.owner or f"somebody on {holder.node}"
