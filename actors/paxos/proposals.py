"""Commands on the master that wait for a slot, or for their slot's decision. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from fencelock.actors.message import Address
from fencelock.actors.paxos.message import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, Propose
from fencelock.actors.paxos.proposal_batch import ProposalBatch, each_of

QUEUE_MAX = 10_000
"""Commands waiting for a slot: a second or two of work; and what came in one turn with the last."""

QUEUE_BYTES_MAX = 16 << 20
"""The same in bytes (16 MiB)."""


@dataclass(slots=True, eq=False)
class Run:
    """Commands of one asker that follow one another, and the numbers by which it knows them."""

    client: Address
    numbers: list[int]
    commands: list[bytes]

    def each(self) -> Iterator[Propose]:
        """Take it apart."""
        return each_of(self.client, self.numbers, self.commands)

    def size(self) -> int:
        """Return how much its commands are (bytes)."""
        return sum(map(len, self.commands))

    def split(self, first: int) -> tuple[Run, Run]:
        """Return its ``first`` commands, and the rest."""
        numbers, commands = self.numbers, self.commands
        return (
            Run(self.client, numbers[:first], commands[:first]),
            Run(self.client, numbers[first:], commands[first:]),
        )


class InFlightBatch(NamedTuple):
    """The commands of one slot, and who asked for them, in their order."""

    commands: tuple[bytes, ...]
    asked: tuple[Run, ...]


class Proposals:
    """A queue, and who asked for what is in which slot.

    What one asks for in a row is kept as a lot: what is done for a lot need not be done for
    each command.
    """

    def __init__(self) -> None:
        self.queue: deque[Run] = deque()
        self.queue_commands = 0
        self.queue_bytes = 0
        self.in_flight: dict[int, InFlightBatch] = {}
        """What was given which slot and is not known to be decided."""

    def is_full(self) -> bool:
        """Return whether no more can wait."""
        return self.queue_commands >= QUEUE_MAX or self.queue_bytes >= QUEUE_BYTES_MAX

    def add(self, propose: Propose) -> None:
        """Let a command wait."""
        lot = self._last_of(propose.client)
        lot.numbers.append(propose.number)
        lot.commands.append(propose.command)
        self.queue_commands += 1
        self.queue_bytes += len(propose.command)

    def add_all(self, proposal_batch: ProposalBatch) -> None:
        """Let all of ``bundle`` wait."""
        lot = self._last_of(proposal_batch.client)
        lot.numbers += proposal_batch.numbers
        lot.commands += proposal_batch.commands
        self.queue_commands += len(proposal_batch.commands)
        self.queue_bytes += sum(map(len, proposal_batch.commands))

    def _last_of(self, client: Address) -> Run:
        """Return the lot at the end of the queue, to which more of ``client`` may be added."""
        queue = self.queue
        if not queue or queue[-1].client != client:
            queue.append(Run(client, [], []))
        return queue[-1]

    def take(self, slot: int) -> tuple[bytes, ...]:
        """Return as many commands as one slot carries, and remember who asked for them."""
        asked: list[Run] = []
        commands: list[bytes] = []
        size, has_room = 0, True
        while self.queue and has_room:
            lot = self.queue.popleft()
            fitting = _fitting(lot, BATCH_COMMANDS_MAX - len(commands), BATCH_BYTES_MAX - size)
            has_room = fitting == len(lot.commands)
            if not has_room:
                lot, rest = lot.split(fitting)
                self.queue.appendleft(rest)
            asked.append(lot)
            commands += lot.commands
            size += lot.size()
        self.queue_commands -= len(commands)
        self.queue_bytes -= size
        flight = self.in_flight[slot] = InFlightBatch(tuple(commands), tuple(asked))
        return flight.commands

    def settle(self, slot: int, commands: tuple[bytes, ...]) -> tuple[Run, ...]:
        """Return who asked for ``commands``, which were decided for ``slot``.

        Others may have been decided for it: another leads by now, and this node learned what
        it did before it heard that it was deposed. Whoever asked waits to hear of that.
        """
        flight = self.in_flight.get(slot)
        if flight is None or flight.commands != commands:
            return ()
        del self.in_flight[slot]
        return flight.asked

    def clear(self) -> list[Propose]:
        """Forget everything, and return who waited."""
        lots = [lot for flight in self.in_flight.values() for lot in flight.asked]
        lots += self.queue
        self.queue.clear()
        self.queue_commands = self.queue_bytes = 0
        self.in_flight.clear()
        return [propose for lot in lots for propose in lot.each()]


def _fitting(lot: Run, room: int, room_bytes: int) -> int:
    """Return how many commands of ``lot``, from the first, fit into a slot."""
    if len(lot.commands) <= room and lot.size() <= room_bytes:
        return len(lot.commands)
    sizes = accumulate(map(len, lot.commands[:room]))
    return sum(size <= room_bytes for size in sizes)
