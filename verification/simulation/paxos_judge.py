"""The judges of the log, which see everything: all disks, all messages, and true time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction, MembersChanged
from fencelock.actors.api.name import client_of
from fencelock.actors.api.session_message import CloseReason, Ended
from fencelock.actors.bootstrap import bootstrap_of
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, Message, node_of
from fencelock.actors.paxos.config import acceptor_of, change_in, replica_of
from fencelock.actors.paxos.event import (
    Applied,
    Decided,
    Isolate,
    Learned,
    LeaseHeld,
    MachineRead,
    NodesDescribed,
    ProposalBatch,
    ReadMachine,
    SlotOutcomes,
    SteppedDown,
)
from fencelock.actors.paxos.invariants import INVARIANTS as LOG_INVARIANTS
from fencelock.actors.paxos.journal import recover
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.wire import NO_BALLOT, Batch, Promise, Propose
from fencelock.actors.proxy.event import Relay, Relayed
from fencelock.verification.simulation.faults import PPM
from fencelock.verification.simulation.judge import ClientView
from fencelock.verification.simulation.node import SimulatedNode
from fencelock.verification.simulation.paxos_judge_votes import (
    DROPPED,
    AcceptorJudge,
    Choices,
    Followed,
    TargetJudge,
)
from fencelock.verification.simulation.paxos_machine import (
    OPENING,
    Appended,
    ListOutcome,
    LockRegister,
    OrderRead,
    Register,
    SessionDropped,
    request_in,
)
from fencelock.verification.simulation.paxos_world import Letter
from fencelock.verification.simulation.plan import LogPlan
from fencelock.verification.simulation.replay import RULES, TableReplay
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, ViolationReport, sent


class SessionJudge(Judge):
    """Judges session-outlives-trust: no session expires while its client may rely on it."""

    def __init__(self, violation_report: Callable[[str, str], None], view: ClientView) -> None:
        self.violation_report = violation_report
        self.view = view

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        for report in sent(effects, SlotOutcomes):
            for outcome in report.outcomes:
                if type(outcome) is Ended and outcome.reason is CloseReason.EXPIRED:
                    self._judge(delivered.node, outcome.session)

    def _judge(self, node: str, session: str) -> None:
        client = client_of(session)
        assigned, until = self.view.relied_on(client) or ("", 0)
        left = until - self.view.now(client)
        if left > ROUNDING_NS and assigned == session:
            self.violation_report(
                "session-outlives-trust", f"{node} ends {session}, which lives for {left} ns"
            )


ROUNDING_NS = 2 * NS_PER_MS
"""Tolerance for log time, which counts whole milliseconds: a stamp and an end are rounded."""


MAX_TIME = 1 << 62
"""A time after the end of every run, and more than any list has entries."""


SlotWatch = Callable[[int, Batch, Sequence[Message]], None]


class StateJudge:
    """Judges states, outcomes and reads: it applies the chosen batches to its own machine.

    Args:
        drift_ppm: the largest error of a clock's rate (millionths).
        ttl_ms: the lifetime of a session without a message from its client.
        twin: a reference machine; every replica must have its state after the same slots.

    """

    def __init__(
        self,
        choices: Choices,
        violation_report: ViolationReport,
        drift_ppm: int,
        ttl_ms: int,
        twin: Register,
    ) -> None:
        self.choices = choices
        self.violation_report = violation_report
        self.drift_ppm = drift_ppm
        self.belief_ns = ttl_ms * NS_PER_MS * PPM // (PPM + drift_ppm)
        self.twin = twin
        self.origin = NO_BALLOT
        self.watch: SlotWatch = lambda slot, batch, outcomes: None
        """Receives each slot with its batch and its outcomes, in the order of the log."""
        self.digests = [b"", self.twin.digest()]
        """Digests of the state after all slots before each."""
        self.outcomes: list[tuple[Message, ...]] = [()]
        """The outcomes of each slot."""
        self.chains = [self.twin.chain]
        """Hashes of the list, by its length."""
        self.machines: dict[str, Register] = {}
        """The machine of each member's present life."""
        self.applied: dict[str, int] = {}
        self.best: dict[str, int] = {}
        """The most that each member applied with its present disk, in any life."""
        self.wrong: frozenset[str] = frozenset()
        """Members whose machine has a planted bug: their states and reports are not judged."""
        self.unlike: set[str] = set()
        """Members whose state differed from the correct one."""
        self.answers: dict[tuple[str, int], Appended] = {}
        self.entries: dict[int, tuple[str, int]] = {}
        """The request that made each entry."""
        self.asked_at: dict[tuple[str, int], int] = {}
        """The true time at which a request was first sent."""
        self.beliefs: dict[str, list[tuple[int, int]]] = {}
        """For each answer that a client received, the entry, and the true time until which its
        client may believe in its session because of it; both rising."""
        self.known: list[tuple[int, int]] = [(0, 0)]
        """Times of acknowledgements and reads, and the latest entry known then, both rising."""
        self.reads: dict[tuple[Address, int], tuple[int, int | None]] = {}
        """For each read, the least entry it must see if linearizable, and else its age (ms)."""

    def begins(self, node: str, machine: Register) -> None:
        self.machines[node] = machine
        self.applied[node] = 1

    def recovers(self, node: str, slot: int) -> None:
        """Judge the state with which a life begins; later slots are judged when applied."""
        if self.applied[node] == 1:
            self.applies(node, slot)

    def applies(self, node: str, slot: int) -> None:
        if not self._follow(node, slot):
            return
        if slot < self.applied[node]:
            self.violation_report(
                "slots-in-order", f"{node} goes back from {self.applied[node]} to {slot}"
            )
        self.applied[node] = slot
        self.best[node] = max(slot, self.best.get(node, 0))
        if self.machines[node].digest() == self.digests[slot]:
            return
        self.unlike.add(node)
        if node not in self.wrong:
            self.violation_report(
                "slots-in-order", f"{node} is unlike the others after all slots before {slot}"
            )

    def _follow(self, node: str, slot: int) -> bool:
        """Apply all slots before ``slot`` to the twin; return whether that was possible."""
        while len(self.digests) <= slot:
            batch = self.choices.chosen.get(len(self.digests) - 1)
            if batch is None:
                self.violation_report(
                    "slots-in-order", f"{node} applied all before {slot}, not all are chosen"
                )
                return False
            outcomes: list[Message] = []
            time_ms = 0 if batch.origin < self.origin else batch.time_ms  # A leftover has no time.
            self.origin = max(self.origin, batch.origin)
            commands = () if change_in(batch) else batch.commands
            for command in commands:
                outcomes += self._append(time_ms, command)
            if not commands:
                outcomes += self.twin.advance(time_ms)
            self.watch(len(self.outcomes), batch, outcomes)
            self.outcomes.append(tuple(outcomes))
            self.digests.append(self.twin.digest())
        return True

    def _append(self, time_ms: int, command: bytes) -> Sequence[Message]:
        outcomes = self.twin.do(time_ms, command)
        if self.twin.position == len(self.chains):
            self.chains.append(self.twin.chain)
        return outcomes

    def proposes(self, propose: Propose, time: int) -> None:
        self.choices.commands.add(propose.command)
        request = request_in(propose.command)
        if request is not None:
            self.asked_at.setdefault((request.client, request.number), time)

    def has_applied(self, node: str, applied: SlotOutcomes, time: int) -> None:
        self.tells(node, applied.outcomes, time)
        right = self._follow(node, applied.slot + 1) and self.outcomes[applied.slot]
        if right is not False and right != applied.outcomes and node not in self.wrong:
            self.violation_report("slots-in-order", f"{node} says {applied}, not {right}")

    def tells(self, node: str, outcomes: Iterable[Message], time: int) -> None:
        if node in self.wrong:
            return
        for outcome in outcomes:
            if type(outcome) is Appended:
                self._judge_answer(node, outcome)
            elif type(outcome) is SessionDropped:
                self._judge_end(node, outcome, time)

    def _judge_answer(self, node: str, appended: Appended) -> None:
        key = (appended.client, appended.number)
        if key not in self.asked_at:
            self.violation_report("chosen-was-proposed", f"{node} says {appended}, nobody asked")
        before = self.answers.setdefault(key, appended)
        if before != appended:
            self.violation_report("one-outcome", f"{node} says {appended}, said was {before}")
        maker = self.entries.setdefault(appended.position, key)
        if maker != key:
            self.violation_report("one-outcome", f"{node} says {appended}, the entry is of {maker}")

    def _judge_end(self, node: str, expired: SessionDropped, time: int) -> None:
        beliefs = self.beliefs.get(expired.client, [])
        before = bisect_right(beliefs, (expired.position, MAX_TIME))
        until = beliefs[before - 1][1] if before else 0
        if time < until - ROUNDING_NS:
            early = (until - time) // NS_PER_MS
            self.violation_report(
                "session-outlives-trust", f"{node} says {expired}, {early} ms before it may"
            )

    def answered(self, appended: Appended, time: int) -> None:
        """Record that a client received its outcome: it may believe, and others must see."""
        sent = self.asked_at.get((appended.client, appended.number), time)
        beliefs = self.beliefs.setdefault(appended.client, [])
        beliefs.append((appended.position, sent + self.belief_ns))
        self.hear(appended.position, time)

    def hear(self, position: int, time: int) -> None:
        """Record that somebody knows an entry: others must see it from now on."""
        if position > self.known[-1][1]:
            self.known.append((time, position))

    def asks(self, reader: Address, read_request: ReadMachine) -> None:
        self.reads[reader, read_request.number] = (self.known[-1][1], read_request.age_ms)

    def reads_out(self, reader: Address, machine_read: MachineRead, time: int) -> None:
        """Judge a replica's answer when it is sent: it may wait for the disk after that."""
        peeked = machine_read.reply
        asked = self.reads.pop((reader, machine_read.number), None)
        if asked is None or not isinstance(peeked, OrderRead) or node_of(reader) in self.wrong:
            return  # Refused; or the query was of an earlier life, which is forgotten.
        least, age_ms = asked
        if age_ms is not None:
            age = machine_read.age_ms * NS_PER_MS * PPM // (PPM - self.drift_ppm)
            least = self._heard_at(time - age - ROUNDING_NS)
        if peeked.position < least:
            self.violation_report(
                "reads-are-fresh", f"{reader} reads {peeked.position}, acknowledged was {least}"
            )
        if self.chains[peeked.position : peeked.position + 1] not in ([peeked.chain], []):
            self.violation_report("slots-in-order", f"{reader} reads {peeked}, which never was")

    def _heard_at(self, time: int) -> int:
        at = bisect_right(self.known, (time, MAX_TIME))
        return self.known[max(0, at - 1)][1] if at else 0


class DivergenceJudge:
    """Judges only-diverged-quarantined."""

    def __init__(self, state: StateJudge, violation_report: ViolationReport) -> None:
        self.state = state
        self.violation_report = violation_report
        self.quarantined: set[str] = set()
        """Members that detected that they differ."""
        self.ending: dict[str, int] = {}
        """Members that have ended their roles of the log; in how many turns they may still send."""

    def observes(self, node: str, mark: str) -> None:
        """Judge a replica's report on the digests it compared."""
        unlike = self.state.unlike | self.state.wrong
        if mark == "paxos.diverged":
            if node not in unlike:
                self.violation_report(
                    "only-diverged-quarantined",
                    f"{node} quarantines itself, its state is what it should be",
                )
            self.quarantined.add(node)
        elif mark in ("paxos.other_diverged", "paxos.divergence_undecided") and not unlike:
            self.violation_report(
                "only-diverged-quarantined", f"{node} says that states differ, none does ({mark})"
            )

    def isolates(self, node: str) -> None:
        """Record that ``node`` ends its roles; their messages of this turn still leave.

        Some of them leave now, those that must wait for the disk a moment later.
        """
        self.ending[node] = 2

    def leaves(self, node: str, senders: Sequence[Address]) -> None:
        """Check that a member that has left the group sends nothing, even after restarts.

        Its `Bootstrap` keeps running: its knowledge of other members' journals is still true.
        """
        senders = [sender for sender in senders if sender != bootstrap_of(node)]
        if not senders or node not in self.ending:
            return
        self.ending[node] -= 1
        if self.ending[node] < 0:
            self.violation_report(
                "only-diverged-quarantined", f"{node} is quarantined, and {senders[0]} still sends"
            )


INVARIANTS = {**RULES, **LOG_INVARIANTS}
"""The judged invariants: the rules of the table of locks, and those of the log."""


class Belief(NamedTuple):
    """A node's belief about its lease."""

    until: Instant
    """The end of the lease, on the node's own clock."""
    boot: int


class LogJudge:
    """Sees every event of a run, every record, every frame. Judges all `INVARIANTS`.

    It looks at nothing inside a role: only at deliveries, messages and records; and at the
    machines in the replicas, which are its own.

    Args:
        members: all nodes that may ever vote.
        twin: an empty machine like those of the members.
        judged: the invariants to judge, by name, or None for all.
        wrong: members whose machine has a bug; their states and reports are not judged.

    """

    def __init__(
        self,
        members: tuple[str, ...],
        plan: LogPlan,
        twin: Register,
        judged: frozenset[str] | None = None,
        wrong: frozenset[str] = frozenset(),
    ) -> None:
        self.violation_report = ViolationReport(INVARIANTS, judged)
        self.choices = Choices(self.violation_report)
        self.choices.commands.add(OPENING)
        self.state = StateJudge(
            self.choices, self.violation_report, plan.drift_ppm, plan.ttl_ms, twin
        )
        replay = TableReplay(self.violation_report)
        if isinstance(twin, LockRegister):
            self.state.watch = lambda slot, batch, outcomes: replay.judge(
                slot, batch, [one for one in outcomes if not isinstance(one, ListOutcome)]
            )
        self.votes = AcceptorJudge(
            self.choices,
            members,
            lambda node: self.nodes[node].disk.journal_id,
            lambda node: self.state.best.get(node, 0),
            self.violation_report,
        )
        self.state.wrong = wrong
        electorates = self.choices.electorates
        self.target = TargetJudge(plan, electorates, self.violation_report)
        self.divergence = DivergenceJudge(self.state, self.violation_report)
        self.nodes: dict[str, SimulatedNode] = {}
        """The members, once they have been added."""
        self.beliefs: dict[str, Belief] = {}
        self.transfers: set[str] = set()
        """The nodes that are requested to hand the lead over: that changes no members."""

    def replaced(self, node: str, records: Sequence[Message]) -> None:
        """Record that the disk of ``node`` was replaced by another one with ``records``."""
        self.votes.replaced(node, records)
        self.state.best.pop(node, None)

    def leaves(self, node: str, boot: int, letters: Sequence[Letter]) -> None:
        self.votes.leaves(node, boot, [(sender, message) for sender, _, message in letters])
        self.divergence.leaves(node, [sender for sender, _, _ in letters])

    def crashed(self, node: str, boot: int) -> None:
        self.beliefs.pop(node, None)
        if node in self.nodes:
            self.votes.crashed(node)

    def handled(  # noqa: PLR0912  (a case for each event)
        self, delivered: Delivery, effects: Effects
    ) -> None:
        event, node = delivered.event, delivered.node
        if isinstance(event, Message) and node_of(delivered.sender) == node:
            self.votes.says(node, delivered.boot, delivered.sender, event, local=True)
        self.target.handled(delivered, effects)
        match event:
            case Promise() if not any(one in effects for one in DROPPED):
                self.votes.reported(delivered.sender, event)
            case Decided():
                self.votes.decided(node, ((event.slot, event.batch),), counted=True)
            case Learned():
                self.votes.decided(node, event.slots, counted=False)
            case Applied() if delivered.to == acceptor_of(node):
                self.state.recovers(node, event.slot)
            case LeaseHeld():
                self._judge_lease(delivered, event)
            case Isolate():
                self.divergence.isolates(node)
            case (
                ChangeMembers(action=MemberAction.TRANSFER)
                | Relay(request=ChangeMembers(action=MemberAction.TRANSFER))
            ):
                self.transfers.add(node)
            case SteppedDown():
                self.beliefs.pop(node, None)
            case MachineRead(reply=OrderRead() as peeked):
                self.state.hear(peeked.position, delivered.time)
            case Appended() if event.client == delivered.to:
                self.state.answered(event, delivered.time)
            case _:
                pass
        self._judge_effects(delivered, effects)
        if isinstance(event, NodesDescribed):
            self.transfers.discard(node)

    def _judge_effects(  # noqa: PLR0912  (a case for each message)
        self, delivered: Delivery, effects: Effects
    ) -> None:
        for effect in effects:
            if type(effect) is Observe:
                self.divergence.observes(delivered.node, effect.name)
            if type(effect) is not Send:
                continue
            if isinstance(effect.message, Followed) and delivered.to == acceptor_of(delivered.node):
                self.votes.emits(delivered.node, effect.message)
            match effect.message:
                case SlotOutcomes():
                    self.state.has_applied(delivered.node, effect.message, delivered.time)
                case Appended():
                    self.state.tells(delivered.node, (effect.message,), delivered.time)
                case Propose() if effect.message.client == delivered.to:
                    self.state.proposes(effect.message, delivered.time)
                case Relayed(reply=MembersChanged() as answer) | (MembersChanged() as answer):
                    self._judge_change(delivered, answer)
                case ProposalBatch():
                    self.choices.commands.update(effect.message.commands)
                case ReadMachine():
                    self.state.asks(delivered.to, effect.message)
                case MachineRead():
                    self.state.reads_out(effect.to, effect.message, delivered.time)
                case _:
                    pass
        if delivered.to == replica_of(delivered.node):
            self._judge_state(delivered.node)

    def _judge_change(self, delivered: Delivery, answer: MembersChanged) -> None:
        node = delivered.node
        if (
            answer.done
            and isinstance(delivered.event, NodesDescribed)
            and node not in self.transfers
        ):
            self.votes.changed(node, answer, self._known)

    def _known(self, node: str) -> int:
        """Return the first slot that ``node`` would not know after a restart."""
        records = self.nodes[node].disk.records().values()
        return recover(list(chain.from_iterable(records))).next

    def _judge_state(self, node: str) -> None:
        role_slot = self.nodes[node].scheduler.roles.get(replica_of(node))
        if role_slot is None or not isinstance(role_slot.role, Replica):
            return
        applied = role_slot.role.decided.next
        if applied != self.state.applied[node]:
            self.state.applies(node, applied)

    def _judge_lease(self, delivered: Delivery, leased: LeaseHeld) -> None:
        """Check that no other node relies on a lease when a node's lease begins or is renewed."""
        node = self.nodes[delivered.node]
        if node.now() >= leased.until:
            self.beliefs.pop(node.name, None)
            return
        self.beliefs[node.name] = Belief(leased.until, node.boot)
        for name, belief in self.beliefs.items():
            other = self.nodes[name]
            left = belief.until - other.now()
            if other is not node and other.boot == belief.boot and left > 0:
                self.violation_report(
                    "one-lease", f"{leased} at {node.name}, and {name} believes for {left} ns"
                )
