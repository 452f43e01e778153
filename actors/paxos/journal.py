"""What a node's journal says about the log: promises, votes, and which votes had won. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.actors.message import Message
from holdfast.actors.paxos.message import (
    NO_BALLOT,
    Accept,
    Ballot,
    Batch,
    Commit,
    Pledge,
    Pledged,
    Slots,
    Vote,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a node knew when it was last able to write."""

    promised: Ballot = NO_BALLOT
    led: int = 0
    """The highest round this node ever led, or tried to."""
    votes: dict[int, Vote] = field(default_factory=dict[int, Vote])
    """The last vote for each slot that is not in ``decided``, by slot."""
    decided: tuple[Batch, ...] = ()
    """Slots 1, 2, ...: what is known to be decided, without a gap."""
    later: dict[int, Batch] = field(default_factory=dict[int, Batch])
    """What else is known to be decided, by slot, behind the first gap."""


class _Reading:
    """The state of a journal after some of its records."""

    def __init__(self) -> None:
        self.promised = NO_BALLOT
        self.led = 0
        self.votes: dict[int, Vote] = {}
        self.open: dict[int, Vote] = {}
        """The votes that are not known to have won, by slot."""
        self.won: dict[int, Batch] = {}

    def take(self, record: Message) -> None:
        """Take the next record; those of others are passed over."""
        if isinstance(record, Accept):
            self.promised = max(self.promised, record.ballot)
            vote = Vote(record.slot, record.ballot, record.batch)
            self.votes[record.slot] = self.open[record.slot] = vote
            self.commit(record.ballot, record.committed)
        elif isinstance(record, Commit):
            self.commit(record.ballot, record.committed)
        elif isinstance(record, Slots):
            self.won.update(enumerate(record.batches, start=record.first))
        elif isinstance(record, Pledged) and record.pledge is Pledge.PROMISED:
            self.promised = max(self.promised, record.ballot)
        elif isinstance(record, Pledged):
            self.led = max(self.led, record.ballot.round)

    def commit(self, ballot: Ballot, committed: int) -> None:
        """Note which votes under ``ballot`` have won, now that slots before ``committed`` did."""
        votes = self.open.values()
        won = [vote for vote in votes if vote.slot < committed and vote.ballot == ballot]
        for vote in won:
            self.won[vote.slot] = vote.batch
            del self.open[vote.slot]


def recover(records: Sequence[Message]) -> Recovered:
    """Read ``records``: of each role oldest first, and the roles in any order.

    A vote is known to have won if its own leader said later that its slot was decided: a
    leader proposes one batch for a slot, and says so only of what won. Of a vote under
    another ballot nothing is known, even if its slot was decided.
    """
    reading = _Reading()
    for record in records:
        reading.take(record)
    decided: list[Batch] = []
    while (batch := reading.won.pop(len(decided) + 1, None)) is not None:
        decided.append(batch)
    votes = reading.votes
    return Recovered(
        promised=reading.promised,
        led=reading.led,
        votes={slot: votes[slot] for slot in sorted(votes) if slot > len(decided)},
        decided=tuple(decided),
        later=reading.won,
    )
