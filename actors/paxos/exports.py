"""Snapshots that are kept for backups, which clients read part by part. Pure."""

from __future__ import annotations

from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address
from fencelock.actors.paxos.event import (
    Export,
    Exported,
    SnapshotBegun,
    SnapshotTaken,
    TakeSnapshot,
)
from fencelock.actors.paxos.message import SnapshotChunk

EXPORTS_MAX = 2
"""Maximum snapshots that are kept for backups. Each keeps the values that were replaced since."""


WANTED_MAX = 64
"""Maximum requests that wait for the slot of a snapshot."""


class Exports:
    """Begins snapshots for backups, and returns their parts.

    They are apart from the snapshot for other members, which the next one for the journal replaces:
    a client may need longer to read one than it takes until then.

    Args:
        proxy: the role that asks for parts.
        replica: the role that makes snapshots.

    """

    def __init__(self, proxy: Address, replica: Address) -> None:
        self.proxy = proxy
        self.replica = replica
        self.kept: dict[int, SnapshotTaken | None] = {}
        """Snapshots by slot, oldest first; None while one is being made."""
        self.wanted: list[int] = []
        """Numbers of requests for a new one that wait for its slot."""
        self.used = 0
        """Number of parts that were sent."""

    def on_export(self, export: Export) -> Effects:
        """Return a part of a snapshot, or begin one."""
        number, slot = export.number, export.slot
        if slot == 0 and len(self.wanted) < WANTED_MAX:
            self.wanted.append(number)
            return (Send(self.replica, TakeSnapshot()),) if len(self.wanted) == 1 else ()
        if slot not in self.kept:
            why = "too many backups begin at once" if slot == 0 else f"no snapshot of slot {slot}"
            return (self._send(number, None, why),)
        snapshot = self.kept[slot]
        if snapshot is None:
            return (self._send(number, in_the_making(slot)),)
        part = chunk_of(snapshot, export.chunk)
        if part is None:
            return (self._send(number, None, f"the snapshot has no part {export.chunk}"),)
        self.used += 1
        return (self._send(number, part),)

    def on_begun(self, begun: SnapshotBegun) -> Effects:
        """Name the slot of the snapshot to all that wait for it."""
        wanted, self.wanted = self.wanted, []
        if not begun.slot:
            return [self._send(number, None, "nothing is decided yet") for number in wanted]
        self.kept.setdefault(begun.slot, None)
        while len(self.kept) > EXPORTS_MAX:
            del self.kept[next(iter(self.kept))]
        return [self._send(number, in_the_making(begun.slot)) for number in wanted]

    def taken(self, snapshot: SnapshotTaken) -> None:
        """Keep a snapshot that was made for a backup."""
        if snapshot.slot in self.kept:
            self.kept[snapshot.slot] = snapshot

    def drop(self) -> None:
        """Drop all snapshots that are complete."""
        self.kept = {slot: made for slot, made in self.kept.items() if made is None}

    def _send(self, number: int, part: SnapshotChunk | None, why: str = "") -> Send:
        return Send(self.proxy, Exported(number=number, part=part, why=why))


def chunk_of(snapshot: SnapshotTaken, chunk: int) -> SnapshotChunk | None:
    """Return a part of ``snapshot``, or None if it has no such part."""
    if chunk >= len(snapshot.parts):
        return None
    return SnapshotChunk(
        slot=snapshot.slot,
        time_ms=snapshot.time_ms,
        chunk=chunk,
        count=len(snapshot.parts),
        content=snapshot.parts[chunk].encoded(),
    )


def in_the_making(slot: int, time_ms: int = 0) -> SnapshotChunk:
    """Return the message that stands for the parts of a snapshot that is being made."""
    return SnapshotChunk(slot=slot, time_ms=time_ms, chunk=0, count=0, content=b"")
