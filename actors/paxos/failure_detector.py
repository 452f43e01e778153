"""Failure detection: heartbeats, the leader's lease, who stands, and who succeeds a leader.

`Suspicion` decides when a silent leader is suspected. `LeaderLease` is the leader's side of the
lease (`acceptor.LeasePromise` is the other): an acceptor that replies to a heartbeat adopts no
other leader's ballot for ``lease_ms`` from then. The leader counts from when it *sent* the
heartbeat, which was earlier, and subtracts the drift of two clocks: the acceptor's may run fast and
its own slow, so the leader relies on ``lease * (1 - drift) / (1 + drift)`` only. The reply states
the length of the acceptor's lease, so members with different configurations are also safe.

Source: Cary Gray and David Cheriton, "Leases", SOSP 1989; Chandra, Griesemer and
Redstone, "Paxos Made Live", PODC 2007, section 5.2 (master leases).
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Unpack

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.lease import DRIFT_PPM, PPM, relied_ns
from fencelock.actors.message import (
    MS_PER_S,
    NS_PER_MS,
    NS_PER_US,
    Address,
    Instant,
    later,
    ms_between,
    node_of,
)
from fencelock.actors.paxos.config import LogConfig, MemberArguments, MemberRole, acceptor_of
from fencelock.actors.paxos.event import (
    BallotSeen,
    Candidate,
    ConfirmLease,
    DescribeNodes,
    HandOverTo,
    HeartbeatDue,
    Isolated,
    LeaderChanged,
    LeaderCheck,
    Leadership,
    LeaseHeld,
    NodeFacts,
    NodesDescribed,
    Resign,
    Resigned,
    SendHeartbeat,
    SteppedDown,
    Succeed,
    Suspect,
    ViewChanged,
    Withdraw,
)
from fencelock.actors.paxos.locator import Locator, LocatorEvent
from fencelock.actors.paxos.slow_disk import DiskComparison
from fencelock.actors.paxos.wire import NO_BALLOT, NO_REPORT, HeartbeatAck, Locate, TakeOver
from fencelock.actors.proxy.event import TimesUnfit
from fencelock.actors.role import Host, Summary
from fencelock.actors.role_message import DiskSynced, Level, LinkDown, notice
from fencelock.actors.round_trips import RoundTrips
from fencelock.actors.table.wire import LOG_VERSION
from fencelock.actors.timing import Timing

if TYPE_CHECKING:
    from random import Random

UNANSWERED_MIN = 2
"""A leader that sent fewer heartbeats since the last answer was paused itself."""


ASKED_MAX = 64
"""Heartbeats whose answers still count; older ones would prove an expired lease."""


DetectorEvent = (
    BallotSeen
    | HeartbeatAck
    | LinkDown
    | TakeOver
    | Candidate
    | Leadership
    | SteppedDown
    | ConfirmLease
    | Resign
    | HeartbeatDue
    | LeaderCheck
    | ViewChanged
    | DescribeNodes
    | LocatorEvent
    | DiskSynced
    | Resigned
)


OVERTAKEN_MS = 5_000
"""A leader hands over if it could not apply for this long what another member has applied (ms)."""

REST_MS = 30_000
"""A node hands over for its slow disk or for being overtaken at most once in this time (ms). For as
long, it also lets all others stand for election first. If disks become slow in turn, the leader
changes at most once per node in this time."""

SPREADS = 4
"""Round trips over which elections are spread if no node led, so that two rarely coincide."""


JITTER_MS = 20
"""Time over which the election of each ranked follower is spread (ms); see `Suspicion`."""


class FailureDetector(MemberRole[DetectorEvent]):
    """Makes its node's leader stand for election, and keeps the lease while that leads.

    A leader gives up when no majority answers for ``election_ms``. Otherwise the heartbeats of
    one that can send but not receive would keep every other node from leading.

    Invariants:
        one-lease: At most one node holds the lease at any true time, as long as no clock's rate
            is further than ``drift_ppm`` from true.

    Args:
        random: spreads suspicions.
        drift_ppm: largest deviation of a clock's rate (millionths).
        listener: the role of this node that is notified when no majority answers.
        report, voter, first_number: see `Locator`.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        random: Random,
        listener: Address,
        drift_ppm: int = DRIFT_PPM,
        report: Locate = NO_REPORT,
        voter: int = 0,
        first_number: int = 0,
        **member: Unpack[MemberArguments],
    ) -> None:
        super().__init__(address, host, **member)
        self.timing = timing = self.config.timing
        self.differing = ""
        """The differences between the leader's times and these; empty if there are none."""
        self.round_trips = RoundTrips("paxos", timing.round_trip_ms)
        """The answers to earlier leaderships count as well: on a network that is much too slow a
        leader has stepped down before the first answer arrives."""
        self.times_warning = ""
        """The warning about times that was last reported; empty if nothing is wrong."""
        self.drift_ppm = drift_ppm
        self.listener = listener
        self.suspicion = Suspicion(self.node, self.config, random)
        self.leadership: Leadership | None = None
        self.since = Instant(0)
        """The time at which this leadership began."""
        self.lease: LeaderLease | None = None
        self.asked: dict[int, Instant] = {}
        """The time at which each heartbeat was sent, by number, oldest first."""
        self.number = 0
        self.applied: dict[str, int] = {}
        """The first slot that each member has not applied, as it last reported to this leader."""
        self.stored: dict[str, int] = {}
        """The slot before which each member's journal has everything, as it last reported."""
        self.acked: dict[str, int] = {}
        """The last heartbeat of this leadership that each member answered, if any."""
        self.overtaken: tuple[int, Instant] | None = None
        """While another member has applied more than this leader: the first slot that this leader
        has not applied, and the time since which that is so."""
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
        self.latest: dict[str, tuple[Instant, int, str]] = {}
        """For each member: the time of its last reply to this leader, the newest view it knew, and
        the version of its software (empty if not known)."""
        self.locator = Locator(
            self.node,
            self.config,
            report,
            voter=voter,
            number=first_number,
            drift_ppm=drift_ppm,
        )
        self.disks = DiskComparison()

    def begin(self, now: Instant) -> Effects:
        """Wait for a leader, then stand for election; a single member stands at once."""
        alone = self.config.members == (self.node,)
        wait_ms = 0 if alone else self.timing.startup_ms
        return [*self.suspicion.wait(now, wait_ms), *self.locator.turn(now)]

    def handle(  # noqa: PLR0912  (a case for each event)
        self, sender: Address, event: DetectorEvent, now: Instant
    ) -> Effects:
        match event:
            case BallotSeen():
                return self._on_ballot_seen(event, now)
            case HeartbeatAck():
                return self._on_ack(sender, event, now)
            case LinkDown():
                return self._on_link_down(event, now)
            case Candidate():
                return [*self._follow(""), *self.suspicion.wait(now, 2 * self.timing.election_ms)]
            case Leadership():
                return self._on_leadership(event, now)
            case SteppedDown():
                return self._on_stepped_down(event, now)
            case ConfirmLease():
                return self._pulse(now) if self.leadership is not None else ()
            case Resign():
                return (self._resign(sender, now, event.successor),)
            case TakeOver():
                return self._on_take_over(sender, event)
            case HeartbeatDue():
                return self._on_beat(event, now)
            case LeaderCheck():
                return self._on_watch(event, now)
            case ViewChanged():
                return self._on_view_changed(now)
            case DescribeNodes():
                return (Send(sender, self._describe(now)),)
            case DiskSynced():
                return self._on_disk_synced(event, now)
            case Resigned():
                return ()  # It answers what this role sent its leader for a slow disk.
            case _:
                pass  # It is an event of the locator.
        effects = self.locator.handle(sender, event, now)
        followed = self._follow(self.locator.leader) if self.locator.learns else []
        return [*effects, *followed]

    def summary(self) -> Summary:
        return (
            ("follows", self.following or "nobody"),
            ("isolated", self.isolated),
            ("sync us", self.disks.own_us),
        )

    def _follow(self, node: str) -> list[Effect]:
        """Notify replica and leader which node leads, if that changed."""
        if node == self.following:
            return []
        self.following = node
        self.locator.served |= bool(node) and not self.locator.learns
        follow = LeaderChanged(leader=node)
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
        return [*effects, *self._follow(node), *self._compare_times(node, seen.timing)]

    def _compare_times(self, node: str, timing: Timing) -> list[Effect]:
        differing = self.timing.differences(timing) if timing != self.timing else ""
        self.differing = differing and f"the times of {node} differ from this node's: {differing}"
        return self._report_times()

    def _report_times(self) -> list[Effect]:
        """Report what is wrong with the times, if that has changed."""
        why = "; ".join(filter(None, (self.differing, self.round_trips.warning())))
        if why == self.times_warning:
            return []
        self.times_warning = why
        text = why or "the times are the same on the leader and fit the network again"
        line = notice(self.node, Level.WARNING if why else Level.INFO, text)
        return [line, Send(self.listener, TimesUnfit(why=why))]

    def _on_link_down(self, down: LinkDown, now: Instant) -> Effects:
        """Suspect a leader whose link broke; acceptors still wait for its lease to end."""
        if down.node in self.config.members:
            self.broken[down.node] = now
        if down.node != self.following:
            return ()
        effects = self.suspicion.on_link_down(down.node, now)
        return () if effects is None else [*effects, Observe("paxos.link_suspected")]

    def _on_watch(self, watch: LeaderCheck, now: Instant) -> Effects:
        if not self.suspicion.is_current(watch) or self.leadership is not None:
            return ()
        if again := self.suspicion.check(now):
            return again
        effects = self.suspicion.wait(now, self.timing.election_ms)
        if self.locator.learns:
            return effects
        suspect = Suspect(above=self.highest)
        asked = self.locator.ask_elsewhere(now)
        return [Send(self.leader, suspect), *asked, Observe("paxos.suspected"), *effects]

    def _on_view_changed(self, now: Instant) -> Effects:
        """Count the lease in the new views, and ask their members at once."""
        self.round_trips.keep(self.config.members)
        learnt = [*self.locator.turn(now), *self._report_times()]
        leadership, lease = self.leadership, self.lease
        if leadership is None or lease is None:
            return learnt
        self.since = now  # New members cannot have answered yet.
        until, confirmed = lease.recount(), lease.confirmed
        if until is None or confirmed is None:
            until = confirmed = Instant(0)
        held = LeaseHeld(ballot=leadership.ballot, until=until, confirmed=confirmed)
        return [*learnt, Send(self.replica, held), *self._pulse(now)]

    def _describe(self, now: Instant) -> NodesDescribed:
        facts = [
            NodeFacts(node, self.applied.get(node, 0), ms_between(at, now), view, None, 0, version)
            for node, (at, view, version) in self.latest.items()
            if node in self.config.members and node != self.node
        ]
        facts += self.locator.facts(now)
        stored = self.config.reached(self.stored) or 0
        ballot = NO_BALLOT if self.leadership is None else self.leadership.ballot
        return NodesDescribed(
            leader=self.following, nodes=tuple(facts), stored=stored, ballot=ballot
        )

    def _on_leadership(self, leadership: Leadership, now: Instant) -> Effects:
        self.leadership = leadership
        self.since = now
        self.lease = LeaderLease(self.config, self.timing.lease_ms, self.drift_ppm)
        self.asked, self.config.lower_versions = {}, {}
        self.disks.clear()
        self.applied, self.stored, self.acked, self.latest = {}, {}, {}, {}
        self.overtaken = None
        return [*self._follow(self.node), *self._beat(now)]

    def _on_stepped_down(self, stepped_down: SteppedDown, now: Instant) -> Effects:
        self.leadership = None
        self.lease = None
        wait = self.suspicion.wait(now, self.timing.election_ms + stepped_down.pause_ms)
        return [*self._follow(""), *self._report_isolated(isolated=False), *wait]

    def _on_beat(self, beat: HeartbeatDue, now: Instant) -> Effects:
        if self.leadership is None or self.lease is None or beat.ballot != self.leadership.ballot:
            return ()
        acked = max(self.lease.confirmed or self.since, self.since)
        unanswered = min(self.number - self._confirmed(), len(self.asked))
        silent_ms = ms_between(acked, now) if unanswered >= UNANSWERED_MIN else 0
        if silent_ms > self.timing.election_ms:
            return (Send(self.leader, Withdraw()), Observe("paxos.majority_silent"))
        return [
            *self._report_isolated(isolated=silent_ms > self.timing.isolated_ms),
            *self._beat(now),
        ]

    def _report_isolated(self, *, isolated: bool) -> list[Effect]:
        """Notify the listener of a change: meanwhile clients should use another node."""
        if isolated == self.isolated:
            return []
        self.isolated = isolated
        marks: list[Effect] = [Observe("paxos.isolated")] if isolated else []
        return [*marks, Send(self.listener, Isolated(isolated=isolated))]

    def _confirmed(self) -> int:
        """Return the number of the last heartbeat that a majority answered."""
        return self.config.reached(self.acked) or 0

    def _beat(self, now: Instant) -> list[Effect]:
        assert self.leadership is not None
        return [
            *self._pulse(now),
            Wake(self.timing.heartbeat_ms, HeartbeatDue(ballot=self.leadership.ballot)),
        ]

    def _pulse(self, now: Instant) -> list[Effect]:
        """Send a heartbeat, with the replies to earlier ones."""
        assert self.leadership is not None
        self.number += 1
        self.asked[self.number] = now
        if len(self.asked) > ASKED_MAX:
            del self.asked[next(iter(self.asked))]
        pulse = SendHeartbeat(
            number=self.number,
            min_applied=min(map(self.applied.get, self.config.members, repeat(0))),
            acked=tuple(map(self.acked.get, self.config.newest.members, repeat(0))),
            confirmed=self._confirmed(),
            view=self.config.newest.number,
            timing=self.timing,
        )
        return [Send(self.leadership.commander, pulse)]

    def _on_ack(self, acceptor: Address, ack: HeartbeatAck, now: Instant) -> Effects:
        if not self.config.counts(acceptor, ack.voter):
            known = acceptor in self.config.acceptors
            return (Observe("paxos.unregistered_vote" if known else "paxos.stranger_follows"),)
        asked = self.asked.get(ack.number)
        member = node_of(acceptor)
        reports: Effects = ()
        if (
            asked is not None
            and member != self.node
            and self.round_trips.measure(member, now - asked)
        ):
            reports = self._report_times()
        leadership, lease = self.leadership, self.lease
        if leadership is None or lease is None or ack.ballot != leadership.ballot or asked is None:
            return reports  # It answers an earlier leadership, or comes too late.
        if refused := self._refuse_impossible(acceptor, ack, now):
            return refused
        if member != self.node:
            since = Instant(asked - ack.sync_age_ms * NS_PER_MS)
            self.disks.note_other(member, ack.sync_us, since)
        self.applied[member], self.stored[member] = ack.applied, ack.stored
        _, _, version = self.latest.get(member, (now, 0, ""))
        self.latest[member] = now, ack.view, ack.version or version
        reports = (*reports, *self._report_version(member, self.config.note_version(member, ack)))
        if self.overtaken is not None or ack.applied > self.config.applied:
            reports = (*reports, *self._hand_over_if_overtaken(now))
        self.acked[member] = max(self.acked.get(member, 0), ack.number)
        until = lease.acknowledge(member, asked, ack.lease_ms)
        if until is None or lease.confirmed is None:
            return reports
        leased = LeaseHeld(ballot=leadership.ballot, until=until, confirmed=lease.confirmed)
        return (Send(self.replica, leased), *reports)

    def _hand_over_if_overtaken(self, now: Instant) -> list[Effect]:
        """Hand over if others have applied slots that this leader cannot get decided.

        This happens if phase one did not ask a member that knows these slots to be decided, and
        that member does not vote on them either: after a restart from a snapshot that is later than
        a change of members, it no longer knows that it may. The next leader's phase one asks anew.
        A broken member may report too many, which `REST_MS` makes harmless.
        """
        applied = self.config.applied
        before, since = self.overtaken or (0, now)
        if max(self.applied.values()) <= applied:
            self.overtaken = None
        elif before != applied:
            self.overtaken = applied, now
        elif ms_between(since, now) >= OVERTAKEN_MS and (successor := self._next_leader(now)):
            why = (
                f"others have applied slots from {applied} on, and for {OVERTAKEN_MS // MS_PER_S} "
                f"s it could decide none of them"
            )
            return self._hand_over(successor, why, "paxos.handed_over_overtaken", now)
        return []

    def _next_leader(self, now: Instant) -> str:
        """Return the member to hand over to unasked; empty while `REST_MS` forbids it."""
        rests = self.leadership is None or now < self.suspicion.reluctant_until
        return "" if rests else self._successor(now)

    def _hand_over(self, successor: str, why: str, mark: str, now: Instant) -> list[Effect]:
        self.suspicion.reluctant_until = later(now, REST_MS)
        text = f"the leader hands over to {successor}: {why}"
        return [
            Send(self.leader, HandOverTo(successor=successor, client=self.address)),
            notice(self.node, Level.INFO, text),
            Observe(mark),
        ]

    def _refuse_impossible(
        self, acceptor: Address, ack: HeartbeatAck, now: Instant
    ) -> list[Effect]:
        for name, value, least in (
            ("view", ack.view, 0),
            ("sync_us", ack.sync_us, 0),
            ("sync_age_ms", ack.sync_age_ms, 0),
            ("lease_ms", ack.lease_ms, 0),
            ("log_version", ack.log_version, 1),
            ("stored", ack.stored, 0),
        ):
            if value < least:
                text = f"an answer to a heartbeat with {name} {value}, which is at least {least}"
                return self.bounds.report(acceptor, "paxos.impossible_answer", text, now)
        what = "that it has applied or stored slots up to"
        return self.bounds.refuse_slot(acceptor, what, max(ack.applied, ack.stored), now)

    def _report_version(self, member: str, version: int | None) -> list[Effect]:
        """Name a member for which newer commands are refused."""
        if version is None:
            return []
        text = (
            f"{member} can apply commands up to log version {version}, and this node up to "
            f"{LOG_VERSION}: newer ones are refused. Upgrade {member}, or remove it (fencelock "
            f"leave {member})"
        )
        return [notice(self.node, Level.WARNING, text)]

    def _on_disk_synced(self, synced: DiskSynced, now: Instant) -> Effects:
        """Hand over if this node leads and its disk is far slower than its followers'."""
        slow = self.disks.is_slow(synced.mean_us, self.config, now)
        if not slow or not (successor := self._next_leader(now)):
            return ()
        why = self.disks.describe(successor)
        return self._hand_over(successor, why, "paxos.handed_over_for_disk", now)

    def _resign(self, client: Address, now: Instant, wanted: str) -> Send:
        if self.leadership is None:
            return Send(client, Resigned(leader=self.following))
        successor = self._successor(now, wanted)
        if not successor:
            return Send(client, Resigned(leader=""))
        return Send(self.leader, HandOverTo(successor=successor, client=client))

    def _successor(self, now: Instant, wanted: str = "") -> str:
        """Return the member that should lead next: one with a quick disk, that applied the most.

        It has answered within a lease, for which a slow disk of this node gives it more time.
        There is none if the members that answered are no majority together with this node, or if
        only ``wanted`` may be named and it did not answer.
        """
        asked = {} if self.lease is None else self.lease.asked
        recent = now - self.timing.lease_ms * NS_PER_MS - 2 * self.disks.own_us * NS_PER_US
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
        best = max(
            there,
            key=lambda one: (self.disks.is_quick(one), self.applied.get(one, 0)),
            default="",
        )
        return best if enough else ""

    def _on_take_over(self, leader: Address, request: TakeOver) -> Effects:
        """Stand at the request of the leader that this node follows, and of no other."""
        known = request.ballot == self.followed and self.following == node_of(leader)
        if self.leadership is not None or not known or leader != request.ballot.leader:
            return (Observe("paxos.take_over_ignored"),)
        return (Send(self.leader, Succeed(ballot=request.ballot)),)


class Suspicion:
    """The deadline at which a node stands for election unless a leader or candidate sends.

    Followers are ranked by their distance after the leader in the sorted list of members,
    which wraps around. The first stands when the leader was silent for `Timing.election_ms`, each
    further one `Timing.rank_ms` later. By then the previous follower has sent a `Prepare`, if it is
    alive, and every member that promises it restarts its wait.
    """

    def __init__(self, node: str, config: LogConfig, random: Random) -> None:
        self._node, self._config, self._random = node, config, random
        self._timing = timing = config.timing
        self.stall_ms = 2 * timing.heartbeat_ms
        """A timer this late shows that the process was paused (ms). Messages of the leader may
        still be unread, and it may have been paused as well, so it gets this much more time."""
        self._seen_at = Instant(0)
        self.deadline = Instant(0)
        """The time of this node's next election, if it learns of no leader or candidate."""
        self.watching = Instant(0)
        """The deadline for which a timer runs."""
        self.reluctant_until = Instant(0)
        """Until then this node stands for election only after all others."""

    def wait(self, now: Instant, ms: int) -> list[Effect]:
        """Stand after ``ms`` and a little more, unless a message comes."""
        spread = self._random.randrange(SPREADS * self._timing.round_trip_ms) if ms else 0
        return self._wait_until(later(now, ms + spread), now)

    def on_ballot_seen(self, leader: str, now: Instant) -> list[Effect]:
        """Extend the deadline: ``leader`` leads, or stands for election."""
        self._seen_at = now
        return self._wait_until(
            later(now, self._timing.election_ms + self._turn_ms(leader, now)), now
        )

    def on_link_down(self, leader: str, now: Instant) -> list[Effect] | None:
        """Stand as soon as the lease of ``leader`` ends; return None if that is no sooner."""
        ends = max(now, later(self._seen_at, self._timing.lease_ms + 1))
        soon = later(ends, self._turn_ms(leader, now))
        return self._wait_until(soon, now) if soon < self.deadline else None

    def is_current(self, watch: LeaderCheck) -> bool:
        """Return whether ``watch`` is the timer that runs; if so, none runs any more."""
        if watch.deadline != self.watching:
            return False
        self.watching = Instant(0)
        return True

    def check(self, now: Instant) -> list[Effect]:
        """Return the timer to wait for; empty if the deadline has passed."""
        if now < self.deadline:
            return self._wait_until(self.deadline, now)
        if now > later(self.deadline, self.stall_ms):
            return self._wait_until(later(now, self.stall_ms), now)
        return []

    def _turn_ms(self, leader: str, now: Instant) -> int:
        """Return the delay of this node's turn after ``leader`` against the first one (ms)."""
        members = self._config.members
        place = members.index(self._node) if self._node in members else len(members)
        led = members.index(leader) if leader in members else place
        rank = max(0, (place - led) % len(members) - 1)
        if now < self.reluctant_until:
            rank += len(members)
        return rank * self._timing.rank_ms + self._random.randrange(JITTER_MS)

    def _wait_until(self, deadline: Instant, now: Instant) -> list[Effect]:
        self.deadline = deadline
        if now < self.watching <= deadline:
            return []  # The running timer then waits for the rest.
        self.watching = deadline
        after_ms = -((now - deadline) // NS_PER_MS)
        return [Wake(max(0, after_ms), LeaderCheck(deadline=deadline))]


class LeaderLease:
    """The leader's side.

    Args:
        config: the views: a majority of each must have promised.
        lease_ms: duration for which the leader relies on a promise at most (ms).
        drift_ppm: largest deviation of a clock's rate (millionths, below 1,000,000).

    """

    def __init__(self, config: LogConfig, lease_ms: int, drift_ppm: int) -> None:
        assert 0 <= drift_ppm < PPM
        self.config = config
        self.lease_ms, self.drift_ppm = lease_ms, drift_ppm
        self.asked: dict[str, Instant] = {}
        """Send time of the last heartbeat that each member answered."""
        self.until: dict[str, Instant] = {}
        """The time until which the leader relies on the promise of each member."""
        self.confirmed: Instant | None = None
        """The latest instant after which a majority answered, or None if none ever did."""

    def recount(self) -> Instant | None:
        """Return the time at which the lease ends in the present views, or None if it has none."""
        self.confirmed = self.config.reached(self.asked)
        return self.config.reached(self.until)

    def acknowledge(self, member: str, asked: Instant, promised_ms: int) -> Instant | None:
        """Note that ``member`` answered the heartbeat sent at ``asked``, with so long a promise.

        Return the time at which the lease ends now, or None if the answer does not extend it.
        """
        self.asked[member] = max(asked, self.asked.get(member, asked))
        until = Instant(asked + relied_ns(min(promised_ms, self.lease_ms), self.drift_ppm))
        self.until[member] = max(until, self.until.get(member, until))
        confirmed = self.config.reached(self.asked)
        if confirmed is None or confirmed == self.confirmed:
            return None
        self.confirmed = confirmed
        return self.config.reached(self.until)
