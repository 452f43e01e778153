"""Recovery from a node's journal: promises, votes, and the votes that had won. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fencelock.actors.message import Message
from fencelock.actors.paxos.config import (
    GROWTH_MAX,
    ROUND_KEPT_MAX,
    VOTES_MAX,
    LogConfig,
    latest_ms,
)
from fencelock.actors.paxos.membership import change_in, split
from fencelock.actors.paxos.message import (
    CHUNKS_MAX,
    NO_BALLOT,
    NUMBER_MAX,
    Accept,
    Ballot,
    Batch,
    Commit,
    Diverged,
    Pledge,
    Pledged,
    Skip,
    Slots,
    SnapshotChunk,
    Vote,
    fits,
)
from fencelock.actors.timing import TIME_MS_MAX, TIMING


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

    skips: frozenset[int] = frozenset()
    """The slots whose commands an operator skips, if they damage the state."""

    @property
    def next(self) -> int:
        """The first slot that the replica has not applied once it has read the journal."""
        return (1 if self.base is None else self.base.slot) + len(self.decided)

    @property
    def time_ms(self) -> int:
        """Log time after all decided slots (ms)."""
        base_ms = 0 if self.base is None else self.base.time_ms
        return max(base_ms, *(batch.time_ms for batch in self.decided), 0)

    def recover_views(self, config: LogConfig) -> LogConfig:
        """Give ``config``, which has the founding view, the state after all decided slots."""
        config.applied, config.time_ms = self.next, self.time_ms
        if self.base is not None:
            config.restore(split(self.base.chunks).terms)
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
        self.base: Base | None = None
        """The last whole snapshot."""
        self.diverged = ""
        self.skips: set[int] = set()
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
            self.add_part(record)
        elif isinstance(record, Diverged):
            self.diverged = record.why
        elif isinstance(record, Skip):
            self.skips.add(record.slot)
        elif isinstance(record, Pledged) and record.pledge is Pledge.PROMISED:
            self.promised = max(self.promised, record.ballot)
        elif isinstance(record, Pledged) and record.pledge is Pledge.LEASE:
            self.lease_ms = record.ballot.round
        elif isinstance(record, Pledged) and record.pledge is Pledge.LED:
            self.led = max(self.led, record.ballot.round)

    def commit(self, ballot: Ballot, committed: int) -> None:
        """Mark the votes under ``ballot`` for slots before ``committed`` as won."""
        votes = self.open.values()
        won = [vote for vote in votes if vote.slot < committed and vote.ballot == ballot]
        for vote in won:
            self.won[vote.slot] = vote.batch
            del self.open[vote.slot]

    def add_part(self, part: SnapshotChunk) -> None:
        """Add the next part of a snapshot; parts that do not become a whole one are dropped."""
        if part.chunk == 0:
            self.parts = []
        self.parts.append(part)
        assert part.chunk == len(self.parts) - 1  # trimmed-is-durable
        assert part.slot == self.parts[0].slot
        if len(self.parts) == part.count:
            self.base = Base(part.slot, part.time_ms, tuple(one.content for one in self.parts))
            self.parts = []


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
    base = reading.base
    next_slot = 1 if base is None else base.slot
    decided: list[Batch] = []
    while (batch := reading.won.get(next_slot)) is not None:
        decided.append(batch)
        next_slot += 1
    votes, won = reading.votes, reading.won
    return Recovered(
        skips=frozenset(reading.skips),
        promised=reading.promised,
        led=reading.led,
        votes={slot: votes[slot] for slot in sorted(votes) if slot >= next_slot},
        base=base,
        decided=tuple(decided),
        later={slot: won[slot] for slot in sorted(won) if slot > next_slot},
        diverged=reading.diverged,
        lease_ms=reading.lease_ms,
    )


REACH_SLOTS = 2 * VOTES_MAX
"""Slots from the first that a journal does not know to be applied, among which all votes must be.

An acceptor votes on `VOTES_MAX` slots from the first that is not applied. The journal may know a
few less to be decided than were applied: a leader reports them with later proposals. An acceptor
whose votes would go further writes a `Pledge.APPLIED` before them.
"""


class ImpossibleVote(NamedTuple):
    """A vote or a pledge in a journal that no honest member can have, and why."""

    record: Accept | Pledged
    why: str


def find_impossible(records: Sequence[Message]) -> list[ImpossibleVote]:
    """Return the votes and pledges among ``records`` that no honest member can have.

    An acceptor refuses them (the docstring of `config` has the bounds). So they are in a journal
    only if its content was altered, or was written without these bounds.
    """
    recovered = recover(records)
    first, time_ms = recovered.next, recovered.time_ms
    pledged = [one for one in records if isinstance(one, Pledged)]
    applied = [one.ballot.round for one in pledged if one.pledge is Pledge.APPLIED]
    reached = max(first, *(slot for slot in applied if slot <= first + GROWTH_MAX), 0)
    found: list[ImpossibleVote] = []
    for one in pledged:
        number, why = one.ballot.round, ""
        if one.pledge is Pledge.LEASE and not 0 <= number <= TIME_MS_MAX:
            why = f"a lease of {number} ms, and at most {TIME_MS_MAX} ms can be configured"
        if one.pledge is Pledge.APPLIED and not 0 <= number <= first + GROWTH_MAX:
            why = f"slots up to {number} are applied, although the journal has those up to {first}"
        if why:
            found.append(ImpossibleVote(one, f"{one.ballot.leader}: {why}"))
    for record in records:
        if not isinstance(record, Accept) or record.slot < first:
            continue
        slot, batch, why = record.slot, record.batch, ""
        latest = latest_ms(first, time_ms, slot)
        if slot >= reached + REACH_SLOTS:
            why = f"slot {slot}, although slots from {reached} on are undecided"
        elif not fits(batch):
            why = f"slot {slot}, with {len(batch.commands)} commands of {batch.size} bytes"
        elif batch.time_ms > latest:
            why = f"slot {slot}, with log time {batch.time_ms} ms, which can be {latest} ms at most"
        elif batch.origin > record.ballot:
            why = f"slot {slot}, with a batch of the later ballot {batch.origin.round}"
        if why:
            found.append(ImpossibleVote(record, f"{record.ballot.leader}: {why}"))
    return found


def without_votes(records: Sequence[Message], wrong: Sequence[ImpossibleVote]) -> list[Message]:
    """Return ``records`` without what is in ``wrong``.

    Ballots stay promised, and leases may have lasted for the longest time that can be configured.
    """
    dropped = [one.record for one in wrong]
    kept: list[Message] = []
    for record in records:
        if record not in dropped:
            kept.append(record)
        elif isinstance(record, Accept):
            kept.append(Pledged(pledge=Pledge.PROMISED, ballot=record.ballot))
        elif isinstance(record, Pledged) and record.pledge is Pledge.LEASE:
            longest = record.ballot._replace(round=TIME_MS_MAX)
            kept.append(Pledged(pledge=Pledge.LEASE, ballot=longest))
    return kept


def why_unusable(records: Sequence[Message]) -> str:
    """Return what no honest member can have written and nobody can mend; empty if there is nothing.

    Without its promises and ballots a member could decide a slot twice, and what it has applied is
    no more to be trusted than what contradicts it. Its journal must be replaced.
    """
    chunks = 0
    for record in records:
        match record:
            case Accept() | Pledged(pledge=Pledge.PROMISED | Pledge.LED):
                if not 0 <= record.ballot.round <= ROUND_KEPT_MAX:
                    return f"round {record.ballot.round}, and {ROUND_KEPT_MAX} is the last possible"
            case Slots():
                for slot, batch in enumerate(record.batches, start=record.first):
                    if (
                        not 1 <= slot < NUMBER_MAX
                        or not fits(batch)
                        or _is_late(slot, batch.time_ms)
                    ):
                        return f"a decision for slot {slot} at log time {batch.time_ms} ms"
            case SnapshotChunk():
                chunks = 0 if record.chunk == 0 else chunks
                sound = 1 <= record.slot < NUMBER_MAX and record.time_ms >= 0
                in_turn = record.chunk == chunks and 0 <= record.chunk < record.count <= CHUNKS_MAX
                chunks += 1
                if not (sound and in_turn) or _is_late(record.slot, record.time_ms):
                    return (
                        f"part {record.chunk} of {record.count} of a snapshot of slot "
                        f"{record.slot} at log time {record.time_ms} ms"
                    )
            case _:
                pass
    return ""


def _is_late(slot: int, time_ms: int) -> bool:
    """Return whether no log can have reached ``time_ms`` by ``slot``."""
    return time_ms > latest_ms(1, 0, slot)
