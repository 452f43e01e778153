"""The judge of what the log is for: equal states, each request once, fresh reads, live sessions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from fencelock.actors.message import NS_PER_MS, Address, Message, node_of
from fencelock.actors.paxos.event import Consult, Consulted
from fencelock.actors.paxos.message import Propose
from fencelock.cluster.simulation.drift import PPM
from fencelock.cluster.simulation.paxos_image import Choices
from fencelock.cluster.simulation.paxos_machine import (
    Appended,
    Expired,
    Peeked,
    Register,
    request_in,
)
from fencelock.cluster.simulation.violation_report import ViolationReport

ROUNDING_NS = 2 * NS_PER_MS
"""Log time counts whole milliseconds: a stamp and an end are rounded."""


MAX_TIME = 1 << 62
"""After the end of every run, and more than any list has entries."""


class StateJudge:
    """Judges P12 to P14 and S1. It applies what is chosen to a machine of its own.

    Args:
        choices: what is chosen.
        violation_report: is told what is wrong.
        drift_ppm: how far clocks may be from true.
        ttl_ms: for how long a session lives without a word from its client.

    """

    def __init__(
        self, choices: Choices, violation_report: ViolationReport, drift_ppm: int, ttl_ms: int
    ) -> None:
        self.choices = choices
        self.violation_report = violation_report
        self.drift_ppm = drift_ppm
        self.belief_ns = ttl_ms * NS_PER_MS * PPM // (PPM + drift_ppm)
        self.twin = Register()
        """What every replica must be like after the same slots."""
        self.digests = [b"", self.twin.digest()]
        """Of the state after all slots before each."""
        self.chains = [self.twin.chain]
        """Of each length of the list."""
        self.machines: dict[str, Register] = {}
        """The machine of each member's present life."""
        self.applied: dict[str, int] = {}
        self.wrong: frozenset[str] = frozenset()
        """Members whose machine has a bug on purpose: what they apply and tell is not judged."""
        self.unlike: set[str] = set()
        """Members whose state differed from what it should be."""
        self.answers: dict[tuple[str, int], Appended] = {}
        self.entries: dict[int, tuple[str, int]] = {}
        """Which request made which entry."""
        self.asked_at: dict[tuple[str, int], int] = {}
        """When a request was first sent, true time."""
        self.beliefs: dict[str, list[tuple[int, int]]] = {}
        """For each answer that a client heard, the entry, and until when (true time) its client
        may believe in its session because of it; both rising."""
        self.heard: list[tuple[int, int]] = [(0, 0)]
        """When an entry was acknowledged or read, and the latest one then, both rising."""
        self.reads: dict[tuple[Address, int], tuple[int, int | None]] = {}
        """What a read must see at least if it is linearizable, and else its age in ms."""

    def begins(self, node: str, machine: Register) -> None:
        """Take note of the machine of a new life."""
        self.machines[node] = machine
        self.applied[node] = 1

    def recovers(self, node: str, slot: int) -> None:
        """Judge the state with which a life begins; what it applies later is judged at once."""
        if self.applied[node] == 1:
            self.applies(node, slot)

    def applies(self, node: str, slot: int) -> None:
        """Judge the state of ``node`` after all slots before ``slot``."""
        while len(self.digests) <= slot:
            batch = self.choices.chosen.get(len(self.digests) - 1)
            if batch is None:
                self.violation_report(
                    "P12", f"{node} applied all before {slot}, not all are chosen"
                )
                return
            if batch.commands:
                for command in batch.commands:
                    self._append(batch.time_ms, command)
            else:
                self.twin.advance(batch.time_ms)
            self.digests.append(self.twin.digest())
        if slot < self.applied[node]:
            self.violation_report("P12", f"{node} goes back from {self.applied[node]} to {slot}")
        self.applied[node] = slot
        if self.machines[node].digest() == self.digests[slot]:
            return
        self.unlike.add(node)
        if node not in self.wrong:
            self.violation_report(
                "P12", f"{node} is unlike the others after all slots before {slot}"
            )

    def _append(self, time_ms: int, command: bytes) -> None:
        self.twin.do(time_ms, command)
        if self.twin.position == len(self.chains):
            self.chains.append(self.twin.chain)

    def proposes(self, propose: Propose, time: int) -> None:
        """Take note that a request was sent."""
        self.choices.commands.add(propose.command)
        request = request_in(propose.command)
        if request is not None:
            self.asked_at.setdefault((request.client, request.number), time)

    def tells(self, node: str, outcomes: Iterable[Message], time: int) -> None:
        """Judge what a replica says came of a slot."""
        if node in self.wrong:
            return
        for outcome in outcomes:
            if type(outcome) is Appended:
                self._judge_answer(node, outcome)
            elif type(outcome) is Expired:
                self._judge_end(node, outcome, time)

    def _judge_answer(self, node: str, told: Appended) -> None:
        key = (told.client, told.number)
        if key not in self.asked_at:
            self.violation_report("P2", f"{node} says {told}, nobody asked")
        before = self.answers.setdefault(key, told)
        if before != told:
            self.violation_report("P13", f"{node} says {told}, said was {before}")
        maker = self.entries.setdefault(told.position, key)
        if maker != key:
            self.violation_report("P13", f"{node} says {told}, the entry is of {maker}")

    def _judge_end(self, node: str, expired: Expired, time: int) -> None:
        beliefs = self.beliefs.get(expired.client, [])
        before = bisect_right(beliefs, (expired.position, MAX_TIME))
        until = beliefs[before - 1][1] if before else 0
        if time < until - ROUNDING_NS:
            early = (until - time) // NS_PER_MS
            self.violation_report("S1", f"{node} says {expired}, {early} ms before it may")

    def answered(self, told: Appended, time: int) -> None:
        """Take note that a client heard its outcome: it may believe, and others must see."""
        sent = self.asked_at.get((told.client, told.number), time)
        beliefs = self.beliefs.setdefault(told.client, [])
        beliefs.append((told.position, sent + self.belief_ns))
        self._hear(told.position, time)

    def _hear(self, position: int, time: int) -> None:
        if position > self.heard[-1][1]:
            self.heard.append((time, position))

    def asks(self, reader: Address, consult: Consult) -> None:
        """Take note that a read begins."""
        self.reads[reader, consult.number] = (self.heard[-1][1], consult.age_ms)

    def reads_out(self, reader: Address, consulted: Consulted, time: int) -> None:
        """Judge what a replica answers, as it does: the answer may wait for its disk after that."""
        peeked = consulted.answer
        asked = self.reads.pop((reader, consulted.number), None)
        if asked is None or not isinstance(peeked, Peeked) or node_of(reader) in self.wrong:
            return  # Refused; or the question was of an earlier life, which nobody remembers.
        least, age_ms = asked
        if age_ms is not None:
            age = consulted.age_ms * NS_PER_MS * PPM // (PPM - self.drift_ppm)
            least = self._heard_at(time - age - ROUNDING_NS)
        if peeked.position < least:
            self.violation_report(
                "P14", f"{reader} reads {peeked.position}, acknowledged was {least}"
            )
        if self.chains[peeked.position : peeked.position + 1] not in ([peeked.chain], []):
            self.violation_report("P12", f"{reader} reads {peeked}, which never was")

    def has_read(self, peeked: Peeked, time: int) -> None:
        """Take note that a reader heard an answer: what it saw, others must see from now on."""
        self._hear(peeked.position, time)

    def _heard_at(self, time: int) -> int:
        at = bisect_right(self.heard, (time, MAX_TIME))
        return self.heard[max(0, at - 1)][1] if at else 0
