"""Phase one of one ballot: gets a majority's promises, and learns which batches may be decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Unpack

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, node_of
from fencelock.actors.paxos.config import (
    ROUND_JUMP_MAX,
    ROUNDS_PER_VIEW,
    TOO_FAR,
    VOTES_MAX,
    WINDOW,
    MemberArguments,
    MemberRole,
)
from fencelock.actors.paxos.event import Adopted, ScoutResend
from fencelock.actors.paxos.message import (
    NO_OP,
    NUMBER_MAX,
    Ballot,
    Preempted,
    Prepare,
    Promise,
    Vote,
    fits,
    shown_ballot,
)
from fencelock.actors.role import Facts, Host, Summary

STEPS_MAX = 1 << 10
"""Ballots of a view whose steps differ, see `Scout._step`."""


REPORTED_MAX = 2 * VOTES_MAX
"""An acceptor that reports this many votes, and has more, is not counted. An honest one keeps
`VOTES_MAX` and a few, or more only after a crash while it wrote another member's snapshot."""


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
        possible = [vote for vote in promise.votes if self._is_possible(vote)]
        for vote in possible:
            best = self.votes.get(vote.slot)
            if best is None or vote.ballot > best.ballot:
                self.votes[vote.slot] = vote
                self.reporters[vote.slot] = acceptor
        effects: list[Effect] = []
        if len(possible) < len(promise.votes):
            (first, *_) = (vote for vote in promise.votes if vote not in possible)
            effects = self._report(acceptor, first, now)
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
        """Return a report if no honest member can send ``promise``, otherwise nothing."""
        if not _is_sound(promise):
            text = f"a promise whose votes from slot {promise.first} on are in no order"
            return self.bounds.report(acceptor, "paxos.impossible_promise", text, now)
        what = "a promise with all slots applied before"
        return self.bounds.refuse_slot(acceptor, what, promise.first, now)

    def _is_possible(self, vote: Vote) -> bool:
        """Return whether an honest leader can have proposed ``vote``.

        A vote that none can have proposed is not chosen, since no honest acceptor has it: it is
        left out, and the promise that reports it counts.
        """
        batch = vote.batch
        in_time = batch.time_ms <= self.config.latest_ms(vote.slot)
        return fits(batch) and in_time and batch.origin <= vote.ballot

    def _report(self, acceptor: Address, vote: Vote, now: Instant) -> list[Effect]:
        text = (
            f"a vote for slot {vote.slot} at log time {vote.batch.time_ms} ms, first proposed in "
            f"round {vote.batch.origin.round}, which no honest member can have. If it repeats "
            f"this, stop that node and run fencelock repair on it"
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
            effects = self._report(self.reporters[far[0]], self.votes[far[0]], now)
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
    end = promise.more if promise.more is not None else NUMBER_MAX
    in_order = all(a < b for a, b in zip(slots, [*slots[1:], end], strict=True))
    older = all(vote.ballot < promise.ballot for vote in promise.votes)
    return promise.first >= promise.asked and in_order and older
