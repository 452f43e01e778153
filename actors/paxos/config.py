"""The membership that votes on each slot, and the times and limits that all members share.

The log carries a change of the members as a separate command, alone in its slot. Snapshots end with
a part for the memberships in force and the highest origin of a batch. Both begin with
`CHANGE_PREFIX`, which begins no command and no part of a state machine.

Bounds on numbers of other members
==================================

A number that is kept must be one that an honest member can send. Otherwise one rogue or broken
member could push a counter so far that the group never goes on, not even once that member is gone.
Each bound is relative to what this node has applied (``applied``, at log time ``time_ms``): a group
without disks begins its slots near ``2**60``, so no absolute bound would do.

**A slot is below ``committed + WINDOW``** of the same `Accept` (`Acceptor`). A leader proposes a
slot only while fewer than `WINDOW` slots are undecided, and ``committed`` is the first undecided
one. A repetition reports the same or a later ``committed``, but for members outside the preferred
quorum at most the slot after it, which keeps the inequality. Catch-up and recovery change nothing:
they concern the receiver.

**A slot is below ``applied + VOTES_MAX``** of the receiver. This is no statement about the sender:
the receiver may lag behind by any number of slots, after an absence or with an old copy. It then
fetches slots or a snapshot first, and votes when it is near. So at most `VOTES_MAX` votes exist,
each for a slot that the group will soon decide, and each is replaced by the vote that decides it.
The slots that the group needs next (`NEAR_SLOTS`) are voted on even if the others fill all room.

**A vote is less than `WINDOW` slots above the first slot that no member of a majority voted on or
applied** (`Scout`). When a slot is proposed, all slots `WINDOW` below it are decided, so a majority
voted on them, and each majority that promises has a member that did. A vote further up was
never proposed by an honest leader, so it is not chosen, and is left out.

**Log time rises by at most `TIME_JUMP_MS_MAX` from slot to slot.** A leader that was idle for
longer, or suspended, drops the rest of that time (`Ordering`): log time may be slower than real
time, since what expires by it then only expires later. While anything can expire, an idle leader
proposes a tick in each half of that interval, so that nothing expires late. The stamp of a slot
``s`` exceeds that of the first slot undecided when its leader began by at most one jump for each
slot between them, however often leaders change: a new leader continues from the highest stamp that
it found. The stamps that a leader gave to open slots may be lost with these slots, which then get
no-ops; there are fewer than `WINDOW` of them. So a receiver that has applied all slots before
``applied`` accepts ``time_ms + (s - applied + WINDOW + 1)`` jumps (`LogConfig.latest_ms`), which
holds for votes, decided slots and snapshots alike, during catch-up and after a restart.

**Any other slot is at most ``applied + GROWTH_MAX``** (`LogBounds`). It is only a hint of what to
fetch: ``committed``, the slots that a member says it has applied, those that it asks for. If a node
that stands for election cannot fetch what a promise reports as applied, it next asks the others
first (`Scout`).

**A member applies the commands of the first log version.** A leader refuses commands that a member
says it cannot apply, and names that member to the operator: a member of a lower version says the
same.

A rogue member that leads can still propose what it likes, and a rogue majority decides anything:
these bounds keep a member from doing lasting damage to the *progress* of the others.

Rounds
======

Without a limit on rounds, one forged message could use up all of them, and no ballot would ever be
led again. So a receiver ignores a round too far above those it knows. If honest members are that
far apart, after forged messages or a very long absence, they meet again in steps: a scout leads
an acceptor up (`Scout`), and a leader climbs to an acceptor that is above it (`Leader`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypedDict, cast

from msgspec import MsgspecError
from msgspec.json import Decoder, encode

from fencelock.actors.bootstrap_message import Voter
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.membership import (
    MEMBERS_MAX,
    Mark,
    Member,
    Membership,
    VoterIds,
    reached_by_majority,
)
from fencelock.actors.message import Address, Instant, on_each
from fencelock.actors.paxos.wire import (
    NO_BALLOT,
    PAXOS_NUMBER_MAX,
    Ballot,
    Batch,
    HeartbeatAck,
    fits,
)
from fencelock.actors.repeated import ImpossibleMessages
from fencelock.actors.role import E, Host, Role
from fencelock.actors.table.wire import LOG_VERSION
from fencelock.actors.timing import TIMING, Timing

WINDOW = 16
"""Slots that may be undecided at a time. A membership decided in slot ``s`` is in force from
slot ``s + WINDOW`` (Lamport's rule), so all members must have the same."""

JOIN_SLOTS = 512
"""Maximum number of slots that a new member may lack when it is added. It lacked at most
`LEARNED_SLOTS` when it last reported, and the log has grown since."""

LEARNED_SLOTS = 256
"""Maximum number of slots that a learner may lack when it reports, to count as ready. It requests
what it lacks every 50 ms, while a loaded log may grow by 2,000 slots a second."""

LEADER_LEASE_MS = TIMING.lease_ms
"""Duration for which an acceptor follows a leader after its heartbeat (ms): most of a failover."""

VOTES_MAX = 10_000
"""Slots whose votes an acceptor keeps while its replica lags; beyond it, it stops voting."""

VOTES_BYTES_MAX = 64 << 20
"""The same limit in bytes of commands (64 MiB), not counting the next `NEAR_SLOTS` slots."""

NEAR_SLOTS = 2 * WINDOW
"""Slots from the first that is not applied here, on which an acceptor votes in any case. An honest
leader's next slot is among them, at the latest once this node has applied what is decided."""

GROWTH_MAX = 1 << 40
"""Slots by which a log may be ahead of a member: 17 years with 2,000 slots a second."""

TIME_JUMP_MS_MAX = 3_600_000
"""The most by which log time rises from one slot to the next (ms): an hour. Log time drops the rest
of a longer pause, and an idle leader ticks twice as often, while anything can expire."""

LOG_MAX = 10_000
"""Decided slots that a replica keeps for others; a member that lacks older ones gets a snapshot."""

LOG_BYTES_MAX = 32 << 20
"""The same limit in bytes of commands (32 MiB)."""

BALLOT_ROUND_MAX = (1 << 63) - 1
"""The highest round that the wire can carry."""

ROUND_KEPT_MAX = 3 << 61
"""The highest round that the journal of an honest member can have. A quarter of all rounds is above
it. To get there from ``1 << 62`` takes a forger 2**37 messages, each of which waits for a disk."""

ROUND_JUMP_MAX = 1 << 24
"""Maximum distance by which one message may raise a round above those its receiver knows.

An attempt to lead adds one, and takes at least a tenth of a second. So honest members are never
that far apart, unless one was away for 19 days of nothing but elections. A forger needs 2**39
messages, each of which waits for a disk, to use up all rounds.
"""

ANSWERED_NODES_MAX = 256
"""Maximum nodes that a member answers; members are not limited by it."""

ROUNDS_PER_VIEW = ROUND_JUMP_MAX // 2
"""Rounds below those of candidates that know the next view: ten days of nothing but elections. A
member that lacks two changes is still within `ROUND_JUMP_MAX`."""

CHANGE_PREFIX = b"members "
"""Beginning of a command that changes the members, and of the part of a snapshot with them."""

TEXT_MAX = 300
"""Maximum length of a member's name or endpoint."""

PAXOS_NUMBERS = range(PAXOS_NUMBER_MAX << 1)
"""Numbers of changes, slots, journals and rounds."""

TERMS_MAX = 2
"""Maximum memberships that are in force at a time."""

TOO_FAR = Observe("paxos.round_too_far")


def latest_ms(applied: int, time_ms: int, slot: int) -> int:
    """Return the highest log time of ``slot`` if it is ``time_ms`` before slot ``applied``."""
    return time_ms + (max(0, slot - applied) + WINDOW + 1) * TIME_JUMP_MS_MAX


def why_impossible(batch: Batch, latest: int, ballot: Ballot | None = None) -> str:
    """Return why no honest leader can have proposed ``batch``; empty if one can.

    Args:
        batch: what is said to be proposed for a slot.
        latest: the highest log time of that slot (ms), see `latest_ms`.
        ballot: the ballot in which it is said to be proposed, None if that is unknown.

    """
    if not 0 <= batch.time_ms <= latest:
        return f"log time {batch.time_ms} ms, which must be 0 to {latest} ms"
    if not fits(batch):
        return f"{len(batch.commands)} commands of {batch.size} bytes, more than fit into a slot"
    if ballot is not None and batch.origin > ballot:
        later = batch.origin.round
        return f"a batch for round {ballot.round} that was first proposed in round {later}"
    return ""


@dataclass(frozen=True, slots=True)
class View:
    """One membership; it is the result of ``number`` changes."""

    number: int
    members: tuple[str, ...]
    """Sorted, without repetition, never empty."""
    voters: Mapping[Address, int] | None = field(default=None, repr=False, compare=False)
    """The id that each acceptor's votes name, at present, or 0 for all if left out."""
    seats: tuple[Member, ...] = field(default=(), repr=False, compare=False)
    """The members with their endpoints and journals."""

    acceptors: tuple[Address, ...] = field(init=False, repr=False, compare=False)
    majority: int = field(init=False, repr=False, compare=False)
    """The size of a majority: any two of them share a member."""
    registered: Mapping[Address, int] = field(init=False, repr=False, compare=False)
    """The ids of ``voters``, or zeros. It may also have acceptors of other views: see `counts`."""

    def __post_init__(self) -> None:
        """Compute once the values that every vote needs."""
        members = self.members
        assert members
        assert list(members) == sorted(set(members))
        object.__setattr__(self, "majority", len(members) // 2 + 1)
        object.__setattr__(self, "acceptors", tuple(acceptor_of(one) for one in members))
        registered = dict.fromkeys(self.acceptors, 0) if self.voters is None else self.voters
        object.__setattr__(self, "registered", registered)

    def counts(self, acceptor: Address, voter: int) -> bool:
        """Return whether a vote of ``acceptor`` that names ``voter`` counts in this view."""
        return acceptor in self.acceptors and self.registered.get(acceptor) == voter

    def is_majority(self, acceptors: Collection[Address]) -> bool:
        return sum(one in acceptors for one in self.acceptors) >= self.majority


class LogConfig:
    """The views by the slots that they decide. All roles of the log on a node share it.

    The replica alone changes it, as it applies slots. It holds the views in force over the slots
    from the first that is not applied, ``WINDOW`` of them: one view, or two neighbours.

    Invariants:
        views-overlap: A majority of one current view and a majority of another share a member.

    Args:
        view: the view in force.
        voter_of: returns the id that votes of a member name.
        base: a round below all that the group ever used.
        timing: the times of this member, by which its roles wait for others.

    """

    def __init__(
        self,
        view: View,
        voter_of: Callable[[Member], int] = lambda _: 0,
        base: int = 0,
        timing: Timing = TIMING,
    ) -> None:
        self.base = base
        self.timing = timing
        self._voters = cast("dict[Address, int]", view.registered)
        self._ids = VoterIds(self._voters, voter_of, acceptor_of, view.seats)
        self.applied = 1
        """The first slot that is not applied here."""
        self.time_ms = 0
        """Log time after the slots before it (ms)."""
        self.lower_versions: dict[str, int] = {}
        """The log version of each member that has a lower one than this node, which leads them.
        Only the failure detector changes it."""
        self.nodes: dict[str, None] = dict.fromkeys(view.members)
        """Nodes that get replies: the nodes of the configuration, members, and learners."""
        self.views: list[tuple[int, View]] = [(0, view)]
        """The first slot of each view, in order. The first view also decides earlier slots, if any
        of them matter."""
        self._update()

    def _update(self) -> None:
        views = [view for _, view in self.views]
        self.current: tuple[View, ...] = tuple(views)
        """The views that may decide a slot that is not applied here; the newest is the last."""
        self.newest = views[-1]
        self.pending = self.views[-1][0] if len(views) > 1 else 0
        """The first slot of the newest view, 0 once no other decides slots."""
        self.members = tuple(sorted({member for view in views for member in view.members}))
        """The members of all these views, sorted."""
        self.acceptors = tuple(acceptor_of(one) for one in self.members)
        """Addresses of their acceptors."""

    @property
    def first(self) -> int:
        """The first slot whose view is known for certain; it is not above the first unapplied."""
        return self.views[0][0]

    @property
    def floor(self) -> int:
        """A round below all that candidates use who know the newest view.

        So no ballot of a journal that was replaced is led again by its successor, which has
        forgotten it, and a node that does not know that it was removed preempts no leader.
        """
        return self.base + self.newest.number * ROUNDS_PER_VIEW

    @property
    def journals(self) -> tuple[Voter, ...]:
        """The members of the current views with their journals, sorted."""
        seats = {seat.name: seat.journal for view in self.current for seat in view.seats}
        return tuple(Voter(name, seats[name]) for name in sorted(seats))

    @property
    def membership(self) -> Membership:
        return Membership(self.newest.number, self.newest.seats)

    def latest_ms(self, slot: int) -> int:
        """Return the highest log time that an honest leader can give ``slot`` (ms).

        The argument is in the docstring of this module.
        """
        return latest_ms(self.applied, self.time_ms, slot)

    def change(self, slot: int, membership: Membership) -> bool:
        """Put ``membership`` into force `WINDOW` slots after ``slot``, which decided it.

        Return False for one that does not follow from the newest, or comes before that is in
        force at all slots: all replicas ignore it.
        """
        if self.pending or not membership.is_next_of(self.membership):
            return False
        self._append(Term(slot + WINDOW, membership))
        self._turn()
        return True

    def advance(self, applied: int) -> bool:
        """Drop the view that decided the slots before ``applied``, if it decides none after."""
        if not 0 < self.pending <= applied:
            return False
        self.views.pop(0)
        self._turn()
        return True

    def restore(self, terms: Sequence[Term]) -> bool:
        """Go on with the memberships of a snapshot, if they are newer."""
        if not terms or terms[-1].membership.number < self.newest.number:
            return False
        before, self.views = self.views, []
        for term in terms:
            self._append(term)
        self._turn()
        return before != self.views

    def terms(self) -> tuple[Term, ...]:
        """Return the current memberships, for a snapshot; none if they never changed."""
        if self.newest.number == 0:
            return ()
        return tuple(Term(at, Membership(view.number, view.seats)) for at, view in self.views)

    @property
    def log_version(self) -> int:
        """The lowest log version of the members, as far as this node, which leads them, knows."""
        lower = [one for member, one in self.lower_versions.items() if member in self.members]
        return min(lower, default=LOG_VERSION)

    def note_version(self, member: str, ack: HeartbeatAck) -> int | None:
        """Store the log version of ``member``; return it if it was not known to be so low."""
        version, lower = ack.log_version, self.lower_versions
        if version < LOG_VERSION:
            before = lower.get(member, LOG_VERSION)
            lower[member] = version
            return version if version < before else None
        if lower:
            lower.pop(member, None)
        return None

    def meet(self, node: str) -> bool:
        """Answer ``node`` from now on, if there is room for it."""
        if node not in self.nodes and len(self.nodes) < ANSWERED_NODES_MAX:
            self.nodes[node] = None
        return node in self.nodes

    def _append(self, term: Term) -> None:
        number, seats = term.membership
        self.nodes.update(dict.fromkeys(term.membership.names))
        self.views.append((term.first, View(number, term.membership.names, self._voters, seats)))

    def _turn(self) -> None:
        self._update()
        self._ids.register(seat for _, view in self.views for seat in view.seats)

    def seat(self, acceptor: Address, voter: int) -> range:
        """Return the slots on which ``acceptor`` may vote under the id ``voter``.

        Earlier ones are decided: it may have forgotten its votes on them with another journal.
        """
        votes = [view.counts(acceptor, voter) for view in self.current]
        if not any(votes):
            return range(0)
        first = self.first if votes[0] else self.pending
        return range(first, PAXOS_NUMBER_MAX if votes[-1] else self.pending)

    def at(self, slot: int) -> View:
        """Return the view whose members decide ``slot``, which is not applied here."""
        for first, view in reversed(self.views):
            if first <= slot:
                return view
        return self.views[0][1]

    def is_majority(self, acceptors: Collection[Address]) -> bool:
        """Return whether ``acceptors`` include a majority of each current view."""
        return all(view.is_majority(acceptors) for view in self.current)

    def counts(self, acceptor: Address, voter: int) -> bool:
        """Return whether ``acceptor`` votes under the id ``voter`` in a current view."""
        return any(view.counts(acceptor, voter) for view in self.current)

    def reached(self, marks: Mapping[str, Mark]) -> Mark | None:
        """Return the highest mark that a majority of each current view has reached, if any."""
        lowest: Mark | None = None
        for view in self.current:
            mark = reached_by_majority(view.members, marks)
            if mark is None:
                return None
            lowest = mark if lowest is None else min(lowest, mark)
        return lowest


class LogBounds(ImpossibleMessages):
    """Refuses slots of other members that no log can have; the docstring of this module has why."""

    def __init__(self, node: str, config: LogConfig) -> None:
        super().__init__(node)
        self.config = config

    def refuse_slot(
        self, sender: Address, what: str, slot: int, now: Instant, least: int = 1
    ) -> list[Effect]:
        """Return a report if no honest member can send ``slot``, otherwise nothing.

        Args:
            sender: the role that sent it.
            what: its meaning. It continues the sentence "n3 sent ...".
            slot: the slot.
            now: the present time.
            least: the lowest that is possible.

        """
        applied = self.config.applied
        if least <= slot <= applied + GROWTH_MAX:
            return []
        text = f"{what} {slot}, although slots from {applied} on are not applied here"
        return self.report(sender, "paxos.impossible_slot", text, now)


class Term(NamedTuple):
    """A membership and the first slot that its members decide."""

    first: int
    membership: Membership


def command_of(membership: Membership) -> bytes:
    """Return the command that puts ``membership`` into force, `WINDOW` slots after its own."""
    return CHANGE_PREFIX + encode(membership)


def change_in(batch: Batch) -> Membership | None:
    """Return the membership that ``batch`` puts into force, or None for any other batch."""
    commands = batch.commands
    if len(commands) != 1 or not commands[0].startswith(CHANGE_PREFIX):
        return None
    try:
        membership = _MEMBERSHIP.decode(commands[0][len(CHANGE_PREFIX) :])
    except (MsgspecError, ValueError):
        return None
    return membership if _is_sound(membership) else None


def log_part(terms: Sequence[Term], origin: Ballot) -> bytes:
    """Return the part of a snapshot that has the memberships, and the highest origin."""
    return CHANGE_PREFIX + encode((terms, origin))


def split(chunks: Sequence[bytes]) -> tuple[Sequence[bytes], tuple[Term, ...], Ballot]:
    """Return what is in the chunks of a snapshot.

    These are the chunks of the state machine, the memberships (none if the members had never
    changed), and the highest origin of a batch (`fencelock.actors.paxos.log.DecidedSlots`).

    Raises:
        ValueError: the last one, which has the state of the log, cannot be read.

    """
    if not chunks or not chunks[-1].startswith(CHANGE_PREFIX):
        return chunks, (), NO_BALLOT  # A cluster that began with a backup.
    text = "the members or the ballot in the snapshot cannot be read"
    try:
        terms, origin = _LOG_PART.decode(chunks[-1][len(CHANGE_PREFIX) :])
    except (MsgspecError, ValueError) as error:
        raise ValueError(f"{text}: {error}") from error
    sound = all(term.first in PAXOS_NUMBERS and _is_sound(term.membership) for term in terms)
    if not sound or len(terms) > TERMS_MAX or origin.round < 0 or len(origin.leader) > TEXT_MAX:
        raise ValueError(text)
    return chunks[:-1], terms, origin


_MEMBERSHIP = Decoder(Membership)
_LOG_PART = Decoder(tuple[tuple[Term, ...], Ballot])


def _is_sound(membership: Membership) -> bool:
    """Return whether all numbers and texts are within their limits, and the names in order."""
    number, members = membership
    return (
        number in PAXOS_NUMBERS
        and 1 <= len(members) <= MEMBERS_MAX
        and all(one.name and "/" not in one.name for one in members)
        and all(len(one.name) <= TEXT_MAX and len(one.endpoint) <= TEXT_MAX for one in members)
        and all(one.journal in PAXOS_NUMBERS for one in members)
        and all(one.name < other.name for one, other in pairwise(members))
    )


class MemberArguments(TypedDict):
    """Arguments that every role of the log has: the id of its node, and the views."""

    node: str
    config: LogConfig


class MemberRole(Role[E]):
    """A role of the log on one member, with the addresses of the roles beside it."""

    def __init__(self, address: Address, host: Host, *, node: str, config: LogConfig) -> None:
        super().__init__(address, host)
        self.node = node
        self.config = config
        self.acceptor = acceptor_of(node)
        self.leader = leader_of(node)
        self.replica = replica_of(node)
        self.monitor = monitor_of(node)
        self.catchup = catchup_of(node)
        self.bounds = LogBounds(node, config)


# The addresses of the roles of the log on a node.
acceptor_of = on_each("acceptor")
leader_of = on_each("leader")
replica_of = on_each("replica")
monitor_of = on_each("monitor")
"""The failure detector."""
members_of = on_each("members")
"""The role that changes the members."""
catchup_of = on_each("catchup")
