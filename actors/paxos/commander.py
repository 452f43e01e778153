"""Phase two of one ballot: every slot of a reign is proposed, counted and decided here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.config import WINDOW, Config, acceptor_of, leader_of, replica_of
from fencelock.actors.paxos.event import Decided, Order, Pulse
from fencelock.actors.paxos.message import (
    Accept,
    Accepted,
    Ballot,
    Batch,
    Commit,
    Heartbeat,
    Preempted,
)
from fencelock.actors.paxos.quorum_choice import QuorumChoice
from fencelock.actors.paxos.timer import CommanderResend, SpreadNews
from fencelock.actors.role import Host, Role, Summary

COMMANDER_RESEND_MS = 100
"""How long votes may take before they are asked for again (ms): a round and a slow sync."""

NEWS_MS = 5
"""How long followers may not know that a slot is decided, if no `Accept` tells them, and those who
were not asked for their vote may not know of the slot (ms). To be told at once would double the
messages of a lone client."""


@dataclass(slots=True)
class Proposal:
    """A slot that is proposed and not decided."""

    batch: Batch
    votes: dict[Address, None] = field(default_factory=dict[Address, None])
    """Who accepted it, each once (P10)."""
    asked_again: bool = False
    """Whether it was there at the last resending, so that it is late at the next."""


Heeded = Accepted | Preempted | Order | SpreadNews | Pulse | CommanderResend


class Commander(Role[Heeded]):
    """Spawned by a leader for its reign, retired by it. Source: PMMC, section 4.1.

    PMMC has one commander for each slot; here one has all of a reign, since an actor would
    cost more than the slot, and since only one that sees all slots knows which are decided
    without a gap. Followers learn that from the next `Accept`, or `Commit` if none follows.
    A majority is asked at once, the others soon (`QuorumChoice`).

    Invariants:
        P3  One batch is proposed for each slot.
        P10 A slot is decided by a majority of distinct members of its own view.
            At most `WINDOW` slots, from the first undecided on, are proposed.

    Args:
        node: where it is.
        config: who is a member.
        ballot: a majority promised it.
        first: the first slot to propose for.
        batches: what phase one found for ``first`` and the slots after it.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        config: Config,
        ballot: Ballot,
        first: int,
        batches: tuple[Batch, ...],
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.config = config
        self.ballot = ballot
        self.opening = first + len(batches)
        """The first slot of the reign's own. When it is decided, so is all before it."""
        self.committed = first
        """The first slot that is not decided."""
        self.next = first
        """The first slot that is not proposed."""
        self.backlog = deque(batches)
        self.proposals: dict[int, Proposal] = {}
        self.told = first
        """Up to where followers were told what is decided, if all arrived."""
        self.resending = False
        self.here = acceptor_of(node)
        self.quorum_choice = QuorumChoice(self.here, config.view)
        self.waiting = False
        """Whether `SpreadNews` runs."""

    def begin(self, now: Instant) -> Effects:
        """Propose what phase one found."""
        del now
        return self._propose()

    def handle(self, sender: Address, event: Heeded, now: Instant) -> Effects:
        """Propose, count, decide."""
        del now
        match event:
            case Accepted():
                return self._on_accepted(sender, event)
            case Order():
                assert event.slot == self.next + len(self.backlog)  # P3
                self.backlog.append(event.batch)
                return self._propose()
            case SpreadNews():
                return self._on_spread_news()
            case Preempted():
                return self._on_preempted(sender, event)
            case Pulse():
                return self._on_pulse(event)
            case CommanderResend():
                return self._on_resend()

    def summary(self) -> Summary:
        """Return the ballot, and how much is proposed and committed."""
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
            self.proposals[self.next] = Proposal(batch)
            self.told = self.committed
            accept = self._accept(self.next, batch, self.committed)
            asked = self.quorum_choice.choose(self.next, batch)
            effects += [Send(acceptor, accept) for acceptor in asked]
            self.next += 1
        if effects and not self.resending:
            self.resending = True
            effects.append(Wake(COMMANDER_RESEND_MS, CommanderResend()))
        return [*effects, *self._wait()] if self.quorum_choice.behind else effects

    def _accept(self, slot: int, batch: Batch, committed: int) -> Accept:
        """Return the question for a vote, which says by the way what is decided."""
        return Accept(ballot=self.ballot, slot=slot, batch=batch, committed=committed)

    def _on_accepted(self, acceptor: Address, accepted: Accepted) -> Effects:
        proposal = self.proposals.get(accepted.slot)
        if accepted.ballot != self.ballot or proposal is None:
            return ()  # Decided already, by the votes of others.
        view = self.config.at(accepted.slot)
        if view.registered.get(acceptor) != accepted.voter:
            known = acceptor in view.acceptors
            return (Observe("paxos.unregistered_vote" if known else "paxos.stranger_votes"),)
        proposal.votes[acceptor] = None
        if len(proposal.votes) < view.majority:
            return ()
        del self.proposals[accepted.slot]
        self.committed = min(self.proposals, default=self.next)
        self.quorum_choice.decided(proposal.votes)
        decided = Decided(slot=accepted.slot, batch=proposal.batch)
        return [Send(replica_of(self.node), decided), *self._propose(), *self._wait()]

    def _wait(self) -> tuple[Wake, ...]:
        """Wait a moment: the next `Accept` may tell followers what is decided."""
        waiting, self.waiting = self.waiting, True
        return () if waiting else (Wake(NEWS_MS, SpreadNews()),)

    def _on_spread_news(self) -> Effects:
        """Tell followers what they have not heard, unless an `Accept` did, or is about to."""
        self.waiting = False
        effects = self._ask_the_spared()
        if self.told < self.committed and not self.proposals:
            self.told = self.committed
            commit = Commit(ballot=self.ballot, committed=self.committed)
            effects += [
                Send(one, commit) for one in self.quorum_choice.everybody if one != self.here
            ]
        return effects

    def _ask_the_spared(self) -> list[Effect]:
        """Ask those who were not asked at once: to know of it, or for want of other votes."""
        return [
            Send(one, self._accept(slot, batch, min(self.committed, slot + 1)))
            for slot, batch, spared in self.quorum_choice.take()
            for one in spared
        ]

    def _on_pulse(self, pulse: Pulse) -> Effects:
        beat = Heartbeat(
            ballot=self.ballot,
            number=pulse.number,
            committed=self.committed,
            everywhere=pulse.everywhere,
            heard=pulse.heard if self.committed > self.opening else (),
            confirmed=pulse.confirmed,
        )
        # Whoever hears how much is decided should have heard what.
        asked = self._ask_the_spared()
        return [*asked, *(Send(acceptor, beat) for acceptor in self.quorum_choice.everybody)]

    def _on_preempted(self, acceptor: Address, preempted: Preempted) -> Effects:
        if acceptor not in self.config.view.acceptors or preempted.ballot <= self.ballot:
            return (Observe("paxos.preemption_ignored"),)
        return (Send(leader_of(self.node), preempted),)

    def _on_resend(self) -> Effects:
        """Ask again where votes are missing for long; slots proposed just now are not late."""
        effects: list[Effect] = []
        for slot, proposal in self.proposals.items():
            if proposal.asked_again:
                effects += self._ask_again(slot, proposal)
                effects.append(Observe("paxos.accept_resent"))
            proposal.asked_again = True
        self.resending = bool(self.proposals)
        if self.resending:
            effects.append(Wake(COMMANDER_RESEND_MS, CommanderResend()))
        return effects

    def _ask_again(self, slot: int, proposal: Proposal) -> list[Effect]:
        """Ask whoever has not accepted."""
        self.told = self.committed
        accept = self._accept(slot, proposal.batch, self.committed)
        acceptors = self.config.at(slot).acceptors
        return [Send(one, accept) for one in acceptors if one not in proposal.votes]
