"""The content of the members' disks, and the batches that are chosen because of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fencelock.actors.message import Message
from fencelock.actors.paxos.message import (
    NO_BALLOT,
    Accept,
    Ballot,
    Batch,
    Pledge,
    Pledged,
    Slots,
    SnapshotChunk,
    Vote,
)
from fencelock.cluster.simulation.violation_report import ViolationReport


class Image:
    """The promises and votes on one member's disk."""

    def __init__(self) -> None:
        self.promised = NO_BALLOT
        self.led = 0
        self.votes: dict[int, Vote] = {}
        """The last vote for each slot."""
        self.covered = 1
        """The replica's own records replace all slots before it."""
        self._parts: dict[int, set[int]] = {}

    def take(self, record: Message) -> None:
        """Add the next record of the acceptor or the leader."""
        match record:
            case Accept():
                self.promised = max(self.promised, record.ballot)
                self.votes[record.slot] = Vote(record.slot, record.ballot, record.batch)
            case Pledged() if record.pledge is Pledge.PROMISED:
                self.promised = max(self.promised, record.ballot)
            case Pledged() if record.pledge is Pledge.LED:
                self.led = max(self.led, record.ballot.round)
            case _:
                pass

    def cover(self, record: Message) -> None:
        """Add the next record of the replica: parts of a state, or slots to apply to it."""
        if isinstance(record, SnapshotChunk):
            parts = self._parts.setdefault(record.slot, set())
            parts.add(record.chunk)
            if len(parts) == record.count:
                self.covered = max(self.covered, record.slot)
        elif isinstance(record, Slots) and record.first <= self.covered:
            self.covered = max(self.covered, record.first + len(record.batches))


def image_of(records: Sequence[Message]) -> Image:
    """Return the image of a disk with just these records."""
    image = Image()
    for record in records:
        image.take(record)
    return image


class Choices:
    """All votes that were ever durable, by member, and the batches chosen by them.

    Args:
        members: the members that vote.
        violation_report: receives the violations.

    """

    def __init__(self, members: tuple[str, ...], violation_report: ViolationReport) -> None:
        self.members = members
        self.majority = len(members) // 2 + 1
        self.violation_report = violation_report
        self.votes: dict[int, dict[Ballot, tuple[Batch, dict[str, None]]]] = {}
        """For each slot and ballot the batch, and the members that accepted it."""
        self.chosen: dict[int, Batch] = {}
        self.commands: set[bytes] = set()
        """All commands that were ever proposed."""

    def accept(self, node: str, vote: Vote) -> None:
        """Record that ``vote`` is on the disk of ``node``."""
        batch, nodes = self.votes.setdefault(vote.slot, {}).setdefault(
            vote.ballot, (vote.batch, {})
        )
        if batch != vote.batch:
            self.violation_report("P3", f"{vote} at {node}, but {batch} at {list(nodes)}")
        nodes[node] = None
        if len(nodes) == self.majority:
            self._choose(vote.slot, batch, vote.ballot)

    def _choose(self, slot: int, batch: Batch, ballot: Ballot) -> None:
        before = self.chosen.setdefault(slot, batch)
        if before != batch:
            self.violation_report("P1", f"slot {slot} has {before}, and at {ballot} {batch}")
        strange = [command for command in batch.commands if command not in self.commands]
        if strange:
            self.violation_report("P2", f"slot {slot} has {strange}")

    def accepted(self, node: str, slot: int, ballot: Ballot) -> bool:
        """Return whether that vote was durable at any time."""
        voted = self.votes.get(slot, {}).get(ballot)
        return voted is not None and node in voted[1]

    def may_win(
        self, slot: int, below: Ballot, promised: Callable[[str], Ballot]
    ) -> Iterator[Batch]:
        """Return the batches that are, or still can be, chosen for ``slot`` under a lower ballot.

        A member that has not voted under a ballot still can if its promise allows it.
        """
        for ballot, (batch, nodes) in self.votes.get(slot, {}).items():
            can = [name for name in self.members if name in nodes or promised(name) <= ballot]
            if ballot < below and len(can) >= self.majority:
                yield batch
