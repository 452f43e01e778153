"""Phase one of one ballot: get a majority's promise, and learn what may have been decided."""

from __future__ import annotations

from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, node_of
from fencelock.actors.paxos.config import WINDOW, Config, acceptor_of, leader_of
from fencelock.actors.paxos.event import Adopted
from fencelock.actors.paxos.message import (
    NO_OP,
    NUMBER_MAX,
    Ballot,
    Preempted,
    Prepare,
    Promise,
    Vote,
)
from fencelock.actors.paxos.rounds import ROUND_JUMP_MAX, TOO_FAR
from fencelock.actors.paxos.timer import ScoutResend
from fencelock.actors.role import Host, Role, Summary

SCOUT_RESEND_MS = 50
"""How long an acceptor may take to answer before it is asked again (ms): a round and a sync."""


class Scout(Role[Promise | Preempted | ScoutResend]):
    """Spawned by a leader for one ballot, retired by it. Source: PMMC, section 4.1.

    Where this differs: an acceptor answers in pages, and is counted when it sent the last;
    and the acceptor of the scout's own node is asked only when its promise would complete a
    majority. So a node that nobody answers goes on following the master it cannot hear of,
    and does not disturb it by a promise when it can be heard again.

    An acceptor heeds no round that is too far above what it knows, and says what it knows. Then
    it is led up by promises to rounds of this leader that nobody ever proposes in. A ballot that
    is too far above this one is reported only when the others did not complete a majority in
    time.

    Invariants:
        P8  For each slot, the batch of the highest ballot reported by a majority is
            proposed; a no-op where none reported any.
        P10 Each acceptor counts once.

    Args:
        node: where it is.
        config: who is a member.
        ballot: durably this node's own, and never used before.
        first: the first slot that this node does not know to be decided.
        hurried: whether to report ballots that are too far at once.

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
        hurried: bool = False,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.config = config
        self.ballot = ballot
        self.asking: dict[Address, int] = {}
        """The acceptors that were asked and have not answered in full, and from which slot."""
        self.floors: dict[Address, int] = {}
        """Before which slot each has applied everything and reported nothing, as it said."""
        self.complete: dict[Address, None] = {}
        """The acceptors that have answered in full, each once (P10)."""
        self.votes: dict[int, Vote] = {}
        """The vote of the highest ballot that was reported, by slot."""
        self.first = first
        self.adopted = False
        self.hurried = hurried
        self.steps: dict[Address, Ballot] = {}
        """The ballot below this one that each acceptor was last asked to promise."""

    def begin(self, now: Instant) -> Effects:
        """Ask the others; and oneself, if that is enough."""
        del now
        own = acceptor_of(self.node)
        for acceptor in self.config.view.acceptors:
            if acceptor != own:
                self.asking[acceptor] = self.first
        return [*self._ask(), *self._ask_own(), Wake(SCOUT_RESEND_MS, ScoutResend())]

    def handle(
        self, sender: Address, event: Promise | Preempted | ScoutResend, now: Instant
    ) -> Effects:
        """Count a promise."""
        del now
        match event:
            case Promise():
                return self._on_promise(sender, event)
            case Preempted():
                return self._on_preempted(sender, event)
            case ScoutResend():
                if self.adopted:
                    return ()
                self.hurried = True
                return [*self._ask(), Wake(SCOUT_RESEND_MS, ScoutResend())]

    def summary(self) -> Summary:
        """Return the ballot, and how many members have reported all their votes."""
        return (
            ("ballot", self.ballot.round),
            ("promises", len(self.complete)),
        )

    def _ask(self) -> Effects:
        return [
            Send(acceptor, Prepare(ballot=self.ballot, first=first))
            for acceptor, first in self.asking.items()
        ]

    def _ask_own(self) -> Effects:
        own = acceptor_of(self.node)
        if own in self.asking or own in self.complete:
            return ()
        if len(self.complete) + 1 < self.config.view.majority:
            return ()
        self.asking[own] = self.first
        return (Send(own, Prepare(ballot=self.ballot, first=self.first)),)

    def _on_promise(self, acceptor: Address, promise: Promise) -> Effects:
        if promise.ballot == self.steps.get(acceptor) and acceptor in self.asking:
            return (self._step(acceptor, promise.ballot.round),)
        if promise.ballot != self.ballot or self.asking.get(acceptor) != promise.asked:
            return (Observe("paxos.promise_ignored"),)  # Repeated, or not asked for.
        if promise.voter != self.config.view.registered.get(acceptor):
            return (Observe("paxos.unregistered_vote"),)
        if not _is_sound(promise):
            return (Observe("paxos.impossible_promise"),)
        for vote in promise.votes:
            best = self.votes.get(vote.slot)
            if best is None or vote.ballot > best.ballot:
                self.votes[vote.slot] = vote
        if promise.first > promise.asked or acceptor not in self.floors:
            self.floors[acceptor] = promise.first
        if promise.more is not None:
            self.asking[acceptor] = promise.more
            return (Send(acceptor, Prepare(ballot=self.ballot, first=promise.more)),)
        del self.asking[acceptor]
        self.complete[acceptor] = None
        if len(self.complete) < self.config.view.majority:
            return self._ask_own()
        return self._adopt()

    def _adopt(self) -> Effects:
        """Tell the leader what it must propose.

        An acceptor that reported from a later slot than was asked for has applied all
        before it, so from the latest such slot on, the floor, all of the majority reported.
        What was decided there is among the votes, so fewer than `WINDOW` slots can be without
        one: whoever says more would have the leader fill the log with no-ops.
        """
        if self.adopted:
            return ()
        source = max(self.complete, key=lambda acceptor: self.floors[acceptor])
        floor = self.floors[source]
        last = max(self.votes, default=0)
        holes = max(0, last + 1 - floor) - sum(slot >= floor for slot in self.votes)
        if holes > WINDOW:
            return (Observe("paxos.impossible_promise"),)
        self.adopted = True
        batches = [
            self.votes[slot].batch if slot in self.votes else NO_OP  # P8
            for slot in range(floor, last + 1)
        ]
        adopted = Adopted(
            ballot=self.ballot, floor=floor, source=node_of(source), batches=tuple(batches)
        )
        marks = (
            Observe("paxos.votes_adopted", len(batches) - holes),
            Observe("paxos.holes", holes),
        )
        return (Send(leader_of(self.node), adopted), *(mark for mark in marks if mark.count))

    def _step(self, acceptor: Address, known: int) -> Send:
        """Ask for a promise that is no further than may be from round ``known``."""
        step = Ballot(min(self.ballot.round, known + ROUND_JUMP_MAX), self.ballot.leader)
        if step < self.ballot:
            self.steps[acceptor] = step
        return Send(acceptor, Prepare(ballot=step, first=self.asking[acceptor]))

    def _on_preempted(self, acceptor: Address, preempted: Preempted) -> Effects:
        ahead = preempted.ballot.round - self.ballot.round
        if ahead < -ROUND_JUMP_MAX and preempted.ballot.round >= 0 and acceptor in self.asking:
            return (self._step(acceptor, preempted.ballot.round), Observe("paxos.round_stepped"))
        if acceptor not in self.config.view.acceptors or preempted.ballot <= self.ballot:
            return (Observe("paxos.preemption_ignored"),)
        if ahead > ROUND_JUMP_MAX and not self.hurried:
            return (TOO_FAR,)  # It says so again when it is asked again.
        return (Send(leader_of(self.node), preempted),)


def _is_sound(promise: Promise) -> bool:
    """Return whether votes are older than the promise, in order, and where the page says."""
    slots = [promise.first - 1, *(vote.slot for vote in promise.votes)]
    end = promise.more if promise.more is not None else NUMBER_MAX
    in_order = all(a < b for a, b in zip(slots, [*slots[1:], end], strict=True))
    older = all(vote.ballot < promise.ballot for vote in promise.votes)
    return promise.first >= promise.asked and in_order and older
