"""The display of examples/cluster.py: holders and waiters, on a terminal or in a pipe."""

from __future__ import annotations

from collections.abc import Collection

from contenders import Contenders
from local_cluster import leaders_of
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fencelock import Contender, LockStatus, NodeStatus
from fencelock.cluster.cli.formatting import object_named, object_shown, share_of


def screen(statuses: tuple[NodeStatus, ...], contenders: Contenders, left_s: float) -> Group:
    """Return the live view of a terminal."""
    seen = by_lock(statuses, contenders.objects)
    locks = Table(title="objects" if contenders.objects else "locks", expand=True)
    for column in ("lock", "held by", "from", "fence", "for", "waiting"):
        # These columns must not be cut short: a part of a fence or a name would be misleading.
        widths = {"fence": 18, "lock": max(map(len, map(object_shown, seen)), default=0)}
        locks.add_column(column, min_width=widths.get(column))
    for name, parts in seen.items():
        holders = holders_of(parts)
        locks.add_row(
            object_shown(name),
            "\n".join(named(holder) + share(parts[0], holder) for holder in holders),
            "\n".join(holder.node for holder in holders),
            "\n".join(str(holder.fence) for holder in holders),
            "\n".join(f"{holder.since_ms} ms" for holder in holders),
            ", ".join(in_order(parts)),
        )
    nodes = Table(title="nodes", expand=True)
    for column in ("node", "protocol", "ready", "leads", "up"):
        nodes.add_column(column)
    seats = seats_of(statuses)
    for status in statuses:
        ready = Text("yes", "green") if status.ready else Text(status.detail, "yellow")
        leads = Text(seats.get(status.node, ""), "cyan")
        up = f"{status.uptime_ms / 1000:.1f} s"
        nodes.add_row(status.node, status.protocol, ready, leads, up)
    for name in sorted({name for status in statuses for name in status.nodes} - heard(statuses)):
        nodes.add_row(name, "", Text("no answer", "red"), "", "")
    return Group(locks, nodes, Text(summary(contenders) + f"; {max(0.0, left_s):.0f} s to go"))


def plain_line(statuses: tuple[NodeStatus, ...], contenders: Contenders) -> str:
    """Return one line for a pipe or a log."""
    held: list[str] = []
    free: list[str] = []
    for name, parts in by_lock(statuses, contenders.objects).items():
        if contenders.objects and not is_used(parts):
            free.append(object_shown(name))
            continue
        holders = holders_of(parts)
        waiting = in_order(parts)
        who = " and ".join(
            f"{named(holder)}{share(parts[0], holder)} (fence {holder.fence})" for holder in holders
        )
        count = f"{len(waiting)} waiting"
        queue = f": {' '.join(waiting)}" if waiting and is_elected(statuses) else ""
        held.append(f"{object_shown(name)}: {who or 'nobody'}, {count}{queue}")
    nodes = [who_leads(statuses)] if leaders_of(statuses) else []
    missing = {name for status in statuses for name in status.nodes} - heard(statuses)
    nodes += [f"no answer from {name}" for name in sorted(missing)]
    held += [f"not in use: {', '.join(free)}"] if free else []
    return " | ".join([summary(contenders), *nodes, *held])


def seats_of(statuses: tuple[NodeStatus, ...]) -> dict[str, str]:
    """Return what each node that leads is called."""
    leaders = leaders_of(statuses)
    if not is_elected(statuses):
        return dict.fromkeys(leaders, "leader")
    return {leader: f"leader {seat}" for seat, leader in enumerate(leaders, 1)}


def who_leads(statuses: tuple[NodeStatus, ...]) -> str:
    """Return who leads, and where several do, in which epoch."""
    leaders = " ".join(leaders_of(statuses))
    if not is_elected(statuses):
        return f"leader {leaders}"
    epoch = max(status.elected.epoch for status in statuses if status.elected)
    return f"leaders {leaders} (epoch {epoch})"


def is_elected(statuses: tuple[NodeStatus, ...]) -> bool:
    """Return whether leaders are elected here, who have tickets in an order."""
    return any(status.elected for status in statuses)


def in_order(parts: list[LockStatus]) -> list[str]:
    """Return who waits, with its place where there is one order for all."""
    if len(parts) > 1:
        return [named(waiter) for part in parts for waiter in part.waiters]
    return [f"{place}.{named(waiter)}" for place, waiter in enumerate(parts[0].waiters, 1)]


def heard(statuses: tuple[NodeStatus, ...]) -> set[str]:
    """Return the nodes that answered."""
    return {status.node for status in statuses}


def by_lock(
    statuses: tuple[NodeStatus, ...], always: Collection[str] = ()
) -> dict[str, list[LockStatus]]:
    """Return the status of each lock, sorted by name; of those in ``always`` even if they are free.

    If the protocol has a log, every node knows all waiters, and the newest report counts. Otherwise
    each node reports the waiters that use it.
    """
    found: dict[str, list[LockStatus]] = {}
    for status in statuses:
        for lock in status.locks:
            found.setdefault(lock.lock, []).append(lock)
    for name, parts in found.items():
        newest = max(parts, key=lambda part: part.slot)
        if newest.slot:
            found[name] = [newest]
        elif is_elected(statuses):  # Each leader has all tickets, or nearly.
            found[name] = [
                max(parts, key=lambda part: (part.holder is not None, len(part.waiters)))
            ]
    if always:  # Open latches and maps are not shown.
        found = {name: parts for name, parts in found.items() if is_used(parts)}
    for name in always:
        free = LockStatus(lock=object_named(name), holder=None, waiters=(), waits_for=())
        found.setdefault(free.lock, [free])
    return dict(sorted(found.items()))


def is_used(parts: list[LockStatus]) -> bool:
    """Return whether an object has a holder or waiters."""
    return any(part.holder or part.waiters for part in parts)


def summary(contenders: Contenders) -> str:
    """Return how many grants there were so far."""
    return f"{sum(contenders.grants.values())} grants by {len(contenders.names)} clients"


def holders_of(parts: list[LockStatus]) -> tuple[Contender, ...]:
    """Return the holders of an object, preferring a report that has the name of the holder."""
    known = [part.holder for part in parts if part.holder is not None]
    return parts[0].holders or tuple(sorted(known, key=lambda one: one.owner == "")[:1])


def share(status: LockStatus, who: Contender) -> str:
    """Return the share that a holder has of an object; empty for a lock."""
    return share_of(status, who, wants=False)


def named(who: Contender) -> str:
    """Return who holds or waits by name, or by its node where the name is not known."""
    return who.label.partition(",")[0] or who.owner or f"somebody on {who.node}"
