"""An acceptor's votes in slots that its node has not applied, within bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fencelock.actors.paxos.config import VOTES_BYTES_MAX, VOTES_MAX
from fencelock.actors.paxos.message import Ballot, Batch, Vote


class Votes:
    """The last vote for each slot.

    Args:
        by_slot: votes of earlier lives.

    """

    def __init__(self, by_slot: Mapping[int, Vote]) -> None:
        self.by_slot = dict(by_slot)
        self.size = sum(vote.batch.size() for vote in self.by_slot.values())
        """Total size of their batches (bytes)."""

    def has_room(self, slot: int, size: int) -> bool:
        """Return whether a vote of ``size`` bytes for ``slot`` may be added."""
        if slot in self.by_slot or not self.by_slot:
            return True
        return len(self.by_slot) < VOTES_MAX and self.size + size <= VOTES_BYTES_MAX

    def get(self, slot: int) -> Vote | None:
        """Return the vote for ``slot``, None if there is none."""
        return self.by_slot.get(slot)

    def put(self, vote: Vote, size: int) -> None:
        """Store ``vote``, of ``size`` bytes, as the last for its slot."""
        before = self.by_slot.get(vote.slot)
        self.size += size if before is None else size - before.batch.size()
        self.by_slot[vote.slot] = vote

    def slots(self, first: int, end: int | None = None) -> list[int]:
        """Return in order the slots from ``first`` on, and before ``end``, that have a vote."""
        by_slot = self.by_slot
        if end is not None and end - first < len(by_slot):
            return [slot for slot in range(first, end) if slot in by_slot]
        return sorted(slot for slot in by_slot if slot >= first and (end is None or slot < end))

    def of(self, ballot: Ballot, first: int, end: int) -> tuple[tuple[int, Batch], ...]:
        """Return the votes under ``ballot`` from slot ``first`` on and before ``end``."""
        votes = [self.by_slot[slot] for slot in self.slots(first, end)]
        return tuple([(slot, batch) for slot, under, batch in votes if under == ballot])

    def forget(self, first: int, end: int) -> None:
        """Drop the votes before slot ``end``; there are none before ``first``."""
        few = end - first < len(self.by_slot)
        slots = range(first, end) if few else [slot for slot in self.by_slot if slot < end]
        for slot in slots:
            vote = self.by_slot.pop(slot, None)
            self.size -= 0 if vote is None else vote.batch.size()
