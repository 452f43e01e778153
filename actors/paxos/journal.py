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
    change_in,
    latest_ms,
    split,
    why_impossible,
)
from fencelock.actors.paxos.wire import (
    CHUNKS_MAX,
    NO_BALLOT,
    PAXOS_NUMBER_MAX,
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
)
from fencelock.actors.timing import TIMING, TIMING_MS_MAX


class Base(NamedTuple):
    """The state after all slots before ``slot``, at log time ``time_ms``."""

    slot: int
    time_ms: int
    chunks: tuple[bytes, ...]


@dataclass(slots=True, kw_only=True)
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
            _, terms, _ = split(self.base.chunks)
            config.restore(terms)
        for slot, batch in enumerate(self.decided, start=self.next - len(self.decided)):
            config.advance(slot + 1)
            if (membership := change_in(batch)) is not None:
                config.change(slot, membership)
        return config


def recover(records: Sequence[Message]) -> Recovered:  # noqa: PLR0912  (a case for each record)
    """Read ``records``: oldest first for each role, with the roles in any order.

    A vote is known to have won if its own leader later reported its slot as decided: a leader
    proposes one batch for a slot, and reports only what won. A vote under another ballot proves
    nothing, even if its slot was decided. The acceptor's stream may reach back behind the
    snapshot if a crash came between the two cuts.
    """
    state = Recovered()
    undecided: dict[int, Vote] = {}  # The votes that are not known to have won.
    won: dict[int, Batch] = {}
    parts: list[SnapshotChunk] = []
    for record in records:
        match record:
            case Accept():
                state.promised = max(state.promised, record.ballot)
                vote = Vote(record.slot, record.ballot, record.batch)
                state.votes[record.slot] = undecided[record.slot] = vote
                _commit(record, undecided, won)
            case Commit():
                _commit(record, undecided, won)
            case Slots():
                won.update(enumerate(record.batches, start=record.first))
            case SnapshotChunk():
                parts = parts if record.chunk else []
                parts.append(record)
                assert record.chunk == len(parts) - 1  # trimmed-is-durable
                assert record.slot == parts[0].slot
                if len(parts) == record.count:  # Parts that do not become a whole one are dropped.
                    contents = tuple(one.content for one in parts)
                    state.base, parts = Base(record.slot, record.time_ms, contents), []
            case Diverged():
                state.diverged = record.why
            case Skip():
                state.skips |= {record.slot}
            case Pledged(pledge=Pledge.PROMISED):
                state.promised = max(state.promised, record.ballot)
            case Pledged(pledge=Pledge.LEASE):
                state.lease_ms = record.ballot.round
            case Pledged(pledge=Pledge.LED):
                state.led = max(state.led, record.ballot.round)
            case _:
                pass  # It is another role's.
    next_slot, decided = state.next, list[Batch]()
    while (batch := won.get(next_slot)) is not None:
        decided.append(batch)
        next_slot += 1
    state.decided = tuple(decided)
    state.votes = {slot: vote for slot, vote in sorted(state.votes.items()) if slot >= next_slot}
    state.later = {slot: batch for slot, batch in sorted(won.items()) if slot > next_slot}
    return state


def _commit(record: Accept | Commit, undecided: dict[int, Vote], won: dict[int, Batch]) -> None:
    """Move the votes under the ballot of ``record`` for slots that it reports as decided."""
    votes = undecided.values()
    for vote in [
        one for one in votes if one.slot < record.committed and one.ballot == record.ballot
    ]:
        won[vote.slot] = vote.batch
        del undecided[vote.slot]


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
        if one.pledge is Pledge.LEASE and not 0 <= number <= TIMING_MS_MAX:
            why = f"a lease of {number} ms, and at most {TIMING_MS_MAX} ms can be configured"
        if one.pledge is Pledge.APPLIED and not 0 <= number <= first + GROWTH_MAX:
            why = f"slots up to {number} are applied, although the journal has those up to {first}"
        if why:
            found.append(ImpossibleVote(one, f"{one.ballot.leader}: {why}"))
    for record in records:
        if not isinstance(record, Accept) or record.slot < first:
            continue
        slot, latest = record.slot, latest_ms(first, time_ms, record.slot)
        if slot >= reached + REACH_SLOTS:
            why = f"slot {slot}, although slots from {reached} on are undecided"
        elif why := why_impossible(record.batch, latest, record.ballot):
            why = f"slot {slot}, with {why}"
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
            longest = record.ballot._replace(round=TIMING_MS_MAX)
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
                    if why := why_impossible(batch, latest_ms(1, 0, slot)):
                        return f"a decision for slot {slot} with {why}"
                    if not 1 <= slot < PAXOS_NUMBER_MAX:
                        most = PAXOS_NUMBER_MAX - 1
                        return f"a decision for slot {slot}, {most} is the last possible"
            case SnapshotChunk():
                chunks = 0 if record.chunk == 0 else chunks
                sound = 1 <= record.slot < PAXOS_NUMBER_MAX and record.time_ms >= 0
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
