"""The display of examples/cluster.py: `fencelock status` again and again, or a line for a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contenders import Contenders
from rich.console import Group
from rich.text import Text

from fencelock import LockStatus, NodeStatus
from fencelock.cluster.cli.formatting import object_shown, person, share_of
from fencelock.cluster.cli.screen import line
from fencelock.cluster.cli.status import headline, locks_seen, locks_table, nodes_table


def screen(statuses: Sequence[NodeStatus], contenders: Contenders, left_s: float) -> Group:
    """Return the live view of a terminal."""
    asked = len({name for status in statuses for name in status.nodes})
    return Group(
        line(headline(statuses), "bold"),
        nodes_table(statuses, asked=asked),
        locks_table(locks_seen(statuses)),
        Text(f"{summary(contenders)}; {max(0.0, left_s):.0f} s to go"),
    )


def plain_line(statuses: Sequence[NodeStatus], contenders: Contenders) -> str:
    """Return one line for a pipe or a log."""
    answered = {status.node for status in statuses}
    missing = {name for status in statuses for name in status.nodes} - answered
    parts = [summary(contenders), headline(statuses)]
    parts += [f"no answer from {name}" for name in sorted(missing)]
    used = dict(uses(statuses))
    parts += [f"{name}: {text}" for name, text in used.items()]
    free = [name for name in contenders.objects if name not in used]
    return " | ".join([*parts, *([f"not in use: {', '.join(free)}"] if free else [])])


def uses(statuses: Sequence[NodeStatus]) -> Iterator[tuple[str, str]]:
    """Yield each object in use, with its holders and its waiters, in order, as far as is known."""
    for node, lock in locks_seen(statuses):
        if lock.holder or lock.waiters:
            queue = [f"{place}.{person(one)}" for place, one in enumerate(lock.waiters, 1)]
            waiting = f", waiting: {' '.join(queue)}" if queue else ""
            at = f" at {node}" if node else ""
            yield f"{object_shown(lock.lock)}{at}", f"{held_by(lock)}{waiting}"


def held_by(lock: LockStatus) -> str:
    holders = lock.holders or ((lock.holder,) if lock.holder else ())
    who = [f"{person(one)}{share_of(lock, one, wants=False)}, fence {one.fence}" for one in holders]
    return " and ".join(who) or "nobody"


def summary(contenders: Contenders) -> str:
    """Return how many grants there were so far."""
    return f"{sum(contenders.grants.values())} grants by {len(contenders.names)} clients"
