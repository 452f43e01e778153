"""Failure detection: heartbeats, the master's lease, and when a follower stands.

`Suspicion` decides when a silent leader is suspected. `MasterLease` is the master's side of the
lease (`acceptor.LeasePromise` is the other): an acceptor that answers a heartbeat adopts no other
leader's ballot for `LEASE_MS` from then. The master counts from when it *sent* the heartbeat,
which was earlier, and subtracts the drift of two clocks: the acceptor's may run fast and its own
slow, so the master relies on ``lease * (1 - drift) / (1 + drift)`` only.

Source: Cary Gray and David Cheriton, "Leases", SOSP 1989; Chandra, Griesemer and
Redstone, "Paxos Made Live", PODC 2007, section 5.2 (master leases).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.lease import DRIFT_PPM, PPM, relied_ns
from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between, node_of
from fencelock.actors.paxos.config import (
    BEAT_MS,
    ELECTION_MS,
    LEASE_MS,
    LogConfig,
    MemberArguments,
    MemberRole,
    acceptor_of,
)
from fencelock.actors.paxos.event import (
    BallotSeen,
    Candidate,
    ConfirmLease,
    DescribeNodes,
    HeartbeatDue,
    Isolated,
    LeaderChanged,
    LeadershipClaimed,
    LeaseHeld,
    MasterCheck,
    NodeFacts,
    NodesDescribed,
    Nominate,
    Nominated,
    SendHeartbeat,
    SteppedDown,
    Succeed,
    Suspect,
    ViewChanged,
    Withdraw,
)
from fencelock.actors.paxos.locator import NO_IDENTITY, Identity, Locator, LocatorEvent
from fencelock.actors.paxos.message import NO_BALLOT, NUMBER_MAX, HeartbeatAck, TakeOver
from fencelock.actors.role import Host, Summary
from fencelock.actors.role_message import LinkDown
from fencelock.actors.timing import TIMING

if TYPE_CHECKING:
    from random import Random

STARTUP_MS = 100
"""Duration for which a starting node listens for a master before it stands (ms): two heartbeats."""


UNANSWERED_MIN = 2
"""A leader that sent fewer heartbeats since the last answer was paused itself."""


ASKED_MAX = 64
"""Heartbeats whose answers still count; older ones would prove an expired lease."""


DetectorRequest = Candidate | LeadershipClaimed | SteppedDown | ConfirmLease | Nominate


DetectorEvent = (
    BallotSeen
    | HeartbeatAck
    | LinkDown
    | TakeOver
    | DetectorRequest
    | HeartbeatDue
    | MasterCheck
    | ViewChanged
    | DescribeNodes
    | LocatorEvent
)


SPREAD_MS = 200
"""Range over which attempts are spread if no node led, so that two rarely stand at once (ms)."""


JITTER_MS = 20
"""The same for followers, which are already ranked (ms)."""


STALL_MS = 2 * TIMING.beat_ms
"""A timer this late shows that the process was paused (ms). Messages of the leader may still be
unread, and the leader may have been paused as well, so it gets this much more time."""


class FailureDetector(MemberRole[DetectorEvent]):
    """Makes its node's leader stand for election, and keeps the lease while that leads.

    A master gives up when no majority answers for ``election_ms``. Otherwise the heartbeats of
    one that can send but not receive would keep every other node from leading.

    Invariants:
        P15 At most one node holds the lease at any true time, as long as no clock's rate
            is further than ``drift_ppm`` from true.

    Args:
        random: spreads suspicions.
        lease_ms: duration that acceptors promise (ms).
        election_ms: a master silent for this long is suspected (ms).
        drift_ppm: largest deviation of a clock's rate (millionths).
        listener: a role of this node that is notified when no majority answers, or None.
        identity: what other nodes must know of this one before it becomes a member.
        votes: whether this node would vote as a member.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        random: Random,
        lease_ms: int = LEASE_MS,
        election_ms: int = ELECTION_MS,
        drift_ppm: int = DRIFT_PPM,
        listener: Address | None = None,
        identity: Identity = NO_IDENTITY,
        votes: bool = True,
        **member: Unpack[MemberArguments],
    ) -> None:
        super().__init__(address, host, **member)
        self.lease_ms = lease_ms
        self.election_ms = election_ms
        self.drift_ppm = drift_ppm
        self.listener = listener
        self.suspicion = Suspicion(self.node, self.config, random, lease_ms, election_ms)
        self.standing = NO_BALLOT
        """The ballot under which this node is a candidate, if it is."""
        self.leadership: LeadershipClaimed | None = None
        self.since = Instant(0)
        """The time at which this leadership began."""
        self.lease: MasterLease | None = None
        self.asked: dict[int, Instant] = {}
        """The time at which each heartbeat was sent, by number, oldest first."""
        self.number = 0
        self.applied: dict[str, int] = {}
        """The first slot that each member has not applied, as it last reported to this leader."""
        self.answered: dict[str, int] = {}
        """The last heartbeat of this leadership that each member answered, if any."""
        self.broken: dict[str, Instant] = {}
        """The time at which a link to another member was last lost."""
        self.following = ""
        """The node that leads, if another does."""
        self.highest = NO_BALLOT
        """The highest ballot that another node led or stood under: a lower one cannot win."""
        self.followed = NO_BALLOT
        """The ballot under which another node led last."""
        self.isolated = False
        """Whether no majority answers this leader, as the listener was last notified."""
        self.heard: dict[str, tuple[Instant, int]] = {}
        """The time at which each member last answered this leader, and the newest view it knew."""
        self.locator = Locator(self.node, self.config, identity, election_ms, ready=votes)

    def begin(self, now: Instant) -> Effects:
        """Listen for a moment, then stand; a single member stands at once."""
        alone = self.config.members == (self.node,)
        return [*self.suspicion.wait(now, 0 if alone else STARTUP_MS), *self.locator.turn(now)]

    def handle(self, sender: Address, event: DetectorEvent, now: Instant) -> Effects:
        """Handle a sign of life, or a timeout."""
        match event:
            case BallotSeen():
                return self._on_ballot_seen(event, now)
            case HeartbeatAck():
                return self._on_ack(sender, event, now)
            case LinkDown():
                return self._on_link_down(event, now)
            case Candidate():
                self.standing = event.ballot
                return [*self._follow(""), *self.suspicion.wait(now, 2 * self.election_ms)]
            case LeadershipClaimed():
                return self._on_leadership_claimed(event, now)
            case SteppedDown():
                return self._on_stepped_down(event, now)
            case ConfirmLease():
                return self._pulse(now) if self.leadership is not None else ()
            case Nominate():
                return self._on_nominate(event.node, now)
            case TakeOver():
                return self._on_take_over(sender, event)
            case HeartbeatDue():
                return self._on_beat(event, now)
            case MasterCheck():
                return self._on_watch(event, now)
            case _:
                return self._on_other(sender, event, now)

    def _on_other(
        self, sender: Address, event: ViewChanged | DescribeNodes | LocatorEvent, now: Instant
    ) -> Effects:
        if isinstance(event, ViewChanged):
            return self._on_view_changed(now)
        if isinstance(event, DescribeNodes):
            return (Send(sender, self._describe(now)),)
        effects = self.locator.handle(sender, event, self.following, now)
        followed = self._follow(self.locator.master) if self.locator.learns else []
        return [*effects, *followed]

    def summary(self) -> Summary:
        """Return the node that this node follows, or that it stands for election."""
        return (
            ("follows", self.following or "nobody"),
            ("isolated", self.isolated),
        )

    def _follow(self, node: str) -> list[Effect]:
        """Notify replica and leader which node leads, if that changed."""
        if node == self.following:
            return []
        self.following = node
        follow = LeaderChanged(master=node)
        return [Send(self.replica, follow), Send(self.leader, follow)]

    def _on_ballot_seen(self, seen: BallotSeen, now: Instant) -> Effects:
        node = node_of(seen.ballot.leader)
        if node == self.node or self.leadership is not None:
            return ()  # A higher ballot preempts ours through our acceptor.
        self.highest = max(self.highest, seen.ballot)
        effects = self.suspicion.on_ballot_seen(node, now)
        if not seen.leads:
            return effects
        self.followed = seen.ballot
        effects += self._follow(node)
        if self.standing > NO_BALLOT:
            self.standing = NO_BALLOT
            effects.append(Send(self.leader, Withdraw()))
        return effects

    def _on_link_down(self, down: LinkDown, now: Instant) -> Effects:
        """Suspect a master whose link broke; acceptors still wait for its lease to end."""
        if down.node in self.config.members:
            self.broken[down.node] = now
        if down.node != self.following:
            return ()
        effects = self.suspicion.on_link_down(down.node, now)
        return () if effects is None else [*effects, Observe("paxos.link_suspected")]

    def _on_watch(self, watch: MasterCheck, now: Instant) -> Effects:
        if not self.suspicion.is_current(watch) or self.leadership is not None:
            return ()
        if again := self.suspicion.check(now):
            return again
        effects = self.suspicion.wait(now, self.election_ms)
        if self.locator.learns:
            return effects
        suspect = Suspect(above=self.highest)
        asked = self.locator.ask_elsewhere()
        return [Send(self.leader, suspect), *asked, Observe("paxos.suspected"), *effects]

    def _on_view_changed(self, now: Instant) -> Effects:
        """Count the lease in the new views, and ask their members at once."""
        learnt = self.locator.turn(now)
        leadership, lease = self.leadership, self.lease
        if leadership is None or lease is None:
            return learnt
        self.since = now  # New members cannot have answered yet.
        until = lease.recount()
        known = until is not None and lease.confirmed is not None
        held = LeaseHeld(
            ballot=leadership.ballot,
            until=until if known and until is not None else Instant(0),
            confirmed=lease.confirmed if known and lease.confirmed is not None else Instant(0),
        )
        return [*learnt, Send(self.replica, held), *self._pulse(now)]

    def _describe(self, now: Instant) -> NodesDescribed:
        """Return what is known of the other members and of learners."""
        facts = [
            NodeFacts(node, self.applied.get(node, 0), ms_between(at, now), view, None)
            for node, (at, view) in self.heard.items()
            if node in self.config.members and node != self.node
        ]
        facts += self.locator.facts(now)
        return NodesDescribed(master=self.following, nodes=tuple(facts))

    def _on_leadership_claimed(self, claimed: LeadershipClaimed, now: Instant) -> Effects:
        self.standing = NO_BALLOT
        self.leadership = claimed
        self.since = now
        self.lease = MasterLease(self.config, self.lease_ms, self.drift_ppm)
        self.asked = {}
        self.applied, self.answered, self.heard = {}, {}, {}
        return [*self._follow(self.node), *self._beat(now)]

    def _on_stepped_down(self, stepped_down: SteppedDown, now: Instant) -> Effects:
        self.standing = NO_BALLOT
        self.leadership = None
        self.lease = None
        wait = self.suspicion.wait(now, self.election_ms + stepped_down.pause_ms)
        return [*self._follow(""), *self._report_isolated(isolated=False), *wait]

    def _on_beat(self, beat: HeartbeatDue, now: Instant) -> Effects:
        if self.leadership is None or self.lease is None or beat.ballot != self.leadership.ballot:
            return ()
        answered = max(self.lease.confirmed or self.since, self.since)
        unanswered = min(self.number - self._confirmed(), len(self.asked))
        silent_ms = ms_between(answered, now) if unanswered >= UNANSWERED_MIN else 0
        if silent_ms > self.election_ms:
            return (Send(self.leader, Withdraw()), Observe("paxos.majority_silent"))
        return [*self._report_isolated(isolated=silent_ms > TIMING.isolated_ms), *self._beat(now)]

    def _report_isolated(self, *, isolated: bool) -> list[Effect]:
        """Notify the listener of a change: meanwhile clients should use another node."""
        if isolated == self.isolated:
            return []
        self.isolated = isolated
        effects: list[Effect] = [Observe("paxos.isolated")] if isolated else []
        if self.listener is not None:
            effects.append(Send(self.listener, Isolated(isolated=isolated)))
        return effects

    def _confirmed(self) -> int:
        """Return the number of the last heartbeat that a majority answered."""
        return self.config.reached(self.answered) or 0

    def _beat(self, now: Instant) -> list[Effect]:
        assert self.leadership is not None
        return [*self._pulse(now), Wake(BEAT_MS, HeartbeatDue(ballot=self.leadership.ballot))]

    def _pulse(self, now: Instant) -> list[Effect]:
        """Send a heartbeat, with what is known of earlier ones."""
        assert self.leadership is not None
        self.number += 1
        self.asked[self.number] = now
        if len(self.asked) > ASKED_MAX:
            del self.asked[next(iter(self.asked))]
        pulse = SendHeartbeat(
            number=self.number,
            min_applied=min(self.applied.get(member, 0) for member in self.config.members),
            answered=tuple(self.answered.get(one, 0) for one in self.config.newest.members),
            confirmed=self._confirmed(),
            view=self.config.newest.number,
        )
        return [Send(self.leadership.commander, pulse)]

    def _on_ack(self, acceptor: Address, ack: HeartbeatAck, now: Instant) -> Effects:
        if not self.config.counts(acceptor, ack.voter):
            known = acceptor in self.config.acceptors
            return (Observe("paxos.unregistered_vote" if known else "paxos.stranger_follows"),)
        asked = self.asked.get(ack.number)
        leadership, lease = self.leadership, self.lease
        if leadership is None or lease is None or ack.ballot != leadership.ballot or asked is None:
            return ()  # It answers an earlier leadership, or comes too late.
        member = node_of(acceptor)
        if not 0 <= ack.applied < NUMBER_MAX:
            return (Observe("paxos.impossible_slot"),)
        self.applied[member] = ack.applied
        self.heard[member] = now, ack.view
        self.answered[member] = max(self.answered.get(member, 0), ack.number)
        until = lease.acknowledge(member, asked)
        if until is None or lease.confirmed is None:
            return ()
        leased = LeaseHeld(ballot=leadership.ballot, until=until, confirmed=lease.confirmed)
        return (Send(self.replica, leased),)

    def _on_nominate(self, wanted: str, now: Instant) -> Effects:
        """Name the member that answered within a lease and has applied the most.

        Name none if the members that answered are no majority together with this node, or if
        only ``wanted`` is to be named and it did not answer.
        """
        asked = {} if self.lease is None else self.lease.asked
        recent = now - self.lease_ms * NS_PER_MS
        there = [
            member
            for member in self.config.newest.members
            if member in asked
            and asked[member] >= max(recent, self.broken.get(member, recent))
            and member != self.node
        ]
        enough = self.config.is_majority([acceptor_of(one) for one in (*there, self.node)])
        if wanted:
            there = [wanted] if wanted in there else []
        best = max(there, key=lambda member: self.applied.get(member, 0), default="")
        return (Send(self.leader, Nominated(node=best if enough else "")),)

    def _on_take_over(self, leader: Address, request: TakeOver) -> Effects:
        """Stand at the request of the master that this node follows, and of no other."""
        known = request.ballot == self.followed and self.following == node_of(leader)
        if self.leadership is not None or not known or leader != request.ballot.leader:
            return (Observe("paxos.take_over_ignored"),)
        return (Send(self.leader, Succeed(ballot=request.ballot)),)


class Suspicion:
    """The deadline at which a node stands unless a leader or candidate sends something.

    Followers are ranked by their distance after the leader in the sorted list of members,
    which wraps around. The first stands when the leader was silent for ``election_ms``, each
    further one `Timing.rank_ms` later. By then the one before has sent a `Prepare`, if it is
    alive, and every member that promises it restarts its wait.

    Args:
        node: this node.
        config: the views.
        random: spreads attempts.
        lease_ms: time for which acceptors refuse all but the leader they follow (ms).
        election_ms: a leader silent for this long is suspected (ms).

    """

    def __init__(
        self, node: str, config: LogConfig, random: Random, lease_ms: int, election_ms: int
    ) -> None:
        self._node, self._config, self._random = node, config, random
        self._lease_ms, self._election_ms = lease_ms, election_ms
        self._seen_at = Instant(0)
        self.deadline = Instant(0)
        """The time at which this node stands, if it learns of no leader or candidate."""
        self.watching = Instant(0)
        """The deadline for which a timer runs."""

    def wait(self, now: Instant, ms: int) -> list[Effect]:
        """Stand after ``ms`` and a little more, unless a message comes."""
        spread = self._random.randrange(SPREAD_MS) if ms else 0
        return self._wait_until(_later(now, ms + spread), now)

    def on_ballot_seen(self, leader: str, now: Instant) -> list[Effect]:
        """Extend the deadline: ``leader`` leads, or stands."""
        self._seen_at = now
        return self._wait_until(_later(now, self._election_ms + self._turn_ms(leader)), now)

    def on_link_down(self, leader: str, now: Instant) -> list[Effect] | None:
        """Stand as soon as the lease of ``leader`` ends; return None if that is no sooner."""
        ends = max(now, _later(self._seen_at, self._lease_ms + 1))
        soon = _later(ends, self._turn_ms(leader))
        return self._wait_until(soon, now) if soon < self.deadline else None

    def is_current(self, watch: MasterCheck) -> bool:
        """Return whether ``watch`` is the timer that runs; if so, none runs any more."""
        if watch.deadline != self.watching:
            return False
        self.watching = Instant(0)
        return True

    def check(self, now: Instant) -> list[Effect]:
        """Return the timer to wait for; empty if the deadline has passed."""
        if now < self.deadline:
            return self._wait_until(self.deadline, now)
        if now > _later(self.deadline, STALL_MS):
            return self._wait_until(_later(now, STALL_MS), now)
        return []

    def _turn_ms(self, leader: str) -> int:
        """Return the delay of this node's turn after ``leader`` against the first one (ms)."""
        members = self._config.members
        place = members.index(self._node) if self._node in members else len(members)
        led = members.index(leader) if leader in members else place
        rank = max(0, (place - led) % len(members) - 1)
        return rank * TIMING.rank_ms + self._random.randrange(JITTER_MS)

    def _wait_until(self, deadline: Instant, now: Instant) -> list[Effect]:
        self.deadline = deadline
        if now < self.watching <= deadline:
            return []  # The running timer then waits for the rest.
        self.watching = deadline
        after_ms = -((now - deadline) // NS_PER_MS)
        return [Wake(max(0, after_ms), MasterCheck(deadline=deadline))]


class MasterLease:
    """The master's side.

    Args:
        config: the views: a majority of each must have promised.
        lease_ms: duration of each promise (ms).
        drift_ppm: largest deviation of a clock's rate (millionths, below 1,000,000).

    """

    def __init__(self, config: LogConfig, lease_ms: int, drift_ppm: int) -> None:
        assert 0 <= drift_ppm < PPM
        self.config = config
        self.length = relied_ns(lease_ms, drift_ppm)
        self.asked: dict[str, Instant] = {}
        """Send time of the last heartbeat that each member answered."""
        self.confirmed: Instant | None = None
        """The latest instant after which a majority answered; None if none ever did."""

    def recount(self) -> Instant | None:
        """Return the time at which the lease ends in the present views; None for never granted."""
        confirmed = self.config.reached(self.asked)
        self.confirmed = None if confirmed is None else Instant(confirmed)
        return None if confirmed is None else Instant(confirmed + self.length)

    def acknowledge(self, member: str, asked: Instant) -> Instant | None:
        """Note that ``member`` answered the heartbeat sent at ``asked``.

        Return the time at which the lease ends now; None if the answer does not extend it.
        """
        self.asked[member] = max(asked, self.asked.get(member, asked))
        confirmed = self.config.reached(self.asked)
        if confirmed is None or confirmed == self.confirmed:
            return None
        self.confirmed = Instant(confirmed)
        return Instant(confirmed + self.length)


def _later(now: Instant, ms: int) -> Instant:
    return Instant(now + ms * NS_PER_MS)
