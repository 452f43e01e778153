"""The replica: puts commands into the log or forwards them, applies slots, and sends outcomes.

A follower that misses a slot for `GAP_MS` fetches it: `Replica._watch_gap` sets the timer, and
`Replica._on_gap_check` asks `snapshots.CatchUp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Unpack

from msgspec.structs import replace

from fencelock.actors.bootstrap import bootstrap_of
from fencelock.actors.bootstrap_message import VotersChanged
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Message, is_address, node_of
from fencelock.actors.paxos.config import (
    JOIN_SLOTS,
    LOG_MAX,
    WINDOW,
    MemberArguments,
    MemberRole,
    members_of,
    replica_of,
)
from fencelock.actors.paxos.divergence import AGREED_SLOTS
from fencelock.actors.paxos.event import (
    Applied,
    BatchDelay,
    Decided,
    Drain,
    Drained,
    Fresh,
    GapCheck,
    Gather,
    Lacking,
    LeaderChanged,
    Leadership,
    Learned,
    LeaseHeld,
    LogTimeDue,
    ProposalBatch,
    ProposeChange,
    ReportApplied,
    ReportState,
    Restore,
    Skipped,
    SlotOutcomes,
    SteppedDown,
    ViewChanged,
)
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.log import Log, LogEvent
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.ordering import Ordering, Run
from fencelock.actors.paxos.reads import NOTHING_PROVEN, ReadEvent, Reads
from fencelock.actors.paxos.snapshots import JOURNAL_BYTES
from fencelock.actors.paxos.wire import COMMAND_BYTES_MAX, Decline, Declined, Located, Propose
from fencelock.actors.role import Facts, Host, Summary
from fencelock.actors.role_message import Level, notice

GAP_MS = 50
"""Time for which a decided slot may be missing before it is fetched (ms): its message may have
been overtaken by later ones."""

REPORT_SLOTS = 8
"""Applied slots after which the acceptor is notified: until then it keeps their votes, and a
promise may report them. They are also reported after
each heartbeat that proves the replica fresh."""


ReplicaEvent = (
    ReadEvent
    | LogEvent
    | ProposalBatch
    | Propose
    | Gather
    | Decided
    | Learned
    | Leadership
    | SteppedDown
    | LeaderChanged
    | LeaseHeld
    | Drain
    | Restore
    | ReportApplied
    | LogTimeDue
    | BatchDelay
    | GapCheck
    | ProposeChange
    | ReportState
)
"""Events that a replica handles."""


class Replica(MemberRole[ReplicaEvent]):
    """One replica. Source: PMMC, section 2.1.

    Differences from PMMC: only the leader's replica gives slots (`Ordering`). Outcomes are sent to
    the proposer on another node, and the outcomes of all slots to the listener of every node. A
    snapshot is made now and then, so that journals can drop applied slots (`Log`).

    Args:
        machine: the state machine that commands are applied to.
        recovered: the contents of this node's journal; they are applied again.
        listener: the role of this node that receives all outcomes (`SlotOutcomes`).
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
        machine: Machine,
        recovered: Recovered,
        listener: Address,
        opening: tuple[bytes, ...] = (),
        log_max: int = LOG_MAX,
        journal_bytes: int = JOURNAL_BYTES,
        first_number: int = 0,
        digest_slots: int = AGREED_SLOTS,
        **member: Unpack[MemberArguments],
    ) -> None:
        super().__init__(address, host, **member)
        self.machine = machine
        self.listener = listener
        self.log = Log(
            self.node,
            self.bounds,
            machine,
            listener,
            log_max=log_max,
            journal_bytes=journal_bytes,
            digest_slots=digest_slots,
        )
        self.decided = self.log.decided
        self.ordering = Ordering(opening)
        self.leading_node = ""
        self.client: Address | None = None
        """The last valid client for which something was proposed."""
        self.reads = Reads(self.node, machine, self.bounds, first_number)
        self.reported = 1
        """All slots before it were reported as applied to the acceptor."""
        self.reporting = False
        """Whether to report each applied slot to the leader: it stands for election, or must catch
        up."""
        self.committed = 1
        """All slots before it are known here to be decided."""
        self.change_slot = 0
        """While this node leads, the slot of the last change it proposed, or its opening slot."""
        self.checking = 0
        """The slot of the `GapCheck` timer that runs, or 0 if none does."""
        self.proposer: Address | None = None
        """The last proposer that was found to be a member's role."""
        self._recovered = recovered

    def begin(self, now: Instant) -> Effects:
        """Apply the slots that the journal knows to be decided; their outcomes were sent before."""
        compared = [*self._skip_notices(), *self.log.recover(self._recovered)]
        self._recovered = Recovered()
        self.committed = self.decided.next
        self.ordering.clock.set(self.decided.time_ms, now)
        self.config.applied, self.config.time_ms = self.decided.next, self.decided.time_ms
        notified = Send(self.listener, LeaderChanged(leader=""))
        if self.decided.next == 1:
            return [notified]
        self.reads.applied_at = now
        return [notified, *self._report(), *compared, *self._turn(now)]

    def handle(  # noqa: PLR0912  (a case for each event)
        self, sender: Address, event: ReplicaEvent, now: Instant
    ) -> Effects:
        match event:
            case ProposalBatch():
                return self._on_proposal_batch(sender, event, now)
            case Decided():
                self.decided.take(event.slot, event.batch)
                return self._apply(now)
            case Learned():
                return self._on_learned(event, now)
            case Propose():
                return self._on_propose(sender, event)
            case LeaseHeld():
                return self._on_leased(event, now)
            case Leadership():
                return self._on_leadership(event, now)
            case SteppedDown():
                return self._on_stepped_down(now)
            case LeaderChanged():
                return self._follow(event.leader, now)
            case Drain():
                return self._on_drain(event)
            case Restore():
                return self._on_restore(event, now)
            case Gather():
                return self.ordering.order(self.decided.next, now)
            case BatchDelay():
                self.ordering.delaying = False
                return self.ordering.order(self.decided.next, now)
            case LogTimeDue():
                return self.ordering.tick(event, self.machine.due_ms(), self.decided.next, now)
            case GapCheck():
                return self._on_gap_check(event)
            case ProposeChange():
                return self._on_propose_change(event, now)
            case ReportApplied():
                self.reporting = True
                return ()
            case ReportState():
                return [self._report_state(event, now)]
            case _:
                pass  # It is an event of the log or of the reads.
        if isinstance(event, LogEvent):
            return self.log.handle(sender, event, now)
        effects = self.reads.handle(sender, event, now)
        if isinstance(event, Fresh) and self.reported < self.decided.next:
            return [*effects, *self._report()]
        return effects

    def _skip_notices(self) -> list[Effect]:
        """Return a line of the log for each slot that an operator skips."""
        lines: list[Effect] = []
        for slot in sorted(self._recovered.skips):
            text = f"an operator skips slot {slot}: its commands are refused if they damage a table"
            fields = (("event", "slot_skipped"), ("slot", str(slot)))
            lines.append(notice(self.node, Level.WARNING, text, fields))
        return lines

    def summary(self) -> Summary:
        return (
            ("next", self.decided.next),
            ("committed", self.committed),
        )

    def facts(self, now: Instant) -> Facts:
        """Return how far it has applied the log, from whom, and how old its state may be."""
        yield from self.summary()
        yield "follows", self.leading_node or "nobody"
        age_ms = self.reads.age_ms(now)
        yield "age of state ms", "not known" if age_ms == NOTHING_PROVEN else age_ms
        yield "log time ms", self.decided.time_ms
        yield "members", ", ".join(self.config.newest.members)
        yield "view", self.config.newest.number
        yield "log version", self.config.log_version

    def _report_state(self, wanted: ReportState, now: Instant) -> Send:
        """Reply to a node that asked which node leads, and which slots are decided."""
        located = Located(
            leader=self.leading_node,
            applied=self.decided.next,
            view=self.config.newest.number,
            number=wanted.number,
            age_ms=self.reads.age_ms(now),
        )
        return Send(wanted.asker, located)

    def _on_propose(self, sender: Address, propose: Propose) -> Effects:
        if sender != self.proposer:
            if node_of(sender) not in self.config.nodes:
                return (Observe("paxos.stranger_proposes"),)  # Clients must use the proxy.
            self.proposer = sender
        refusal = self._refusal(propose)
        if refusal:
            return refusal
        if self.ordering.leadership is None:
            return self._forward(propose)
        if self.ordering.draining:
            return (self._decline(propose, Decline.NOT_LEADER),)
        if not self.ordering.proposals.add(propose.client, (propose.number,), (propose.command,)):
            return (self._decline(propose, Decline.OVERLOADED),)
        if self.ordering.gathering:
            return ()  # It is given a slot with all others of this turn.
        if self._is_patient(propose.command):
            return self.ordering.delay()
        return self.ordering.gather(self.address)

    def _refusal(self, propose: Propose) -> Effects:
        """Return the refusal of a command that must not enter the log; empty for any other.

        That includes a command above the log version of a member: the states of the members would
        differ.
        """
        client = propose.client
        if client != self.client:
            if not is_address(client):
                return (Observe("paxos.impossible_client"),)
            self.client = client
        if len(propose.command) > COMMAND_BYTES_MAX or not self.machine.admits(propose.command):
            return (self._decline(propose, Decline.INVALID),)
        config, version_of = self.config, self.machine.version_of
        if config.lower_versions and version_of(propose.command) > config.log_version:
            return (self._decline(propose, Decline.INVALID), Observe("paxos.too_new_refused"))
        return ()

    def _forward(self, propose: Propose) -> Effects:
        """Forward a command to the leader, once, so that two replicas cannot send it in circles.

        While no leader is known it is declined. Its proxy keeps it, and proposes it again when it
        learns which node leads.
        """
        if not self.leading_node or propose.forwarded:
            return (self._decline(propose, Decline.NOT_LEADER),)
        return (Send(replica_of(self.leading_node), replace(propose, forwarded=True)),)

    def _decline(self, propose: Propose, why: Decline) -> Send:
        """Return the refusal of a command, naming the leader to ask."""
        declined = Declined(number=propose.number, why=why, leader=self.leading_node)
        return Send(propose.client, declined)

    def _on_proposal_batch(self, sender: Address, batch: ProposalBatch, now: Instant) -> Effects:
        """Give slots to the commands that this node's proxy received in this turn."""
        ordering = self.ordering
        if (
            ordering.leadership is None
            or ordering.draining
            or self.config.lower_versions
            or not ordering.proposals.add(batch.client, batch.numbers, batch.commands)
        ):
            return [done for one in batch.each() for done in self._on_propose(sender, one)]
        if ordering.gathering:
            return ()  # It is given a slot with what other nodes passed on in this turn.
        if all(map(self._is_patient, batch.commands)):
            return ordering.delay()
        return ordering.order(self.decided.next, now)

    def _is_patient(self, command: bytes) -> bool:
        return self.machine.is_patient(command, undecided=self.ordering.free > self.decided.next)

    def _on_leadership(self, leadership: Leadership, now: Instant) -> Effects:
        if leadership.first < self.decided.next:
            return (
                Observe("paxos.leadership_overtaken"),
            )  # By a higher ballot, which will end it.
        self.reporting = False
        opening = self.ordering.begin(leadership, self.decided.time_ms, now)
        self.reads.opening = leadership.first
        followed = self._follow(self.node, now)
        self.change_slot = leadership.first
        return [opening, *followed, *self._fill(now)]

    def _on_propose_change(self, event: ProposeChange, now: Instant) -> Effects:
        """Propose a change of the members, if none is in flight.

        The opening slot must be applied (one-change-at-a-time): before that, earlier leaders may
        have decided changes that are not known here.
        """
        applied, ordering = self.decided.next, self.ordering
        follows = event.membership.is_next_of(self.config.membership)
        joiner = event.joiner_applied
        leads = ordering.leadership is not None and not ordering.draining
        late = self.config.pending or applied <= self.change_slot
        late = late or (joiner is not None and applied - joiner > JOIN_SLOTS)
        if not leads or late or not follows or ordering.free >= applied + WINDOW:
            return (Observe("paxos.change_refused"),)
        self.change_slot = ordering.free
        return (ordering.propose(event.membership, now), Observe("paxos.change_proposed"))

    def _turn(self, now: Instant, *, overtaken: bool = False) -> list[Effect]:
        """Notify the other roles if the views have changed."""
        if not self.log.views_changed:
            return []
        self.log.views_changed = False
        roles = (self.acceptor, self.leader, self.monitor, members_of(self.node))
        return [
            *(Send(role, ViewChanged(overtaken=overtaken)) for role in roles),
            Send(bootstrap_of(self.node), VotersChanged(voters=self.config.journals)),
            *self._fill(now),
        ]

    def _fill(self, now: Instant) -> list[Effect]:
        """Give slots to waiting commands, and then to nothing until the newest view is in force."""
        if self.ordering.leadership is None or self.ordering.draining:
            return []
        return self.ordering.fill(self.config.pending, self.decided.next, now)

    def _on_stepped_down(self, now: Instant) -> Effects:
        """Drop all proposals: proxies repeat them when they learn which node leads."""
        self.reporting = False
        self.ordering.end()
        return self._follow("", now)

    def _on_leased(self, leased: LeaseHeld, now: Instant) -> Effects:
        leadership = self.ordering.leadership
        if leadership is None or leadership.ballot != leased.ballot or self.ordering.draining:
            return ()  # It belongs to a leadership that is over, or about to end.
        return self.reads.leased(leased, now)

    def _on_drain(self, message: Drain) -> Effects:
        """Take no more commands, stop relying on the lease, and report once all is applied."""
        leadership = self.ordering.leadership
        if leadership is None or leadership.ballot != message.ballot:
            return ()
        self.ordering.draining = True
        self.reads.lease = None
        return self._report_drained()

    def _report_drained(self) -> list[Effect]:
        leadership = self.ordering.leadership
        draining = self.ordering.draining and self.ordering.is_drained(self.decided.next)
        if leadership is None or not draining:
            return []
        return [Send(self.leader, Drained(ballot=leadership.ballot))]

    def _follow(self, leader: str, now: Instant) -> list[Effect]:
        notified: list[Effect] = []
        if leader != self.leading_node:
            self.leading_node = leader
            notified.append(Send(self.listener, LeaderChanged(leader=leader)))
        return [*notified, *self.reads.follow(leader, now)]

    def _on_learned(self, learned: Learned, now: Instant) -> Effects:
        far = 0
        for slot, batch in learned.slots:
            far += not self.decided.take(slot, batch)
        self.committed = max(self.committed, learned.committed)
        effects = self._apply(now, overtaken=self.ordering.leadership is not None)
        if far:
            effects.append(Observe("paxos.far_behind", far))
        if self.committed > self.decided.next:
            effects += self._watch_gap()
        return effects

    def _apply(self, now: Instant, *, overtaken: bool = False) -> list[Effect]:
        """Apply the decided slots up to the first gap, send outcomes, and order more proposals.

        They are ``overtaken`` if this node leads, and learned of them from others.
        """
        log, decided, ordering = self.log, self.decided, self.ordering
        first = decided.next
        effects: list[Effect] = []
        while decided.next in decided.ready:
            slot = decided.next
            batch, outcomes = log.apply()
            if ordering.proposals.in_flight:
                asked = ordering.proposals.settle(slot, batch.commands)
                if len(asked) != 1 or asked[0].client != self.listener:
                    effects += self._answer(asked, outcomes)
            happened = tuple(chain.from_iterable(outcomes))
            if happened:
                message = SlotOutcomes(slot=slot, time_ms=decided.time_ms, outcomes=happened)
                effects.append(Send(self.listener, message))
        if decided.next == first:
            return [*effects, *self._turn(now, overtaken=overtaken)]
        faults = self.machine.faults
        if faults:
            effects += faults
            faults.clear()
        self.config.applied, self.config.time_ms = decided.next, decided.time_ms
        if (
            self.reporting or log.views_changed or decided.next - self.reported >= REPORT_SLOTS
        ):  # With a view the acceptor loses the seat from which it votes on what was decided.
            effects += self._report()
        if log.views_changed:
            effects += self._turn(now, overtaken=overtaken)
        leadership = ordering.leadership
        self.reads.applied_at = now
        effects += self.reads.progress(now) if self.reads.waiting else ()
        if log.digests.due or log.snapshots.grown >= log.snapshots.due:
            effects += log.trim(leading=leadership is not None)
        if leadership is None:
            clock = ordering.clock
            clock.base_ms, clock.base_at = decided.time_ms, now
            return effects
        if ordering.proposals.queue and not ordering.still_delays(self.machine, decided.next):
            effects += ordering.order(decided.next, now)
        due = self.machine.due_ms(ordering.tick_ms)
        if due is not None:
            effects += ordering.arm(due, now)
        return [*effects, *self._report_drained()] if ordering.draining else effects

    def _answer(self, asked: Sequence[Run], outcomes: Sequence[Sequence[Message]]) -> list[Effect]:
        """Send outcomes to the clients in ``asked`` on other nodes. The listener gets all."""
        effects: list[Effect] = []
        after = 0
        for run in asked:
            client, first = run.client, after
            after += len(run.commands)
            if node_of(client) != self.node:
                of_run = chain.from_iterable(outcomes[first:after])
                effects += [Send(client, outcome) for outcome in of_run]
        return effects

    def _report(self) -> list[Effect]:
        """Notify the acceptor, and the leader if it asked, which slots are applied."""
        self.reported = self.decided.next
        applied = Applied(slot=self.reported)
        to_leader = [Send(self.leader, applied)] if self.reporting else []
        return [Send(self.acceptor, applied), *to_leader]

    def _watch_gap(self) -> list[Effect]:
        if (
            self.committed <= self.decided.next
            or self.checking
            or self.ordering.leadership is not None
        ):
            return []
        self.checking = self.decided.next
        return [Wake(GAP_MS, GapCheck(slot=self.checking))]

    def _on_gap_check(self, check: GapCheck) -> Effects:
        self.checking = 0
        again = self._watch_gap()
        if check.slot != self.decided.next or not again:
            return again
        lacking = Lacking(first=check.slot, target=self.committed, leader=self.leading_node)
        return [Send(self.catchup, lacking), *again]

    def _on_restore(self, restore: Restore, now: Instant) -> Effects:
        """Replace the state with another replica's. The outcomes it covers are never sent."""
        kept = self.log.restore(restore.base) if self.ordering.leadership is None else None
        if kept is None:
            return (Observe("paxos.snapshot_unusable"),)
        self.config.applied, self.config.time_ms = self.decided.next, self.decided.time_ms
        self.ordering.clock.set(self.decided.time_ms, now)
        self.reads.applied_at = now
        skipped = Skipped(slot=restore.base.slot)
        return [
            *self._report(),
            *self.reads.progress(now),
            *kept,
            Send(self.listener, skipped),
            Observe("paxos.restored"),
            *self._apply(now),
        ]
