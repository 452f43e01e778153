"""The users of the log in a run: proposers that repeat until they are answered, and readers."""

from __future__ import annotations

from random import Random

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Timer, address_of, node_of
from fencelock.actors.paxos.config import leader_of, replica_of
from fencelock.actors.paxos.event import (
    LeaderChanged,
    MachineRead,
    ReadMachine,
    Resign,
    Resigned,
    Skipped,
    SlotOutcomes,
)
from fencelock.actors.paxos.message import Declined, Propose
from fencelock.actors.role import Host, Role
from fencelock.verification.simulation.paxos_machine import (
    Appended,
    AppendRequest,
    ReadOrder,
    SessionDropped,
    command_of,
)
from fencelock.verification.simulation.workload import Finish

ANSWER_MS = 200
"""Time that a proposer waits for an answer before it asks another node (ms)."""

DECLINED_MS = 20
"""Time that it waits after a refusal (ms)."""

TWICE_SHARE = 0.2
"""Share of requests that go to two nodes at once, so that repetitions meet in the log."""

LARGE_SHARE = 0.02
LARGE_BYTES = 12_000
"""A few commands are so large that not many fit into one slot."""

AGES_MS = (None, None, 100, 1_000)
"""Greatest ages of an answer (ms); None for a linearizable one."""


RESIGN_SHARE = 0.02
"""Share of reads after which the node must hand over the lead, as before a stop."""


class ProposeNext(Timer):
    """It is time to propose something."""


class Unanswered(Timer):
    """Propose it again, elsewhere, if this is still attempt ``attempt``."""

    attempt: int


Heard = Finish | Appended | SessionDropped | Declined | ProposeNext | Unanswered


class Proposer(Role[Heard]):
    """Appends one command after the other, each under a new number.

    Args:
        nodes: the members, the first one to use first.
        ttl_ms: the lifetime of its session without a message from it.
        rest_ms: the longest time between an answer and the next request.
        random: decides its actions and times.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        nodes: tuple[str, ...],
        ttl_ms: int,
        rest_ms: int,
        random: Random,
    ) -> None:
        super().__init__(address, host)
        self.nodes, self._random = nodes, random
        self.ttl_ms, self.rest_ms = ttl_ms, rest_ms
        self.node = nodes[0]
        self.number = 0
        self.command = b""
        """The request without an answer, empty if there is none."""
        self.attempt = 0
        self.answers = 0
        self.finishing = False
        self.is_last = False
        """Whether the latest request is the last of all."""

    @property
    def done(self) -> bool:
        return self.is_last and not self.command

    def begin(self, now: Instant) -> Effects:
        return (self._rest(),)

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
        match event:
            case Appended():
                return self._on_appended(event)
            case Declined():
                return self._on_declined(event)
            case Unanswered():
                if event.attempt != self.attempt or not self.command:
                    return ()
                self.node = self._next_node()
                return self._ask()
            case ProposeNext():
                return self._propose()
            case Finish():
                self.finishing = True
                return ()
            case SessionDropped():
                return ()

    def _rest(self) -> Wake:
        return Wake(self._random.randint(0, self.rest_ms), ProposeNext())

    def _propose(self) -> list[Effect]:
        self.number += 1
        padding = LARGE_BYTES if self._random.random() < LARGE_SHARE else 0
        request = AppendRequest(self.address, self.number, self.ttl_ms)
        self.command = command_of(request, padding)
        self.is_last = self.finishing
        return self._ask()

    def _ask(self) -> list[Effect]:
        self.attempt += 1
        propose = Propose(client=self.address, number=self.number, command=self.command)
        asked_nodes = [self.node]
        if self._random.random() < TWICE_SHARE:
            asked_nodes.append(self._random.choice(self.nodes))
        asked = [Send(reader_of(node), propose) for node in asked_nodes]
        return [*asked, Wake(ANSWER_MS, Unanswered(attempt=self.attempt))]

    def _on_appended(self, appended: Appended) -> Effects:
        if (appended.client, appended.number) != (self.address, self.number) or not self.command:
            return ()
        self.command = b""
        self.answers += 1
        return () if self.is_last else (self._rest(),)

    def _on_declined(self, declined: Declined) -> Effects:
        if declined.number != self.number or not self.command:
            return ()
        self.node = declined.leader if declined.leader in self.nodes else self._next_node()
        self.attempt += 1
        return (Wake(DECLINED_MS, Unanswered(attempt=self.attempt)),)

    def _next_node(self) -> str:
        return self.nodes[(self.nodes.index(self.node) + 1) % len(self.nodes)]


class Curious(Timer):
    """Read something."""


Heeded = (
    Propose | Finish | SlotOutcomes | LeaderChanged | Skipped | MachineRead | Resigned | Curious
)


class LogReader(Role[Heeded]):
    """Receives the slots that its node's replica applies, queries it, and forwards proposals."""

    def __init__(self, address: Address, host: Host, *, random: Random, most_ms: int) -> None:
        super().__init__(address, host)
        self._random = random
        self.most_ms = most_ms
        self.node = node_of(address)
        self.number = 0
        self.finishing = False

    def begin(self, now: Instant) -> Effects:
        return (self._later(),)

    def handle(self, sender: Address, event: Heeded, now: Instant) -> Effects:
        match event:
            case Curious():
                self.number += 1
                age_ms = self._random.choice(AGES_MS)
                read_request = ReadMachine(number=self.number, query=ReadOrder(), age_ms=age_ms)
                return (Send(replica_of(self.node), read_request), self._later(), *self._resign())
            case MachineRead():
                what = "refused" if event.reply is None else "answered"
                return (Observe(f"reader.{what}"),)
            case Propose():
                return (Send(replica_of(self.node), event),)
            case Finish():
                self.finishing = True
                return ()
            case SlotOutcomes() | LeaderChanged() | Skipped() | Resigned():
                return ()

    def _resign(self) -> Effects:
        """Now and then hand over the lead, if this node has it, until the end."""
        if self.finishing or self._random.random() >= RESIGN_SHARE:
            return ()
        return (Send(leader_of(self.node), Resign()),)

    def _later(self) -> Wake:
        return Wake(self._random.randint(1, self.most_ms), Curious())


def reader_of(node: str) -> Address:
    """Return the address of the reader of ``node``, which is also the proxy for proposers."""
    return address_of(node, "reader")
