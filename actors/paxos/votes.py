"""An acceptor's votes in slots that its node has not applied, within bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fencelock.actors.paxos.config import VOTES_BYTES_MAX, VOTES_MAX
from fencelock.actors.paxos.message import Accept, Ballot, Batch, Vote


class Votes:
    """The last vote for each slot.

    Args:
        by_slot: votes of earlier lives.

    """

    def __init__(self, by_slot: Mapping[int, Vote]) -> None:
        self.by_slot: dict[int, Vote | Accept] = dict(by_slot)
        """Votes by slot: a vote of this life is kept as the `Accept` that asked for it."""
        self.size = sum(vote.batch.size for vote in self.by_slot.values())
        """Total size of their batches (bytes)."""

    def put(self, vote: Accept) -> bool:
        """Store ``vote`` as the last for its slot; return False if there is no room for it."""
        by_slot, slot, size = self.by_slot, vote.slot, vote.batch.size
        before = by_slot.get(slot)
        if before is not None:
            size -= before.batch.size
        elif by_slot and (len(by_slot) >= VOTES_MAX or self.size + size > VOTES_BYTES_MAX):
            return False
        self.size += size
        by_slot[slot] = vote
        return True

    def at(self, slot: int) -> Vote:
        """Return the vote for ``slot``, which must have one."""
        vote = self.by_slot[slot]
        return Vote(slot, vote.ballot, vote.batch)

    def slots(self, first: int, end: int | None = None) -> list[int]:
        """Return in order the slots from ``first`` on, and before ``end``, that have a vote."""
        by_slot = self.by_slot
        if end is not None and end - first < len(by_slot):
            return [slot for slot in range(first, end) if slot in by_slot]
        return sorted(slot for slot in by_slot if slot >= first and (end is None or slot < end))

    def won(self, ballot: Ballot, first: int, end: int) -> tuple[tuple[int, Batch], ...]:
        """Return the votes under ``ballot`` from slot ``first`` on and before ``end``."""
        by_slot = self.by_slot
        votes = [by_slot[slot] for slot in self.slots(first, end)]
        return tuple([(vote.slot, vote.batch) for vote in votes if vote.ballot == ballot])

    def forget(self, first: int, end: int) -> None:
        """Drop the votes before slot ``end``; there are none before ``first``."""
        few = end - first < len(self.by_slot)
        slots = range(first, end) if few else [slot for slot in self.by_slot if slot < end]
        for slot in slots:
            vote = self.by_slot.pop(slot, None)
            self.size -= 0 if vote is None else vote.batch.size
