"""Commands on the master that wait for a slot, or for their slot's decision. Pure."""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from typing import NamedTuple

from holdfast.actors.paxos.bundle import Bundle
from holdfast.actors.paxos.message import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX

QUEUE_MAX = 10_000
"""Commands waiting for a slot: a second or two of work; and what came in one turn with the last."""

QUEUE_BYTES_MAX = 16 << 20
"""The same in bytes (16 MiB)."""


class Flight(NamedTuple):
    """The commands of one slot, and as what they were asked for, in their order."""

    commands: tuple[bytes, ...]
    asked: tuple[Bundle, ...]


class Proposals:
    """A queue, and who asked for what is in which slot.

    What was asked for together stays so as far as a slot has room: what is done for a bundle
    need not be done for each command.
    """

    def __init__(self) -> None:
        self.queue: deque[Bundle] = deque()
        self.queue_commands = 0
        self.queue_bytes = 0
        self.in_flight: dict[int, Flight] = {}
        """What was given which slot and is not known to be decided."""

    def is_full(self) -> bool:
        """Return whether no more can wait."""
        return self.queue_commands >= QUEUE_MAX or self.queue_bytes >= QUEUE_BYTES_MAX

    def add(self, bundle: Bundle) -> None:
        """Let commands wait."""
        self.queue.append(bundle)
        self.queue_commands += len(bundle.commands)
        self.queue_bytes += bundle.size()

    def take(self, slot: int) -> tuple[bytes, ...]:
        """Return as many commands as one slot carries, and remember who asked for them."""
        asked: list[Bundle] = []
        commands: list[bytes] = []
        size, has_room = 0, True
        while self.queue and has_room:
            bundle = self.queue.popleft()
            fitting = _fitting(bundle, BATCH_COMMANDS_MAX - len(commands), BATCH_BYTES_MAX - size)
            has_room = fitting == len(bundle.commands)
            if not has_room:
                bundle, rest = bundle.split(fitting)
                self.queue.appendleft(rest)
            asked.append(bundle)
            commands += bundle.commands
            size += bundle.size()
        self.queue_commands -= len(commands)
        self.queue_bytes -= size
        flight = self.in_flight[slot] = Flight(tuple(commands), tuple(asked))
        return flight.commands

    def settle(self, slot: int, commands: tuple[bytes, ...]) -> tuple[Bundle, ...]:
        """Return who asked for ``commands``, which were decided for ``slot``.

        Others may have been decided for it: another leads by now, and this node learned what
        it did before it heard that it was deposed. Whoever asked waits to hear of that.
        """
        flight = self.in_flight.get(slot)
        if flight is None or flight.commands != commands:
            return ()
        del self.in_flight[slot]
        return flight.asked

    def clear(self) -> list[Bundle]:
        """Forget everything, and return who waited."""
        asked = [one for flight in self.in_flight.values() for one in flight.asked]
        asked += self.queue
        self.queue.clear()
        self.queue_commands = self.queue_bytes = 0
        self.in_flight.clear()
        return asked


def _fitting(bundle: Bundle, room: int, room_bytes: int) -> int:
    """Return how many commands of ``bundle``, from the first, fit into a slot."""
    if len(bundle.commands) <= room and bundle.size() <= room_bytes:
        return len(bundle.commands)
    sizes = accumulate(map(len, bundle.commands[:room]))
    return sum(size <= room_bytes for size in sizes)
