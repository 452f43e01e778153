"""The leader and its scouts: a ballot for each attempt, a commander once it won, and hand-over.

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
(`Preempted`), when another node leads (`LeaderChanged`), or when this node may not lead any more
(`Withdraw`, `StopVoting`, a view without it).

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

from collections import Counter
from collections.abc import Collection
from enum import Enum
from typing import TYPE_CHECKING, Unpack

from fencelock.actors.api.role_request import Leaders, ReadLeaders
from fencelock.actors.bootstrap_message import StartVoting, StopVoting
from fencelock.actors.effect import Checkpoint, Effect, Effects, Observe, Retire, Send, Spawn, Wake
from fencelock.actors.message import Address, Instant, address_of, node_of, role_of
from fencelock.actors.paxos.commander import Commander
from fencelock.actors.paxos.config import (
    BALLOT_ROUND_MAX,
    ROUND_JUMP_MAX,
    ROUNDS_PER_VIEW,
    TOO_FAR,
    VOTES_MAX,
    WINDOW,
    LogConfig,
    MemberArguments,
    MemberRole,
    View,
    acceptor_of,
    change_in,
    monitor_of,
    replica_of,
    why_impossible,
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
    ScoutResend,
    SteppedDown,
    Succeed,
    Suspect,
    ViewChanged,
    Withdraw,
)
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.wire import (
    NO_BALLOT,
    NO_OP,
    PAXOS_NUMBER_MAX,
    Ballot,
    Pledge,
    Pledged,
    Preempted,
    Prepare,
    Promise,
    Release,
    TakeOver,
    Vote,
    shown_ballot,
)
from fencelock.actors.role import Facts, Host, Summary

if TYPE_CHECKING:
    from random import Random


DOUBLINGS_MAX = 4
"""Maximum number of times that the pause after a preemption doubles: it stays in the order of an
election."""

STEPS_MAX = 1 << 10
"""Ballots of a view whose steps differ, see `Scout._step`."""

REPORTED_MAX = 2 * VOTES_MAX
"""An acceptor that reports this many votes, and has more, is not counted. An honest one keeps
`VOTES_MAX` and a few, or more only after a crash while it wrote another member's snapshot."""


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
        self.adopted: Adopted | None = None
        """Batches to propose once the missing decided slots are here."""
        self.scouted: tuple[View, ...] = ()
        """The views whose majorities the last scout asked."""
        self.doubted: Address | None = None
        """The acceptor whose promise this node could not follow last: see `Scout`."""
        self.settled = 0
        """While it settles, the slot after the last one that it proposes."""
        self.preemptions = 0
        self.leading_node = ""
        self.handover = HandOver(self.node, self.config)

    def handle(self, sender: Address, event: LeaderEvent, now: Instant) -> Effects:
        match event:
            case Applied():
                return self._on_applied()
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
        if above >= BALLOT_ROUND_MAX:
            return [Observe("paxos.rounds_exhausted")]
        before = self._retire()
        self.ballot = Ballot(above + 1, self.address)
        self.phase = LeaderPhase.STANDING
        self.scouted = self.config.current
        arguments = {
            "node": self.node,
            "config": self.config,
            "ballot": self.ballot,
            "first": self.config.applied,
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
        if not 0 <= preempted.ballot.round <= BALLOT_ROUND_MAX:
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
        """Give way to another node that leads, and answer the roles that wait for a successor."""
        self.leading_node = changed.leader
        if self.leading_node in ("", self.node):
            return ()
        return [*self._on_withdraw(), *self.handover.notify(self.leading_node)]

    def _on_succeed(self, succeed: Succeed) -> Effects:
        """Stand at once, above the ballot of the leader that steps down."""
        self.seen = max(self.seen, succeed.ballot)
        if self.phase is not LeaderPhase.FOLLOWING:
            return ()
        return [*self._stand(), Observe("paxos.took_over")]

    def _retire(self) -> list[Effect]:
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
        if adopted.floor <= self.config.applied:
            return self._lead(adopted)
        self.phase = LeaderPhase.LEARNING
        self.adopted = adopted
        lacking = Lacking(first=self.config.applied, target=adopted.floor, source=adopted.source)
        return (Send(self.catchup, lacking), Observe("paxos.leader_must_learn"))

    def _on_applied(self) -> Effects:
        if self.phase is LeaderPhase.SETTLING and self.config.applied >= self.settled:
            return [*self._stand(), Observe("paxos.settled")]
        if self.adopted is None or self.adopted.floor > self.config.applied:
            return ()
        return self._lead(self.adopted)

    def _lead(self, adopted: Adopted) -> Effects:
        """Propose the batches that a majority reported, then those that the replica orders.

        Slots applied here meanwhile are decided and need no proposal. If one of the batches changes
        the members, only the slots are proposed that the old view decides. Then this node stands
        for election again, in the new view.
        """
        applied = self.config.applied
        assert adopted.floor <= applied
        if self._has_moved():
            return [*self._stand(), Observe("paxos.view_moved")]
        retired = self._retire()
        self.preemptions, self.doubted = 0, None
        batches = adopted.batches[applied - adopted.floor :]
        changes = [place for place, batch in enumerate(batches) if change_in(batch) is not None]
        batches = batches[: changes[0] + WINDOW] if changes else batches
        self.phase = LeaderPhase.SETTLING if changes else LeaderPhase.LEADING
        self.settled = applied + len(batches)
        arguments = {
            "node": self.node,
            "config": self.config,
            "ballot": self.ballot,
            "first": applied,
            "batches": batches,
        }
        commander = self._commander()
        if changes:
            settling = Observe("paxos.change_adopted")
            return [*retired, Spawn(commander, Commander, arguments), settling]
        leadership = Leadership(
            ballot=self.ballot,
            commander=commander,
            first=applied + len(batches),
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

    def begin(self, client: Address, ballot: Ballot, successor: str) -> list[Effect]:
        """Begin to end the leadership of ``ballot``, unless that has begun: drain the replica."""
        self.receivers[client] = None
        if self.ballot == ballot:
            return []
        self.ballot, self.successor = ballot, successor
        return [
            Send(replica_of(self.node), Drain(ballot=ballot)),
            Wake(self.config.timing.outcome_ms, HandOverLate(ballot=ballot)),
        ]

    def pass_on(self, *, drained: bool) -> list[Effect]:
        """Give the lease back if the replica is drained, and ask the successor to stand."""
        release = Release(ballot=self.ballot)
        released = (
            [Send(acceptor, release) for acceptor in self.config.acceptors] if drained else []
        )
        return [*released, Send(monitor_of(self.successor), TakeOver(ballot=self.ballot))]

    def notify(self, leader: str) -> list[Effect]:
        """Notify the waiting roles which node leads now."""
        receivers, self.receivers = self.receivers, {}
        return [Send(client, Resigned(leader=leader)) for client in receivers]


ScoutEvent = Promise | Preempted | ScoutResend


class Scout(MemberRole[ScoutEvent]):
    """Spawned by a leader for one ballot, retired by it. Source: PMMC, section 4.1.

    Differences from PMMC: an acceptor answers in pages, and counts once it has sent the last.
    The acceptor of the scout's own node is asked only when its promise would complete a
    majority. So a node that gets no replies keeps following a leader from which it receives
    nothing, and its own promise does not disturb that leader later.

    An acceptor rejects a round too far above the one it knows, and returns that one. The scout
    then leads it up by promises to rounds of this leader in which nothing is ever proposed. A
    ballot too far above this one is reported only if the other acceptors do not complete a
    majority in time.

    Votes that no honest leader can have proposed are left out, since they cannot be chosen; the
    docstring of `config` has the bounds. So one broken journal does not keep a group from a leader.

    Invariants:
        highest-vote-proposed: For each slot, the batch of the highest ballot reported by a majority
            is proposed; a no-op if none was reported.
        distinct-majority: Each acceptor counts once.

    Args:
        ballot: durably this node's own, and never used before.
        first: the first slot that this node does not know to be decided.
        hurried: whether to report a ballot that is too far at once.
        doubted: an acceptor that last promised with slots applied that could not be fetched. It
            counts only if the others do not complete a majority in time.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        ballot: Ballot,
        first: int,
        hurried: bool = False,
        doubted: Address | None = None,
        **member: Unpack[MemberArguments],
    ) -> None:
        super().__init__(address, host, **member)
        self.ballot = ballot
        self.asked: dict[Address, int] = {}
        """Acceptors that have not answered in full, and the slot from which each was asked."""
        self.floors: dict[Address, int] = {}
        """The slot before which each acceptor reported no votes, since it has applied all of it."""
        self.complete: dict[Address, None] = {}
        """Acceptors that have answered in full, each once (distinct-majority)."""
        self.votes: dict[int, Vote] = {}
        """The vote of the highest reported ballot, by slot."""
        self.reported: Counter[Address] = Counter()
        """The number of votes that each acceptor reported."""
        self.reporters: dict[int, Address] = {}
        """The acceptor that reported that vote."""
        self.first = first
        self.adopted = False
        self.hurried = hurried
        self.doubted = doubted
        self.views = self.config.current
        """The views of the slots from ``first`` on: a majority of each must promise."""
        self.steps: dict[Address, Ballot] = {}
        """The ballot below this one that each acceptor was last asked to promise."""

    def begin(self, now: Instant) -> Effects:
        """Ask the other acceptors, and this node's if it completes a majority."""
        own = self.acceptor
        for acceptor in self.config.acceptors:
            if acceptor != own:
                self.asked[acceptor] = self.first
        return [*self._ask(), *self._ask_own(), self._wake()]

    def handle(self, sender: Address, event: ScoutEvent, now: Instant) -> Effects:
        match event:
            case Promise():
                return self._on_promise(sender, event, now)
            case Preempted():
                return self._on_preempted(sender, event)
            case ScoutResend():
                if self.adopted:
                    return ()
                self.hurried = True
                return [*self._ask(), self._wake()]

    def _wake(self) -> Wake:
        return Wake(self.config.timing.round_trip_ms, ScoutResend())

    def summary(self) -> Summary:
        return (
            ("ballot", self.ballot.round),
            ("promises", len(self.complete)),
        )

    def facts(self, now: Instant) -> Facts:
        """Return who promised, who is still asked, and the slots with votes of earlier ballots."""
        yield from self.summary()
        yield "promises of", ", ".join(map(node_of, self.complete))
        yield "asks", ", ".join(map(node_of, self.asked))
        for slot, vote in sorted(self.votes.items()):
            yield f"slot {slot}", f"{vote.batch.size} bytes under {shown_ballot(vote.ballot)}"

    def _ask(self) -> Effects:
        return [self._prepare(acceptor) for acceptor in self.asked]

    def _prepare(self, acceptor: Address, step: Ballot | None = None) -> Send:
        view = self.config.newest.number
        ballot = self.ballot if step is None else step
        return Send(acceptor, Prepare(ballot=ballot, first=self.asked[acceptor], view=view))

    def _ask_own(self) -> Effects:
        own = self.acceptor
        if own in self.asked or own in self.complete:
            return ()
        if not self._is_majority((*self.complete, own)):
            return ()
        self.asked[own] = self.first
        return (self._prepare(own),)

    def _is_majority(self, acceptors: Collection[Address]) -> bool:
        return all(view.is_majority(acceptors) for view in self.views)

    def _on_promise(self, acceptor: Address, promise: Promise, now: Instant) -> Effects:
        if promise.ballot == self.steps.get(acceptor) and acceptor in self.asked:
            return (self._step(acceptor, promise.ballot.round),)
        if promise.ballot != self.ballot or self.asked.get(acceptor) != promise.asked:
            return (Observe("paxos.promise_ignored"),)  # It is a repetition, or was not requested.
        if not any(view.counts(acceptor, promise.voter) for view in self.views):
            return (Observe("paxos.unregistered_vote"),)
        if refused := self._refuse_impossible(acceptor, promise, now):
            return refused
        if acceptor == self.doubted and promise.first > self.first and not self.hurried:
            return (Observe("paxos.promise_doubted"),)
        if promise.first > promise.asked or acceptor not in self.floors:
            self.floors[acceptor] = promise.first
        effects: list[Effect] = []
        for vote in promise.votes:
            if why := why_impossible(vote.batch, self.config.latest_ms(vote.slot), vote.ballot):
                effects = effects or self._report(acceptor, f"slot {vote.slot} with {why}", now)
                continue
            best = self.votes.get(vote.slot)
            if best is None or vote.ballot > best.ballot:
                self.votes[vote.slot] = vote
                self.reporters[vote.slot] = acceptor
        self.reported[acceptor] += len(promise.votes)
        if promise.more is not None and self.reported[acceptor] < REPORTED_MAX:
            self.asked[acceptor] = promise.more
            return [*effects, self._prepare(acceptor)]
        del self.asked[acceptor]
        if promise.more is not None:
            return [*effects, Observe("paxos.endless_promise")]
        self.complete[acceptor] = None
        if not self._is_majority(self.complete):
            return [*effects, *self._ask_own()]
        return [*effects, *self._adopt(now)]

    def _refuse_impossible(self, acceptor: Address, promise: Promise, now: Instant) -> list[Effect]:
        if not _is_sound(promise):
            text = f"a promise whose votes from slot {promise.first} on are in no order"
            return self.bounds.report(acceptor, "paxos.impossible_promise", text, now)
        what = "a promise with all slots applied before"
        return self.bounds.refuse_slot(acceptor, what, promise.first, now)

    def _report(self, acceptor: Address, vote: str, now: Instant) -> list[Effect]:
        """Report a vote that no honest leader can have proposed.

        It is not chosen, since no honest acceptor has it: it is left out, and the promise that
        reports it counts.
        """
        text = (
            f"a vote for {vote}: no honest member can have it. If it repeats this, stop that node "
            f"and run fencelock repair on it"
        )
        return self.bounds.report(acceptor, "paxos.impossible_vote", text, now)

    def _adopt(self, now: Instant) -> Effects:
        """Send the leader the batches that it must propose.

        An acceptor that reported from a later slot than requested has applied all slots before
        it. From the latest such slot on, the floor, the whole majority reported its votes. What
        was decided there is among them. So are all slots `WINDOW` or more before one that an honest
        leader proposed: a vote that far above the first hole was not proposed by one.
        """
        if self.adopted:
            return ()
        source = max(self.complete, key=lambda acceptor: self.floors[acceptor])
        floor = self.floors[source]
        hole = floor
        while hole in self.votes:
            hole += 1
        effects: list[Effect] = []
        if far := sorted(slot for slot in self.votes if slot >= hole + WINDOW):
            vote = f"slot {far[0]}, although no member of a majority voted on slot {hole}"
            effects = self._report(self.reporters[far[0]], vote, now)
            for slot in far:
                del self.votes[slot]
        last = max(self.votes, default=0)
        holes = max(0, last + 1 - floor) - sum(slot >= floor for slot in self.votes)
        self.adopted = True
        batches = [
            self.votes[slot].batch if slot in self.votes else NO_OP  # highest-vote-proposed
            for slot in range(floor, last + 1)
        ]
        adopted = Adopted(
            ballot=self.ballot, floor=floor, source=node_of(source), batches=tuple(batches)
        )
        marks = (
            Observe("paxos.votes_adopted", len(batches) - holes),
            Observe("paxos.holes", holes),
        )
        return [*effects, Send(self.leader, adopted), *(mark for mark in marks if mark.count)]

    def _step(self, acceptor: Address, known: int) -> Send:
        """Request a promise as far above round ``known`` as is allowed.

        Ballots are led in the first rounds of each view, so a step is one of the last rounds. Its
        offset depends on the ballot: no two lives of a node use the same.
        """
        highest = known + ROUND_JUMP_MAX
        if highest < self.ballot.round:
            views, place = divmod(self.ballot.round, ROUNDS_PER_VIEW)
            offset = (views * STEPS_MAX + place % STEPS_MAX) % (ROUNDS_PER_VIEW // 2)
            highest -= highest % ROUNDS_PER_VIEW + 1 + offset
        step = Ballot(min(self.ballot.round, highest), self.ballot.leader)
        if step < self.ballot:
            self.steps[acceptor] = step
        return self._prepare(acceptor, step)

    def _on_preempted(self, acceptor: Address, preempted: Preempted) -> Effects:
        ahead = preempted.ballot.round - self.ballot.round
        if ahead < -ROUND_JUMP_MAX and preempted.ballot.round >= 0 and acceptor in self.asked:
            return (self._step(acceptor, preempted.ballot.round), Observe("paxos.round_stepped"))
        if acceptor not in self.config.acceptors or preempted.ballot <= self.ballot:
            return (Observe("paxos.preemption_ignored"),)
        if ahead > ROUND_JUMP_MAX and not self.hurried:
            return (TOO_FAR,)  # The acceptor repeats it when it is asked again.
        return (Send(self.leader, preempted),)


def _is_sound(promise: Promise) -> bool:
    """Return whether votes are older than the promise, in order, and within the page."""
    slots = [promise.first - 1, *(vote.slot for vote in promise.votes)]
    end = promise.more if promise.more is not None else PAXOS_NUMBER_MAX
    in_order = all(a < b for a, b in zip(slots, [*slots[1:], end], strict=True))
    older = all(vote.ballot < promise.ballot for vote in promise.votes)
    return promise.first >= promise.asked and in_order and older
