"""Leadership under ballots: a new ballot and a scout for each attempt, a commander once it won."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fencelock.actors.bootstrap_message import StopVoting
from fencelock.actors.effect import Checkpoint, Effect, Effects, Observe, Retire, Send, Spawn
from fencelock.actors.message import Address, Instant, address_of, node_of
from fencelock.actors.paxos.commander import Commander
from fencelock.actors.paxos.config import Config, catchup_of, leader_of, monitor_of, replica_of
from fencelock.actors.paxos.event import (
    Adopted,
    Applied,
    Candidate,
    Lacking,
    LeaderChanged,
    Leadership,
    LeadershipClaimed,
    ReportApplied,
    Resign,
    Resigned,
    SteppedDown,
    Suspect,
    Withdraw,
)
from fencelock.actors.paxos.handover import HANDOVER_MS, AtHandOver, HandOver
from fencelock.actors.paxos.handover_event import Drained, Nominated, Succeed
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.message import Ballot, Pledge, Pledged, Preempted
from fencelock.actors.paxos.rounds import ROUND_JUMP_MAX, ROUND_MAX, TOO_FAR
from fencelock.actors.paxos.scout import Scout
from fencelock.actors.paxos.timer import HandOverLate, ResignedLate
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import Leaders, ReadLeaders

if TYPE_CHECKING:
    from random import Random

BACKOFF_MS = 100
"""Mean pause after the first preemption (ms), a few round trips; each further one doubles it."""

DOUBLINGS_MAX = 4
"""Maximum number of doublings: the pause stays in the order of an election."""


class Phase(Enum):
    """State of a leader."""

    FOLLOWING = "following"
    STANDING = "standing"
    """Candidate: a scout requests promises."""
    LEARNING = "learning"
    """A majority promised, but this node lacks decided slots."""
    REIGNING = "reigning"


Heeded = (
    Suspect
    | Withdraw
    | Succeed
    | LeaderChanged
    | Preempted
    | Adopted
    | Applied
    | AtHandOver
    | StopVoting
    | ReadLeaders
)


class Leader(Role[Heeded]):
    """The leader of a node. Source: PMMC, section 2.3 and 4.1; pauses when preempted, section 3.

    At a request it hands over to the member that has applied the most, see `HandOver`.

    Invariants:
        P4  A ballot is led by one life of one node: its round is durable before any
            message carries it, and every life begins above all rounds of earlier ones. So
            the last round is all the leader's stream has to hold.

    Args:
        node: the id of its node.
        config: the membership.
        random: draws the pause after a preemption.
        recovered: the contents of this node's journal.
        votes: whether it may stand: a non-voting node never leads.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        config: Config,
        random: Random,
        recovered: Recovered,
        votes: bool = True,
    ) -> None:
        super().__init__(address, host)
        assert address == leader_of(node)
        self.node = node
        self.replica = replica_of(node)
        self.config = config
        self._random = random
        self.is_voter = votes
        self.phase = Phase.FOLLOWING
        self.ballot = Ballot(recovered.led, address)
        """The last ballot that this node led, or tried to lead."""
        self.seen = recovered.promised
        """The highest known ballot of another node."""
        self.applied = 1
        """The first slot that this node has not applied, as the replica last reported; it reports
        while this node stands or must catch up."""
        self.adopted: Adopted | None = None
        """Batches to propose once the missing decided slots are here."""
        self.preemptions = 0
        """Number of attempts that failed in a row."""
        self.master = ""
        """The node that leads, empty if none is known."""
        self.handover = HandOver(node, config.view)

    def handle(self, sender: Address, event: Heeded, now: Instant) -> Effects:
        """Stand, lead, or give way."""
        del now
        match event:
            case Applied():
                return self._on_applied(event)
            case Suspect():
                return self._on_suspect(event)
            case Withdraw() | StopVoting():
                self.is_voter = self.is_voter and not isinstance(event, StopVoting)
                return self._on_withdraw()
            case Succeed():
                return self._on_succeed(event)
            case LeaderChanged():
                return self._on_follow(event)
            case Preempted():
                return self._on_preempted(sender, event)
            case Adopted():
                return self._on_adopted(event)
            case Resign():
                return self._on_resign(sender)
            case Nominated():
                return self._on_nominated(event)
            case Drained() | HandOverLate():
                return self._hand_over(event.ballot, drained=isinstance(event, Drained))
            case ResignedLate():
                return self.handover.tell("") if event.ballot == self.handover.ballot else ()
            case ReadLeaders():
                return (Send(sender, self._leadership()),)

    def summary(self) -> Summary:
        """Return the phase, the last ballot of this node, and who leads."""
        return (
            ("phase", self.phase.value),
            ("ballot", self.ballot.round),
            ("leader", self.master or "not known"),
        )

    def _leadership(self) -> Leaders:
        number = max(self.ballot.round, self.seen.round)
        leaders = (self.master,) if self.master else ()
        return Leaders(leaders=leaders, number=number, here=self.phase is Phase.REIGNING)

    def _on_suspect(self, suspect: Suspect) -> Effects:
        self.seen = max(self.seen, suspect.above)
        if self.phase in (Phase.STANDING, Phase.REIGNING):
            return ()  # The scout goes on asking by itself.
        return self._stand()

    def _stand(self, *, climbing: bool = False) -> list[Effect]:
        """Begin phase one under a ballot above all known ones (P4)."""
        if not self.is_voter:
            return [Observe("paxos.cannot_stand")]
        above = max(self.ballot.round, self.seen.round)
        if above >= ROUND_MAX:
            return [Observe("paxos.rounds_exhausted")]
        before = self._retire()
        self.ballot = Ballot(above + 1, self.address)
        self.phase = Phase.STANDING
        arguments = {
            "node": self.node,
            "config": self.config,
            "ballot": self.ballot,
            "first": self.applied,
            **({"hurried": True} if climbing else {}),
        }
        return [
            *before,
            Checkpoint((Pledged(pledge=Pledge.LED, ballot=self.ballot),)),
            Spawn(self._scout(), Scout, arguments),
            Send(monitor_of(self.node), Candidate(ballot=self.ballot)),
            Send(self.replica, ReportApplied()),
            Observe("paxos.ballot_begun"),
        ]

    def _on_preempted(self, sender: Address, preempted: Preempted) -> Effects:
        """Handle a preemption from this node's scout or commander, which check the acceptor."""
        if node_of(sender) != self.node:
            return (Observe("paxos.stranger_preempts"),)
        if not 0 <= preempted.ballot.round <= ROUND_MAX:
            return (Observe("paxos.impossible_ballot"),)
        highest = max(self.ballot.round, self.seen.round)
        if preempted.ballot.round - highest > ROUND_JUMP_MAX:
            if self.phase is not Phase.STANDING:  # A majority may be nearer: go on without it.
                return (TOO_FAR,)
            self.seen = Ballot(highest + ROUND_JUMP_MAX, self.seen.leader)
            return [*self._stand(climbing=True), TOO_FAR]
        self.seen = max(self.seen, preempted.ballot)
        if self.phase is Phase.FOLLOWING or preempted.ballot <= self.ballot:
            return ()
        return [*self._give_way(preempted.ballot), Observe("paxos.preempted")]

    def _on_withdraw(self) -> Effects:
        if self.phase is Phase.FOLLOWING:
            return ()
        return [*self._give_way(self.ballot), Observe("paxos.withdrawn")]

    def _give_way(self, by: Ballot) -> list[Effect]:
        """Stop leading or standing, and pause; the pause grows with each failure in a row."""
        most = 2 * BACKOFF_MS << min(self.preemptions, DOUBLINGS_MAX)
        self.preemptions += 1
        return self._end(by, self._random.randrange(most))

    def _end(self, by: Ballot, pause_ms: int) -> list[Effect]:
        before = self._retire()
        self.phase = Phase.FOLLOWING
        deposed = SteppedDown(ballot=self.ballot, by=by, pause_ms=pause_ms)
        return [
            *before,
            Send(self.replica, deposed),
            Send(monitor_of(self.node), deposed),
        ]

    def _on_resign(self, asker: Address) -> Effects:
        if self.phase is not Phase.REIGNING:
            return (Send(asker, Resigned(master=self.master)),)
        return self.handover.begin(asker, self.ballot)

    def _on_nominated(self, nominated: Nominated) -> Effects:
        if self.phase is not Phase.REIGNING or self.handover.ballot != self.ballot:
            return self.handover.tell(self.master)
        return self.handover.name(nominated.node)

    def _hand_over(self, ballot: Ballot, *, drained: bool) -> Effects:
        """End the leadership in favour of the named successor; it may be over already."""
        hand = self.handover
        reigns = self.phase is Phase.REIGNING and ballot == self.ballot == hand.ballot
        if not reigns or not hand.heir:
            return ()
        ended = self._end(self.ballot, HANDOVER_MS)
        mark = Observe("paxos.handed_over" if drained else "paxos.handed_over_late")
        return [*ended, *hand.pass_on(drained=drained), mark]

    def _on_follow(self, follow: LeaderChanged) -> Effects:
        """Note which node leads; if it is another, answer the roles that wait for a successor."""
        self.master = follow.master
        if self.master in ("", self.node):
            return ()
        return self.handover.tell(self.master)

    def _on_succeed(self, succeed: Succeed) -> Effects:
        """Stand at once, above the ballot of the master that steps down."""
        self.seen = max(self.seen, succeed.ballot)
        if self.phase is not Phase.FOLLOWING:
            return ()
        return [*self._stand(), Observe("paxos.took_over")]

    def _retire(self) -> list[Effect]:
        """Retire the scout or commander of the ballot that ends."""
        self.adopted = None
        match self.phase:
            case Phase.FOLLOWING:
                return []
            case Phase.STANDING | Phase.LEARNING:
                return [Retire(self._scout())]
            case Phase.REIGNING:
                return [Retire(self._commander())]

    def _on_adopted(self, adopted: Adopted) -> Effects:
        if self.phase is not Phase.STANDING or adopted.ballot != self.ballot:
            return ()  # Sent by a scout before it was retired.
        if adopted.floor <= self.applied:
            return self._reign(adopted)
        self.phase = Phase.LEARNING
        self.adopted = adopted
        lacking = Lacking(first=self.applied, target=adopted.floor, source=adopted.source)
        return (Send(catchup_of(self.node), lacking), Observe("paxos.leader_must_learn"))

    def _on_applied(self, applied: Applied) -> Effects:
        assert applied.slot >= self.applied
        self.applied = applied.slot
        if self.adopted is None or self.adopted.floor > self.applied:
            return ()
        return self._reign(self.adopted)

    def _reign(self, adopted: Adopted) -> Effects:
        """Propose what a majority reported, then whatever the replica orders.

        Slots applied here meanwhile are decided and need no proposal.
        """
        assert adopted.floor <= self.applied
        retired = self._retire()
        self.phase = Phase.REIGNING
        self.preemptions = 0
        batches = adopted.batches[self.applied - adopted.floor :]
        arguments = {
            "node": self.node,
            "config": self.config,
            "ballot": self.ballot,
            "first": self.applied,
            "batches": batches,
        }
        commander = self._commander()
        reign = Leadership(
            ballot=self.ballot,
            commander=commander,
            first=self.applied + len(batches),
            time_ms=max((batch.time_ms for batch in batches), default=0),
        )
        return [
            *retired,
            Spawn(commander, Commander, arguments),
            Send(self.replica, reign),
            Send(monitor_of(self.node), LeadershipClaimed(ballot=self.ballot, commander=commander)),
            Observe("paxos.reign_begun"),
        ]

    def _scout(self) -> Address:
        return address_of(self.node, f"scout-{self.ballot.round}")

    def _commander(self) -> Address:
        return address_of(self.node, f"commander-{self.ballot.round}")
