"""The machines that the log carries in a run, and the users of the log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain
from random import Random
from typing import ClassVar, NamedTuple

from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.message import (
    Address,
    Event,
    Instant,
    Int64,
    Local,
    Message,
    Timer,
    address_of,
    node_of,
)
from fencelock.actors.paxos.config import monitor_of, replica_of
from fencelock.actors.paxos.event import (
    LeaderChanged,
    MachineRead,
    ReadMachine,
    Resign,
    Resigned,
    Skipped,
    SlotOutcomes,
)
from fencelock.actors.paxos.machine import EncodedPart, Fingerprint, Part, state_of
from fencelock.actors.paxos.wire import Declined, Figure, Propose
from fencelock.actors.role import Host, Role
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.verification.simulation.workload import Finish

OPENING = b"extend"
"""The first command of a leadership: every session lives for its whole time from now."""


class Appended(Message, tag=0xFE01):
    """Request ``number`` of ``client`` is entry ``position`` of the list.

    ``chain`` is a hash of the list up to that entry, so equal for equal histories only.
    """

    client: str
    number: Int64
    position: Int64
    chain: bytes


class SessionDropped(Message, tag=0xFE02):
    """The session of ``client`` ended at that log time: nothing came from it for its TTL.

    The list had ``position`` entries then.
    """

    client: str
    time_ms: Int64
    position: Int64


ListOutcome = Appended | SessionDropped


class ReadOrder(Local):
    """A query for the length of the list."""


class OrderRead(Local):
    """The number of entries in the list, and their hash."""

    position: int
    chain: bytes


class AppendRequest(NamedTuple):
    """The content of a command."""

    client: str
    number: int
    ttl_ms: int


def command_of(request: AppendRequest, padding: int) -> bytes:
    """Return a command, ``padding`` bytes longer than it must be."""
    return b" ".join(str(part).encode() for part in request) + b" " + b"." * padding


def request_in(command: bytes) -> AppendRequest | None:
    """Return the request in ``command``, or None if it is not a client's."""
    parts = command.split(b" ")
    if (
        len(parts) != len(AppendRequest._fields) + 1
        or not parts[1].isdigit()
        or not parts[2].isdigit()
    ):
        return None
    return AppendRequest(parts[0].decode(), int(parts[1]), int(parts[2]))


class Register:
    """A `Machine` whose state and outcomes depend on all its commands and their order.

    It keeps the last outcome of each client, so that a repetition gets the same again. A
    client sends one request at a time; requests older than its last do nothing.
    """

    PART_BYTES: ClassVar = 200
    """So small that a snapshot has several parts, which may come from several snapshots."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.time_ms = 0
        self.position = 0
        """The number of entries in the list."""
        self.chain = b""
        self.made = 0
        """The sum of all hashes that this process computed."""
        self.last: dict[str, Appended] = {}
        """The last outcome, by client."""
        self.sessions: dict[str, tuple[int, int]] = {}
        """The end (log time) and the lifetime without a message (ms) of each session, by client."""

    @property
    def is_drained(self) -> bool:
        return not self.sessions

    def admits(self, command: bytes) -> bool:
        return command == OPENING or request_in(command) is not None

    def version_of(self, command: bytes) -> int:
        """Return 1, because all members can apply every command."""
        return 1

    def is_patient(self, command: bytes, *, undecided: bool) -> bool:
        """Return true for every other command, so that runs also include delayed batches."""
        return sum(command) % 2 == 0

    def advance(self, time_ms: int) -> Sequence[Message]:
        return self.end_sessions(time_ms)

    def end_sessions(self, time_ms: int) -> Sequence[Message]:
        """End the sessions whose time is over at that log time."""
        self.time_ms = max(self.time_ms, time_ms)
        over = [name for name, (due, _) in self.sessions.items() if due <= self.time_ms]
        for name in over:
            del self.sessions[name]
        at = {"time_ms": self.time_ms, "position": self.position}
        return [SessionDropped(client=name, **at) for name in over]

    def skip(self, time_ms: int, commands: Sequence[bytes], slot: int) -> list[Sequence[Message]]:
        """Do each of ``commands``: none of them raises."""
        return self.apply(time_ms, commands)

    def apply(self, time_ms: int, commands: Sequence[bytes]) -> list[Sequence[Message]]:
        return [self.do(time_ms, command) for command in commands]

    def do(self, time_ms: int, command: bytes) -> Sequence[Message]:
        """Append an entry, unless the same request did; a message of its client keeps a session."""
        now = max(self.time_ms, time_ms)
        if command == OPENING:
            self.extend(now)
            return self.end_sessions(now)
        request = request_in(command)
        if request is None:
            return self.end_sessions(now)
        self.sessions[request.client] = (now + request.ttl_ms, request.ttl_ms)
        expired = self.end_sessions(now)
        last = self.last.get(request.client)
        if last is not None and request.number <= last.number:
            return [*expired, last] if request.number == last.number else expired
        return [*expired, self.append(request, command)]

    def extend(self, now: int) -> None:
        """Let every session live for its whole time from ``now``."""
        self.sessions = {name: (now + ttl, ttl) for name, (_, ttl) in self.sessions.items()}

    def append(self, request: AppendRequest, command: bytes) -> Appended:
        self.lengthen(command)
        last = Appended(
            client=request.client,
            number=request.number,
            position=self.position,
            chain=self.chain,
        )
        self.last[request.client] = last
        return last

    def lengthen(self, command: bytes) -> None:
        """Add one more entry to the list."""
        self.position += 1
        self.chain = sha256(self.chain + command).digest()
        self.made += int.from_bytes(self.chain[:7])

    def due_ms(self, before: int | None = None) -> int | None:
        return min((due for due, _ in self.sessions.values()), default=None)

    def read(self, query: Event) -> Event:
        """Answer `ReadOrder`, the only query."""
        return OrderRead(position=self.position, chain=self.chain)

    def changed_since(self, version: int) -> tuple[int, Iterable[str] | None]:
        """Return nothing, because no client watches this machine."""
        return version, ()

    def changed_keys(self, name: str, version: int) -> Iterable[str] | None:
        return ()

    def snapshot(self) -> Iterator[Part | None]:
        """Freeze the state, and return it in small parts, with work between them."""
        text = self.frozen()
        size = self.PART_BYTES
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        return iter((None, *map(EncodedPart, parts)))

    def restore(self, chunks: Sequence[bytes]) -> None:
        time_ms, position, chain, last, sessions = json.loads(b"".join(chunks))
        self.time_ms, self.position, self.chain = time_ms, position, bytes.fromhex(chain)
        self.last = {
            client: Appended(client=client, number=number, position=at, chain=bytes.fromhex(link))
            for client, number, at, link in last
        }
        self.sessions = {name: (due, ttl) for name, (due, ttl) in sessions.items()}

    def digest(self) -> bytes:
        return sha256(self.frozen()).digest()

    def fingerprint(self) -> Fingerprint:
        """Return a digest of the state, and a digest of all entries, which is part of it."""
        chain = int.from_bytes(self.chain[:7])
        due = sum(due for due, _ in self.sessions.values())
        state = state_of((self.time_ms, self.position, chain, len(self.last), due))
        return Fingerprint(state, self.made, (Figure("entries", self.position),))

    def frozen(self) -> bytes:
        last = [
            (one.client, one.number, one.position, one.chain.hex()) for one in self.last.values()
        ]
        state = (self.time_ms, self.position, self.chain.hex(), last, self.sessions)
        return json.dumps(state).encode()


LIST_MARK, LOCKS_MARK = b"l", b"t"
"""The first byte of a snapshot's part: it belongs to the list, or to the table of locks."""


def is_of_locks(command: bytes) -> bool:
    """Return whether ``command`` is for the table: those for the list are ASCII text."""
    return command[:1] > b"\x7f"


class MarkedPart(NamedTuple):
    """A part of the list or of the table."""

    mark: bytes
    part: Part

    def encoded(self) -> bytes:
        return self.mark + self.part.encoded()


class LockRegister(Register):
    """A list that grows, and a table of locks: each command is for one of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = LockMachine()
        self.faults = self.locks.faults

    @property
    def is_drained(self) -> bool:
        return super().is_drained and not self.locks.table.sessions.by_id

    def admits(self, command: bytes) -> bool:
        return self.locks.admits(command) if is_of_locks(command) else super().admits(command)

    def is_patient(self, command: bytes, *, undecided: bool) -> bool:
        if is_of_locks(command):
            return self.locks.is_patient(command, undecided=undecided)
        return super().is_patient(command, undecided=undecided)

    def advance(self, time_ms: int) -> Sequence[Message]:
        return [*super().advance(time_ms), *self.locks.advance(time_ms)]

    def do(self, time_ms: int, command: bytes) -> Sequence[Message]:
        if is_of_locks(command):
            (outcomes,) = self.locks.apply(time_ms, (command,))
            return [*outcomes, *self.end_sessions(time_ms)]
        return super().do(time_ms, command)

    def due_ms(self, before: int | None = None) -> int | None:
        due = (super().due_ms(before), self.locks.due_ms(before))
        return min((one for one in due if one is not None), default=None)

    def read(self, query: Event) -> Event:
        return super().read(query) if type(query) is ReadOrder else self.locks.read(query)

    def changed_since(self, version: int) -> tuple[int, Iterable[str] | None]:
        return self.locks.changed_since(version)

    def changed_keys(self, name: str, version: int) -> Iterable[str] | None:
        return self.locks.changed_keys(name, version)

    def snapshot(self) -> Iterator[Part | None]:
        marked = ((LIST_MARK, super().snapshot()), (LOCKS_MARK, self.locks.snapshot()))
        return chain.from_iterable(
            (part if part is None else MarkedPart(mark, part) for part in parts)
            for mark, parts in marked
        )

    def restore(self, chunks: Sequence[bytes]) -> None:
        self.locks.restore([one[1:] for one in chunks if one[:1] == LOCKS_MARK])
        super().restore([one[1:] for one in chunks if one[:1] == LIST_MARK])

    def digest(self) -> bytes:
        return sha256(super().digest() + self.locks.digest()).digest()

    def fingerprint(self) -> Fingerprint:
        one, other = super().fingerprint(), self.locks.fingerprint()
        state, decided = state_of((one.state, other.state)), one.decided + other.decided
        return Fingerprint(state, decided, (*one.counters, *other.counters))


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
        return (Send(monitor_of(self.node), Resign()),)

    def _later(self) -> Wake:
        return Wake(self._random.randint(1, self.most_ms), Curious())


def reader_of(node: str) -> Address:
    """Return the address of the reader of ``node``, which is also the proxy for proposers."""
    return address_of(node, "reader")
