"""The judge of the log's purpose: equal states, each request once, fresh reads, live sessions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from fencelock.actors.bootstrap import bootstrap_of
from fencelock.actors.message import NS_PER_MS, Address, Message, node_of
from fencelock.actors.paxos.event import MachineRead, ReadMachine, SlotOutcomes
from fencelock.actors.paxos.message import NO_BALLOT, Propose
from fencelock.verification.simulation.drift import PPM
from fencelock.verification.simulation.paxos_image import Choices
from fencelock.verification.simulation.paxos_machine import (
    Appended,
    OrderRead,
    Register,
    SessionDropped,
    request_in,
)
from fencelock.verification.simulation.violation import ViolationReport

ROUNDING_NS = 2 * NS_PER_MS
"""Tolerance for log time, which counts whole milliseconds: a stamp and an end are rounded."""


MAX_TIME = 1 << 62
"""A time after the end of every run, and more than any list has entries."""


class StateJudge:
    """Judges states, outcomes and reads: it applies the chosen batches to its own machine.

    Args:
        choices: the chosen batches.
        violation_report: receives the violations.
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
        self.watch: Callable[[bytes, Sequence[Message]], None] = lambda command, outcomes: None
        """Receives each command with its outcomes, in the order of the log."""
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
        client may
        believe in its session because of it; both rising."""
        self.heard: list[tuple[int, int]] = [(0, 0)]
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
        """Judge the state of ``node`` after all slots before ``slot``."""
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
            for command in batch.commands:
                outcomes += self._append(time_ms, command)
            if not batch.commands:
                outcomes += self.twin.advance(time_ms)
                self.watch(b"", outcomes)
            self.outcomes.append(tuple(outcomes))
            self.digests.append(self.twin.digest())
        return True

    def _append(self, time_ms: int, command: bytes) -> Sequence[Message]:
        outcomes = self.twin.do(time_ms, command)
        self.watch(command, outcomes)
        if self.twin.position == len(self.chains):
            self.chains.append(self.twin.chain)
        return outcomes

    def proposes(self, propose: Propose, time: int) -> None:
        self.choices.commands.add(propose.command)
        request = request_in(propose.command)
        if request is not None:
            self.asked_at.setdefault((request.client, request.number), time)

    def has_applied(self, node: str, told: SlotOutcomes, time: int) -> None:
        """Judge a replica's outcomes of a slot."""
        self.tells(node, told.outcomes, time)
        right = self._follow(node, told.slot + 1) and self.outcomes[told.slot]
        if right is not False and right != told.outcomes and node not in self.wrong:
            self.violation_report("slots-in-order", f"{node} says {told}, not {right}")

    def tells(self, node: str, outcomes: Iterable[Message], time: int) -> None:
        if node in self.wrong:
            return
        for outcome in outcomes:
            if type(outcome) is Appended:
                self._judge_answer(node, outcome)
            elif type(outcome) is SessionDropped:
                self._judge_end(node, outcome, time)

    def _judge_answer(self, node: str, told: Appended) -> None:
        key = (told.client, told.number)
        if key not in self.asked_at:
            self.violation_report("chosen-was-proposed", f"{node} says {told}, nobody asked")
        before = self.answers.setdefault(key, told)
        if before != told:
            self.violation_report("one-outcome", f"{node} says {told}, said was {before}")
        maker = self.entries.setdefault(told.position, key)
        if maker != key:
            self.violation_report("one-outcome", f"{node} says {told}, the entry is of {maker}")

    def _judge_end(self, node: str, expired: SessionDropped, time: int) -> None:
        beliefs = self.beliefs.get(expired.client, [])
        before = bisect_right(beliefs, (expired.position, MAX_TIME))
        until = beliefs[before - 1][1] if before else 0
        if time < until - ROUNDING_NS:
            early = (until - time) // NS_PER_MS
            self.violation_report(
                "session-outlives-trust", f"{node} says {expired}, {early} ms before it may"
            )

    def answered(self, told: Appended, time: int) -> None:
        """Record that a client received its outcome: it may believe, and others must see."""
        sent = self.asked_at.get((told.client, told.number), time)
        beliefs = self.beliefs.setdefault(told.client, [])
        beliefs.append((told.position, sent + self.belief_ns))
        self._hear(told.position, time)

    def _hear(self, position: int, time: int) -> None:
        if position > self.heard[-1][1]:
            self.heard.append((time, position))

    def asks(self, reader: Address, read_request: ReadMachine) -> None:
        self.reads[reader, read_request.number] = (self.heard[-1][1], read_request.age_ms)

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

    def has_read(self, peeked: OrderRead, time: int) -> None:
        """Record that a reader received an answer: others must see its entries from now on."""
        self._hear(peeked.position, time)

    def _heard_at(self, time: int) -> int:
        at = bisect_right(self.heard, (time, MAX_TIME))
        return self.heard[max(0, at - 1)][1] if at else 0


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
