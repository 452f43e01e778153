"""Read indexes of a replica: those it requested from the master, and those requested here. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Instant, Local
from fencelock.actors.paxos.config import replica_of
from fencelock.actors.paxos.message import NUMBER_MAX
from fencelock.actors.paxos.read_message import ReadIndex, ReadIndexReached


@dataclass(frozen=True, slots=True)
class Read:
    """One read."""

    asker: Address
    number: int
    question: Local
    at: Instant
    """The time at which it was requested."""
    age_ms: int | None


class ReadIndexes:
    """One read index is requested at a time; all reads that came before it wait for it.

    Args:
        node: where it is.
        number: the number before that of the first request.

    """

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.master = ""
        """The node that leads, empty if none is known."""
        self.waiting: list[Read] = []
        """Reads whose read index was requested."""
        self.passed: list[tuple[int, Read]] = []
        """Reads that wait until all slots before their read index are applied."""
        self.asked: dict[Address, tuple[int, Instant]] = {}
        """On the master: the request of each other replica, and its time."""

    def __len__(self) -> int:
        """Return the number of waiting reads of this node and requests of others."""
        return len(self.waiting) + len(self.passed) + len(self.asked)

    def is_free(self) -> bool:
        """Return whether another node leads and no request is in flight."""
        return bool(self.master) and self.master != self.node and not self.waiting

    def ask(self, reads: list[Read]) -> Send:
        """Request a read index for ``reads``, when `is_free`."""
        self.number += 1
        self.waiting = reads
        return Send(replica_of(self.master), ReadIndex(number=self.number))

    def repeat(self) -> list[Send]:
        """Send the request in flight again."""
        if not self.waiting:
            return []
        return [Send(replica_of(self.master), ReadIndex(number=self.number))]

    def take(self, replica: Address, passed: ReadIndexReached) -> bool:
        """Note the read index of the waiting reads; return whether the message was the answer."""
        known = replica == replica_of(self.master) and passed.number == self.number
        if not known or not self.waiting or not 1 <= passed.slot < NUMBER_MAX:
            return False
        self.passed += [(passed.slot, read) for read in self.waiting]
        self.waiting = []
        return True

    def pop(self, applied: int) -> list[Read]:
        """Return the reads that can be answered once all slots before ``applied`` are applied."""
        if not self.passed:
            return []
        ready = [read for slot, read in self.passed if slot <= applied]
        self.passed = [(slot, read) for slot, read in self.passed if slot > applied]
        return ready

    def turn_to(self, master: str) -> list[Read]:
        """Follow another master; return the reads that need a new request."""
        self.master = master
        self.asked = {}
        again, self.waiting = self.waiting, []
        return again

    def drop(self, is_old: Callable[[Read], bool]) -> None:
        """Drop the reads of this node that ``is_old`` selects."""
        self.waiting = [read for read in self.waiting if not is_old(read)]
        self.passed = [(slot, read) for slot, read in self.passed if not is_old(read)]

    def admit(self, replica: Address, number: int, now: Instant) -> None:
        """On the master: let another replica's request wait, in place of its earlier one."""
        if self.asked.get(replica, (number - 1, now))[0] != number:
            self.asked[replica] = (number, now)

    def pass_on(self, until: Instant, applied: int) -> list[Send]:
        """On the master: answer the requests received up to ``until``."""
        ready = [replica for replica, (_, at) in self.asked.items() if at <= until]
        numbers = [(replica, self.asked.pop(replica)[0]) for replica in ready]
        return [Send(to, ReadIndexReached(number=n, slot=applied)) for to, n in numbers]
