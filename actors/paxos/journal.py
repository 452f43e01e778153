"""Recovery from a node's journal: promises, votes, and the votes that had won. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fencelock.actors.message import Message
from fencelock.actors.paxos.config import LogConfig
from fencelock.actors.paxos.membership import change_in, split
from fencelock.actors.paxos.message import (
    NO_BALLOT,
    Accept,
    Ballot,
    Batch,
    Commit,
    Diverged,
    Pledge,
    Pledged,
    Slots,
    SnapshotChunk,
    Vote,
)
from fencelock.actors.timing import TIMING


class Base(NamedTuple):
    """The state after all slots before ``slot``, at log time ``time_ms``."""

    slot: int
    time_ms: int
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """State of a node as of its last write to the journal."""

    promised: Ballot = NO_BALLOT
    led: int = 0
    """The highest round this node ever led, or tried to."""
    votes: dict[int, Vote] = field(default_factory=dict[int, Vote])
    """The last vote for each slot that is not in ``decided``."""
    base: Base | None = None
    """The snapshot that replaces all earlier slots, or None if nothing was ever trimmed."""
    decided: tuple[Batch, ...] = ()
    """Batches known to be decided, without a gap, from slot 1 or that of ``base``."""
    later: dict[int, Batch] = field(default_factory=dict[int, Batch])
    """Batches known to be decided behind the first gap, by slot."""
    lease_ms: int = TIMING.lease_ms
    """The longest lease that the acceptor may have given (ms)."""
    diverged: str = ""
    """Reason why this node must not take part any more, empty if it may."""

    @property
    def next(self) -> int:
        """The first slot that the replica has not applied once it has read the journal."""
        return (1 if self.base is None else self.base.slot) + len(self.decided)

    def recover_views(self, config: LogConfig) -> LogConfig:
        """Give ``config``, which has the founding view, the views after all decided slots."""
        if self.base is not None:
            config.restore(split(self.base.chunks)[1])
        for slot, batch in enumerate(self.decided, start=self.next - len(self.decided)):
            config.advance(slot + 1)
            if (membership := change_in(batch)) is not None:
                config.change(slot, membership)
        return config


class _Reading:
    """The state of a journal after some of its records."""

    def __init__(self) -> None:
        self.promised = NO_BALLOT
        self.led = 0
        self.votes: dict[int, Vote] = {}
        self.open: dict[int, Vote] = {}
        """The votes that are not known to have won, by slot."""
        self.won: dict[int, Batch] = {}
        self.parts: list[SnapshotChunk] = []
        self.diverged = ""
        self.lease_ms = TIMING.lease_ms

    def take(self, record: Message) -> None:
        """Apply the next record; records of other roles are skipped."""
        if isinstance(record, Accept):
            self.promised = max(self.promised, record.ballot)
            vote = Vote(record.slot, record.ballot, record.batch)
            self.votes[record.slot] = self.open[record.slot] = vote
            self.commit(record.ballot, record.committed)
        elif isinstance(record, Commit):
            self.commit(record.ballot, record.committed)
        elif isinstance(record, Slots):
            self.won.update(enumerate(record.batches, start=record.first))
        elif isinstance(record, SnapshotChunk):
            self.parts.append(record)
        elif isinstance(record, Diverged):
            self.diverged = record.why
        elif isinstance(record, Pledged) and record.pledge is Pledge.PROMISED:
            self.promised = max(self.promised, record.ballot)
        elif isinstance(record, Pledged) and record.pledge is Pledge.LEASE:
            self.lease_ms = record.ballot.round
        elif isinstance(record, Pledged):
            self.led = max(self.led, record.ballot.round)

    def commit(self, ballot: Ballot, committed: int) -> None:
        """Mark the votes under ``ballot`` for slots before ``committed`` as won."""
        votes = self.open.values()
        won = [vote for vote in votes if vote.slot < committed and vote.ballot == ballot]
        for vote in won:
            self.won[vote.slot] = vote.batch
            del self.open[vote.slot]

    def base(self) -> Base | None:
        """Return the snapshot. A checkpoint writes all its parts at once, in order."""
        if not self.parts:
            return None
        first = self.parts[0]
        assert [part.chunk for part in self.parts] == list(range(first.count))  # P16
        assert all(part.slot == first.slot for part in self.parts)
        return Base(first.slot, first.time_ms, tuple(part.content for part in self.parts))


def recover(records: Sequence[Message]) -> Recovered:
    """Read ``records``: oldest first for each role, with the roles in any order.

    A vote is known to have won if its own leader later reported its slot as decided: a leader
    proposes one batch for a slot, and reports only what won. A vote under another ballot proves
    nothing, even if its slot was decided. The acceptor's stream may reach back behind the
    snapshot if a crash came between the two cuts.
    """
    reading = _Reading()
    for record in records:
        reading.take(record)
    base = reading.base()
    next_slot = 1 if base is None else base.slot
    decided: list[Batch] = []
    while (batch := reading.won.get(next_slot)) is not None:
        decided.append(batch)
        next_slot += 1
    votes, won = reading.votes, reading.won
    return Recovered(
        promised=reading.promised,
        led=reading.led,
        votes={slot: votes[slot] for slot in sorted(votes) if slot >= next_slot},
        base=base,
        decided=tuple(decided),
        later={slot: won[slot] for slot in sorted(won) if slot > next_slot},
        diverged=reading.diverged,
        lease_ms=reading.lease_ms,
    )
