"""Who uses the log in a run: proposers that repeat until they are answered, and readers."""

from __future__ import annotations

from random import Random

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import (
    Address,
    Instant,
    Local,
    Timer,
    address_of,
    local,
    node_of,
    timer,
)
from fencelock.actors.paxos.config import leader_of, replica_of
from fencelock.actors.paxos.event import (
    Consult,
    Consulted,
    LeaderChanged,
    Resign,
    Resigned,
    Skipped,
    SlotOutcomes,
)
from fencelock.actors.paxos.message import Declined, Propose, Proposed
from fencelock.actors.role import Host, Role
from fencelock.cluster.simulation.paxos_machine import (
    Appended,
    Expired,
    Peek,
    Request,
    command_of,
)

ANSWER_MS = 200
"""How long a proposer waits before it asks another node (ms)."""

DECLINED_MS = 20
"""How long it waits when it was told no (ms)."""

TWICE_SHARE = 0.2
"""How often it asks two nodes at once, so that repetitions meet in the log."""

LARGE_SHARE = 0.02
LARGE_BYTES = 12_000
"""A few commands are so large that not many fit into one slot."""

READ_MS_MAX = 80
AGES_MS = (None, None, 100, 1_000)
"""How old an answer may be; None for a linearizable one."""


RESIGN_SHARE = 0.02
"""How often a node that reads is told to let another lead, as one that is to be stopped is."""


@local
class Finish(Local):
    """Misfortune is over: let one more request be answered, and be done; depose nobody."""


@timer
class Rested(Timer):
    """Propose something."""


@timer
class Unanswered(Timer):
    """Propose it again, somewhere else, if this is still attempt ``attempt``."""

    attempt: int


class Proposer(Role[Finish | Appended | Expired | Proposed | Declined | Rested | Unanswered]):
    """Has one command after the other appended, each under a number of its own.

    Args:
        nodes: the members, where to begin first.
        ttl_ms: for how long its session lives without a word from it.
        rest_ms: the longest time between an answer and the next request.
        random: what it does when.

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
        self.nodes = nodes
        self.ttl_ms = ttl_ms
        self.rest_ms = rest_ms
        self._random = random
        self.gate = nodes[0]
        self.number = 0
        self.command = b""
        """What is not answered, empty if everything is."""
        self.attempt = 0
        self.answers = 0
        self.finishing = False
        self.is_last = False
        """Whether what was proposed last is the last of all."""

    @property
    def done(self) -> bool:
        """Return whether the last request of all was answered."""
        return self.is_last and not self.command

    def begin(self, now: Instant) -> Effects:
        """Rest first."""
        del now
        return (self._rest(),)

    def handle(
        self,
        sender: Address,
        event: Finish | Appended | Expired | Proposed | Declined | Rested | Unanswered,
        now: Instant,
    ) -> Effects:
        """Propose, and again, until it is there."""
        del sender, now
        match event:
            case Appended():
                return self._on_appended(event)
            case Declined():
                return self._on_declined(event)
            case Unanswered():
                return self._on_unanswered(event)
            case Rested():
                return self._propose()
            case Finish():
                self.finishing = True
                return ()
            case Proposed() | Expired():
                return ()

    def _rest(self) -> Wake:
        return Wake(self._random.randint(0, self.rest_ms), Rested())

    def _propose(self) -> list[Effect]:
        self.number += 1
        padding = LARGE_BYTES if self._random.random() < LARGE_SHARE else 0
        request = Request(self.address, self.number, self.ttl_ms)
        self.command = command_of(request, padding)
        self.is_last = self.finishing
        return self._ask()

    def _ask(self) -> list[Effect]:
        self.attempt += 1
        propose = Propose(client=self.address, number=self.number, command=self.command)
        gates = [self.gate]
        if self._random.random() < TWICE_SHARE:
            gates.append(self._random.choice(self.nodes))
        asked = [Send(reader_of(gate), propose) for gate in gates]
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
        self.gate = declined.master if declined.master in self.nodes else self._next_gate()
        self.attempt += 1
        return (Wake(DECLINED_MS, Unanswered(attempt=self.attempt)),)

    def _on_unanswered(self, unanswered: Unanswered) -> Effects:
        if unanswered.attempt != self.attempt or not self.command:
            return ()
        self.gate = self._next_gate()
        return self._ask()

    def _next_gate(self) -> str:
        return self.nodes[(self.nodes.index(self.gate) + 1) % len(self.nodes)]


@timer
class Curious(Timer):
    """Read something."""


Heeded = Propose | Finish | SlotOutcomes | LeaderChanged | Skipped | Consulted | Resigned | Curious


class Reader(Role[Heeded]):
    """Hears what its node's replica applies, asks it now and then, and passes proposals on to it.

    Args:
        random: when it asks, how old the answer may be, and when its node must not lead.

    """

    def __init__(self, address: Address, host: Host, *, random: Random) -> None:
        super().__init__(address, host)
        self._random = random
        self.node = node_of(address)
        self.number = 0
        self.finishing = False

    def begin(self, now: Instant) -> Effects:
        """Ask soon."""
        del now
        return (self._later(),)

    def handle(
        self,
        sender: Address,
        event: Heeded,
        now: Instant,
    ) -> Effects:
        """Ask again and again, whether answers come or not."""
        del sender, now
        match event:
            case Curious():
                self.number += 1
                age_ms = self._random.choice(AGES_MS)
                consult = Consult(number=self.number, question=Peek(), age_ms=age_ms)
                return (Send(replica_of(self.node), consult), self._later(), *self._resign())
            case Consulted():
                what = "refused" if event.answer is None else "answered"
                return (Observe(f"reader.{what}"),)
            case Propose():
                return (Send(replica_of(self.node), event),)
            case Finish():
                self.finishing = True
                return ()
            case SlotOutcomes() | LeaderChanged() | Skipped() | Resigned():
                return ()

    def _resign(self) -> Effects:
        """Now and then let somebody else lead, if this node does, until the end."""
        if self.finishing or self._random.random() >= RESIGN_SHARE:
            return ()
        return (Send(leader_of(self.node), Resign()),)

    def _later(self) -> Wake:
        return Wake(self._random.randint(1, READ_MS_MAX), Curious())


def reader_of(node: str) -> Address:
    """Return where the reader of ``node`` is, which is the door for proposers, too."""
    return address_of(node, "reader")
