"""Photographs of a replica's state: taken at one slot, written down in small parts. Pure.

A photograph lets the journal forget what led to it, and goes to members that lack slots
which nobody keeps any more. To freeze the state costs a fraction of writing it down, which
is done part by part, between the turns of everybody else.
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
"""What may be applied before the journal is cut (bytes, 8 MiB): a second or two to read."""

DEVELOP_MS = 1
"""Between two parts (ms): sockets and other roles have their turn meanwhile."""


class Snapshots:
    """When to photograph, and what has become of the photograph under way.

    The journal is cut when `JOURNAL_BYTES` were applied, and at least twice what the last
    photograph took: so the work for photographs is bounded by that for commands. Members
    are staggered, so that seldom two are busy with it, and a master waits longest: if a
    follower is slow meanwhile, nobody notices.

    Args:
        journal_bytes: after how much that was applied the journal is cut; 0 for never.
        place: which of the members this is.
        members: how many there are.

    """

    def __init__(self, journal_bytes: int, place: int, members: int) -> None:
        self.journal_bytes = journal_bytes
        self.patience = 8 + place % max(1, members)
        """In eighths of what is due."""
        self.grown = 0
        """What was applied since the journal was cut (bytes)."""
        self.size = 0
        """Of the last photograph (bytes)."""
        self.slot = 0
        """The last photograph, or the one under way, is of the state before this slot."""
        self.time_ms = 0
        self.chunks: list[bytes] = []
        self.since: list[Batch] = []
        """What was applied since ``slot``, while a photograph is under way."""
        self.askers: dict[Address, None] = {}
        """Who asked for the photograph under way."""
        self._parts: Iterator[bytes | None] | None = None

    def is_under_way(self) -> bool:
        """Return whether a photograph is being written down."""
        return self._parts is not None

    def note(self, batch: Batch) -> None:
        """Note that ``batch`` was applied."""
        self.grown += batch.size()
        if self._parts is not None:
            self.since.append(batch)

    def is_due(self, *, reigning: bool) -> bool:
        """Return whether the journal should be cut now."""
        if not self.journal_bytes or self._parts is not None:
            return False
        most = max(self.journal_bytes, 2 * self.size) * self.patience // 8
        return self.grown >= (most * 3 // 2 if reigning else most)

    def begin(self, machine: Machine, slot: int, time_ms: int) -> list[Wake]:
        """Freeze the state after all slots before ``slot``; the rest is done by `develop`."""
        assert self._parts is None
        self.slot, self.time_ms = slot, time_ms
        self._parts = machine.photograph()
        return [Wake(DEVELOP_MS, WriteChunk())]

    def develop(self) -> bool:
        """Write down the next part; return whether the photograph is complete."""
        if self._parts is None:
            return False
        for part in self._parts:
            if part is not None:
                self.chunks.append(part)
            return False
        return True

    def finish(self) -> tuple[SnapshotTaken, tuple[Message, ...]]:
        """Return a complete photograph as catch-up gives it away, and as a journal keeps it.

        The records stand for everything applied so far: what came since the photograph is
        behind it. So they can take the place of all that was written before.
        """
        slot, time_ms, chunks = self.slot, self.time_ms, tuple(self.chunks)
        records = records_of(slot, time_ms, chunks, tuple(self.since))
        photographed = SnapshotTaken(
            askers=tuple(self.askers), slot=slot, time_ms=time_ms, chunks=chunks
        )
        grown = sum(batch.size() for batch in self.since)
        self.replace(slot, chunks)
        self.grown = grown
        return photographed, records

    def replace(self, slot: int, chunks: tuple[bytes, ...]) -> None:
        """Let ``chunks``, of ``slot``, be the last photograph; one under way is void."""
        self.grown, self.size, self.slot = 0, sum(len(chunk) for chunk in chunks), slot
        self.chunks, self.since, self.askers, self._parts = [], [], {}, None


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
