"""The state of a node: orders commands while it is master, and applies what is decided."""

from __future__ import annotations

from itertools import chain

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.fast_construction import maker
from fencelock.actors.message import Address, Instant, node_of
from fencelock.actors.paxos.config import LOG_MAX, Config, acceptor_of, catchup_of, leader_of
from fencelock.actors.paxos.digest import AGREED_SLOTS
from fencelock.actors.paxos.event import (
    Applied,
    Decided,
    Fresh,
    Gather,
    Lacking,
    LeaderChanged,
    Leadership,
    Learned,
    Leased,
    ReportApplied,
    Restore,
    Skipped,
    SlotOutcomes,
    SteppedDown,
)
from fencelock.actors.paxos.forwarding import Forwarding
from fencelock.actors.paxos.handover_event import Drain, Drained
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.message import Decline, Propose
from fencelock.actors.paxos.ordering import Ordering
from fencelock.actors.paxos.proposal_batch import ProposalBatch
from fencelock.actors.paxos.reading import ReadHears, Reads
from fencelock.actors.paxos.replica_event import ReplicaHears
from fencelock.actors.paxos.snapshots import JOURNAL_BYTES
from fencelock.actors.paxos.state import PastHears, State
from fencelock.actors.paxos.timer import BatchDelay, GapCheck, Tick
from fencelock.actors.role import Host, Role, Summary

GAP_MS = 50
"""Time for which a decided slot may be missing before it is fetched (ms): its message may have
been overtaken by later ones."""

REPORT_SLOTS = 8
"""Applied slots after which the acceptor is notified: until then it keeps their votes, and a
promise may report them. A heartbeat that proves something has them reported, too."""

_slot_outcomes = maker(SlotOutcomes)


class Replica(Role[ReplicaHears]):
    """One replica. Source: PMMC, section 2.1.

    Differences from PMMC: only the master's replica gives slots (`Ordering`). Outcomes are sent
    to the proposer on another node, and those of all slots to the listener of every node. A
    snapshot is made now and then, so that journals can drop what was applied (`State`).

    Args:
        node: the id of its node.
        config: the membership.
        machine: the state machine that commands are applied to.
        recovered: the contents of this node's journal; they are applied again.
        listener: a role of this node that receives all outcomes (`SlotOutcomes`), or None.
        opening: commands with which every leadership begins.
        log_max: decided slots that are kept for others, 1 or more.
        journal_bytes: see `Snapshots`; 0 on a node that keeps no journal.
        first_number: see `Reads`.
        digest_slots: number of slots between comparisons of states; the same everywhere.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        config: Config,
        machine: Machine,
        recovered: Recovered,
        listener: Address | None = None,
        opening: tuple[bytes, ...] = (),
        log_max: int = LOG_MAX,
        journal_bytes: int = JOURNAL_BYTES,
        first_number: int = 0,
        digest_slots: int = AGREED_SLOTS,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.config = config
        self.machine = machine
        self.listener = listener
        self.past = State.of(
            node, config.view.members, machine, listener, log_max, journal_bytes, digest_slots
        )
        self.ledger = self.past.ledger
        self.ordering = Ordering(opening)
        self.reception = Forwarding(node, listener)
        self.reads = Reads(node, machine, config.view.replicas, first_number)
        self.acceptor = acceptor_of(node)
        self.leader = leader_of(node)
        self.reported = 1
        """All slots before it were reported as applied to the acceptor."""
        self.reporting = False
        """Whether the leader wants each applied slot reported: it stands, or must catch up."""
        self.committed = 1
        """All slots before it are known here to be decided."""
        self.checking = 0
        """The slot of the `GapCheck` timer that runs, 0 if none does."""
        self.proposer: Address | None = None
        """The last proposer that was found to be a member's role."""
        self._recovered = recovered

    def begin(self, now: Instant) -> Effects:
        """Apply what the journal knows to be decided. Its outcomes were sent in an earlier life."""
        compared = self.past.recover(self._recovered)
        self._recovered = Recovered()
        self.committed = self.ledger.next
        self.ordering.clock.set(self.ledger.time_ms, now)
        told = [] if self.listener is None else [Send(self.listener, LeaderChanged(master=""))]
        if self.ledger.next == 1:
            return told
        return [*told, *self._report(), *self._progress(now), *compared]

    def handle(self, sender: Address, event: ReplicaHears, now: Instant) -> Effects:
        """Order, apply, answer."""
        match event:
            case ProposalBatch():
                return self._on_bundle(sender, event, now)
            case Decided():
                self.ledger.take(event.slot, event.batch)
                return self._apply(now)
            case Learned():
                return self._on_learned(event, now)
            case Propose():
                return self._on_propose(sender, event)
            case Leased():
                return self._on_leased(event, now)
            case Leadership():
                return self._on_reign(event, now)
            case SteppedDown():
                return self._on_deposed(now)
            case LeaderChanged():
                return self._follow(event.master, now)
            case Drain():
                return self._on_yield(event)
            case Restore():
                return self._on_restore(event, now)
            case Gather() | Tick() | BatchDelay():
                return self._on_order(event, now)
            case _:
                return self._on_other(sender, event, now)

    def summary(self) -> Summary:
        """Return the next slot to apply, and how much is decided."""
        return (
            ("next", self.ledger.next),
            ("committed", self.committed),
        )

    def _on_other(
        self, sender: Address, event: ReadHears | PastHears | GapCheck | ReportApplied, now: Instant
    ) -> Effects:
        if isinstance(event, GapCheck):
            return self._on_gap_check(event)
        if isinstance(event, ReportApplied):
            self.reporting = True
            return [Send(self.leader, Applied(slot=self.ledger.next))]
        if isinstance(event, PastHears):
            return self.past.handle(sender, event)
        effects = self.reads.handle(sender, event, now)
        if isinstance(event, Fresh) and self.reported < self.ledger.next:
            return [*effects, *self._report()]
        return effects

    def _on_propose(self, sender: Address, propose: Propose) -> Effects:
        if sender != self.proposer:
            if node_of(sender) not in self.config.view.members:
                return (Observe("paxos.stranger_proposes"),)  # Clients must use the proxy.
            self.proposer = sender
        refusal = self.reception.refusal(propose, self.machine)
        if refusal:
            return refusal
        if self.ordering.reign is None:
            return self.reception.pass_on(propose)
        if self.ordering.yielding:
            return self.reception.hold(propose)
        if self.ordering.proposals.is_full():
            return (self.reception.decline(propose, Decline.OVERLOADED),)
        self.ordering.proposals.add(propose)
        if self.ordering.gathering:
            return ()  # It is given a slot with all others of this turn.
        if self.ordering.free == self.ledger.next and self.machine.is_patient(propose.command):
            return self.ordering.linger()
        return self.ordering.gather(self.address)

    def _on_bundle(self, sender: Address, proposal_batch: ProposalBatch, now: Instant) -> Effects:
        """Give slots to the commands that this node's proxy received in this turn."""
        ordering = self.ordering
        if (
            ordering.reign is None
            or ordering.yielding
            or not ordering.proposals.add_all(proposal_batch)
        ):
            return [done for one in proposal_batch.each() for done in self._on_propose(sender, one)]
        if ordering.gathering:
            return ()  # It is given a slot with what other nodes passed on in this turn.
        if ordering.free == self.ledger.next and all(
            map(self.machine.is_patient, proposal_batch.commands)
        ):
            return ordering.linger()
        return ordering.order(self.ledger.next, now)

    def _on_order(self, event: Gather | Tick | BatchDelay, now: Instant) -> Effects:
        """Give slots to waiting commands, or to a deadline that expires."""
        if isinstance(event, BatchDelay):
            self.ordering.lingering = False
        if not isinstance(event, Tick):
            return self.ordering.order(self.ledger.next, now)
        return self.ordering.tick(event, self.machine.due_ms(), self.ledger.next, now)

    def _on_reign(self, reign: Leadership, now: Instant) -> Effects:
        if reign.first < self.ledger.next:
            return (Observe("paxos.reign_overtaken"),)  # By a higher ballot, which will end it.
        self.reporting = False
        opening = self.ordering.begin(reign, self.ledger.time_ms, now)
        followed = self._follow(self.node, now)
        for propose in self.reception.take_waiting():
            self.ordering.proposals.add(propose)
        return [opening, *followed, *self.ordering.order(self.ledger.next, now)]

    def _on_deposed(self, now: Instant) -> Effects:
        """Ask clients to propose again: what has a slot may still be decided, or not."""
        self.reporting = False
        asked = self.ordering.end()
        followed = self._follow("", now)
        declined = [self.reception.decline(propose, Decline.NOT_MASTER) for propose in asked]
        return [*followed, *declined]

    def _on_leased(self, leased: Leased, now: Instant) -> Effects:
        reign = self.ordering.reign
        if reign is None or reign.ballot != leased.ballot or self.ordering.yielding:
            return ()  # It belongs to a leadership that is over, or about to end.
        return self.reads.leased(leased, now)

    def _on_yield(self, word: Drain) -> Effects:
        """Take no more commands, stop relying on the lease, and report once all is applied."""
        reign = self.ordering.reign
        if reign is None or reign.ballot != word.ballot:
            return ()
        self.ordering.yielding = True
        self.reads.distrust()
        return self._tell_yielded()

    def _tell_yielded(self) -> list[Effect]:
        reign = self.ordering.reign
        yielding = self.ordering.yielding and self.ordering.is_drained(self.ledger.next)
        if reign is None or not yielding:
            return []
        return [Send(self.leader, Drained(ballot=reign.ballot))]

    def _follow(self, master: str, now: Instant) -> list[Effect]:
        """Note which node leads, and send it the commands that waited for that."""
        told: list[Effect] = []
        if self.listener is not None and master != self.reception.master:
            told.append(Send(self.listener, LeaderChanged(master=master)))
        return [*told, *self.reception.follow(master), *self.reads.follow(master, now)]

    def _on_learned(self, learned: Learned, now: Instant) -> Effects:
        far = 0
        for slot, batch in learned.slots:
            far += not self.ledger.take(slot, batch)
        self.committed = max(self.committed, learned.committed)
        effects = self._apply(now)
        if far:
            effects.append(Observe("paxos.far_behind", far))
        if self.committed > self.ledger.next:
            effects += self._watch_gap()
        return effects

    def _apply(self, now: Instant) -> list[Effect]:
        """Apply what is decided without a gap, answer, and go on ordering."""
        past, ledger, ordering = self.past, self.ledger, self.ordering
        first = ledger.next
        effects: list[Effect] = []
        while ledger.next in ledger.ready:
            slot = ledger.next
            batch, outcomes = past.apply()
            if ordering.proposals.in_flight:
                asked = ordering.proposals.settle(slot, batch.commands)
                effects += self.reception.answers(slot, asked, outcomes)
            happened = tuple(chain.from_iterable(outcomes))
            if self.listener is not None and happened:
                word = _slot_outcomes(slot=slot, time_ms=ledger.time_ms, outcomes=happened)
                effects.append(Send(self.listener, word))
        if ledger.next == first:
            return effects
        if self.reporting or ledger.next - self.reported >= REPORT_SLOTS:
            effects += self._report()
        reign = ordering.reign
        settled = reign is not None and ledger.next > reign.first
        effects += self.reads.progress(ledger.next, settled=settled, now=now)
        if past.digests.due or past.snapshots.grown >= past.snapshots.due:
            effects += past.trim(leading=reign is not None)
        if reign is None:
            clock = ordering.clock
            clock.base_ms, clock.base_at = ledger.time_ms, now
            return effects
        if ordering.proposals.queue:
            effects += ordering.order(ledger.next, now)
        effects += ordering.arm(self.machine.due_ms(), now)
        return [*effects, *self._tell_yielded()] if ordering.yielding else effects

    def _report(self) -> list[Effect]:
        """Tell the acceptor which slots are applied; and the leader, if it wants to know."""
        self.reported = self.ledger.next
        applied = Applied(slot=self.reported)
        to_leader = [Send(self.leader, applied)] if self.reporting else []
        return [Send(self.acceptor, applied), *to_leader]

    def _progress(self, now: Instant) -> list[Effect]:
        """Answer the reads that waited for what is applied now."""
        reign, applied = self.ordering.reign, self.ledger.next
        settled = reign is not None and applied > reign.first
        return self.reads.progress(applied, settled=settled, now=now)

    def _watch_gap(self) -> list[Effect]:
        if self.committed <= self.ledger.next or self.checking or self.ordering.reign is not None:
            return []
        self.checking = self.ledger.next
        return [Wake(GAP_MS, GapCheck(slot=self.checking))]

    def _on_gap_check(self, check: GapCheck) -> Effects:
        self.checking = 0
        again = self._watch_gap()
        if check.slot != self.ledger.next or not again:
            return again
        lacking = Lacking(first=check.slot, target=self.committed, source=self.reception.master)
        return [Send(catchup_of(self.node), lacking), *again]

    def _on_restore(self, restore: Restore, now: Instant) -> Effects:
        """Replace the state with another replica's. The outcomes it covers are never sent."""
        kept = self.past.restore(restore) if self.ordering.reign is None else None
        if kept is None:
            return (Observe("paxos.snapshot_unusable"),)
        self.ordering.clock.set(self.ledger.time_ms, now)
        skipped = Skipped(slot=restore.slot)
        return [
            *self._report(),
            *self._progress(now),
            *kept,
            *([] if self.listener is None else [Send(self.listener, skipped)]),
            Observe("paxos.restored"),
            *self._apply(now),
        ]
