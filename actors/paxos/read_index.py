"""Barriers of a replica: those it set up at the master's, and those others set up here. Pure."""

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
    """One question."""

    asker: Address
    number: int
    question: Local
    at: Instant
    """When it was asked."""
    age_ms: int | None


class ReadIndexes:
    """One barrier is under way at a time; all reads that came before it wait for it.

    Args:
        node: where it is.
        number: of the last barrier, of which there was none.

    """

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.master = ""
        """The node that leads, empty if none is known."""
        self.waiting: list[Read] = []
        """Reads for which a barrier is under way."""
        self.passed: list[tuple[int, Read]] = []
        """Reads that need all slots before one to be applied."""
        self.asked: dict[Address, tuple[int, Instant]] = {}
        """On the master: the barrier of each other replica, and since when."""

    def __len__(self) -> int:
        """Return how many reads of this node wait, and barriers of others."""
        return len(self.waiting) + len(self.passed) + len(self.asked)

    def is_free(self) -> bool:
        """Return whether another node leads and no barrier is under way."""
        return bool(self.master) and self.master != self.node and not self.waiting

    def ask(self, reads: list[Read]) -> Send:
        """Set up a barrier for ``reads``, when `is_free`."""
        self.number += 1
        self.waiting = reads
        return Send(replica_of(self.master), ReadIndex(number=self.number))

    def repeat(self) -> list[Send]:
        """Set up again what is under way."""
        if not self.waiting:
            return []
        return [Send(replica_of(self.master), ReadIndex(number=self.number))]

    def take(self, replica: Address, passed: ReadIndexReached) -> bool:
        """Note what the reads must wait for; return whether that is what was asked."""
        known = replica == replica_of(self.master) and passed.number == self.number
        if not known or not self.waiting or not 1 <= passed.slot < NUMBER_MAX:
            return False
        self.passed += [(passed.slot, read) for read in self.waiting]
        self.waiting = []
        return True

    def pop(self, applied: int) -> list[Read]:
        """Return the reads that can be answered now that all slots before ``applied`` are."""
        if not self.passed:
            return []
        ready = [read for slot, read in self.passed if slot <= applied]
        self.passed = [(slot, read) for slot, read in self.passed if slot > applied]
        return ready

    def turn_to(self, master: str) -> list[Read]:
        """Turn to another master; return the reads that must be asked for anew."""
        self.master = master
        self.asked = {}
        again, self.waiting = self.waiting, []
        return again

    def drop(self, is_old: Callable[[Read], bool]) -> None:
        """Forget reads of this node."""
        self.waiting = [read for read in self.waiting if not is_old(read)]
        self.passed = [(slot, read) for slot, read in self.passed if not is_old(read)]

    def admit(self, replica: Address, number: int, now: Instant) -> None:
        """On the master: let a barrier of another replica wait; an earlier one of it is void."""
        if self.asked.get(replica, (number - 1, now))[0] != number:
            self.asked[replica] = (number, now)

    def pass_on(self, until: Instant, applied: int) -> list[Send]:
        """On the master: answer the barriers that came up to ``until``."""
        ready = [replica for replica, (_, at) in self.asked.items() if at <= until]
        numbers = [(replica, self.asked.pop(replica)[0]) for replica in ready]
        return [Send(to, ReadIndexReached(number=n, slot=applied)) for to, n in numbers]
