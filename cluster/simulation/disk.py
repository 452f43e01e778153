"""A node's disk: what is durable, what is not yet, and what a crash leaves of the latter."""

from __future__ import annotations

from random import Random

from holdfast.actors.message import Message
from holdfast.transport.wire import decode, encode


class Disk:
    """Records in the order of writing, as bytes: every record crosses the real codec."""

    def __init__(self) -> None:
        self.durable: list[bytes] = []
        self.tail: list[bytes] = []
        """Written, and not yet synced."""

    def append(self, record: Message) -> None:
        """Write ``record`` behind all others; it is durable after the next `sync`."""
        self.tail.append(encode(record))

    def sync(self) -> None:
        """Make everything written so far durable."""
        self.durable += self.tail
        self.tail = []

    def crash(self, random: Random, *, loses_tail: bool) -> int:
        """Keep what is durable and some of the rest; return how many records were lost.

        Args:
            random: decides how many unsynced records had reached the disk.
            loses_tail: whether unsynced records may be lost at all. A file system
                that writes in order leaves a prefix of them.

        """
        kept = random.randint(0, len(self.tail)) if loses_tail else len(self.tail)
        lost = len(self.tail) - kept
        del self.tail[kept:]
        self.sync()
        return lost

    def records(self) -> tuple[Message, ...]:
        """Read everything back, oldest first."""
        return tuple(decode(record) for record in self.durable)
