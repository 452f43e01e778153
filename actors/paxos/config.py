"""The membership that votes on each slot, and the times and limits that all members share.

Without a limit on rounds, one forged message could use up all of them, and no ballot would ever be
led again. So a receiver ignores a round too far above those it knows. If honest members are that
far apart, after forged messages or a very long absence, they meet again in steps: a scout leads
an acceptor up (`Scout`), and a leader climbs to an acceptor that is above it (`Leader`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, cast

from fencelock.actors.bootstrap_message import Voter
from fencelock.actors.effect import Observe
from fencelock.actors.membership import Member, Membership, VoterIds, reached_by_majority
from fencelock.actors.message import Address, on_each
from fencelock.actors.paxos.membership import Term
from fencelock.actors.paxos.message import NUMBER_MAX, HeartbeatAck
from fencelock.actors.role import E, Host, Role
from fencelock.actors.table.message import COMMAND_LEVEL
from fencelock.actors.timing import TIMING

WINDOW = 16
"""Slots that may be undecided at a time. A membership decided in slot ``s`` is in force from
slot ``s + WINDOW`` (Lamport's rule), so all members must have the same."""


JOIN_SLOTS = 512
"""Maximum number of slots that a new member may lack when it is added. It lacked at most
`LEARNED_SLOTS` when it last reported, and the log has grown since."""


LEARNED_SLOTS = 256
"""Maximum number of slots that a learner may lack when it reports, to count as ready. It requests
what it lacks every 50 ms, while a loaded log may grow by 2,000 slots a second."""


LEASE_MS = TIMING.lease_ms
"""Duration for which an acceptor follows a master after its heartbeat (ms): most of a failover."""


VOTES_MAX = 10_000
"""Slots whose votes an acceptor keeps while its replica lags; beyond it, it stops voting."""


VOTES_BYTES_MAX = 64 << 20
"""The same limit in bytes of commands (64 MiB)."""


LOG_MAX = 10_000
"""Decided slots that a replica keeps for others; a member that lacks older ones gets a snapshot."""


LOG_BYTES_MAX = 32 << 20
"""The same limit in bytes of commands (32 MiB)."""


ROUND_MAX = (1 << 63) - 1
"""The highest round that the wire can carry. It was ``1 << 62`` once; a group whose journals
contain a forged round of that height continues above it."""


ROUND_JUMP_MAX = 1 << 24
"""Maximum distance by which one message may raise a round above those its receiver knows.

An attempt to lead adds one, and takes at least a tenth of a second. So honest members are never
that far apart, unless one was away for 19 days of nothing but elections. A forger needs 2**39
messages, each of which waits for a disk, to use up all rounds.
"""


NODES_MAX = 256
"""Maximum nodes that a member answers; members are not limited by it."""


ROUNDS_PER_VIEW = ROUND_JUMP_MAX // 2
"""Rounds below those of candidates that know the next view: ten days of nothing but elections. A
member that lacks two changes is still within `ROUND_JUMP_MAX`."""


TOO_FAR = Observe("paxos.round_too_far")


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
    """Addresses of the members' acceptors."""
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
        """Return whether ``acceptors`` include a majority of this view."""
        return sum(one in acceptors for one in self.acceptors) >= self.majority


class LogConfig:
    """The views by the slots that they decide. All roles of the log on a node share it.

    The replica alone changes it, as it applies slots. It holds the views in force over the slots
    from the first that is not applied, ``WINDOW`` of them: one view, or two neighbours.

    Invariants:
        P7  A majority of one current view and a majority of another share a member.

    Args:
        view: the view in force.
        voter_of: returns the id that votes of a member name.
        base: a round below all that the group ever used.

    """

    def __init__(
        self, view: View, voter_of: Callable[[Member], int] = lambda _: 0, base: int = 0
    ) -> None:
        self.base = base
        self._voters = cast("dict[Address, int]", view.registered)
        self._ids = VoterIds(self._voters, voter_of, acceptor_of, view.seats)
        self.applied = 1
        """The first slot that is not applied here."""
        self.old: dict[str, int] = {}
        """The highest level of commands that each member can apply, for members below the level of
        this node, which leads them. Only the failure detector changes it."""
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
        self.replicas = tuple(replica_of(one) for one in self.members)
        """Addresses of their replicas."""

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
        """The newest membership."""
        return Membership(self.newest.number, self.newest.seats)

    def change(self, slot: int, membership: Membership) -> bool:
        """Put ``membership`` into force `WINDOW` slots after ``slot``, which decided it.

        Return False for one that does not follow from the newest, or comes before that is in
        force at all slots: all replicas ignore it.
        """
        if self.pending or not membership.is_next_of(self.membership):
            return False
        self._append(Term(slot + WINDOW, membership))
        self._update()
        self._register()
        return True

    def advance(self, applied: int) -> bool:
        """Drop the view that decided the slots before ``applied``, if it decides none after."""
        if not 0 < self.pending <= applied:
            return False
        self.views.pop(0)
        self._update()
        self._register()
        return True

    def restore(self, terms: Sequence[Term]) -> bool:
        """Go on with the memberships of a snapshot, if they are newer."""
        if not terms or terms[-1].membership.number < self.newest.number:
            return False
        before, self.views = self.views, []
        for term in terms:
            self._append(term)
        self._update()
        self._register()
        return before != self.views

    def terms(self) -> tuple[Term, ...]:
        """Return the current memberships, for a snapshot; none if they never changed."""
        if self.newest.number == 0:
            return ()
        return tuple(Term(at, Membership(view.number, view.seats)) for at, view in self.views)

    @property
    def levels(self) -> list[int]:
        """The levels in `old` of current members."""
        return [level for member, level in self.old.items() if member in self.members]

    def note_level(self, member: str, ack: HeartbeatAck) -> None:
        """Store which commands ``member`` can apply."""
        level = max(0, ack.commands) if ack.view >= 0 else 0
        if level < COMMAND_LEVEL:
            self.old[member] = level
        elif self.old:
            self.old.pop(member, None)

    def meet(self, node: str) -> bool:
        """Answer ``node`` from now on, if there is room for it."""
        if node not in self.nodes and len(self.nodes) < NODES_MAX:
            self.nodes[node] = None
        return node in self.nodes

    def _append(self, term: Term) -> None:
        number, seats = term.membership
        self.nodes.update(dict.fromkeys(term.membership.names))
        self.views.append((term.first, View(number, term.membership.names, self._voters, seats)))

    def _register(self) -> None:
        self._ids.register(seat for _, view in self.views for seat in view.seats)

    def seat(self, acceptor: Address, voter: int) -> range:
        """Return the slots on which ``acceptor`` may vote under the id ``voter``.

        Earlier ones are decided: it may have forgotten its votes on them with another journal.
        """
        votes = [view.counts(acceptor, voter) for view in self.current]
        if not any(votes):
            return range(0)
        first = self.first if votes[0] else self.pending
        return range(first, NUMBER_MAX if votes[-1] else self.pending)

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

    def reached(self, marks: Mapping[str, int]) -> int | None:
        """Return the highest mark that a majority of each current view has reached, if any.

        Args:
            marks: a rising number for each member, if it has one.

        """
        lowest: int | None = None
        for view in self.current:
            mark = reached_by_majority(view.members, marks)
            if mark is None:
                return None
            lowest = mark if lowest is None else min(lowest, mark)
        return lowest


class MemberArguments(TypedDict):
    """Arguments that every role of the log has: the id of its node, and the views."""

    node: str
    config: LogConfig


class MemberRole(Role[E]):
    """A role of the log on one member, with the addresses of the roles beside it.

    Args:
        node: the id of its node.
        config: the views.

    """

    def __init__(self, address: Address, host: Host, *, node: str, config: LogConfig) -> None:
        super().__init__(address, host)
        self.node = node
        self.config = config
        self.acceptor = acceptor_of(node)
        self.leader = leader_of(node)
        self.replica = replica_of(node)
        self.monitor = monitor_of(node)
        self.catchup = catchup_of(node)


acceptor_of = on_each("acceptor")
"""Returns the address of the acceptor of a node."""

leader_of = on_each("leader")
"""Returns the address of the leader of a node; its ballots carry it."""

replica_of = on_each("replica")
"""Returns the address of the replica of a node."""

monitor_of = on_each("monitor")
"""Returns the address of the failure detector of a node."""

members_of = on_each("members")
"""Returns the address of the role of a node that changes the members."""

catchup_of = on_each("catchup")
"""Returns the address of the catch-up role of a node."""
