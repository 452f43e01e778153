"""Faults of whole disks: lost disks, and old copies put in their place."""

from __future__ import annotations

from fencelock.actors.bootstrap_message import GroupConfig, Start, Started
from fencelock.verification.simulation.disk import Copy
from fencelock.verification.simulation.world import World

STREAM = "bootstrap"
"""The role that records the journals and starts of other members."""


class DiskFaults:
    """Chooses a disk that may be lost or aged now, so that a majority always keeps its own.

    A member loses its disk only once its group is bootstrapped, and known to all others. A
    loss during the bootstrap could leave too few members for a majority, which is safe but
    answers no request.

    Args:
        world: the world of the disks.
        members: the members whose disks may be lost.
        voters: the members of the group: nodes that may join later do not count.

    """

    def __init__(self, world: World, members: tuple[str, ...], voters: tuple[str, ...]) -> None:
        self.world = world
        self.members = tuple(name for name in members if name in voters)
        self.voters = voters
        self.copies: dict[str, Copy] = {}
        """The first copy of each disk."""
        self.replaced: list[str] = []
        """The members that no longer have their first disk."""
        self._random = world.streams.fork("disks")

    def may_be_lost(self) -> str | None:
        """Return a member that may lose its disk now, or None if none may."""
        return self._choose()

    def lose(self, name: str) -> None:
        self.world.nodes[name].disk.lose()
        self._note(name, "loses its disk")

    def may_be_aged(self) -> str | None:
        """Return a member whose disk may be replaced by an old copy now; else copy a disk.

        All others must be up, and must know of a later start than the copy's.
        """
        name = self._choose()
        if name is None:
            return None
        copy = self.copies.setdefault(name, self.world.nodes[name].disk.copy())
        others = [other for other in self.voters if other != name]
        nodes = [self.world.nodes[other] for other in others]
        there = all(node.up and not node.paused for node in nodes)
        old = self._start_of(name, copy)
        if not there or old is None:
            return None
        known = (self._start_of(name, node.disk.copy()) for node in nodes)
        later = all(one is not None and one.incarnation > old.incarnation for one in known)
        return name if later else None

    def age(self, name: str) -> None:
        self.world.nodes[name].disk.restore(self.copies[name])
        self._note(name, "is given an old copy of its disk")

    def _note(self, name: str, what: str) -> None:
        self.replaced.append(name)
        self.world.fault_counts[what] += 1
        self.world.mishap(name, what)
        self.world.disk_replaced(name)

    def _choose(self) -> str | None:
        most = (len(self.voters) - 1) // 2
        if len(self.replaced) >= most or not self.members:
            return None
        name = self._random.choice(self.members)
        others = [other for other in self.voters if other != name]
        known = all(self._knows_group(other) for other in others)
        return name if known and name not in self.replaced else None

    def _knows_group(self, name: str) -> bool:
        records = self.world.nodes[name].disk.records().get(STREAM, ())
        return any(isinstance(record, GroupConfig) for record in records)

    def _start_of(self, name: str, copy: Copy) -> Start | None:
        """Return the latest start of ``name`` that a disk knows of."""
        starts = [
            record.start
            for record in copy.records().get(STREAM, ())
            if isinstance(record, Started) and record.member == name
        ]
        return starts[-1] if starts else None
