"""Phase two of one ballot: every slot of a reign is proposed, counted and decided here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.actors.effect import Effect, Effects, Observe, Send, Wake
from holdfast.actors.message import Address, Instant
from holdfast.actors.paxos.config import WINDOW, Config, acceptor_of, leader_of, replica_of
from holdfast.actors.paxos.event import Decided, Idle, Order, Pulse
from holdfast.actors.paxos.message import (
    Accept,
    Accepted,
    Ballot,
    Batch,
    Commit,
    Heartbeat,
    Preempted,
)
from holdfast.actors.paxos.timer import CommanderResend, StillIdle
from holdfast.actors.role import Host, Role

COMMANDER_RESEND_MS = 100
"""How long votes may take before they are asked for again (ms): a round and a slow sync."""


COMMIT_MS = 2
"""How long followers may not know that a slot is decided, if no `Accept` tells them (ms). To be
told at once would double the messages of a lone client, and the next `Accept` tells it free."""


@dataclass(slots=True)
class Proposal:
    """A slot that is proposed and not decided."""

    batch: Batch
    votes: dict[Address, None] = field(default_factory=dict[Address, None])
    """Who accepted it, each once (P10)."""
    asked_again: bool = False
    """Whether it was there at the last resending, so that it is late at the next."""


Heeded = Accepted | Preempted | Order | Idle | StillIdle | Pulse | CommanderResend


class Commander(Role[Heeded]):
    """Spawned by a leader for its reign, retired by it. Source: PMMC, section 4.1.

    PMMC has one commander for each slot; here one has all of a reign, since an actor would
    cost more than the slot, and since only one that sees all slots knows which are decided
    without a gap. Followers learn that from the next `Accept`, or `Commit` if none follows.

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
        self.waiting = False
        """Whether `StillIdle` runs."""

    def begin(self, now: Instant) -> Effects:
        """Propose what phase one found."""
        del now
        return self._propose()

    def handle(
        self,
        sender: Address,
        event: Heeded,
        now: Instant,
    ) -> Effects:
        """Propose, count, decide."""
        del now
        match event:
            case Accepted():
                return self._on_accepted(sender, event)
            case Order():
                assert event.slot == self.next + len(self.backlog)  # P3
                self.backlog.append(event.batch)
                return self._propose()
            case Idle():
                return self._on_idle()
            case StillIdle():
                self.waiting = False
                return self._commit()
            case Preempted():
                return self._on_preempted(sender, event)
            case Pulse():
                return self._on_pulse(event)
            case CommanderResend():
                return self._on_resend()

    def _propose(self) -> list[Effect]:
        """Propose as much of the backlog as the window has room for."""
        effects: list[Effect] = []
        while self.backlog and self.next < self.committed + WINDOW:
            proposal = Proposal(self.backlog.popleft())
            self.proposals[self.next] = proposal
            effects += self._ask(self.next, proposal)
            self.next += 1
        if effects and not self.resending:
            self.resending = True
            effects.append(Wake(COMMANDER_RESEND_MS, CommanderResend()))
        return effects

    def _ask(self, slot: int, proposal: Proposal) -> list[Effect]:
        """Ask whoever has not yet accepted, and say by the way what is decided."""
        accept = Accept(
            ballot=self.ballot, slot=slot, batch=proposal.batch, committed=self.committed
        )
        self.told = self.committed
        return [
            Send(acceptor, accept)
            for acceptor in self.config.at(slot).acceptors
            if acceptor not in proposal.votes
        ]

    def _on_accepted(self, acceptor: Address, accepted: Accepted) -> Effects:
        proposal = self.proposals.get(accepted.slot)
        if accepted.ballot != self.ballot or proposal is None:
            return ()  # Decided already, by the votes of others.
        view = self.config.at(accepted.slot)
        if acceptor not in view.acceptors:
            return (Observe("paxos.stranger_votes"),)
        proposal.votes[acceptor] = None
        if len(proposal.votes) < view.majority:
            return ()
        del self.proposals[accepted.slot]
        self.committed = min(self.proposals, default=self.next)
        decided = Decided(slot=accepted.slot, batch=proposal.batch)
        return [Send(replica_of(self.node), decided), *self._propose()]

    def _on_idle(self) -> Effects:
        """Wait a moment: the next `Accept` may tell followers what is decided."""
        if self.waiting or self.told >= self.committed:
            return ()
        self.waiting = True
        return (Wake(COMMIT_MS, StillIdle()),)

    def _commit(self) -> Effects:
        """Tell followers what is decided, unless an `Accept` did, or is about to."""
        if self.told >= self.committed or self.proposals:
            return ()
        self.told = self.committed
        commit = Commit(ballot=self.ballot, committed=self.committed)
        others = [one for one in self.config.view.acceptors if one != acceptor_of(self.node)]
        return [Send(acceptor, commit) for acceptor in others]

    def _on_pulse(self, pulse: Pulse) -> Effects:
        beat = Heartbeat(
            ballot=self.ballot,
            number=pulse.number,
            committed=self.committed,
            everywhere=pulse.everywhere,
            heard=pulse.heard if self.committed > self.opening else (),
            confirmed=pulse.confirmed,
        )
        return [Send(acceptor, beat) for acceptor in self.config.view.acceptors]

    def _on_preempted(self, acceptor: Address, preempted: Preempted) -> Effects:
        if acceptor not in self.config.view.acceptors or preempted.ballot <= self.ballot:
            return (Observe("paxos.preemption_ignored"),)
        return (Send(leader_of(self.node), preempted),)

    def _on_resend(self) -> Effects:
        """Ask again where votes are missing for long; slots proposed just now are not late."""
        effects: list[Effect] = []
        for slot, proposal in self.proposals.items():
            if proposal.asked_again:
                effects += self._ask(slot, proposal)
                effects.append(Observe("paxos.accept_resent"))
            proposal.asked_again = True
        self.resending = bool(self.proposals)
        if self.resending:
            effects.append(Wake(COMMANDER_RESEND_MS, CommanderResend()))
        return effects
