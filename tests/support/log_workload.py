"""A workload for a log without locks: writers append to it and read it, and judges check it.

The judges check the log's promises more closely than through locks: all members apply the
same, a linearizable read sees whatever any node knew before, and a local read is no older
than it reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from fencelock.actors.bootstrap_message import VotingStatus
from fencelock.actors.clock import Clock
from fencelock.actors.effect import Effect, Effects, Observe, Send, Spawn, Wake
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Instant,
    Int64,
    Message,
    Timer,
    address_of,
    node_of,
)
from fencelock.actors.paxos.config import replica_of
from fencelock.actors.paxos.event import (
    LeaderChanged,
    MachineRead,
    ReadMachine,
    Skipped,
    SlotOutcomes,
)
from fencelock.actors.paxos.member import LogOptions, log_roles
from fencelock.actors.paxos.snapshots import JOURNAL_BYTES
from fencelock.actors.paxos.wire import Declined, Propose
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext
from fencelock.verification.simulation.nemesis import Nemesis
from fencelock.verification.simulation.paxos_machine import ReadOrder, Register
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.world import World

SCRIBE = "scribe"
AGE_MS = 400
"""The greatest age of a local read (ms)."""


class Counted(Message, tag=0xFE21):
    """The outcome of a command: the number of commands so far."""

    number: Int64


class Dip(Timer):
    """It is time to write or to read."""


class LogCounter(Register):
    """A `Register` that takes every command, appends each, and has no sessions."""

    PART_BYTES = 64

    def admits(self, command: bytes) -> bool:
        return True

    def is_patient(self, command: bytes, *, undecided: bool) -> bool:
        """Return False: each is answered at once."""
        return False

    def advance(self, time_ms: int) -> Sequence[Message]:
        return ()

    def do(self, time_ms: int, command: bytes) -> Sequence[Message]:
        """Append ``command``; the outcome is the number of commands so far."""
        self.lengthen(command)
        return (Counted(number=self.position),)


Heeded = (
    SlotOutcomes | LeaderChanged | Skipped | MachineRead | Counted | Declined | VotingStatus | Dip
)


class LogWriter(Role[Heeded]):
    """The listener of a node's replica: writes, and reads both ways, at random.

    Args:
        random: decides the next action, and its time.
        every_ms: the mean time between two actions; 0 for none.

    """

    def __init__(self, address: Address, host: Host, *, random: Random, every_ms: int) -> None:
        super().__init__(address, host)
        self._random = random
        self.every_ms = every_ms
        self.replica = replica_of(address.partition("/")[0])
        self.number = 0
        self.leader = ""
        self.votes: bool | None = None
        """Whether its node votes, None while that is not known."""
        self.received: dict[int, SlotOutcomes] = {}
        self.answers: list[MachineRead] = []

    def begin(self, now: Instant) -> Effects:
        """Wait for the first time."""
        return self._pause()

    def handle(self, sender: Address, event: Heeded, now: Instant) -> Effects:
        """Write or read, or record an event."""
        match event:
            case Dip():
                return [self._dip(), *self._pause()]
            case LeaderChanged():
                self.leader = event.leader
            case SlotOutcomes():
                self.received[event.slot] = event
            case MachineRead():
                self.answers.append(event)
                return (Observe(f"logbook.{'refused' if event.reply is None else 'read'}"),)
            case VotingStatus():
                self.votes = event.votes
            case Skipped() | Counted() | Declined():
                pass
        return ()

    def _pause(self) -> list[Effect]:
        if not self.every_ms:
            return []
        return [Wake(1 + int(self._random.expovariate(1 / self.every_ms)), Dip())]

    def _dip(self) -> Send:
        self.number += 1
        if self._random.randrange(2):
            command = f"{self.address} {self.number} {self._random.random()}".encode()
            propose = Propose(client=self.address, number=self.number, command=command)
            return Send(self.replica, propose)
        age_ms = self._random.choice((None, None, 0, 120, AGE_MS))
        return Send(self.replica, ReadMachine(number=self.number, query=ReadOrder(), age_ms=age_ms))


class CounterJudge:
    """Knows the slots that any node knew to be decided, and since when.

    Args:
        drift_ppm: the largest error of a clock's rate (millionths).

    """

    def __init__(self, drift_ppm: int = 0) -> None:
        self.drift_ppm = drift_ppm
        self.slots: dict[int, SlotOutcomes] = {}
        self.known: list[tuple[int, int]] = []
        """True times and the slots known from then on, both rising."""
        self.asked: dict[tuple[Address, int], tuple[int, bool]] = {}
        """For each query the highest slot known when it was sent, and whether that counts."""
        self.aged: Counter[str] = Counter()
        """Number of answers of each node to reads with an age bound."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        """Judge one delivery."""
        match delivered.event:
            case SlotOutcomes():
                self._on_happened(delivered.event, delivered.time)
            case ReadMachine(number=number, age_ms=age_ms):
                last = self.known[-1][1] if self.known else 0
                self.asked[delivered.sender, number] = (last, age_ms is None)
            case _:
                pass
        for effect in effects:  # An answer is judged when it is sent: a disk may hold it back.
            match effect:
                case Send(to, MachineRead() as read) if read.reply is not None:
                    self._on_machine_read(to, read, delivered.time)
                case _:
                    pass

    def crashed(self, node: str, boot: int) -> None:
        """Forget the queries of the writer of ``node``: its next life begins to count anew."""
        scribe = address_of(node, SCRIBE)
        self.asked = {key: seen for key, seen in self.asked.items() if key[0] != scribe}

    def _on_happened(self, happened: SlotOutcomes, time: int) -> None:
        first = self.slots.setdefault(happened.slot, happened)
        if first != happened:
            raise ViolationError(f"slots-in-order: {first} and {happened}")
        if not self.known or happened.slot > self.known[-1][1]:
            self.known.append((time, happened.slot))

    def _on_machine_read(self, scribe: Address, read: MachineRead, time: int) -> None:
        known, linear = self.asked.pop((scribe, read.number))
        if not linear:
            self.aged[node_of(scribe)] += 1
            age = read.age_ms * NS_PER_MS * (1_000_000 + self.drift_ppm) // 1_000_000
            since = (slot for at, slot in reversed(self.known) if at < time - age)
            known = next(since, 0)
        if read.slot <= known:
            raise ViolationError(
                f"{scribe} read what holds before slot {read.slot}, {read.age_ms} ms old at "
                f"most (linearizable: {linear}), when slot {known} was known"
            )


def logbook(
    *,
    every_ms: int = 40,
    journal_bytes: int = JOURNAL_BYTES,
    log_max: int = 1_000,
    memory: bool = False,
    founders: tuple[str, ...] = (),
) -> MakeRoles:
    """Return a function that makes the roles of a member of a log, and a writer.

    ``founders`` found the group, by default all nodes; a node that is none of them is an observer.
    """

    def make_roles(context: NodeContext) -> RoleSet:
        scribe = address_of(context.node, SCRIBE)
        opening = (b"led from " + context.node.encode(),)
        log = log_roles(
            context.node,
            tuple({*(founders or context.nodes), context.node}),
            context.random,
            LogCounter(),
            records=None if memory else context.records,
            journal=context.journal_id,
            secret=context.journal_secret,
            boot=context.boot,
            date_ms=context.first_stamp // 1_000,
            founding=context.founding,
            options=LogOptions(
                listener=scribe,
                opening=lambda group: opening,
                journal_bytes=journal_bytes,
                log_max=log_max,
            ),
        )
        arguments = {"random": context.random, "every_ms": every_ms}
        clock = Spawn(address_of(context.node, "clock"), Clock, {"start": context.first_stamp})
        return RoleSet(roles=(clock, *log, Spawn(scribe, LogWriter, arguments)))

    return make_roles


def run_under_faults(
    world: World, names: tuple[str, ...], judge: CounterJudge, **options: Any
) -> None:
    """Run ``world`` for 3 s under its faults, with a log on each of ``names``; then heal it.

    Args:
        world: without nodes.
        names: its members.
        judge: judges all of them.
        options: for `logbook`.

    """
    for name in names:
        world.add(name, logbook(**options), member=True)
    world.judges.append(judge)
    nemesis = Nemesis(world, names)
    world.may_die_in_sync = frozenset(names)
    world.power_on_all()
    nemesis.begin()
    world.run(3_000 * NS_PER_MS)
    nemesis.heal()
