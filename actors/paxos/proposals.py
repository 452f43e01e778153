"""Commands on the master that wait for a slot, or for their slot's decision. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from fencelock.actors.message import Address
from fencelock.actors.paxos.message import (
    BATCH_BYTES_MAX,
    BATCH_COMMANDS_MAX,
    COMMAND_BYTES_MAX,
    Propose,
)
from fencelock.actors.paxos.proposal_batch import ProposalBatch, each_of

QUEUE_MAX = 10_000
"""Maximum waiting commands: a second or two of work. The last turn may exceed it."""

QUEUE_BYTES_MAX = 16 << 20
"""The same limit in bytes (16 MiB)."""


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive commands of one client, and the numbers by which it knows them."""

    client: Address
    numbers: list[int]
    commands: list[bytes]

    def each(self) -> Iterator[Propose]:
        """Return the proposals of which it consists."""
        return each_of(self.client, self.numbers, self.commands)

    def size(self) -> int:
        """Return the size of its commands (bytes)."""
        return sum(map(len, self.commands))

    def split(self, first: int) -> tuple[Run, Run]:
        """Return its ``first`` commands, and the rest."""
        numbers, commands = self.numbers, self.commands
        return (
            Run(self.client, numbers[:first], commands[:first]),
            Run(self.client, numbers[first:], commands[first:]),
        )


class Proposals:
    """A queue of commands, and the runs that are in each slot.

    Consecutive commands of one client are kept as a run, so that work is done once for a run
    and not for each command.
    """

    def __init__(self) -> None:
        self.queue: deque[Run] = deque()
        self.queue_commands = 0
        self.queue_bytes = 0
        self.in_flight: dict[int, tuple[tuple[bytes, ...], tuple[Run, ...]]] = {}
        """For each slot that is not known to be decided, its commands and the runs that they came
        from, in order."""

    def is_full(self) -> bool:
        """Return whether no more can wait."""
        return self.queue_commands >= QUEUE_MAX or self.queue_bytes >= QUEUE_BYTES_MAX

    def add(self, propose: Propose) -> None:
        """Append a command to the queue."""
        queue = self.queue
        if not queue or queue[-1].client != propose.client:
            queue.append(Run(propose.client, [], []))
        queue[-1].numbers.append(propose.number)
        queue[-1].commands.append(propose.command)
        self.queue_commands += 1
        self.queue_bytes += len(propose.command)

    def add_all(self, batch: ProposalBatch) -> bool:
        """Append all commands of ``batch`` to the queue.

        Return False, and add nothing, if the queue is full or a command is too large.
        """
        sizes = list(map(len, batch.commands))
        if self.queue_commands >= QUEUE_MAX or self.queue_bytes >= QUEUE_BYTES_MAX:
            return False
        if max(sizes) > COMMAND_BYTES_MAX:
            return False
        queue = self.queue
        if queue and queue[-1].client == batch.client:
            queue[-1].numbers += batch.numbers
            queue[-1].commands += batch.commands
        else:
            queue.append(Run(batch.client, [*batch.numbers], [*batch.commands]))
        self.queue_commands += len(sizes)
        self.queue_bytes += sum(sizes)
        return True

    def take(self, slot: int) -> tuple[bytes, ...]:
        """Return as many commands as fit a slot, and remember which clients proposed them."""
        few = self.queue_commands <= BATCH_COMMANDS_MAX and self.queue_bytes <= BATCH_BYTES_MAX
        if few and len(self.queue) == 1:
            run = self.queue.popleft()
            self.queue_commands = self.queue_bytes = 0
            alone = tuple(run.commands)
            self.in_flight[slot] = alone, (run,)
            return alone
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
        together = tuple(commands)
        self.in_flight[slot] = together, tuple(asked)
        return together

    def settle(self, slot: int, commands: tuple[bytes, ...]) -> tuple[Run, ...]:
        """Return the runs of ``commands``, which were decided for ``slot``.

        Other commands may have been decided for it: another node leads, and this one applied its
        slot before it learned that. Then the proposals wait until this node steps down.
        """
        flight = self.in_flight.get(slot)
        if flight is None or flight[0] != commands:
            return ()
        del self.in_flight[slot]
        return flight[1]

    def clear(self) -> list[Propose]:
        """Drop everything, and return the proposals that waited."""
        lots = [lot for _, asked in self.in_flight.values() for lot in asked]
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
