"""The leader: a new ballot and a scout for each attempt, a commander once it won, and hand-over.

One node leads at a time, as far as it and a majority know. The log is safe without that: any number
of nodes may believe that they lead, and ballots keep them from deciding two batches for a slot.
Leadership makes the log *live*: one proposer whose ballot a majority has promised is not disturbed.

What moves
----------

::

    state      who acts          left at                      for
    FOLLOWING  nobody            Suspect, Succeed             STANDING, under a new ballot
    STANDING   scout             Adopted, all slots are here  LEADING, or SETTLING
                                 Adopted, some are missing    LEARNING
                                 the views have changed       STANDING, in the new ones
    LEARNING   catch-up          Applied up to the floor      LEADING, or SETTLING
                                 Suspect: they did not come   STANDING, and doubts that acceptor
    SETTLING   commander         Applied up to the change     STANDING, in the new view
    LEADING    commander         Drained, HandOverLate        FOLLOWING, and names a successor

Every state but the first is left for FOLLOWING when a higher ballot preempts this one
(`Preempted`), or when this node may not lead any more (`Withdraw`, `StopVoting`, a view without
it).

*Phase one*, by the scout. It asks the acceptors to promise the ballot, and to report their votes.
An acceptor that has applied slots does not report them: it names the first one that it has not
applied. The latest of these is the *floor*. All slots before it are decided, so the new leader must
fetch those that it lacks (LEARNING). From the floor on, the majority has reported all its votes,
and for each slot the vote of the highest ballot must be proposed again: it may have been decided.
This rule, highest-vote-proposed, alone makes a change of leaders safe. A slot without a vote, a
hole, gets a no-op.

*Phase two*, by the commander. It proposes what phase one found, then what the replica orders. The
first slot that the replica fills itself is the *opening* slot: when it is applied, so is everything
that earlier leaders decided (the state is settled, which reads rely on).

Why a ballot is never used twice
--------------------------------

one-life-a-ballot: a ballot is (round, leader), so two nodes never share one. On one node, the round
is durable (`Pledge.LED`) before any message carries it, and each life begins above all rounds that
the journal has. The last round is all that the leader's stream of the journal holds. A member that
lost its disk would begin at 0 again; but it comes back under another journal id, through a change
of the members, and the floor of each view (`LogConfig.floor`) is above all rounds of former views.

Why it ends: duels and pauses
-----------------------------

Two candidates can preempt each other forever (Paxos has no bound for that). Three things end it:

- Acceptors keep the lease of a leader that a majority answers, so a follower with a bad link that
  stands for election is refused, and changes nothing (`failure_detector.py`).
- Followers stand one after the other, by rank; each that sees a ballot begins its wait anew.
- A candidate that is preempted pauses for a random time that doubles with each failure in a row, up
  to `DOUBLINGS_MAX` times. The first pause is as long as another candidate needs, on average.

A *rogue* ballot with a huge round would leave no rounds above it. So an acceptor refuses a round
more than `ROUND_JUMP_MAX` above the one it knows, and a scout that must climb does so in steps
(`Scout`).

Changes of members
------------------

A leader may find a change of the members among the votes of phase one. Slots after it are decided
by another view, whose members it has not asked. So it proposes only the slots that the old view
decides (SETTLING), and then stands again, in the new view. Likewise if the views change while it
stands.

Hand-over
---------

A node that is told to stop (`Resign`) has its failure detector choose a successor (`_successor`
there). Then its leader (`HandOverTo`) lets the slots in flight be decided (`Drain`), gives the
lease back (`Release`), and asks the successor to stand at once (`TakeOver`). The lease is given
back only after the replica has confirmed that it does not rely on it any more. If slots are not
decided in time, the successor waits for the lease to end.

Source: R. van Renesse, D. Altinbuken: Paxos Made Moderately Complex (PMMC), sections 2.3, 3, 4.1.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Unpack

from fencelock.actors.api.role_request import Leaders, ReadLeaders
from fencelock.actors.bootstrap_message import StartVoting, StopVoting
from fencelock.actors.effect import Checkpoint, Effect, Effects, Observe, Retire, Send, Spawn, Wake
from fencelock.actors.message import Address, Instant, address_of, node_of, role_of
from fencelock.actors.paxos.commander import Commander
from fencelock.actors.paxos.config import (
    ROUND_JUMP_MAX,
    ROUND_MAX,
    TOO_FAR,
    WINDOW,
    LogConfig,
    MemberArguments,
    MemberRole,
    View,
    acceptor_of,
    monitor_of,
    replica_of,
)
from fencelock.actors.paxos.event import (
    Adopted,
    Applied,
    Candidate,
    Drain,
    Drained,
    HandOverLate,
    HandOverTo,
    Lacking,
    LeaderChanged,
    Leadership,
    ReportApplied,
    Resigned,
    ResignedLate,
    SteppedDown,
    Succeed,
    Suspect,
    ViewChanged,
    Withdraw,
)
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.membership import change_in
from fencelock.actors.paxos.message import (
    NO_BALLOT,
    Ballot,
    Pledge,
    Pledged,
    Preempted,
    Release,
    TakeOver,
    shown_ballot,
)
from fencelock.actors.paxos.scout import Scout
from fencelock.actors.role import Facts, Host, Summary

if TYPE_CHECKING:
    from random import Random

DOUBLINGS_MAX = 4
"""Maximum number of times that the pause after a preemption doubles: it stays in the order of an
election."""


LeaderEvent = (
    Suspect
    | Withdraw
    | Succeed
    | LeaderChanged
    | Preempted
    | Adopted
    | Applied
    | HandOverTo
    | Drained
    | HandOverLate
    | ResignedLate
    | ViewChanged
    | StartVoting
    | StopVoting
    | ReadLeaders
)


class LeaderPhase(Enum):
    """State of a leader."""

    FOLLOWING = "following"
    STANDING = "standing"
    """Candidate: a scout requests promises."""
    LEARNING = "learning"
    """A majority promised, but this node lacks decided slots."""
    SETTLING = "settling"
    """It proposes adopted batches that change the members, and then stands for election again."""
    LEADING = "leading"


class Leader(MemberRole[LeaderEvent]):
    """The leader of a node. The header of this module explains its states.

    Invariants:
        one-life-a-ballot: see the header.

    Args:
        random: draws the pause after a preemption.
        recovered: the contents of this node's journal.
        voter: the id under which this node votes.
        votes: whether it may stand for election: a non-voting node never leads.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        random: Random,
        recovered: Recovered,
        voter: int = 0,
        votes: bool = True,
        **member: Unpack[MemberArguments],
    ) -> None:
        super().__init__(address, host, **member)
        assert address == self.leader
        self._random = random
        self.voter = voter
        self.is_voter = votes
        self.phase = LeaderPhase.FOLLOWING
        self.ballot = Ballot(recovered.led, address)
        """The last ballot that this node led, or tried to lead."""
        self.seen = recovered.promised
        """The highest known ballot of another node."""
        self.applied = 1
        """The first slot that this node has not applied, as the replica last reported. It reports
        while this node stands for election or must catch up."""
        self.adopted: Adopted | None = None
        """Batches to propose once the missing decided slots are here."""
        self.scouted: tuple[View, ...] = ()
        """The views whose majorities the last scout asked."""
        self.doubted: Address | None = None
        """The acceptor whose promise this node could not follow last: see `Scout`."""
        self.settled = 0
        """While it settles, the slot after the last one that it proposes."""
        self.preemptions = 0
        """Number of attempts that failed in a row."""
        self.leading_node = ""
        """The node that leads, empty if none is known."""
        self.handover = HandOver(self.node, self.config)

    def handle(  # noqa: PLR0912  (a case for each event)
        self, sender: Address, event: LeaderEvent, now: Instant
    ) -> Effects:
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
                return self._on_leader_changed(event)
            case Preempted():
                return self._on_preempted(sender, event)
            case Adopted():
                return self._on_adopted(event)
            case HandOverTo():
                return self._on_hand_over_to(event)
            case Drained() | HandOverLate():
                return self._hand_over(event.ballot, drained=isinstance(event, Drained))
            case ResignedLate():
                return self.handover.notify("") if event.ballot == self.handover.ballot else ()
            case ReadLeaders():
                return (Send(sender, self._leadership()),)
            case ViewChanged():
                return self._on_view_changed(event)
            case StartVoting():
                self.is_voter = True
                return ()

    def summary(self) -> Summary:
        return (
            ("phase", self.phase.value),
            ("ballot", self.ballot.round),
            ("leader", self.leading_node or "not known"),
        )

    def facts(self, now: Instant) -> Facts:
        """Return its ballot beside the highest of others, and what phase one left to propose.

        What is in flight while it leads is in the facts of its commander.
        """
        yield from self.summary()
        yield "highest ballot of others", shown_ballot(self.seen)
        yield "may stand", self.is_voter
        yield "elections that failed in a row", self.preemptions
        yield "members", ", ".join(self.config.newest.members)
        if self.phase in (LeaderPhase.STANDING, LeaderPhase.SETTLING, LeaderPhase.LEADING):
            role = self._scout() if self.phase is LeaderPhase.STANDING else self._commander()
            yield "works through", role_of(role)
        if self.adopted is not None:
            yield "waits for decided slots of", self.adopted.source

    def _leadership(self) -> Leaders:
        number = max(self.ballot.round, self.seen.round)
        leaders = (self.leading_node,) if self.leading_node else ()
        return Leaders(leaders=leaders, number=number, here=self.phase is LeaderPhase.LEADING)

    def _on_suspect(self, suspect: Suspect) -> Effects:
        self.seen = max(self.seen, suspect.above)
        if self.phase in (LeaderPhase.STANDING, LeaderPhase.SETTLING, LeaderPhase.LEADING):
            return ()  # Scout and commander repeat their requests by themselves.
        if self.adopted is not None:  # What it reported as applied did not arrive.
            self.doubted = acceptor_of(self.adopted.source)
        return self._stand()

    def _stand(self, *, climbing: bool = False) -> list[Effect]:
        """Begin phase one under a ballot above all known ones (one-life-a-ballot)."""
        if not self.is_voter or not self.config.newest.counts(self.acceptor, self.voter):
            return [*self._give_up(), Observe("paxos.cannot_stand")]
        above = max(self.ballot.round, self.seen.round, self.config.floor)
        if above >= ROUND_MAX:
            return [Observe("paxos.rounds_exhausted")]
        before = self._retire()
        self.ballot = Ballot(above + 1, self.address)
        self.phase = LeaderPhase.STANDING
        self.scouted = self.config.current
        arguments = {
            "node": self.node,
            "config": self.config,
            "ballot": self.ballot,
            "first": max(self.applied, self.config.first),
            **({"hurried": True} if climbing else {}),
            **({"doubted": self.doubted} if self.doubted else {}),
        }
        return [
            *before,
            Checkpoint((Pledged(pledge=Pledge.LED, ballot=self.ballot),)),
            Spawn(self._scout(), Scout, arguments),
            Send(self.monitor, Candidate()),
            Send(self.replica, ReportApplied()),
            Observe("paxos.ballot_begun"),
        ]

    def _on_preempted(self, sender: Address, preempted: Preempted) -> Effects:
        """Handle a preemption from this node's scout or commander, which check the acceptor."""
        if node_of(sender) != self.node:
            return (Observe("paxos.stranger_preempts"),)
        if not 0 <= preempted.ballot.round <= ROUND_MAX:
            return (Observe("paxos.impossible_ballot"),)
        highest = max(self.ballot.round, self.seen.round, self.config.floor)
        if preempted.ballot.round - highest > ROUND_JUMP_MAX:
            if (
                self.phase is not LeaderPhase.STANDING
            ):  # A majority may be nearer: continue without it.
                return (TOO_FAR,)
            self.seen = Ballot(highest + ROUND_JUMP_MAX, self.seen.leader)
            return [*self._stand(climbing=True), TOO_FAR]
        self.seen = max(self.seen, preempted.ballot)
        if self.phase is LeaderPhase.FOLLOWING or preempted.ballot <= self.ballot:
            return ()
        return [*self._give_way(), Observe("paxos.preempted")]

    def _on_withdraw(self) -> Effects:
        if self.phase is LeaderPhase.FOLLOWING:
            return ()
        return [*self._give_way(), Observe("paxos.withdrawn")]

    def _give_way(self) -> list[Effect]:
        """Stop leading or the election, and pause; the pause grows with each failure in a row.

        The first pause is `Timing.reply_ms` on average: another candidate needs as long.
        """
        most = 2 * self.config.timing.reply_ms << min(self.preemptions, DOUBLINGS_MAX)
        self.preemptions += 1
        return self._end(self._random.randrange(most))

    def _end(self, pause_ms: int) -> list[Effect]:
        before = self._retire()
        self.phase = LeaderPhase.FOLLOWING
        stepped_down = SteppedDown(pause_ms=pause_ms)
        return [
            *before,
            Send(self.replica, stepped_down),
            Send(self.monitor, stepped_down),
        ]

    def _on_view_changed(self, event: ViewChanged) -> Effects:
        """Go on in the new views, or stop if this node is no member of them, or was overtaken."""
        if event.overtaken or not self.config.counts(self.acceptor, self.voter):
            return self._give_up()
        if self.phase is LeaderPhase.STANDING and self.scouted != self.config.current:
            return self._stand()  # Nor is a view asked that is over: its members may be gone.
        return ()

    def _give_up(self) -> list[Effect]:
        """Stop leading or the election, since this node must not lead any more."""
        return [] if self.phase is LeaderPhase.FOLLOWING else self._end(0)

    def _has_moved(self) -> bool:
        return any(view not in self.scouted for view in self.config.current)

    def _on_hand_over_to(self, event: HandOverTo) -> Effects:
        if self.phase is not LeaderPhase.LEADING:
            return (Send(event.client, Resigned(leader=self.leading_node)),)
        return self.handover.begin(event.client, self.ballot, event.successor)

    def _hand_over(self, ballot: Ballot, *, drained: bool) -> Effects:
        """End the leadership in favour of the successor, unless it has ended."""
        hand = self.handover
        if self.phase is not LeaderPhase.LEADING or not ballot == self.ballot == hand.ballot:
            return ()
        ended = self._end(self.config.timing.outcome_ms)
        mark = Observe("paxos.handed_over" if drained else "paxos.handed_over_late")
        return [*ended, *hand.pass_on(drained=drained), mark]

    def _on_leader_changed(self, changed: LeaderChanged) -> Effects:
        """Note which node leads; if it is another, answer the roles that wait for a successor."""
        self.leading_node = changed.leader
        if self.leading_node in ("", self.node):
            return ()
        return self.handover.notify(self.leading_node)

    def _on_succeed(self, succeed: Succeed) -> Effects:
        """Stand at once, above the ballot of the leader that steps down."""
        self.seen = max(self.seen, succeed.ballot)
        if self.phase is not LeaderPhase.FOLLOWING:
            return ()
        return [*self._stand(), Observe("paxos.took_over")]

    def _retire(self) -> list[Effect]:
        """Retire the scout or commander of the ballot that ends."""
        self.adopted = None
        match self.phase:
            case LeaderPhase.FOLLOWING:
                return []
            case LeaderPhase.STANDING | LeaderPhase.LEARNING:
                return [Retire(self._scout())]
            case LeaderPhase.SETTLING | LeaderPhase.LEADING:
                return [Retire(self._commander())]

    def _on_adopted(self, adopted: Adopted) -> Effects:
        if self.phase is not LeaderPhase.STANDING or adopted.ballot != self.ballot:
            return ()  # Sent by a scout before it was retired.
        if adopted.floor <= self.applied:
            return self._lead(adopted)
        self.phase = LeaderPhase.LEARNING
        self.adopted = adopted
        lacking = Lacking(first=self.applied, target=adopted.floor, source=adopted.source)
        return (Send(self.catchup, lacking), Observe("paxos.leader_must_learn"))

    def _on_applied(self, applied: Applied) -> Effects:
        assert applied.slot >= self.applied
        self.applied = applied.slot
        if self.phase is LeaderPhase.SETTLING and self.applied >= self.settled:
            return [*self._stand(), Observe("paxos.settled")]
        if self.adopted is None or self.adopted.floor > self.applied:
            return ()
        return self._lead(self.adopted)

    def _lead(self, adopted: Adopted) -> Effects:
        """Propose the batches that a majority reported, then those that the replica orders.

        Slots applied here meanwhile are decided and need no proposal. If one of the batches changes
        the members, only the slots are proposed that the old view decides. Then this node stands
        for election again, in the new view.
        """
        assert adopted.floor <= self.applied
        if self._has_moved():
            return [*self._stand(), Observe("paxos.view_moved")]
        retired = self._retire()
        self.preemptions, self.doubted = 0, None
        batches = adopted.batches[self.applied - adopted.floor :]
        changes = [place for place, batch in enumerate(batches) if change_in(batch) is not None]
        batches = batches[: changes[0] + WINDOW] if changes else batches
        self.phase = LeaderPhase.SETTLING if changes else LeaderPhase.LEADING
        self.settled = self.applied + len(batches)
        arguments = {
            "node": self.node,
            "config": self.config,
            "ballot": self.ballot,
            "first": self.applied,
            "batches": batches,
        }
        commander = self._commander()
        if changes:
            settling = Observe("paxos.change_adopted")
            return [*retired, Spawn(commander, Commander, arguments), settling]
        leadership = Leadership(
            ballot=self.ballot,
            commander=commander,
            first=self.applied + len(batches),
            time_ms=max((batch.time_ms for batch in batches), default=0),
        )
        return [
            *retired,
            Spawn(commander, Commander, arguments),
            Send(self.replica, leadership),
            Send(self.monitor, leadership),
            Observe("paxos.leadership_begun"),
        ]

    def _scout(self) -> Address:
        return address_of(self.node, f"scout-{self.ballot.round}")

    def _commander(self) -> Address:
        return address_of(self.node, f"commander-{self.ballot.round}")


class HandOver:
    """One hand-over at a time, see the header of this module.

    After the replica has confirmed that it does not rely on the lease, no read can use it, however
    late this node handles its events.
    """

    def __init__(self, node: str, config: LogConfig) -> None:
        self.node = node
        self.config = config
        self.receivers: dict[Address, None] = {}
        """Roles that wait for `Resigned`."""
        self.ballot = NO_BALLOT
        """The leadership that is ending, or that ended last."""
        self.successor = ""
        """The node that is to lead next."""

    def begin(self, client: Address, ballot: Ballot, successor: str) -> list[Effect]:
        """Begin to end the leadership of ``ballot``, unless that has begun: drain the replica."""
        self.receivers[client] = None
        if self.ballot == ballot:
            return []
        self.ballot, self.successor = ballot, successor
        return [
            Send(replica_of(self.node), Drain(ballot=ballot)),
            Wake(self.config.timing.outcome_ms, HandOverLate(ballot=ballot)),
            Wake(2 * self.config.timing.outcome_ms, ResignedLate(ballot=ballot)),
        ]

    def pass_on(self, *, drained: bool) -> list[Effect]:
        """Give the lease back if the replica is drained, and ask the successor to stand."""
        release = Release(ballot=self.ballot)
        released = (
            [Send(acceptor, release) for acceptor in self.config.acceptors] if drained else []
        )
        return [*released, Send(monitor_of(self.successor), TakeOver(ballot=self.ballot))]

    def notify(self, leader: str) -> list[Effect]:
        """Notify the waiting roles which node leads now; empty if unknown."""
        receivers, self.receivers = self.receivers, {}
        return [Send(client, Resigned(leader=leader)) for client in receivers]
