"""Phase two of one ballot: proposes slots, counts votes, and decides.

`QuorumChoice` selects the members that are asked at once. A majority decides, so only a majority
is asked at once. The rest learns of a slot when it is decided, together with all others of that
moment in one frame. That is a third less work with three members, and keeps the disks and
processors that a decision waits for free of other work.

Source: "thrifty" operation, I. Moraru, D. Andersen, M. Kaminsky: There Is More Consensus in
Egalitarian Parliaments (SOSP 2013), section 6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import starmap
from typing import Unpack

from msgspec import Struct

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, node_of
from fencelock.actors.paxos.config import WINDOW, MemberArguments, MemberRole, View
from fencelock.actors.paxos.event import (
    CommanderResend,
    Decided,
    Order,
    SendHeartbeat,
    SpreadDecisions,
)
from fencelock.actors.paxos.wire import (
    Accept,
    Accepted,
    Ballot,
    Batch,
    Commit,
    Heartbeat,
    Preempted,
)
from fencelock.actors.role import Facts, Host, Summary

LATE_SLOT_MS = 5
"""Time for which a majority may leave a slot undecided before the other members are asked (ms)."""

NEWS_MS = 20
"""Under load, the interval at which followers are sent which slots are decided, unless an `Accept`
carries it, and members outside the preferred quorum are sent the slots themselves (ms). After a
pause they are sent in `LATE_SLOT_MS`. Each interval costs those members a turn and a sync."""

EXPLORE = 32
"""At each multiple of this slot all members are asked, to find out which are quickest now."""


CommanderEvent = Accepted | Preempted | Order | SpreadDecisions | SendHeartbeat | CommanderResend


class Proposal(Struct):
    """A slot that is proposed and not decided."""

    batch: Batch
    view: View
    votes: dict[Address, None]
    """Acceptors that voted for it, each once (distinct-majority)."""
    asked_again: bool = False
    """Whether the last `CommanderResend` found it undecided; the next one resends it."""


class Commander(MemberRole[CommanderEvent]):
    """Spawned by a leader for its leadership, and retired by it. Source: PMMC, section 4.1.

    PMMC has one commander for each slot. Here one serves all slots of a leadership, since an
    actor would cost more than the slot, and since only a commander that sees all slots knows
    which are decided without a gap. Followers learn that from the next `Accept`, or from `Commit`
    if none follows. A majority is asked at once, the others soon (`QuorumChoice`).

    Invariants:
        one-batch-a-ballot: One batch is proposed for each slot.
        distinct-majority: A slot is decided by a majority of distinct members of its own view.
            At most `WINDOW` slots, from the first undecided on, are proposed.

    Args:
        ballot: a ballot that a majority promised.
        first: the first slot to propose for.
        batches: the batches that phase one found for ``first`` and the slots after it.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        ballot: Ballot,
        first: int,
        batches: tuple[Batch, ...],
        **member: Unpack[MemberArguments],
    ) -> None:
        super().__init__(address, host, **member)
        self.ballot = ballot
        self.opening = first + len(batches)
        """The first slot that this leadership fills itself. When it is decided, so are all before
        it."""
        self.committed = first
        """The first slot that is not decided."""
        self.next = first
        """The first slot that is not proposed."""
        self.backlog = deque(batches)
        self.proposals: dict[int, Proposal] = {}
        self.informed = first
        """Followers were sent that all slots before this one are decided; the message may be
        lost."""
        self.resending = False
        self.quorum_choice = QuorumChoice(self.acceptor, self.config.at(first))
        self.waiting = False
        """Whether the `SpreadDecisions` timer runs."""
        self.watched = first
        """The first undecided slot when that timer last began."""
        self.spread_at = Instant(-NEWS_MS * NS_PER_MS)
        """The time of the last news."""

    def begin(self, now: Instant) -> Effects:
        return self._propose()

    def facts(self, now: Instant) -> Facts:
        """Return each slot in flight, with its batch and the members that voted for it."""
        yield from self.summary()
        yield "slots in flight", len(self.proposals)
        for slot, proposal in self.proposals.items():
            votes = ", ".join(map(node_of, proposal.votes))
            yield f"slot {slot}", f"{proposal.batch.size} bytes, votes of {votes or 'nobody yet'}"

    def handle(self, sender: Address, event: CommanderEvent, now: Instant) -> Effects:
        match event:
            case Accepted():
                return self._on_accepted(sender, event)
            case Order():
                assert event.slot == self.next + len(self.backlog)  # one-batch-a-ballot
                self.backlog.append(event.batch)
                return self._propose()
            case SpreadDecisions():
                return self._on_spread_decisions(now)
            case Preempted():
                return self._on_preempted(sender, event)
            case SendHeartbeat():
                return self._on_send_heartbeat(event)
            case CommanderResend():
                return self._on_resend()

    def summary(self) -> Summary:
        return (
            ("ballot", self.ballot.round),
            ("next", self.next),
            ("committed", self.committed),
            ("backlog", len(self.backlog)),
        )

    def _propose(self) -> list[Effect]:
        """Propose as much of the backlog as the window has room for."""
        effects: list[Effect] = []
        while self.backlog and self.next < self.committed + WINDOW:
            batch = self.backlog.popleft()
            slot, self.informed = self.next, self.committed
            view = self.config.at(slot) if self.config.pending else self.config.newest
            if view is not self.quorum_choice.view:
                self.quorum_choice.turn_to(view)
            self.proposals[slot] = Proposal(batch, view, {})
            accept = Accept(ballot=self.ballot, slot=slot, batch=batch, committed=self.committed)
            for acceptor in self.quorum_choice.choose(accept):
                effects.append(Send(acceptor, accept))
            self.next = slot + 1
        if effects and not self.resending:
            self.resending = True
            effects.append(Wake(self.config.timing.reply_ms, CommanderResend()))
        if self.quorum_choice.behind and not self.waiting:
            effects.append(self._wait())
        return effects

    def _on_accepted(self, acceptor: Address, accepted: Accepted) -> Effects:
        proposal = self.proposals.get(accepted.slot)
        if accepted.ballot != self.ballot or proposal is None:
            return ()  # Decided already, by the votes of others.
        view = proposal.view
        registered = view.registered.get(acceptor) == accepted.voter
        if not registered or acceptor not in view.acceptors:  # `View.counts`, without a call.
            known = acceptor in view.acceptors
            return (Observe("paxos.unregistered_vote" if known else "paxos.stranger_votes"),)
        votes = proposal.votes
        votes[acceptor] = None
        if len(votes) < view.majority:
            return ()
        del self.proposals[accepted.slot]
        self.committed = min(self.proposals, default=self.next)
        if votes.keys() != self.quorum_choice.chosen.keys() and view is self.quorum_choice.view:
            self.quorum_choice.prefer(votes)
        decided = Decided(slot=accepted.slot, batch=proposal.batch)
        effects: list[Effect] = [Send(self.replica, decided)]
        if self.backlog:
            effects += self._propose()
        if not self.waiting:
            effects.append(self._wait())
        return effects

    def _wait(self) -> Wake:
        """Delay the `Commit`: the next `Accept` may report the decision to followers."""
        self.waiting, self.watched = True, self.committed
        return Wake(LATE_SLOT_MS, SpreadDecisions())

    def _on_spread_decisions(self, now: Instant) -> Effects:
        """Report the decision to followers, unless an `Accept` has done so or soon will."""
        late = self.watched in self.proposals
        if not late and now - self.spread_at < NEWS_MS * NS_PER_MS:
            return (self._wait(),)
        self.waiting, self.spread_at = False, now
        accepts = self._ask_others()
        effects: list[Effect] = list(starmap(Send, accepts))
        if self.informed < self.committed and not self.proposals:
            self.informed = self.committed
            commit = Commit(ballot=self.ballot, committed=self.committed)
            informed = [self.acceptor]
            for one, accept in accepts:
                if accept.committed == self.committed:
                    informed.append(one)
            for one in self.config.acceptors:
                if one not in informed:
                    effects.append(Send(one, commit))
        return effects

    def _ask_others(self) -> list[tuple[Address, Accept]]:
        """Ask the other members, which learn the slot, or stand in for missing votes."""
        asked: list[tuple[Address, Accept]] = []
        for accept, others in self.quorum_choice.take():
            committed = min(self.committed, accept.slot + 1)
            accepts = Accept(
                ballot=self.ballot, slot=accept.slot, batch=accept.batch, committed=committed
            )
            for one in others:
                asked.append((one, accepts))
        return asked

    def _on_send_heartbeat(self, request: SendHeartbeat) -> Effects:
        beat = Heartbeat(
            ballot=self.ballot,
            number=request.number,
            committed=self.committed,
            min_applied=request.min_applied,
            acked=request.acked if self.committed > self.opening else (),
            confirmed=request.confirmed,
            view=request.view,
            timing=request.timing,
        )
        # A member must receive the batches before the heartbeat that reports them as decided.
        asked = list(starmap(Send, self._ask_others()))
        return [*asked, *(Send(acceptor, beat) for acceptor in self.config.acceptors)]

    def _on_preempted(self, acceptor: Address, preempted: Preempted) -> Effects:
        if acceptor not in self.config.acceptors or preempted.ballot <= self.ballot:
            return (Observe("paxos.preemption_ignored"),)
        return (Send(self.leader, preempted),)

    def _on_resend(self) -> Effects:
        """Resend proposals that were undecided at the last timer; younger ones are not late."""
        effects: list[Effect] = []
        for slot, proposal in self.proposals.items():
            if proposal.asked_again:
                effects += self._ask_again(slot, proposal)
                effects.append(Observe("paxos.accept_resent"))
            proposal.asked_again = True
        self.resending = bool(self.proposals)
        if self.resending:
            effects.append(Wake(self.config.timing.reply_ms, CommanderResend()))
        return effects

    def _ask_again(self, slot: int, proposal: Proposal) -> list[Effect]:
        self.informed = self.committed
        accept = Accept(
            ballot=self.ballot, slot=slot, batch=proposal.batch, committed=self.committed
        )
        acceptors = proposal.view.acceptors
        return [Send(one, accept) for one in acceptors if one not in proposal.votes]


class QuorumChoice:
    """Chooses a majority for each slot: the members whose votes decided the last one.

    A member that stops answering is dropped as soon as the others, which are asked a moment
    later, have decided a slot without it.

    The choice affects only when a member is asked: all are asked in the end, and the commander
    alone counts votes.

    Args:
        here: the acceptor of this node, which is always asked.
        view: the members that vote.

    """

    def __init__(self, here: Address, view: View) -> None:
        self.here = here
        self.behind: list[tuple[Accept, tuple[Address, ...]]] = []
        """Proposals, the lowest slot first, and the members that have still to be asked."""
        self.turn_to(view)

    def turn_to(self, view: View) -> None:
        """Choose among the members of ``view`` from the next slot on."""
        self.view = view
        self.chosen = dict.fromkeys(view.acceptors)
        """Members asked at once, in the order of the view; all until a slot is decided."""
        self.others: tuple[Address, ...] = ()
        """Members asked later."""

    def choose(self, accept: Accept) -> Iterable[Address]:
        """Return the members to ask now; the others are due with the next `take`."""
        if accept.slot % EXPLORE == 0 or not self.others:
            return self.view.acceptors
        self.behind.append((accept, self.others))
        return self.chosen

    def take(self) -> list[tuple[Accept, tuple[Address, ...]]]:
        """Remove and return the proposals that the other members are sent now."""
        behind, self.behind = self.behind, []
        return behind

    def prefer(self, voters: Mapping[Address, None]) -> None:
        """Prefer ``voters`` from now on: a majority, in the order of their answers."""
        quick = [one for one in voters if one != self.here][: self.view.majority - 1]
        everyone, preferred = self.view.acceptors, {*quick, self.here}
        self.chosen = dict.fromkeys([one for one in everyone if one in preferred])
        self.others = tuple([one for one in everyone if one not in preferred])
