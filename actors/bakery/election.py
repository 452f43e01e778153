"""The coordinator of a node: its member's promises of epochs, and the election of leaders.

Up to three leaders serve at a time, as the *seating* of an *epoch*. Every member has a coordinator.
All of them keep promises; the one on the smallest connected voter also proposes. Several may
propose at once, if members see each other differently: epochs order their proposals, as ballots do
in Paxos, and the highest that a majority promised wins.

What moves
----------

One proposal (`Election`) is under way at a coordinator, or none::

    phase      waits for                                  left for
    PROPOSING  a quorum of the electorate that promised   MERGING, if enough former keepers are here
                                                          WAITING, if too few are
    WAITING    the time at which every lease has ended,   MERGING; with empty tables, if that time
               or for former keepers that come back       came first
    MERGING    a quorum of the new keepers that have      none: the seating is installed, durably,
               every lease that may live (Merged)         and beats carry it to all members

It is given up when a member answers `Outbid`, since it promised this epoch to another coordinator,
or a higher one; after a random pause this coordinator proposes again, with a higher epoch. It is
also given up when a seating above the one that it follows is known, when it takes too long, or when
this node does not vote any more.

1. The coordinator sees that a seat is free, or its leader lost, that leaders do not reach each
   other, or that a member has no copies. It sends `Propose` to all members, with a higher epoch.
   Leaders that still run in the same life stay, and one seat changes in an epoch if that is enough;
   `leader_selection.py` has the choice.
2. Each member promises an epoch once, durably, and nothing lower after it (one-seating-an-epoch).
   With the promise it reports the highest seating that it knows to be installed, and the bounds of
   leases that leaders stated.
3. The highest seating that a quorum reports is the *former* one: below this epoch, no later one
   has served or ever will. The coordinator sends `Lead` to the proposed leaders and copies, the new
   *keepers*, and they fetch the tables of the former ones (`state_transfer.py`). A former keeper
   accepts no lower epoch from then on. With the tables of two of three keepers, or of three of
   five, they know everything that any quorum agreed (merged-tables-complete, `voting.py`).
4. Once quorums of the new leaders and keepers have merged, it installs the seating, durably. A
   leader serves once the beats of a majority show that these members know the seating and promised
   nothing higher (seating-known-by-majority). So the next proposal finds it: two majorities share a
   member, also while members change (`electorate.py`).

When too many keepers are lost
------------------------------

With one former keeper of three, a hold that the other two have may be missing. Nobody can
tell, so nobody may be granted a lock until every lease has ended. A leader grants only while a
majority obeys it: their answers to its beats are no older than `TRUST_MS_MAX`, and they had
promised nothing higher. With its promise each member reports for how long it has not obeyed the
former leaders. And a leader votes for no lease beyond the *bound* that it stated to the members
before (longest-lease-known, `max_lease.py`). So the coordinator waits for `TRUST_MS_MAX` and the
longest bound, counted from when the last of the members that promised stopped obeying them, plus
the drift of two clocks (`Election.left_ms`). Then ``Lead.empty`` tells the new
leaders to begin with empty tables. Members and clients see the seconds left.

Duels
-----

Two coordinators that are not connected with each other may replace each other's leaders forever. A
coordinator that is not connected with all leaders pauses before it proposes, longer with each try,
up to 2.4 s (`DuelBackoff`). One that has just joined a majority waits for a moment, since there
may be a leader that it has not seen yet. One that reaches no quorum leaves coordinating to the next
voter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from fencelock.actors.api.role_request import ReadLeaders
from fencelock.actors.bakery.beats import NEVER
from fencelock.actors.bakery.bounds import are_seated, is_known_seating, is_possible_statement
from fencelock.actors.bakery.config import (
    BAKERY_TIMING,
    TRUST_MS_MAX,
    BakeryTiming,
    election_of,
    leader_of,
    members_of,
    proxy_of,
    quorum,
    status_of,
)
from fencelock.actors.bakery.electorate import FOUNDERS, Electorate, is_sound
from fencelock.actors.bakery.epochs import DurablePromises, VoterRegistry, VotingRole
from fencelock.actors.bakery.event import (
    Barred,
    BeatContents,
    ChangeElectorate,
    Connected,
    ElectionDue,
    Known,
    Readiness,
    Serve,
)
from fencelock.actors.bakery.leader_selection import (
    ClusterView,
    LeaderSelection,
    identity_of,
    leadership,
    names_of,
)
from fencelock.actors.bakery.max_lease import MaxLease, longest_lease_ms
from fencelock.actors.bakery.wire import (
    EPOCH_MAX,
    NO_SEATING,
    NOTHING_INSTALLED,
    BoundStatement,
    Chosen,
    Install,
    Lead,
    Member,
    Merged,
    Outbid,
    Promised,
    Propose,
    Seating,
    Vouch,
    Vouched,
)
from fencelock.actors.bootstrap_message import StartVoting, StopVoting
from fencelock.actors.effect import Checkpoint, Effect, Effects, Observe, Persist, Send, Wake
from fencelock.actors.lease import surely_over
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Instant,
    Message,
    later,
    ms_between,
    node_of,
)
from fencelock.actors.role import Facts, Host, Summary

if TYPE_CHECKING:
    from random import Random

ELECTION_TICK_MS = 50
"""Interval at which a coordinator checks the election (ms)."""


DEAF_MS = 300
"""Time for which leaders must not reach each other before they are replaced, and for which members
without copies must be connected before they get some (ms): three beats."""

ELECTION_RECORDS_MAX = 64
"""Maximum records in the journal before it is compacted."""

FromPeer = Propose | Promised | Outbid | Merged | Vouch | Vouched
FromNode = (
    Connected | Barred | ElectionDue | StartVoting | StopVoting | ChangeElectorate | ReadLeaders
)
Received = FromPeer | FromNode


class ElectionCoordinator(VotingRole[Received]):
    """Keeps this member's promises, and coordinates while no smaller voter is connected.

    On a non-voting node it learns the leaders, for the proxy of its node; it promises nothing,
    vouches for nothing and proposes nothing.

    Invariants: one-seating-an-epoch, seating-known-by-majority.

    Args:
        bound_ms: the longest lease, unless a longer one is requested (ms).
        copies: whether members that do not lead keep copies (`voting.py`).
        records: the contents of the journal.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        bound_ms: int,
        random: Random,
        records: Sequence[Message],
        voting: VoterRegistry,
        copies: bool = True,
        timing: BakeryTiming = BAKERY_TIMING,
    ) -> None:
        super().__init__(address, host, voting)
        self.timing = timing
        self.bound_ms = bound_ms
        self.copies = copies
        self.promises = DurablePromises.recover(records)
        self.written = len(records)
        self.seen: tuple[Member, ...] = ()
        self.election: Election | None = None
        self.highest = self.promises.promised
        """The highest known epoch."""
        self.barred = 0
        """The lowest epoch that the leader of this node still obeys."""
        self.not_before = Instant(0)
        """Time before which nothing is proposed: another coordinator may be under way."""
        self.patient_until = Instant(0)
        self.healthy_at = Instant(0)
        """The time at which a majority last accepted beats of the seating."""
        self.bound = MaxLease(self.node)
        self.wanted: Electorate | None = None
        """The next electorate, until an epoch with it was proposed."""
        self.reported: Readiness | None = None
        self.served = NO_SEATING
        """The seating in which the leader of this node was last told to serve."""
        self.duel_backoff = DuelBackoff(random, timing.backoff_ms)
        self.since: dict[str, Instant] = {}
        """The time since which a condition holds that must last before it counts."""
        self._count()

    def begin(self, now: Instant) -> Effects:
        """Give the cluster status the journal's promises and seating, for this node's beats."""
        self.healthy_at = now
        return [self._known(), self._beat_contents(now), Wake(ELECTION_TICK_MS, ElectionDue())]

    def handle(self, sender: Address, event: Received, now: Instant) -> Effects:
        match event:
            case Connected():
                return [*self._on_seen(event, now), *self._go_on(now)]
            case ElectionDue():
                return [*self._go_on(now), *self._repeat(), Wake(ELECTION_TICK_MS, ElectionDue())]
            case Barred():
                return self._on_barred(event, now)
            case Vouch() if sender == leader_of(self.node):
                return self.bound.begin(self.promises.seating, event, self.electorate)
            case StartVoting():
                self.may_vote = True
                return ()
            case StopVoting():
                self.may_vote = False
                given_up = self.election is not None
                return self._give_up(now, "bakery.election_given_up") if given_up else ()
            case ChangeElectorate():
                self.wanted = event.electorate
                return self._go_on(now)
            case ReadLeaders():
                seating = self.promises.seating
                return [Send(sender, leadership(self.node, seating.epoch, seating.leaders))]
            case _:
                return self._on_peer(sender, event, now)

    @property
    def view(self) -> ClusterView:
        return ClusterView(self.promises.seating, self.seen, self.electorate)

    def summary(self) -> Summary:
        """Return the epoch and its leaders, as far as this member knows, and its promise."""
        seating = self.promises.seating
        return (
            ("epoch", seating.epoch),
            ("leaders", names_of(seating.leaders) or "not known"),
            ("copies", names_of(seating.copies) or "none"),
            ("promised", self.promises.promised),
            ("votes", self.is_voter),
        )

    def facts(self, now: Instant) -> Facts:
        yield from self.summary()
        yield "coordinator", self.view.coordinator() or "none reaches a quorum"
        election = self.election
        if election is not None:
            yield "election", f"epoch {election.epoch} {election.phase.value}"
            yield "elects", names_of(election.proposal.leaders)
            yield "promises of", ", ".join(election.promised)
            yield "began before ms", ms_between(election.began, now)
        for place, candidate in enumerate(self.view.candidates(), 1):
            priority, random, process, name = identity_of(candidate)
            text = f"{name}: priority {priority}, random {random}, process {process}"
            yield f"candidate {place}", text

    def _on_peer(self, sender: Address, event: FromPeer, now: Instant) -> Effects:
        member = node_of(sender)
        role = leader_of(member) if isinstance(event, Merged) else election_of(member)
        sent = event.electorate if isinstance(event, Propose | Promised) else FOUNDERS
        asked = FOUNDERS if self.election is None else self.election.electorate
        known = self.is_known(member, sent if isinstance(event, Propose) else asked)
        if not known or sender != role:
            return (Observe("bakery.stranger_elects"),)
        if not 0 < event.epoch <= EPOCH_MAX or not is_sound(sent):
            return self.refusals.malformed(sender, "bakery.election_malformed", event, now)
        reported = event.seating.epoch if isinstance(event, Promised) else 0
        if refused := self.refusals.epoch(sender, max(event.epoch, reported), now):
            return refused
        counts = asked if isinstance(event, Promised) and asked.members else self.electorate
        match event:
            case Propose() | Vouch() if not self._votes_on(sent):
                return (Observe("bakery.cannot_vote"),)
            case Promised() | Vouched() if not self.voting.registers(member, event.voter, counts):
                return (Observe("bakery.unregistered_vote"),)
            case Propose():
                return self._on_propose(sender, event, now)
            case Promised():
                return self._on_promised(sender, event, now)
            case Outbid():
                return self._on_outbid(event, now)
            case Merged():
                return self._on_merged(sender, event, now)
            case Vouch():
                return self._on_vouch(sender, event, now)
            case Vouched():
                return self.bound.on_vouched(member, event, self.electorate)

    def _votes_on(self, proposed: Electorate) -> bool:
        voting = self.voting
        joins = voting.names(self.node, voting.voter, proposed)
        return self.is_voter or (self.may_vote and joins)

    def _count(self) -> None:
        """Count the votes of the members, and of those that a promised epoch has."""
        promises, voting = self.promises, self.voting
        self.electorate = voting.electorate(promises.installed.electorate)
        proposed = FOUNDERS if self.election is None else self.election.electorate
        promised = voting.electorate(promises.proposal.electorate)
        voting.register(self.electorate, promised, proposed)

    def _recount(self) -> None:
        """Let those vote whom the electorate has, once the members have ever changed.

        The cluster status may learn of the electorate later, or earlier.
        """
        if self.electorate.number:
            voting, electorate = self.voting, self.electorate
            self.seen = tuple(
                one._replace(votes=voting.registers(one.node, one.voter, electorate))
                for one in self.seen
            )

    def _known(self) -> Send:
        proposed = self.voting.electorate(self.promises.proposal.electorate)
        nodes = {*self.electorate.everyone, *proposed.everyone}
        return Send(leader_of(self.node), Known(nodes=tuple(sorted(nodes))))

    def _on_propose(self, sender: Address, proposal: Propose, now: Instant) -> Effects:
        promises, electorate = self.promises, proposal.electorate
        known = promises.seating.epoch
        if electorate.number >= self.electorate.number and (
            refused := self.refuse_electorate(sender, electorate, proposal.epoch, known, now)
        ):
            return refused
        if not are_seated(proposal.leaders, proposal.copies, self.names_with(electorate)):
            return self.refusals.malformed(sender, "bakery.proposal_malformed", proposal, now)
        self.highest = max(self.highest, proposal.epoch)
        if electorate.number < promises.installed.electorate.number:
            return (Observe("bakery.proposal_outdated"),)  # The sender learns it from our beats.
        effects: list[Effect] = []
        if promises.may_promise(proposal):
            promises.promise(proposal, now)
            self._count()
            # one-seating-an-epoch: it is written before it is sent.
            effects = [self._beat_contents(now), self._persist(proposal), self._known()]
        elif proposal != promises.proposal:
            return (Send(sender, Outbid(epoch=promises.promised)),)
        promised = Promised(
            epoch=proposal.epoch,
            former=promises.installed,
            quiet_ms=promises.quiet_ms(now),
            voter=self.voting.voter,
        )
        return [*effects, Send(sender, promised)]

    def _on_promised(self, sender: Address, promised: Promised, now: Instant) -> Effects:
        seating, electorate = promised.seating, promised.electorate
        statements = promised.former.statements
        if not (
            is_known_seating(seating, self.names_with(electorate))
            and len(statements) <= len(seating.leaders)
            and all(is_possible_statement(one, seating) for one in statements)
            and promised.quiet_ms >= 0
        ):
            return self.refusals.malformed(sender, "bakery.promise_malformed", promised, now)
        known, stated_ms = self.promises.seating.epoch, (one.bound_ms for one in statements)
        refused = self.refuse_electorate(sender, electorate, seating.epoch, known, now)
        if refused := refused or self.refusals.lease(sender, now, seating.bound_ms, *stated_ms):
            return refused
        election = self.election
        if election is None or not election.on_promised(node_of(sender), promised, now):
            return ()
        learned = self._learn(election.former.seating, election.former.electorate, now)
        if self.promises.seating.epoch > election.follows:  # Its members may be others.
            return [*learned, *self._give_up(now, "bakery.seating_learned")]
        election.begin_merging(self.seen, now)
        return [self._beat_contents(now), *self._repeat()]

    def _on_outbid(self, outbid: Outbid, now: Instant) -> Effects:
        self.highest = max(self.highest, outbid.epoch)
        if self.election is None or outbid.epoch < self.election.epoch:
            return ()
        return self._give_up(now, "bakery.outbid")

    def _on_merged(self, sender: Address, merged: Merged, now: Instant) -> Effects:
        if merged.left_ms < 0:
            return self.refusals.malformed(sender, "bakery.election_malformed", merged, now)
        if refused := self.refusals.lease(sender, now, merged.left_ms):
            return refused
        election = self.election
        if election is None or not election.on_merged(node_of(sender), merged):
            return ()
        self.election = None
        if self.promises.proposal != election.proposal:
            return (Observe("bakery.overtaken"),)
        self.duel_backoff.mine = election.epoch
        seating = election.seating(max(self.bound_ms, *election.merged.values()))
        installed = self._learn(seating, election.proposal.electorate, now)
        return [*installed, *self._go_on(now), Observe("bakery.installed")]

    def _on_seen(self, seen: Connected, now: Instant) -> list[Effect]:
        """Store the connected members, and learn the highest seating that any of them knows."""
        if not self.electorate.is_quorum([member.node for member in self.seen]):
            self.patient_until = later(
                now, self.timing.patience_ms
            )  # An unseen leader may be there.
        self.seen = seen.members
        self._recount()
        self.highest = max(self.highest, *(member.promised for member in seen.members))
        newest = max(member.seating.epoch for member in seen.members)
        learned: list[Effect] = []
        for member in seen.members:
            if member.seating.epoch == newest:
                learned += self._learn(member.seating, member.electorate, now)
        return learned

    def _learn(self, seating: Seating, electorate: Electorate, now: Instant) -> list[Effect]:
        before = self.promises.seating.epoch
        if not self.promises.learn(seating, electorate, now):
            return []
        self._count()
        self._recount()
        if seating.epoch != before:
            self.duel_backoff.learn(before, now)
        self.healthy_at = now  # Give it time to become known to all.
        self.highest = max(self.highest, seating.epoch)
        record = self.promises.installed
        return [self._persist(record), self._beat_contents(now), self._known()]

    def _persist(self, record: Message) -> Persist | Checkpoint:
        """Write ``record``, or now and then all records that still count."""
        self.written += 1
        if self.written < ELECTION_RECORDS_MAX:
            return Persist(record)
        self.written = 0
        return Checkpoint(self.promises.records())

    def _go_on(self, now: Instant) -> list[Effect]:
        """Serve, propose, or wait, as the state requires; notify the proxy of a change."""
        effects = self._serve(now)
        election = self.election
        if len(self.view.living()) == len(self.promises.seating.leaders):
            self.duel_backoff.until = NEVER
        coordinates = self.is_voter and self._coordinates(now)
        late = election is not None and election.is_late(now, self.timing.phase_ms)
        if election is not None and (late or not coordinates):
            effects += self._give_up(now, "bakery.election_given_up")
        elif election is not None and election.phase is ElectionPhase.WAITING:
            election.begin_merging(self.seen, now)
            effects.append(self._beat_contents(now))
        elif (
            election is None
            and coordinates
            and now >= max(self.not_before, self.duel_backoff.until)
        ):
            effects += self._propose(now)
        return [*effects, *self._report(now)]

    def _coordinates(self, now: Instant) -> bool:
        """Return whether this is, and has been, the smallest voter that reaches a quorum.

        A smaller one's beats show whom it reaches only a moment later.
        """
        first = next((member.node for member in self.seen if member.votes), "")
        chosen = self.view.coordinator() == self.node
        deputy = self._has_lasted("deputy", now, holds=chosen and first != self.node)
        return first == self.node or deputy

    def _has_lasted(self, what: str, now: Instant, *, holds: bool) -> bool:
        """Return whether ``what`` holds, and has held for `DEAF_MS`."""
        if not holds:
            self.since.pop(what, None)
            return False
        return ms_between(self.since.setdefault(what, now), now) >= DEAF_MS

    def _serve(self, now: Instant) -> list[Effect]:
        """Let the leader of this node serve once a quorum knows the seating, durably.

        This keeps seating-known-by-majority. Then the electorate of the seating is in force.
        """
        seating = self.promises.seating
        voters = [member for member in self.seen if member.votes]
        obedient = [m.node for m in voters if (m.promised, m.seating) == (seating.epoch, seating)]
        if seating.epoch == 0 or not self.electorate.is_quorum(obedient):
            return []
        self.healthy_at = now
        settled = self._learn(seating, self.electorate.settled().as_sent(), now)
        if seating == self.served:
            return settled
        self.served = seating
        return [*settled, Send(leader_of(self.node), Serve(seating=seating))]

    def _propose(self, now: Instant) -> list[Effect]:
        view, seating = self.view, self.promises.seating
        changed = self._changed()
        leaders, why_not, deaf = changed or view.choose()
        if not self._has_lasted("deaf", now, holds=deaf) and deaf:
            return []
        stalled = seating.epoch > 0 and ms_between(self.healthy_at, now) >= self.timing.stall_ms
        if not leaders and not why_not and stalled:
            leaders = view.reelected()  # A quorum promised a higher epoch.
        newcomers = self._has_newcomers(now)
        if not leaders and not why_not and newcomers:
            leaders = tuple(view.living())
        missing = self.electorate.everyone.keys() - {member.node for member in self.seen}
        patient = bool(missing) and now < self.patient_until
        if not leaders or patient or not self.voting.limit.allows(self.highest + 1, now):
            return []
        self.highest += 1
        electorate = self.wanted if changed and self.wanted is not None else self.electorate
        self.wanted = None
        copies = view._replace(electorate=electorate).copies_for(leaders) if self.copies else ()
        proposal = Propose(
            epoch=self.highest, leaders=leaders, electorate=electorate.as_sent(), copies=copies
        )
        self.election = Election(proposal, electorate, seating.epoch, now)
        self._count()
        return [*self._repeat(), Observe("bakery.election_begun")]

    def _has_newcomers(self, now: Instant) -> bool:
        """Return whether voters that keep no copies have been connected for a moment.

        Members that start one after the other take part from one epoch on.
        """
        seating = self.promises.seating
        copies = self.view.copies_for(()) if self.copies else ()
        newcomers = seating.epoch > 0 and not {*copies} <= {*seating.keepers}
        return self._has_lasted("newcomers", now, holds=newcomers)

    def _changed(self) -> LeaderSelection | None:
        """Return the leaders with the wanted members; None if these cannot be proposed now."""
        wanted = self.wanted
        if wanted is None or not wanted.is_next_of(self.electorate):
            self.wanted = None
            return None
        choice = self.view.with_electorate(wanted).choose()
        if not choice.leaders and not choice.why_not:
            living = self.view._replace(electorate=wanted).living()
            choice = LeaderSelection(tuple(living), "")
        if not choice.leaders:
            self.wanted = None
            return None
        return choice

    def _repeat(self) -> list[Effect]:
        election = self.election
        if election is None or election.phase is ElectionPhase.WAITING:
            return []
        match election.phase:
            case ElectionPhase.PROPOSING:
                left = [
                    name for name in election.electorate.everyone if name not in election.promised
                ]
                return [Send(election_of(name), election.proposal) for name in left]
            case ElectionPhase.MERGING:
                left = [one.node for one in election.keepers if one.node not in election.merged]
                lead = Lead(
                    seating=election.seating(self.bound_ms),
                    former=election.former.seating,
                    empty=election.empty,
                )
                return [Send(leader_of(name), lead) for name in left]

    def _give_up(self, now: Instant, why: str) -> list[Effect]:
        self.election = None
        self.not_before = later(now, ELECTION_TICK_MS + self.duel_backoff.spread_ms())
        return [Observe(why), self._beat_contents(now)]

    def _on_barred(self, barred: Barred, now: Instant) -> Effects:
        """Let all know that the leader of this node is lost to the present epoch."""
        if barred.epoch <= self.barred:
            return ()
        self.barred, self.highest = barred.epoch, max(self.highest, barred.epoch)
        return (self._beat_contents(now),) if self.barred > self.promises.promised else ()

    def _on_vouch(self, sender: Address, vouch: Vouch, now: Instant) -> Effects:
        """Store a leader's statement with the seating, unless a higher epoch was promised."""
        if refused := self.refusals.lease(sender, now, vouch.bound_ms):
            return refused
        promises = self.promises
        if not promises.promised == promises.seating.epoch == vouch.epoch:
            return (Observe("bakery.vouch_ignored"),)
        leader = node_of(sender)
        statement = BoundStatement(leader, vouch.number, vouch.bound_ms)
        if not is_possible_statement(statement, promises.seating):
            return self.refusals.malformed(sender, "bakery.vouch_malformed", vouch, now)
        stated, written = promises.installed.stated(statement), list[Effect]()
        if statement not in stated.statements:
            return (Observe("bakery.vouch_ignored"),)
        if stated != promises.installed:
            promises.installed = stated
            written = [self._persist(stated)]
        voter = self.voting.voter
        vouched = Vouched(epoch=vouch.epoch, number=vouch.number, voter=voter)
        return [*written, Send(sender, vouched)]

    def _beat_contents(self, now: Instant) -> Send:
        election = self.election
        waits = election is not None and election.phase is ElectionPhase.WAITING
        contents = BeatContents(
            promised=max(self.promises.promised, self.barred),
            seating=self.promises.seating,
            waiting_ms=election.left_ms(now) if election is not None and waits else 0,
            electorate=self.promises.installed.electorate,
        )
        return Send(status_of(self.node), contents)

    def _report(self, now: Instant) -> list[Effect]:
        obeyed = ms_between(self.healthy_at, now) < self.timing.stall_ms
        missing = self.view.why_not_ready(obeyed=obeyed)
        report = Readiness(
            seating=self.promises.seating,
            members=tuple(member._replace(waiting_ms=0) for member in self.seen),
            ready=not missing,
            detail=missing or f"ready{self.view.advice()}",
            electorate=self.electorate,
        )
        if report == self.reported:
            return []
        self.reported = report
        return [Send(proxy_of(self.node), report), Send(members_of(self.node), report)]


OVERRULED_MS_MAX = 1_600
"""Longest mean pause of a coordinator that is overruled again and again (ms).

A pause is at most half as long again. After it, a leader that it cannot reach may be lost, and is
replaced. Until then the two replace each other's leaders, for less than a tenth of a second
each time.
"""

CALM_MS = 10_000
"""Time without being overruled after which pauses are short again (ms)."""


class DuelBackoff:
    """The pauses of one of two coordinators that would replace each other's leaders forever.

    The first ones are spread over ``range_ms``.
    """

    def __init__(self, random: Random, range_ms: int) -> None:
        self._random = random
        self._range_ms = self.pause_ms = range_ms
        self.mine = 0
        """The epoch of the last seating that this coordinator had installed."""
        self.until = NEVER
        """Time before which nothing is proposed, unless every leader is connected meanwhile: then
        nothing needs to be undone, and a leader that is lost from now on is replaced at once."""
        self._overruled_at = NEVER

    def spread_ms(self) -> int:
        """Return the pause after a proposal of another was promised (ms)."""
        return int(self._random.random() * self._range_ms)

    def learn(self, before: int, now: Instant) -> None:
        """Note that another epoch follows ``before``: propose nothing before ``until``.

        The pause doubles each time that this coordinator's own seating is replaced by
        another's, and is short again after a long time without that.
        """
        if before != self.mine:
            return
        if ms_between(self._overruled_at, now) > CALM_MS:
            self.pause_ms = self._range_ms
        spread_ms = int(self._random.random() * self.pause_ms)
        self.until = later(now, self.pause_ms // 2 + spread_ms)
        self._overruled_at = now
        self.pause_ms = min(2 * self.pause_ms, max(OVERRULED_MS_MAX, self._range_ms))


class ElectionPhase(Enum):
    """Phase of an election."""

    PROPOSING = "asks for promises"
    WAITING = "waits until all leases are over"
    MERGING = "has tables handed over"


@dataclass(slots=True)
class Election:
    """A proposal that is under way.

    Attributes:
        electorate: that of ``proposal``; during a change it also lists the previous members.
        follows: the epoch of the seating whose electorate proposes it.
        former: the highest seating that a promise reported; once a quorum promised, no
            later one has served, or ever will in an epoch below.
        quiet_at: by member: the time since which it has obeyed no leader of ``former``.
        promised_at: the time at which a majority had promised.
        merged: by keeper: the longest lease in its table (ms).

    """

    proposal: Propose
    electorate: Electorate
    follows: int
    began: Instant
    phase: ElectionPhase = ElectionPhase.PROPOSING
    promised: dict[str, Seating] = field(default_factory=dict[str, Seating])
    quiet_at: dict[str, Instant] = field(default_factory=dict[str, Instant])
    former: Install = NOTHING_INSTALLED
    empty: bool = False
    merged: dict[str, int] = field(default_factory=dict[str, int])
    promised_at: Instant = NEVER

    @property
    def epoch(self) -> int:
        return self.proposal.epoch

    @property
    def keepers(self) -> tuple[Chosen, ...]:
        return (*self.proposal.leaders, *self.proposal.copies)

    def seating(self, bound_ms: int) -> Seating:
        return Seating(self.epoch, self.proposal.leaders, bound_ms, self.proposal.copies)

    def on_promised(self, member: str, promised: Promised, now: Instant) -> bool:
        """Count a promise, once per member; return whether a quorum has promised now."""
        if self.phase is not ElectionPhase.PROPOSING or promised.epoch != self.epoch:
            return False
        self.promised[member] = promised.seating
        self.quiet_at[member] = Instant(now - promised.quiet_ms * NS_PER_MS)
        if promised.seating.epoch > self.former.seating.epoch:
            self.former = promised.former
        elif promised.seating.epoch == self.former.seating.epoch:
            self.former = self.former.stated(*promised.former.statements)
        if not self.electorate.is_quorum(self.promised):
            return False
        self.promised_at = now
        return True

    def begin_merging(self, members: Sequence[Member], now: Instant) -> None:
        """Request the former keepers' tables, or continue at once if none are needed.

        If too few tables are left, wait until all leases are over. If they are there, but leaders
        of this election were lost meanwhile, the phase times out, and others are proposed.
        """
        self.phase, self.began = ElectionPhase.MERGING, now
        view = ClusterView(self.former.seating, members, self.electorate)
        if self.former.seating.epoch == 0:
            self.empty = True
        elif not (view.can_merge(self.proposal.leaders) and view.can_merge(self.keepers)):
            if self.left_ms(now) == 0:
                self.empty = True
            elif not view.has_tables():
                self.phase = ElectionPhase.WAITING

    def left_ms(self, now: Instant) -> int:
        """Return how long some lease of the former leaders may still live (ms).

        A majority obeyed them until ``quiet_at``. So they granted nothing later than
        `TRUST_MS_MAX` after that, and nothing for longer than they had stated. A member whose
        promise counts, but reported an older seating, has been quiet since `promised_at`.
        """
        quiet = max(
            at if self.promised[member].epoch == self.former.seating.epoch else self.promised_at
            for member, at in self.quiet_at.items()
        )
        longest_ms = longest_lease_ms(self.former.seating, self.former.statements)
        whole = surely_over(TRUST_MS_MAX + longest_ms)
        return max(0, whole - ms_between(quiet, now))

    def on_merged(self, member: str, merged: Merged) -> bool:
        """Count a keeper that is ready; return whether quorums of both kinds are ready now."""
        if self.phase is not ElectionPhase.MERGING or merged.epoch != self.epoch:
            return False
        if member not in {keeper.node for keeper in self.keepers}:
            return False
        self.merged[member] = merged.left_ms
        return all(
            sum(one.node in self.merged for one in group) >= quorum(len(group))
            for group in (self.proposal.leaders, self.keepers)
        )

    def is_late(self, now: Instant, phase_ms: int) -> bool:
        return self.phase is not ElectionPhase.WAITING and ms_between(self.began, now) >= phase_ms
