"""The content of the members' disks, and the batches that are chosen because of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from fencelock.actors.bootstrap_message import Voter
from fencelock.actors.membership import Membership
from fencelock.actors.message import Message
from fencelock.actors.paxos.config import WINDOW
from fencelock.actors.paxos.membership import CHANGE, change_in
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
from fencelock.verification.simulation.violation import ViolationReport


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
        self._pages: dict[int, int] = {}
        """The slots that the replica wrote beside a state: the first of a page, and its end."""

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
        elif isinstance(record, Slots):
            self._pages[record.first] = record.first + len(record.batches)
        while ends := [end for first, end in self._pages.items() if first <= self.covered < end]:
            self.covered = max(ends)


def image_of(records: Sequence[Message]) -> Image:
    """Return the image of a disk with just these records."""
    image = Image()
    for record in records:
        image.take(record)
    return image


class Electorate(NamedTuple):
    """The voters of some slots."""

    first: int
    """The first of these slots."""
    number: int
    voters: tuple[Voter, ...]

    def is_majority(self, voters: Container[Voter]) -> bool:
        """Return whether ``voters`` include a majority of these."""
        return sum(one in voters for one in self.voters) > len(self.voters) // 2


class Electorates:
    """The voters of each slot, as the chosen slots decide."""

    def __init__(self) -> None:
        self.past: list[Electorate] = []
        """In the order of their first slots; empty until the group is founded."""
        self.ever: set[Voter] = set()
        """All voters that there ever were."""
        self.next = 1
        """The first slot that is not chosen."""

    def found(self, voters: tuple[Voter, ...]) -> None:
        """Record which journals vote in a new group."""
        if not self.past:
            self.past.append(Electorate(0, 0, voters))
            self.ever.update(voters)

    @property
    def newest(self) -> Electorate:
        return self.past[-1]

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The last voters that were decided, empty before the founding."""
        return self.past[-1].voters if self.past else ()

    @property
    def may_lose_disk(self) -> bool:
        """Whether a slot of the newest is decided; before, members may found another group."""
        return max(1, self.newest.first) < self.next

    def at(self, slot: int) -> Electorate:
        """Return the voters of ``slot``, as far as they are decided."""
        return next(one for one in reversed(self.past) if one.first <= slot)

    def follow(self, chosen: Mapping[int, Batch]) -> None:
        """Take the changes in ``chosen`` slots into account."""
        while (batch := chosen.get(self.next)) is not None:
            slot, self.next = self.next, self.next + 1
            change = change_in(batch)
            if change is not None:
                self._change(slot, change)

    def _change(self, slot: int, change: Membership) -> None:
        before = self.newest
        voters = tuple(Voter(one.name, one.journal) for one in change.members)
        one_more = len(set(voters) ^ set(before.voters)) == 1
        if change.number != before.number + 1 or not one_more or slot < before.first:
            return  # An old proposal that came too late; every replica must ignore it.
        self.past.append(Electorate(slot + WINDOW, change.number, voters))
        self.ever.update(voters)


class Choices:
    """All votes that were ever durable, by voter, and the batches chosen by them."""

    def __init__(self, violation_report: ViolationReport) -> None:
        self.electorates = Electorates()
        self.violation_report = violation_report
        self.votes: dict[int, dict[Ballot, tuple[Batch, dict[Voter, None]]]] = {}
        """For each slot and ballot the batch, and the voters that accepted it."""
        self.decided_by: set[Ballot] = set()
        """The ballots under which any slot was chosen."""
        self.chosen: dict[int, Batch] = {}
        self.commands: set[bytes] = set()
        """All commands that were ever proposed."""

    def accept(self, node: Voter, vote: Vote) -> None:
        """Record that ``vote`` is on the disk of ``node``."""
        batch, nodes = self.votes.setdefault(vote.slot, {}).setdefault(
            vote.ballot, (vote.batch, {})
        )
        if batch != vote.batch:
            self.violation_report(
                "one-batch-a-ballot", f"{vote} at {node}, but {batch} at {list(nodes)}"
            )
        nodes[node] = None
        if self.electorates.at(vote.slot).is_majority(nodes):
            self._choose(vote.slot, batch, vote.ballot)

    def _choose(self, slot: int, batch: Batch, ballot: Ballot) -> None:
        self.decided_by.add(ballot)
        before = self.chosen.setdefault(slot, batch)
        self.electorates.follow(self.chosen)
        if before != batch:
            self.violation_report(
                "one-batch-a-slot", f"slot {slot} has {before}, and at {ballot} {batch}"
            )
        strange = [
            command
            for command in batch.commands
            if command not in self.commands and not command.startswith(CHANGE)
        ]
        if strange:
            self.violation_report("chosen-was-proposed", f"slot {slot} has {strange}")

    def accepted(self, node: Voter, slot: int, ballot: Ballot) -> bool:
        """Return whether that vote was durable at any time."""
        voted = self.votes.get(slot, {}).get(ballot)
        return voted is not None and node in voted[1]

    def may_win(
        self, slot: int, below: Ballot, promised: Callable[[Voter], Ballot]
    ) -> Iterator[Batch]:
        """Return the batches that are, or still can be, chosen for ``slot`` under a lower ballot.

        A member that has not voted under a ballot still can if its promise allows it.
        """
        for ballot, (batch, nodes) in self.votes.get(slot, {}).items():
            electorate = self.electorates.at(slot)
            can = [one for one in electorate.voters if one in nodes or promised(one) <= ballot]
            if ballot < below and electorate.is_majority(can):
                yield batch
