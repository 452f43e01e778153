"""The judge of the log, which sees everything: all disks, all messages, and true time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Instant, Message, node_of
from fencelock.actors.paxos.config import acceptor_of, replica_of
from fencelock.actors.paxos.event import (
    Applied,
    Decided,
    Isolate,
    Learned,
    LeaseHeld,
    MachineRead,
    ProposalBatch,
    ReadMachine,
    SlotOutcomes,
    SteppedDown,
)
from fencelock.actors.paxos.invariants import INVARIANTS as LOG_INVARIANTS
from fencelock.actors.paxos.message import Promise, Propose
from fencelock.actors.paxos.replica import Replica
from fencelock.cluster.node.lock_machine import read_command
from fencelock.verification.simulation.node import SimulatedNode
from fencelock.verification.simulation.paxos_image import Choices
from fencelock.verification.simulation.paxos_judge_locks import JUDGED_LOCKS, LogLocksJudge
from fencelock.verification.simulation.paxos_judge_state import DivergenceJudge, StateJudge
from fencelock.verification.simulation.paxos_judge_votes import AcceptorJudge, Followed, TargetJudge
from fencelock.verification.simulation.paxos_machine import (
    OPENING,
    Appended,
    LockRegister,
    OrderRead,
    Register,
)
from fencelock.verification.simulation.paxos_plan import LogPlan
from fencelock.verification.simulation.paxos_world import Letter
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport

INVARIANTS = {
    **LOG_INVARIANTS,
    **JUDGED_LOCKS,
}
"""The judged invariants: those of the log, and those of its table of locks."""


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
        plan: the run.
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
        self.locks = LogLocksJudge(self.violation_report)
        if isinstance(twin, LockRegister):
            self.state.watch = lambda command, outcomes: self.locks.applied(
                read_command(command), outcomes
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

    def wrote(self, node: str, role: str, records: Sequence[Message], *, alone: bool) -> None:
        """Judge records that became durable; with ``alone``, they replace all of ``role``."""
        self.votes.wrote(node, role, records, alone=alone)

    def forgets(self, node: str, role: str, records: Sequence[Message]) -> None:
        """Judge the records that will replace all that ``role`` wrote, when synced."""
        self.votes.forgets(node, role, records)

    def kept(self, node: str, role: str, records: Sequence[Message]) -> None:
        """Judge what the disk still has of ``role`` after a checkpoint."""
        self.votes.kept(node, role, records)

    def replaced(self, node: str, records: Sequence[Message]) -> None:
        """Record that the disk of ``node`` was replaced by another one with ``records``."""
        self.votes.replaced(node, records)
        self.state.best.pop(node, None)

    def leaves(self, node: str, boot: int, letters: Sequence[Letter]) -> None:
        """Judge everything that leaves ``node`` at the end of a turn."""
        self.votes.leaves(node, boot, [(sender, message) for sender, _, message in letters])
        self.divergence.leaves(node, [sender for sender, _, _ in letters])

    def begins(self, node: str, machine: Register) -> None:
        self.state.begins(node, machine)

    def crashed(self, node: str, boot: int) -> None:
        self.beliefs.pop(node, None)
        if node in self.nodes:
            self.votes.crashed(node)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event, node = delivered.event, delivered.node
        if isinstance(event, Message) and node_of(delivered.sender) == node:
            self.votes.says(node, delivered.boot, delivered.sender, event, local=True)
        self.target.handled(delivered, effects)
        match event:
            case Promise():
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
            case SteppedDown():
                self.beliefs.pop(node, None)
            case MachineRead(reply=OrderRead() as peeked):
                self.state.has_read(peeked, delivered.time)
            case Appended() if event.client == delivered.to:
                self.state.answered(event, delivered.time)
            case _:
                pass
        self._judge_effects(delivered, effects)

    def _judge_effects(self, delivered: Delivery, effects: Effects) -> None:
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

    def _judge_state(self, node: str) -> None:
        """Judge the state of a replica once it has applied more slots."""
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
