"""The judge of acceptors and leaders: promises, votes, ballots, and the time of durability.

It follows the content of the disks of the members, and the batches that are chosen because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fencelock.actors.api.membership_message import MembersChanged
from fencelock.actors.bootstrap_message import GroupConfig, Voter
from fencelock.actors.effect import Effects, Observe
from fencelock.actors.lease import PPM
from fencelock.actors.membership import Membership
from fencelock.actors.message import NS_PER_MS, Address, Instant, Message, node_of, role_of
from fencelock.actors.paxos.config import (
    CHANGE_PREFIX,
    JOIN_SLOTS,
    WINDOW,
    change_in,
    leader_of,
    monitor_of,
)
from fencelock.actors.paxos.event import ProposeChange
from fencelock.actors.paxos.reconfigurer import PAXOS_REACHABLE_MS
from fencelock.actors.paxos.wire import (
    NO_BALLOT,
    PAXOS_NUMBER_MAX,
    Accept,
    Accepted,
    Ballot,
    Batch,
    Commit,
    Heartbeat,
    HeartbeatAck,
    Locate,
    Pledge,
    Pledged,
    Preempted,
    Prepare,
    Promise,
    Slots,
    SnapshotChunk,
    Vote,
)
from fencelock.verification.simulation.plan import LogPlan
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport


class Image:
    """The promises and votes on one member's disk."""

    def __init__(self) -> None:
        self.promised = NO_BALLOT
        self.led = 0
        self.votes: dict[int, Vote] = {}
        """The last vote for each slot."""
        self.committed: dict[Ballot, int] = {}
        """By ballot, the slot before which its votes have won, according to this disk."""
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
                known = self.committed.get(record.ballot, 0)
                self.committed[record.ballot] = max(known, record.committed)
            case Pledged() if record.pledge is Pledge.PROMISED:
                self.promised = max(self.promised, record.ballot)
            case Pledged() if record.pledge is Pledge.LED:
                self.led = max(self.led, record.ballot.round)
            case _:
                pass

    def shows_decided(self, end: int) -> bool:
        """Return whether a restarted node would know all that was decided before slot ``end``."""
        for slot in range(self.covered, end):
            vote = self.votes.get(slot)
            if vote is None or self.committed[vote.ballot] <= slot:
                return False
        return True

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
        self.chosen_under: dict[int, Ballot] = {}
        """The ballot under which each slot was chosen first."""
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
        self.chosen_under.setdefault(slot, ballot)
        self.electorates.follow(self.chosen)
        if before != batch:
            self.violation_report(
                "one-batch-a-slot", f"slot {slot} has {before}, and at {ballot} {batch}"
            )
        strange = [
            command
            for command in batch.commands
            if command not in self.commands and not command.startswith(CHANGE_PREFIX)
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


NEVER = Ballot(PAXOS_NUMBER_MAX, Address(""))
"""A ballot above all others: an acceptor that promised it accepts nothing."""

Led = Prepare | Accept | Commit | Heartbeat
"""Messages that only the leader of a ballot sends."""

Followed = Promise | Accepted | HeartbeatAck | Preempted
"""Messages of an acceptor that name the ballot it has promised."""


@dataclass(slots=True)
class VotesReported:
    """The report of one acceptor to the scout of one ballot."""

    votes: dict[int, Vote] = field(default_factory=dict[int, Vote])
    floor: int = 0
    """The slots before it are decided, as the acceptor reported."""
    end: int = 0
    """It covers the slots before this one; the next page begins there."""
    complete: bool = False
    asked: int = 0
    """The first slot that it was asked for."""


class AcceptorJudge:
    """Judges ballots and votes by durable records and departing messages.

    Args:
        members: all nodes that may ever vote.
        journal_of: returns the id of a node's present journal.
        applied: returns how far a node was at its best, with its present journal.

    """

    def __init__(
        self,
        choices: Choices,
        members: tuple[str, ...],
        journal_of: Callable[[str], int],
        applied: Callable[[str], int],
        violation_report: ViolationReport,
    ) -> None:
        self.choices = choices
        self.journal_of = journal_of
        self.applied = applied
        self.violation_report = violation_report
        self.images = {member: Image() for member in members}
        self.led: dict[Ballot, tuple[str, int]] = {}
        """The node and the life that lead each ballot."""
        self.shown = dict.fromkeys(members, NO_BALLOT)
        """The highest ballot that an acceptor named as promised, before this turn."""
        self.fresh = dict.fromkeys(members, NO_BALLOT)
        """The same in this turn; only the disk knows its order."""
        self.emitted = dict.fromkeys(members, NO_BALLOT)
        """The highest ballot that an acceptor named in this life, in the order of its events."""
        self.promisers: dict[tuple[str, Ballot], Voter] = {}
        """The journal under which each node promised a ballot; it may be lost meanwhile."""
        self.reports: dict[Ballot, dict[Voter, VotesReported]] = {}
        self.proposed: set[tuple[int, Ballot]] = set()
        self.journals: dict[str, int] = {}
        """The last journal that each node wrote to."""
        self.silenced: set[Voter] = set()
        """The voters whose journal was lost or replaced by an old copy."""

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The last voters that were decided, empty before the founding."""
        return self.choices.electorates.voters

    @property
    def may_lose_disk(self) -> bool:
        """Whether the group survives the loss of a voter's disk.

        Before the newest voters have decided a slot, members may found another group. Before a
        majority of them has stored that all earlier slots are decided, these slots may need the
        votes of former voters, of which the lost disk may have had one.
        """
        electorates = self.choices.electorates
        newest = electorates.newest
        knowing = [
            voter
            for voter in newest.voters
            if self.images[voter.member].shows_decided(newest.first)
        ]
        return max(1, newest.first) < electorates.next and newest.is_majority(knowing)

    def voter(self, node: str) -> Voter:
        return Voter(node, self.journal_of(node))

    def _is_silenced(self, node: str) -> bool:
        """Return whether ``node`` may not vote under its present journal."""
        voter = self.voter(node)
        return voter in self.silenced or voter not in self.choices.electorates.ever

    def replaced(self, node: str, records: Sequence[Message]) -> None:
        """Record that ``node`` has another disk: its former journal must not vote again."""
        self.silenced.add(Voter(node, self.journals.get(node, 0)))
        image = self.images[node] = image_of(records)
        for record in records:
            image.cover(record)
        self.shown[node] = self.fresh[node] = self.emitted[node] = NO_BALLOT

    def wrote(self, node: str, role: str, records: Sequence[Message], *, alone: bool) -> None:
        """Judge records that became durable; with ``alone``, they replace all of ``role``."""
        image = self.images[node]
        self.journals[node] = self.journal_of(node)
        if alone and role == "acceptor":
            image.promised, image.votes, image.committed = NO_BALLOT, {}, {}
        for record in records:
            if role == "replica":
                image.cover(record)
                continue
            if isinstance(record, GroupConfig):
                self.choices.electorates.found(record.voters)
            if isinstance(record, Accept):
                kept = not self._is_silenced(node)
                if record.ballot < image.promised and kept and not alone:
                    self.violation_report(
                        "no-vote-below-promise",
                        f"{node} promised {image.promised} and wrote {record}",
                    )
                if kept:  # A member that lost its journal casts no vote.
                    self.choices.accept(
                        self.voter(node), Vote(record.slot, record.ballot, record.batch)
                    )
            image.take(record)

    def forgets(self, node: str, role: str, records: Sequence[Message]) -> None:
        """Judge the omissions of a checkpoint: they must be in a snapshot that is durable now."""
        image, left = self.images[node], image_of(records)
        if role == "acceptor":
            gone = [slot for slot in image.votes if slot not in left.votes]
            if any(slot >= image.covered for slot in gone):
                self.violation_report(
                    "trimmed-is-durable",
                    f"{node} trims {gone}, what is durable ends at {image.covered}",
                )
            if left.promised < image.promised and not self._is_silenced(node):
                self.violation_report(
                    "promises-kept", f"{node} promised {image.promised}, and trims that"
                )
        if role == "leader" and left.led < image.led:
            self.violation_report(
                "one-life-a-ballot", f"{node} led round {image.led}, and trims that"
            )

    def kept(self, node: str, role: str, records: Sequence[Message]) -> None:
        """Judge the end of a checkpoint: what is left must cover all that was covered."""
        left, image = Image(), self.images[node]
        for record in records:
            left.cover(record)
        if role == "replica" and left.covered < image.covered:
            self.violation_report(
                "trimmed-is-durable",
                f"{node} covered the slots before {image.covered}, now {left.covered}",
            )

    def leaves(self, node: str, boot: int, letters: Iterable[tuple[Address, Message]]) -> None:
        for sender, message in letters:
            self.says(node, boot, sender, message, local=False)
        self.shown[node] = max(self.shown[node], self.fresh[node])

    def changed(self, node: str, answer: MembersChanged, known: Callable[[str], int]) -> None:
        """Judge an answer that a change is done: no loss of a minority's disks may undo it.

        ``known`` returns the first slot that a member would not know after a restart.
        """
        newest = self.choices.electorates.newest
        shown = [one for one in newest.voters if known(one.member) >= newest.first]
        lost = [one for one in newest.voters if one in self.silenced]  # It may have shown it.
        if answer.view == newest.number and not newest.is_majority([*shown, *lost]):
            self.violation_report("changes-stored", f"{node} answers {answer}")

    def crashed(self, node: str) -> None:
        self.emitted[node] = self.fresh[node] = self.shown[node]

    def emits(self, node: str, message: Followed) -> None:
        """Judge an answer of an acceptor when its role returns it: promises rise in that order."""
        if message.ballot < self.emitted[node]:
            self.violation_report(
                "promises-kept", f"{node} spoke of {self.emitted[node]}, and now says {message}"
            )
        self.emitted[node] = max(self.emitted[node], message.ballot)

    def says(self, node: str, boot: int, sender: Address, message: Message, *, local: bool) -> None:
        """Judge a message of a role of ``node``, to another node or to one of its own roles.

        A message between its own roles may be handled after later ones have left: `emits` judges
        their order.
        """
        if isinstance(message, Led | Followed) and self._is_silenced(node):
            self.violation_report(
                "lost-journals-do-not-vote", f"no group counts {self.voter(node)}, yet {message}"
            )
        if isinstance(message, Led):
            self._judge_led(node, boot, message)
        elif isinstance(message, Followed) and role_of(sender) == "acceptor":
            self._judge_followed(node, message, local=local)

    def _judge_led(self, node: str, boot: int, message: Led) -> None:
        ballot = message.ballot
        life = self.led.setdefault(ballot, (node, boot))
        if life != (node, boot) or node_of(ballot.leader) != node:
            self.violation_report(
                "one-life-a-ballot", f"{ballot} is led by life {boot:x} of {node} and by {life}"
            )
        if self.images[node].led < ballot.round:
            self.violation_report(
                "durable-before-sent",
                f"{node} leads {ballot}, on its disk is {self.images[node].led}",
            )
        if isinstance(message, Accept) and (message.slot, ballot) not in self.proposed:
            self.proposed.add((message.slot, ballot))
            self._judge_proposal(message)

    def _judge_proposal(self, accept: Accept) -> None:
        """Judge the first proposal for a slot under a ballot."""
        reports = self.reports.get(accept.ballot, {})
        complete = [voter for voter, one in reports.items() if one.complete]
        floor = max((one.floor for one in reports.values() if one.complete), default=0)
        first = max(floor, min((one.asked for one in reports.values()), default=0))
        found = accept.slot <= self._last_found(accept.ballot)
        for slot in (first, accept.slot if found else min(accept.slot, first + WINDOW - 1)):
            if not self.choices.electorates.at(slot).is_majority(complete):
                self.violation_report(
                    "distinct-majority", f"{complete} promised {accept.ballot}, yet {accept}"
                )
        self._judge_choice(accept)
        if change_in(accept.batch) is not None:
            self._judge_change(accept)
        for batch in self.choices.may_win(accept.slot, accept.ballot, self._promised):
            if batch != accept.batch:
                self.violation_report(
                    "one-batch-a-slot", f"{batch} may still be chosen, yet {accept}"
                )

    def _last_found(self, ballot: Ballot) -> int:
        """Return the last slot for which phase one of ``ballot`` found a vote."""
        reports = self.reports.get(ballot, {}).values()
        return max((slot for one in reports for slot in one.votes), default=0)

    def _judge_change(self, accept: Accept) -> None:
        """Judge the first proposal of a change under a ballot, unless phase one found it."""
        reports = self.reports.get(accept.ballot, {}).values()
        if any(vote.batch == accept.batch for one in reports for vote in one.votes.values()):
            return
        slot, electorates = accept.slot, self.choices.electorates
        if accept.ballot not in self.choices.decided_by:
            self.violation_report(
                "one-change-at-a-time", f"nothing is decided under its ballot, yet {accept}"
            )
        newest = self._newest_for(accept.ballot)
        if newest.first > slot or electorates.next <= slot - WINDOW:
            self.violation_report("one-change-at-a-time", f"{newest} is not in force, yet {accept}")
        for earlier in range(slot - WINDOW + 1, slot):
            of_slot = self.choices.votes.get(earlier, {}).get(accept.ballot)
            chosen = self.choices.chosen.get(earlier)
            batch = chosen if of_slot is None else of_slot[0]
            if chosen not in (None, batch):
                continue  # This leader was overtaken, so its own change can come no more.
            if batch is not None and change_in(batch) is not None:
                self.violation_report(
                    "one-change-at-a-time", f"slot {earlier} has a change, yet {accept}"
                )
        change = change_in(accept.batch)
        assert change is not None
        known = {voter.member for voter in newest.voters}
        for joiner in [name for name in change.names if name not in known]:
            if self.applied(joiner) < slot - JOIN_SLOTS - WINDOW:
                self.violation_report(
                    "joiners-caught-up",
                    f"{joiner} has applied {self.applied(joiner)}, yet {accept}",
                )

    def _newest_for(self, ballot: Ballot) -> Electorate:
        """Return the last voters that the leader of ``ballot`` can know to be decided.

        It may have been paused while a leader with a higher ballot changed them.
        """
        for one in reversed(self.choices.electorates.past):
            chosen_under = self.choices.chosen_under.get(one.first - WINDOW)
            if chosen_under is None or chosen_under <= ballot:
                return one
        return self.choices.electorates.past[0]

    def _judge_choice(self, accept: Accept) -> None:
        """Check that a majority's highest vote is the proposal, or that it has none.

        An acceptor whose later pages are missing has reported this slot, if it is in the earlier
        ones.
        """
        electorate = self.choices.electorates.at(accept.slot)
        reports = [
            one
            for voter, one in self.reports.get(accept.ballot, {}).items()
            if voter in electorate.voters
        ]
        covering = [one for one in reports if one.complete or accept.slot < one.end]
        if any(one.floor > accept.slot for one in covering):
            if self.choices.chosen.get(accept.slot) != accept.batch:
                self.violation_report(
                    "highest-vote-proposed",
                    f"slot {accept.slot} was reported as decided, yet {accept}",
                )
            return
        votes = [one.votes.get(accept.slot) for one in covering]
        same = [vote.ballot for vote in votes if vote is not None and vote.batch == accept.batch]
        highest = max(same, default=NO_BALLOT)
        backing = sum(vote is None or vote.ballot <= highest for vote in votes)
        # Members that came after the leader was elected have promised nothing to it.
        asked = electorate.number == 0 or accept.slot <= self._last_found(accept.ballot)
        if backing <= len(electorate.voters) // 2 and asked:
            self.violation_report("highest-vote-proposed", f"of {votes} {accept} was made")

    def _promised(self, voter: Voter) -> Ballot:
        lost = voter in self.silenced or self.voter(voter.member) != voter
        return NEVER if lost else self.images[voter.member].promised

    def _judge_followed(self, node: str, message: Followed, *, local: bool) -> None:
        ballot = message.ballot
        if ballot < self.shown[node] and not local:
            self.violation_report(
                "promises-kept", f"{node} spoke of {self.shown[node]}, and now says {message}"
            )
        self.fresh[node] = max(self.fresh[node], ballot)
        image = self.images[node]
        if image.promised < ballot:
            self.violation_report(
                "durable-before-sent", f"{node} says {message}, on its disk is {image.promised}"
            )
        match message:
            case Accepted() if not self.choices.accepted(self.voter(node), message.slot, ballot):
                self.violation_report(
                    "durable-before-sent", f"{node} says {message}, which is not on its disk"
                )
            case Accepted() if (
                self.voter(node) not in self.choices.electorates.at(message.slot).voters
            ):
                self.violation_report(
                    "only-members-vote", f"{node} is no member, and says {message}"
                )
            case Promise():
                self.promisers.setdefault((node, ballot), self.voter(node))
                self._judge_report(node, message)
            case _:
                pass

    def _judge_report(self, node: str, promise: Promise) -> None:
        """Check that a promise has all votes of its slots that are on the disk."""
        reported = {vote.slot: vote for vote in promise.votes}
        for slot, vote in self.images[node].votes.items():
            inside = promise.first <= slot and (promise.more is None or slot < promise.more)
            if inside and vote.ballot < promise.ballot and reported.get(slot) != vote:
                self.violation_report(
                    "promises-report-votes", f"{node} has {vote}, and says {promise}"
                )
        skipped = range(promise.asked, promise.first)
        if any(slot not in self.choices.chosen for slot in skipped):
            self.violation_report(
                "promises-report-votes", f"{node} leaves out {skipped} of {promise}"
            )

    def reported(self, acceptor: Address, promise: Promise) -> None:
        """Record that a promise reached its scout, which took it."""
        node = node_of(acceptor)
        voter = self.promisers.get((node, promise.ballot), self.voter(node))
        report = self.reports.setdefault(promise.ballot, {}).setdefault(voter, VotesReported())
        report.asked = promise.asked if not report.end else report.asked
        report.votes.update((vote.slot, vote) for vote in promise.votes)
        if promise.first > promise.asked:
            report.floor = promise.first
        report.end = max(report.end, promise.more or 0)
        report.complete = report.complete or promise.more is None

    def decided(self, node: str, slots: Iterable[tuple[int, Message]], *, counted: bool) -> None:
        """Judge decisions that reach a replica, from votes ``counted`` here or by others."""
        for slot, batch in slots:
            chosen = self.choices.chosen.get(slot)
            if chosen != batch:
                number = "distinct-majority" if counted and chosen is None else "decisions-stay"
                self.violation_report(
                    number, f"{node} takes slot {slot} as {batch}, chosen is {chosen}"
                )


DROPPED = (Observe("paxos.promise_ignored"), Observe("paxos.promise_doubted"))
"""What a scout returns for a promise that it does not count, such as the reply to a request that
arrived twice. Such a reply may be from a later slot on, and must not be taken for the first."""

UNREGISTERED = Observe("paxos.unregistered_vote")
PROPOSED = Observe("paxos.change_proposed")


@dataclass(eq=False)
class TargetJudge:
    """Judges only-silent-replaced by the messages to leaders, if the plan has no operator."""

    plan: LogPlan
    electorates: Electorates
    """The members, as they are decided."""
    violation_report: ViolationReport
    received: dict[tuple[str, str], Instant] = field(default_factory=dict[tuple[str, str], Instant])
    """The true time at which a leader last received an answer, or a report, of a node."""
    in_order: dict[tuple[str, str], Instant] = field(default_factory=dict[tuple[str, str], Instant])
    """The same without answers to an earlier heartbeat than the last one that the node answered.
    Those were late on their way, and the leader need not take them for a sign of life."""
    led: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """The highest ballot of each leader that another node answered."""
    latest: dict[tuple[str, str], tuple[tuple[int, str], int]] = field(
        default_factory=dict[tuple[str, str], tuple[tuple[int, str], int]]
    )
    """The ballot and number of that heartbeat."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        if not self.plan.target_members:
            return
        if isinstance(delivered.event, ProposeChange) and PROPOSED in effects:
            self._judge(delivered.node, delivered.event.membership, delivered.time)
        if delivered.to != monitor_of(delivered.node) or UNREGISTERED in effects:
            return  # A member without its registered journal does not answer, as far as votes go.
        node, other, event = delivered.node, node_of(delivered.sender), delivered.event
        match event:
            case HeartbeatAck() if event.ballot.leader == leader_of(node):
                answered = event.ballot, event.number
                if event.ballot >= self.led.get(node, NO_BALLOT):
                    self.led[node] = event.ballot
                    self.received[node, other] = Instant(delivered.time)
                    if answered >= self.latest.get((node, other), answered):
                        self.latest[node, other] = answered
                        self.in_order[node, other] = Instant(delivered.time)
            case Locate() if other not in self.members:
                self.received[node, other] = self.in_order[node, other] = Instant(delivered.time)
            case _:
                pass

    @property
    def members(self) -> set[str]:
        past = self.electorates.past
        return {voter.member for voter in past[-1].voters} if past else set()

    def _judge(self, node: str, membership: Membership, time: int) -> None:
        new = set(membership.names)
        if new == self.members:
            return  # The leader asks again for what it does not know to be decided.
        slow, quick = PPM - self.plan.drift_ppm, PPM + self.plan.drift_ppm
        for gone in self.members - new:
            silent = time - self.in_order.get((node, gone), -self.plan.chaos_ms * NS_PER_MS)
            if silent * quick < (self.plan.replace_after_ms - 1) * NS_PER_MS * PPM:
                text = f"{node} removes {gone}, which it heard {silent // NS_PER_MS} ms ago"
                self.violation_report("only-silent-replaced", text)
        recent = time - PAXOS_REACHABLE_MS * NS_PER_MS * PPM // slow - NS_PER_MS
        there = {
            one for one in new if one == node or self.received.get((node, one), recent) > recent
        }
        if 2 * len(there) <= len(new):
            self.violation_report(
                "only-silent-replaced", f"{node} hears {sorted(there)} of {sorted(new)}"
            )
