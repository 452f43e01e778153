"""A node's disk: its durable and its unsynced records, and the effect of a crash on them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from fencelock.actors.message import Message
from fencelock.cluster.node.storage.record import Mark
from fencelock.transport.codec import decode, encode


class Written(NamedTuple):
    """One write of a role: after a crash it is on the disk as a whole or not at all."""

    role: str
    records: tuple[bytes, ...]
    alone: bool = False
    """Whether everything that the role had written before is forgotten."""
    mark: Mark | None = None
    """The begin of a checkpoint, before the records, or its end."""


class Copy(NamedTuple):
    """A copy of a disk."""

    journal_id: int
    streams: dict[str, list[bytes]]

    def records(self) -> dict[str, tuple[Message, ...]]:
        """Read everything back, by the name of the role that wrote it, oldest first."""
        return {
            role: tuple(decode(record) for record in records)
            for role, records in self.streams.items()
        }


class Disk:
    """Records in the order of writing, role by role, as bytes: each crosses the real codec."""

    def __init__(self) -> None:
        self.journal_id = 0
        """The id of its journal, 0 while the disk is empty."""
        self.streams: dict[str, list[bytes]] = {}
        """The durable records, by the name of the role that wrote them."""
        self.tail: list[Written] = []
        """The writes that are not yet synced."""
        self.begun: dict[str, int] = {}
        """The number of durable records of a role before those of its unfinished checkpoint."""

    @property
    def durable(self) -> list[bytes]:
        return [record for records in self.streams.values() for record in records]

    def append(self, role: str, record: Message) -> None:
        """Write ``record`` behind all others of ``role``; it is durable after the next `sync`."""
        self.tail.append(Written(role, (encode(record),)))

    def checkpoint(self, role: str, records: Sequence[Message]) -> None:
        """Write ``records`` in place of all that ``role`` wrote before, as `append` does."""
        self.tail.append(Written(role, tuple(encode(record) for record in records), alone=True))

    def checkpoint_part(self, role: str, records: Sequence[Message], *, first: bool) -> None:
        """Write a part of a checkpoint of ``role``, as `append` does."""
        encoded = tuple(encode(record) for record in records)
        self.tail.append(Written(role, encoded, mark=Mark.BEGIN if first else None))

    def end_checkpoint(self, role: str) -> None:
        """Forget what ``role`` wrote before its checkpoint began, after the next `sync`."""
        self.tail.append(Written(role, (), mark=Mark.END))

    def sync(self) -> None:
        for role, records, alone, mark in self.tail:
            stream = self.streams.setdefault(role, [])
            if alone:
                stream.clear()
                self.begun.pop(role, None)
            if mark is Mark.BEGIN:
                self.begun[role] = len(stream)
            elif mark is Mark.END:
                del stream[: self.begun.pop(role, 0)]
            stream += records
        self.tail = []

    def open(self, random: Random) -> None:
        if not self.journal_id:
            self.journal_id = 1 + random.getrandbits(62)

    def lose(self) -> None:
        """Lose everything: the disk is replaced by an empty one."""
        self.restore(Copy(0, {}))

    def copy(self) -> Copy:
        return Copy(self.journal_id, {role: list(one) for role, one in self.streams.items()})

    def restore(self, copy: Copy) -> None:
        self.journal_id = copy.journal_id
        self.streams = {role: list(records) for role, records in copy.streams.items()}
        self.tail, self.begun = [], {}

    def crash(self, random: Random, *, loses_tail: bool) -> int:
        """Keep the durable records and some of the rest; return the number of lost records.

        Args:
            random: decides how much of the unsynced writes had reached the disk.
            loses_tail: whether unsynced writes may be lost at all. A file system that writes
                in order leaves a prefix of them; a checkpoint is there as a whole or not at
                all.

        """
        kept = random.randint(0, len(self.tail)) if loses_tail else len(self.tail)
        lost = len(self.tail) - kept
        del self.tail[kept:]
        self.sync()
        return lost

    def records(self) -> dict[str, tuple[Message, ...]]:
        return self.copy().records()
