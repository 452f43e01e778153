"""The epoch of a member, as its journal keeps it, and the epoch of a leader. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from fencelock.actors.bakery.bounds import FromCopy, FromLeader, shown
from fencelock.actors.bakery.config import (
    BAKERY_TIMING,
    BakeryTiming,
    election_of,
    leader_of,
    quorum,
)
from fencelock.actors.bakery.electorate import FOUNDERS, Electorate, can_follow
from fencelock.actors.bakery.max_lease import OwnBound
from fencelock.actors.bakery.ticket import LEASE_MS_MAX
from fencelock.actors.bakery.wire import (
    EPOCH_MAX,
    NOTHING_INSTALLED,
    Chosen,
    Install,
    Propose,
    Seating,
)
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.membership import Member, VoterIds
from fencelock.actors.message import Address, Event, Instant, Message, ms_between, node_of
from fencelock.actors.repeated import ImpossibleMessages
from fencelock.actors.role import Host, Role

E = TypeVar("E", bound=Event)

EPOCHS_PER_S = 1
"""Elections that a cluster may hold in the long run: at this rate epochs last for 34 years."""

EPOCHS_AHEAD_MAX = 1 << 16
"""Epochs allowed beyond that rate: days of elections at more than one a second."""

EPOCHS_AFTER_START = 64
"""Epochs above the highest in the journal that are allowed at the start of a life in any case. With
more, each restart beside a rogue member could take this one further away from the others."""

LEASE_SLACK_MS = 1_000
"""Time by which a lease may be above its limit (ms): each hand-over of a table rounds it up."""


@dataclass(slots=True)
class EpochLimit:
    """The highest epoch and the longest lease that are plausible: what is beyond them is forged.

    Without a limit one message could use up all epochs, and no leaders would ever be chosen
    again. The limit rises by `EPOCHS_PER_S`. It counts from the founding date of the group, so
    that a member that was away for long accepts the epochs of the others; or from the epoch in
    its journal, if the clock of its host is wrong. A member that a forged epoch took up to the
    limit stays within that of the others, as soon as the difference of their dates has passed.

    A lease that a member reports is one for which the leaders may have to be waited for, so no
    honest member reports one that nobody may take: above ``[bakery] max_hold``, or above the one
    in the journal if that was lowered since.

    Args:
        age_s: time from the founding date to the start of this life (s), or 0 if it is not known.
        known: the highest epoch in the journal.
        lease_ms: the longest lease that this member accepts (ms).

    """

    age_s: int = 0
    known: int = 0
    lease_ms: int = LEASE_MS_MAX
    began: Instant | None = None
    """The time of the first question."""

    def highest(self, now: Instant) -> int:
        if self.began is None:
            self.began = now
        passed_s = ms_between(self.began, now) // 1_000
        start = max(self.age_s * EPOCHS_PER_S + EPOCHS_AHEAD_MAX, self.known + EPOCHS_AFTER_START)
        return min(EPOCH_MAX, start + passed_s * EPOCHS_PER_S)

    def allows(self, epoch: int, now: Instant) -> bool:
        return 0 <= epoch <= self.highest(now)

    @property
    def lease_ms_max(self) -> int:
        """The longest lease that an honest member can report (ms)."""
        return self.lease_ms + LEASE_SLACK_MS

    def allows_lease(self, lease_ms: int) -> bool:
        return lease_ms <= self.lease_ms_max


class Refusals(ImpossibleMessages):
    """One role's reports of messages that no honest member sends; see `bounds.py`."""

    def __init__(self, node: str, limit: EpochLimit) -> None:
        super().__init__(node)
        self.limit = limit

    def malformed(
        self, sender: Address, counter: str, message: Message, now: Instant
    ) -> list[Effect]:
        return self.report(sender, counter, shown(message), now)

    def epoch(self, sender: Address, epoch: int, now: Instant) -> list[Effect]:
        """Return nothing if ``epoch`` is plausible, else a report."""
        if self.limit.allows(epoch, now):
            return []
        text = (
            f"epoch {epoch}, and {self.limit.highest(now)} is the highest that is plausible by the "
            "clock of this host: if the clocks of both are right, stop that node"
        )
        return self.report(sender, "bakery.epoch_too_far", text, now)

    def lease(self, sender: Address, now: Instant, *leases_ms: int) -> list[Effect]:
        """Return nothing if an honest member can report all these leases (ms), else a report."""
        longest_ms = max(leases_ms, default=0)
        if self.limit.allows_lease(longest_ms):
            return []
        text = (
            f"a lease of {longest_ms} ms, and {self.limit.lease_ms} ms are allowed: all nodes must "
            "have the same max_hold under [bakery] in the configuration. If they have, stop that "
            "node"
        )
        return self.report(sender, "bakery.impossible_lease", text, now)


@dataclass(slots=True)
class VoterRegistry:
    """The journals that vote, whether this node's is one of them, and the plausible epochs.

    The roles of a node share it. The coordinator alone registers later members.
    """

    voters: dict[Address, int]
    """The id that the votes of each member's coordinator name, at present; `Bootstrap` removes
    members that run on old copies."""
    voter: int
    """The id that the votes of this node's journal name."""
    votes: bool
    """Whether this journal may vote at the start, where it is registered."""
    limit: EpochLimit
    id_of: Callable[[Member], int]
    """Returns the id that the votes of a member name."""
    founders: Electorate
    nodes: tuple[str, ...]
    """All configured nodes, sorted."""
    ids: VoterIds = field(init=False)

    def __post_init__(self) -> None:
        self.ids = VoterIds(self.voters, self.id_of, election_of)

    def electorate(self, sent: Electorate) -> Electorate:
        """Return the electorate that a message or record names."""
        return sent if sent.number else self.founders

    def register(self, *electorates: Electorate) -> None:
        """Count the votes of the members of ``electorates`` from now on, and no others."""
        self.ids.register(seat for one in electorates for seat in one.everyone.values())

    def names(self, member: str, voter: int, electorate: Electorate) -> bool:
        """Return whether ``electorate`` has ``member``, with the journal of the id ``voter``."""
        seat = electorate.seat_of(member)
        return seat is not None and self.id_of(seat) == voter

    def registers(self, member: str, voter: int, electorate: Electorate) -> bool:
        """Return whether ``member`` votes under the id ``voter`` in ``electorate``."""
        known = self.voters.get(election_of(member)) == voter
        return known and self.names(member, voter, electorate)


NOTHING_PROMISED = Propose(epoch=0, leaders=())


@dataclass(slots=True)
class DurablePromises:
    """The promises of one member.

    Attributes:
        proposal: the last one that it promised, or an installed seating as one: no lower epoch is
            accepted, and in this one no other leaders or members.
        installed: the highest seating that is known to be installed.
        quiet_since: the time since which no leader of that seating is obeyed, or None if they are;
            in this life, since an earlier one may have obeyed them to its end.

    """

    proposal: Propose = NOTHING_PROMISED
    installed: Install = NOTHING_INSTALLED
    quiet_since: Instant | None = None

    @classmethod
    def recover(cls, records: Sequence[Message]) -> DurablePromises:
        """Return the state in ``records``, in any order; records of other kinds are skipped."""
        promises = cls()
        for record in records:
            if isinstance(record, Propose) and record.epoch > promises.promised:
                promises.proposal = record
            elif isinstance(record, Install):
                promises.learn(record.seating, record.electorate, Instant(0))
                if record.seating.epoch == promises.seating.epoch:
                    promises.installed = promises.installed.stated(*record.statements)
        promises.quiet_since = None
        return promises

    def records(self) -> tuple[Message, ...]:
        """Return the records that replace everything ever written."""
        installed = (self.installed,) if self.seating.epoch else ()
        return (self.proposal, *installed) if self.promised else installed

    @property
    def promised(self) -> int:
        """The highest epoch that was promised, or 0."""
        return self.proposal.epoch

    @property
    def seating(self) -> Seating:
        return self.installed.seating

    def may_promise(self, proposal: Propose) -> bool:
        return proposal.epoch > self.promised

    def promise(self, proposal: Propose, now: Instant) -> None:
        assert self.may_promise(proposal)  # one-seating-an-epoch
        self.proposal = proposal
        if self.quiet_since is None:
            self.quiet_since = now

    def learn(self, seating: Seating, electorate: Electorate, now: Instant) -> bool:
        """Store an installed seating; return whether it is new.

        Of one epoch, the electorate may turn out to be in force.
        """
        before = self.installed
        if seating.epoch < self.seating.epoch or seating.epoch == 0:
            return False
        if seating.epoch == self.seating.epoch:
            if electorate != before.electorate.settled() or electorate == before.electorate:
                return False
            self.installed = replace(before, electorate=electorate)
        else:
            self.installed = Install(seating=seating, electorate=electorate)
        seating = self.seating
        if seating.epoch >= self.promised:
            epoch, leaders, _, copies = seating
            self.proposal = Propose(
                epoch=epoch, leaders=leaders, electorate=electorate, copies=copies
            )
            self.quiet_since = None
        elif seating.epoch > before.seating.epoch:
            self.quiet_since = now
        return True

    @property
    def lease_ms(self) -> int:
        """The longest lease that the seating or a statement allows (ms), or 0 if there is none."""
        bounds = (one.bound_ms for one in self.installed.statements)
        return min(LEASE_MS_MAX, max(self.seating.bound_ms, *bounds, 0))

    def quiet_ms(self, now: Instant) -> int:
        """Return for how long no beat of a leader of the seating was accepted (ms)."""
        return 0 if self.quiet_since is None else ms_between(self.quiet_since, now)


class VotingRole(Role[E]):
    """A role of a node that takes part in elections, or would if its journal was registered.

    Attributes:
        voting: the journals that vote, and the plausible epochs.
        electorate: that of the highest seating that this role knows to be installed.
        may_vote: whether the journal is no old copy, as far as others have confirmed.

    """

    def __init__(self, address: Address, host: Host, voting: VoterRegistry) -> None:
        super().__init__(address, host)
        self.node, self.voting = node_of(address), voting
        self.electorate = voting.founders
        self.may_vote = voting.votes
        self.refusals = Refusals(self.node, voting.limit)

    @property
    def is_voter(self) -> bool:
        """Whether this node votes: under its own journal, which is registered."""
        voting = self.voting
        return self.may_vote and voting.registers(self.node, voting.voter, self.electorate)

    def refuse_electorate(
        self, sender: Address, sent: Electorate, epoch: int, known_epoch: int, now: Instant
    ) -> list[Effect]:
        """Return nothing if ``sender`` can know the members ``sent`` in ``epoch``, else a report.

        Of an earlier one than ``known_epoch``, which is known here, nothing is learned.
        """
        later = self.voting.electorate(sent)
        if epoch < known_epoch or can_follow(later, self.electorate, epoch):
            return []
        text = (
            f"the members {', '.join(later.names)} after {later.number} changes in epoch {epoch}, "
            f"and known are {', '.join(self.electorate.names)} after {self.electorate.number}"
        )
        return self.refusals.report(sender, "bakery.impossible_members", text, now)

    def names_with(self, sent: Electorate) -> set[str]:
        """Return the nodes that may lead, as far as this node or the electorate ``sent`` says."""
        founders = self.voting.founders.names
        return {*self.voting.nodes, *founders, *self.electorate.everyone, *sent.everyone}

    def is_known(self, node: str, sent: Electorate = FOUNDERS) -> bool:
        """Return whether ``node`` is configured or a member, or the electorate ``sent`` has it.

        An electorate that this node does not know yet counts only if it includes this node.
        """
        named = sent.everyone
        return (
            node in self.voting.nodes
            or node in self.electorate.everyone
            or (node in named and self.node in named)
        )


@dataclass(slots=True)
class EpochState:
    """One leader's state in an epoch.

    Attributes:
        epoch: the epoch for which its table is complete, or 0 for none; only its steps are
            accepted.
        leaders: the leaders of that epoch, in order of rank; this node too, unless it only keeps
            copies.
        others: the other leaders.
        copies: the other members that keep copies.
        connected: the connected members, each with its life.
        barred: no lower epoch is accepted, because the table was exported for this one.
        serving: whether clients are served, in ``epoch``.
        bound: the leases for which it votes.
        trusted_at: send time of the oldest beat that a majority answered.
        timing: the times of this member.

    """

    node: str
    life: int
    timing: BakeryTiming = BAKERY_TIMING
    epoch: int = 0
    leaders: tuple[Chosen, ...] = ()
    others: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    quorum: int = 1
    barred: int = 0
    serving: bool = False
    trusted_at: Instant | None = None
    bound: OwnBound = field(init=False)
    connected: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.bound = OwnBound(self.node)

    @property
    def me(self) -> Chosen:
        return Chosen(self.node, self.life)

    @property
    def leads(self) -> bool:
        """Whether it is one of the leaders of its epoch, and does not only keep copies."""
        return self.me in self.leaders

    def take(self, seating: Seating) -> None:
        """Lead or keep copies in ``seating``, with a complete table, but without serving yet."""
        epoch, leaders, bound_ms, copies = seating
        assert epoch >= self.barred  # no-lower-epoch
        assert self.me in seating.keepers
        self.bound.begin(epoch, bound_ms)
        self.epoch, self.barred, self.leaders = epoch, epoch, leaders
        self.others = tuple(one.node for one in leaders if one.node != self.node)
        self.copies = tuple(one.node for one in copies if one.node != self.node)
        self.quorum = quorum(len(leaders))
        self.serving, self.trusted_at = False, None

    def leave(self, barred: int) -> None:
        """Heed no epoch below ``barred`` any more; stop serving a lower one."""
        self.barred = max(self.barred, barred)
        if self.epoch < self.barred:
            self.epoch, self.serving, self.trusted_at = 0, False, None
            self.leaders, self.others, self.copies = (), (), ()

    def obeys(self, sender: Address, message: FromLeader) -> bool:
        """Return whether a step comes from another leader of the epoch (no-lower-epoch).

        Copies send only answers.
        """
        node = node_of(sender)
        answers = isinstance(message, FromCopy) and self.leads and node in self.copies
        return 0 < message.epoch == self.epoch and (node in self.others or answers)

    @property
    def rank(self) -> int:
        return self._rank_of(self.node)

    def ranks_before(self, other: str) -> bool:
        return self.rank < self._rank_of(other)

    def _rank_of(self, node: str) -> int:
        return [leader.node for leader in self.leaders].index(node)

    def trusted(self, now: Instant) -> bool:
        """Return whether a grant made now ends before any member considers it impossible."""
        at = self.trusted_at
        return self.serving and at is not None and ms_between(at, now) < self.timing.trust_ms

    def wait_for_bound(self, lease_ms: int) -> list[Effect]:
        """Return nothing if a vote for ``lease_ms`` may be given, else what must come first."""
        return self.bound.wait_for(lease_ms, serving=self.serving)

    def can_win(self, refused: Collection[str]) -> bool:
        """Return whether the others could still agree, although these ones ``refused``."""
        return self.is_agreed({*self.others, *self.copies} - {*refused})

    def is_voted(self, confirmed: Collection[str]) -> bool:
        """Return whether ``confirmed`` of the others are a quorum of the leaders with this one."""
        return 1 + sum(name in confirmed for name in self.others) >= self.quorum

    def is_agreed(self, confirmed: Collection[str]) -> bool:
        """Return whether they are also a quorum of the keepers (kept-by-quorum)."""
        if not self.copies or not self.is_voted(confirmed):
            return self.is_voted(confirmed)
        kept = 1 + sum(name in confirmed for name in (*self.others, *self.copies))
        return kept >= quorum(self.keepers)

    @property
    def keepers(self) -> int:
        return 1 + len(self.others) + len(self.copies)

    def reaches(self, name: str) -> bool:
        """Return whether ``name`` is another leader, connected in the life it was chosen in."""
        life = self.connected.get(name)
        return life is not None and Chosen(name, life) in self.leaders and name in self.others

    def needs_copies(self, refused: Collection[str] = ()) -> bool:
        """Return whether the leaders that are connected, without ``refused``, are too few."""
        left = [name for name in self.others if self.reaches(name) and name not in refused]
        return not self.is_agreed(left)

    def send(self, message: Message, but: Collection[str] = ()) -> list[Send | Observe]:
        """Send ``message`` to the other leaders, except those in ``but``; counted by its name."""
        return _sends(self.others, message, but)

    def copy(self, message: Message, but: Collection[str] = ()) -> list[Send | Observe]:
        return _sends(self.copies, message, but)

    def send_to_all(self, message: Message, but: Collection[str] = ()) -> list[Send | Observe]:
        return _sends((*self.others, *self.copies), message, but)


def answer(leader: str, message: Message) -> list[Effect]:
    return [*_sends((leader,), message, ())]


def _sends(names: Sequence[str], message: Message, but: Collection[str]) -> list[Send | Observe]:
    sends = [Send(leader_of(name), message) for name in names if name not in but]
    if not sends:
        return []
    return [*sends, Observe(f"bakery.{type(message).__name__}".lower(), len(sends))]
