"""Failure detection: the master's heartbeats and lease, and every node's suspicion of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.lease import DRIFT_PPM
from fencelock.actors.link import LinkDown
from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between, node_of
from fencelock.actors.paxos.config import (
    BEAT_MS,
    ELECTION_MS,
    LEASE_MS,
    Config,
    leader_of,
    replica_of,
)
from fencelock.actors.paxos.event import (
    Candidate,
    Confirm,
    Heard,
    LeaderChanged,
    LeadershipClaimed,
    Leased,
    Pulse,
    SteppedDown,
    Suspect,
    Withdraw,
)
from fencelock.actors.paxos.handover_event import Nominate, Nominated, Succeed
from fencelock.actors.paxos.handover_message import TakeOver
from fencelock.actors.paxos.lease import MasterLease
from fencelock.actors.paxos.message import NO_BALLOT, NUMBER_MAX, HeartbeatAck
from fencelock.actors.paxos.suspicion import Isolated, Suspicion
from fencelock.actors.paxos.timer import Beat, Watch
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.timing import TIMING

if TYPE_CHECKING:
    from random import Random

STARTUP_MS = 100
"""Duration for which a starting node listens for a master before it stands (ms): two heartbeats."""

UNANSWERED_MIN = 2
"""A leader that sent fewer heartbeats since the last answer was paused itself."""

ASKED_MAX = 64
"""Heartbeats whose answers still count; older ones would prove an expired lease."""

Told = Candidate | LeadershipClaimed | SteppedDown | Confirm | Nominate
Heeded = Heard | HeartbeatAck | LinkDown | TakeOver | Told | Beat | Watch


class FailureDetector(Role[Heeded]):
    """Tells its node's leader when to stand, and keeps the lease while that leads.

    A master gives up when no majority answers for ``election_ms``. Otherwise the heartbeats of
    one that can send but not receive would keep every other node from leading.

    Invariants:
        P15 At most one node holds the lease at any true time, as long as no clock's rate
            is further than ``drift_ppm`` from true.

    Args:
        node: the id of its node.
        config: the membership.
        random: spreads suspicions.
        lease_ms: duration that acceptors promise (ms).
        election_ms: a master silent for this long is suspected (ms).
        drift_ppm: largest deviation of a clock's rate (millionths).
        listener: a role of this node that is notified when no majority answers, or None.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        config: Config,
        random: Random,
        lease_ms: int = LEASE_MS,
        election_ms: int = ELECTION_MS,
        drift_ppm: int = DRIFT_PPM,
        listener: Address | None = None,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.config = config
        self.lease_ms = lease_ms
        self.election_ms = election_ms
        self.drift_ppm = drift_ppm
        self.listener = listener
        self.suspicion = Suspicion(node, config.view.members, random, lease_ms, election_ms)
        self.standing = NO_BALLOT
        """The ballot under which this node is a candidate, if it is."""
        self.reign: LeadershipClaimed | None = None
        self.since = Instant(0)
        """The time at which this leadership began."""
        self.lease: MasterLease | None = None
        self.asked: dict[int, Instant] = {}
        """The time at which each heartbeat was sent, by number, oldest first."""
        self.number = 0
        self.applied: dict[str, int] = dict.fromkeys(config.view.members, 0)
        """The first slot that each member has not applied, as it last reported."""
        self.answered: dict[str, int] = dict.fromkeys(config.view.members, 0)
        """The last heartbeat of this leadership that each member answered, 0 for none."""
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

    def begin(self, now: Instant) -> Effects:
        """Listen for a moment, then stand; a single member stands at once."""
        alone = len(self.config.view.members) == 1
        return self.suspicion.wait(now, 0 if alone else STARTUP_MS)

    def handle(self, sender: Address, event: Heeded, now: Instant) -> Effects:
        """Handle a sign of life, or a timeout."""
        match event:
            case Heard():
                return self._on_heard(event, now)
            case HeartbeatAck():
                return self._on_ack(sender, event)
            case LinkDown():
                return self._on_link_down(event, now)
            case Candidate():
                self.standing = event.ballot
                return [*self._follow(""), *self.suspicion.wait(now, 2 * self.election_ms)]
            case LeadershipClaimed():
                return self._on_reigning(event, now)
            case SteppedDown():
                return self._on_deposed(event, now)
            case Confirm():
                return self._pulse(now) if self.reign is not None else ()
            case Nominate():
                return self._on_nominate(now)
            case TakeOver():
                return self._on_take_over(sender, event)
            case Beat():
                return self._on_beat(event, now)
            case Watch():
                return self._on_watch(event, now)

    def summary(self) -> Summary:
        """Return whom it follows, or stands for."""
        return (
            ("follows", self.following or "nobody"),
            ("isolated", self.isolated),
        )

    def _follow(self, node: str) -> list[Effect]:
        """Tell replica and leader which node leads, if that changed."""
        if node == self.following:
            return []
        self.following = node
        follow = LeaderChanged(master=node)
        return [Send(replica_of(self.node), follow), Send(leader_of(self.node), follow)]

    def _on_heard(self, heard: Heard, now: Instant) -> Effects:
        node = node_of(heard.ballot.leader)
        if node == self.node or self.reign is not None:
            return ()  # A higher ballot preempts ours through our acceptor.
        self.highest = max(self.highest, heard.ballot)
        effects = self.suspicion.on_heard(node, now)
        if not heard.leads:
            return effects
        self.followed = heard.ballot
        effects += self._follow(node)
        if self.standing > NO_BALLOT:
            self.standing = NO_BALLOT
            effects.append(Send(leader_of(self.node), Withdraw()))
        return effects

    def _on_link_down(self, down: LinkDown, now: Instant) -> Effects:
        """Suspect a master whose link broke; acceptors still wait for its lease to end."""
        if down.node in self.config.view.members:
            self.broken[down.node] = now
        if down.node != self.following:
            return ()
        effects = self.suspicion.on_link_down(down.node, now)
        return () if effects is None else [*effects, Observe("paxos.link_suspected")]

    def _on_watch(self, watch: Watch, now: Instant) -> Effects:
        if not self.suspicion.rings(watch) or self.reign is not None:
            return ()
        if again := self.suspicion.look(now):
            return again
        effects = self.suspicion.wait(now, self.election_ms)
        suspect = Suspect(above=self.highest)
        return [Send(leader_of(self.node), suspect), Observe("paxos.suspected"), *effects]

    def _on_reigning(self, reigning: LeadershipClaimed, now: Instant) -> Effects:
        self.standing = NO_BALLOT
        self.reign = reigning
        self.since = now
        self.lease = MasterLease(self.config.view.majority, self.lease_ms, self.drift_ppm)
        self.asked = {}
        self.applied = dict.fromkeys(self.applied, 0)
        self.answered = dict.fromkeys(self.applied, 0)
        return [*self._follow(self.node), *self._beat(now)]

    def _on_deposed(self, deposed: SteppedDown, now: Instant) -> Effects:
        self.standing = NO_BALLOT
        self.reign = None
        self.lease = None
        wait = self.suspicion.wait(now, self.election_ms + deposed.pause_ms)
        return [*self._follow(""), *self._tell_isolated(isolated=False), *wait]

    def _on_beat(self, beat: Beat, now: Instant) -> Effects:
        if self.reign is None or self.lease is None or beat.ballot != self.reign.ballot:
            return ()
        answered = max(self.lease.confirmed() or self.since, self.since)
        unanswered = min(self.number - self._confirmed(), len(self.asked))
        silent_ms = ms_between(answered, now) if unanswered >= UNANSWERED_MIN else 0
        if silent_ms > self.election_ms:
            return (Send(leader_of(self.node), Withdraw()), Observe("paxos.majority_silent"))
        return [*self._tell_isolated(isolated=silent_ms > TIMING.isolated_ms), *self._beat(now)]

    def _tell_isolated(self, *, isolated: bool) -> list[Effect]:
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
        majority = self.config.view.majority
        return sorted(self.answered.values(), reverse=True)[majority - 1]

    def _beat(self, now: Instant) -> list[Effect]:
        assert self.reign is not None
        return [*self._pulse(now), Wake(BEAT_MS, Beat(ballot=self.reign.ballot))]

    def _pulse(self, now: Instant) -> list[Effect]:
        """Send a heartbeat, with what is known of earlier ones."""
        assert self.reign is not None
        self.number += 1
        self.asked[self.number] = now
        if len(self.asked) > ASKED_MAX:
            del self.asked[next(iter(self.asked))]
        pulse = Pulse(
            number=self.number,
            everywhere=min(self.applied.values()),
            heard=tuple(self.answered[member] for member in self.config.view.members),
            confirmed=self._confirmed(),
        )
        return [Send(self.reign.commander, pulse)]

    def _on_ack(self, acceptor: Address, ack: HeartbeatAck) -> Effects:
        registered = self.config.view.registered
        if registered.get(acceptor) != ack.voter:
            known = acceptor in self.config.view.acceptors
            return (Observe("paxos.unregistered_vote" if known else "paxos.stranger_follows"),)
        asked = self.asked.get(ack.number)
        reign, lease = self.reign, self.lease
        if reign is None or lease is None or ack.ballot != reign.ballot or asked is None:
            return ()  # It answers an earlier leadership, or comes too late.
        member = node_of(acceptor)
        if not 0 <= ack.applied < NUMBER_MAX:
            return (Observe("paxos.impossible_slot"),)
        self.applied[member] = ack.applied
        self.answered[member] = max(self.answered[member], ack.number)
        before = lease.until()
        lease.acknowledge(member, asked)
        until, confirmed = lease.until(), lease.confirmed()
        if until is None or confirmed is None or until == before:
            return ()
        leased = Leased(ballot=reign.ballot, until=until, confirmed=confirmed)
        return (Send(replica_of(self.node), leased),)

    def _on_nominate(self, now: Instant) -> Effects:
        """Name the member that answered within a lease and has applied the most.

        Name none if the members that answered are no majority together with this node.
        """
        asked = {} if self.lease is None else self.lease.asked
        recent = now - self.lease_ms * NS_PER_MS
        there = [
            member
            for member in self.config.view.members
            if member in asked
            and asked[member] >= max(recent, self.broken.get(member, recent))
            and member != self.node
        ]
        enough = len(there) + 1 >= self.config.view.majority
        best = max(there, key=lambda member: self.applied[member], default="")
        return (Send(leader_of(self.node), Nominated(node=best if enough else "")),)

    def _on_take_over(self, leader: Address, word: TakeOver) -> Effects:
        """Stand at the request of the master that this node follows, and of no other."""
        known = word.ballot == self.followed and self.following == node_of(leader)
        if self.reign is not None or not known or leader != word.ballot.leader:
            return (Observe("paxos.take_over_ignored"),)
        return (Send(leader_of(self.node), Succeed(ballot=word.ballot)),)
