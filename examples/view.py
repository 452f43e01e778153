"""What examples/cluster.py shows: who holds what, who waits, for people and for pipes."""

from __future__ import annotations

from local_cluster import Contenders
from rich.console import Group
from rich.table import Table
from rich.text import Text

from holdfast import LockStatus, NodeStatus


def screen(statuses: tuple[NodeStatus, ...], contenders: Contenders, left_s: float) -> Group:
    """Return the live view of a terminal."""
    locks = Table(title="locks", expand=True)
    for column in ("lock", "held by", "through", "fence", "for", "waiting (in order, a node each)"):
        locks.add_column(column)
    for name, parts in by_lock(statuses).items():
        holder = next((part.holder for part in parts if part.holder is not None), None)
        waiting = [f"{w.node}: {short(w.owner)}" for part in parts for w in part.waiters]
        locks.add_row(
            name,
            short(holder.owner) if holder else "",
            holder.node if holder else "",
            str(holder.fence) if holder else "",
            f"{holder.since_ms} ms" if holder else "",
            ", ".join(waiting),
        )
    nodes = Table(title="nodes", expand=True)
    for column in ("node", "protocol", "ready", "up"):
        nodes.add_column(column)
    for status in statuses:
        ready = Text("yes", "green") if status.ready else Text(status.detail, "yellow")
        nodes.add_row(status.node, status.protocol, ready, f"{status.uptime_ms / 1000:.1f} s")
    return Group(locks, nodes, Text(summary(contenders) + f"; {max(0.0, left_s):.0f} s to go"))


def plain_line(statuses: tuple[NodeStatus, ...], contenders: Contenders) -> str:
    """Return one line for a pipe or a log."""
    held: list[str] = []
    for name, parts in by_lock(statuses).items():
        holder = next((part.holder for part in parts if part.holder is not None), None)
        waiting = sum(len(part.waiters) for part in parts)
        who = f"{short(holder.owner)} (fence {holder.fence})" if holder else "nobody"
        held.append(f"{name}: {who}, {waiting} waiting")
    return f"{summary(contenders)} | " + " | ".join(held)


def by_lock(statuses: tuple[NodeStatus, ...]) -> dict[str, list[LockStatus]]:
    """Return what each node says of each lock, sorted by lock."""
    found: dict[str, list[LockStatus]] = {}
    for status in statuses:
        for lock in status.locks:
            found.setdefault(lock.lock, []).append(lock)
    return dict(sorted(found.items()))


def summary(contenders: Contenders) -> str:
    """Return how many grants there were so far."""
    return f"{sum(contenders.grants.values())} grants by {len(contenders.names)} clients"


def short(owner: str) -> str:
    """Return an owner without what the clients of one machine have in common."""
    return owner.partition(":")[2] or owner
