"""Snapshots of a replica's state: taken at one slot, written in small parts. Pure.

A snapshot lets the journal drop what led to it, and is sent to members that lack slots
which no replica keeps any more. Freezing the state costs a fraction of writing it, which
is done part by part, between the turns of all other roles.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencelock.actors.effect import Wake
from fencelock.actors.message import Address, Message
from fencelock.actors.paxos.event import SnapshotTaken
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.message import PAGE, Batch, Slots, SnapshotChunk
from fencelock.actors.paxos.timer import WriteChunk

JOURNAL_BYTES = 8 << 20
"""Bytes applied before the journal is cut (8 MiB). Bounds recovery to a second or two."""

DEVELOP_MS = 1
"""Pause between two parts (ms): sockets and other roles have their turn meanwhile."""


class Snapshots:
    """Decides when to make a snapshot, and keeps the one being made.

    The journal is cut when `JOURNAL_BYTES` were applied, and at least twice the size of the last
    snapshot: so the work for snapshots is bounded by that for commands. Members are staggered,
    so that two are rarely busy with it at once. A master waits longest: a slow follower goes
    unnoticed.

    Args:
        journal_bytes: applied bytes after which the journal is cut; 0 for never.
        place: index of this member.
        members: number of members.

    """

    def __init__(self, journal_bytes: int, place: int, members: int) -> None:
        self.journal_bytes = journal_bytes
        self.patience = 8 + place % max(1, members)
        """Factor on the threshold, in eighths."""
        self.grown = 0
        """Bytes applied since the journal was cut."""
        self.size = 0
        """Size of the last snapshot (bytes)."""
        self.slot = 0
        """The last snapshot, or the one being made, is of the state before this slot."""
        self.time_ms = 0
        self.chunks: list[bytes] = []
        self.since: list[Batch] = []
        """Batches applied since ``slot``, while a snapshot is being made."""
        self.askers: dict[Address, None] = {}
        """Addresses that requested the snapshot being made."""
        self._parts: Iterator[bytes | None] | None = None
        self.under_way = False
        """Whether a snapshot is being made."""
        self.due = self._threshold()
        """A snapshot may be due once ``grown`` is this much; see `is_due`."""

    def _threshold(self) -> int:
        return max(self.journal_bytes, 2 * self.size) * self.patience // 8

    def is_due(self, *, leading: bool) -> bool:
        """Return whether the journal should be cut now."""
        if not self.journal_bytes or self.under_way:
            return False
        return self.grown >= (self.due * 3 // 2 if leading else self.due)

    def begin(self, machine: Machine, slot: int, time_ms: int) -> list[Wake]:
        """Freeze the state after all slots before ``slot``; `develop` does the rest."""
        assert not self.under_way
        self.under_way = True
        self.slot, self.time_ms = slot, time_ms
        self._parts = machine.photograph()
        return [Wake(DEVELOP_MS, WriteChunk())]

    def develop(self) -> bool:
        """Make the next part; return whether the snapshot is complete."""
        if self._parts is None:
            return False
        for part in self._parts:
            if part is not None:
                self.chunks.append(part)
            return False
        return True

    def finish(self) -> tuple[SnapshotTaken, tuple[Message, ...]]:
        """Return a complete snapshot as catch-up sends it, and as a journal keeps it.

        The records cover everything applied so far: batches applied since the snapshot follow it.
        So they can replace all that was written before.
        """
        slot, time_ms, chunks = self.slot, self.time_ms, tuple(self.chunks)
        records = records_of(slot, time_ms, chunks, tuple(self.since))
        photographed = SnapshotTaken(
            askers=tuple(self.askers), slot=slot, time_ms=time_ms, chunks=chunks
        )
        grown = sum(batch.size for batch in self.since)
        self.replace(slot, chunks)
        self.grown = grown
        return photographed, records

    def replace(self, slot: int, chunks: tuple[bytes, ...]) -> None:
        """Make ``chunks``, of ``slot``, the last snapshot; one being made is dropped."""
        self.grown, self.size, self.slot = 0, sum(len(chunk) for chunk in chunks), slot
        self.chunks, self.since, self.askers, self._parts = [], [], {}, None
        self.under_way, self.due = False, self._threshold()


def records_of(
    slot: int, time_ms: int, chunks: tuple[bytes, ...], since: tuple[Batch, ...] = ()
) -> tuple[Message, ...]:
    """Return the state before ``slot`` and the batches from there on, as a journal keeps them."""
    parts = [
        SnapshotChunk(slot=slot, time_ms=time_ms, chunk=index, count=len(chunks), content=chunk)
        for index, chunk in enumerate(chunks)
    ]
    pages = [
        Slots(first=slot + start, batches=since[start : start + PAGE])
        for start in range(0, len(since), PAGE)
    ]
    return (*parts, *pages)
