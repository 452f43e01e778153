"""Commands on the master that wait for a slot, or for their slot's decision. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from holdfast.actors.message import Address
from holdfast.actors.paxos.message import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, Propose

QUEUE_MAX = 10_000
"""Commands waiting for a slot: a second or two of work."""

QUEUE_BYTES_MAX = 16 << 20
"""The same in bytes (16 MiB)."""


class Asker(NamedTuple):
    """Who waits for an answer, and the number it gave its command."""

    client: Address
    number: int


class Flight(NamedTuple):
    """The commands of one slot, and who asked for them, in their order."""

    commands: tuple[bytes, ...]
    askers: tuple[Asker, ...]


class Proposals:
    """A queue, and who asked for what is in which slot."""

    def __init__(self) -> None:
        self.queue: deque[tuple[Asker, bytes]] = deque()
        self.queue_bytes = 0
        self.in_flight: dict[int, Flight] = {}
        """What was given which slot and is not known to be decided."""

    def is_full(self) -> bool:
        """Return whether no more can wait."""
        return len(self.queue) >= QUEUE_MAX or self.queue_bytes >= QUEUE_BYTES_MAX

    def add(self, propose: Propose) -> None:
        """Let a command wait."""
        asker = Asker(propose.client, propose.number)
        self.queue.append((asker, propose.command))
        self.queue_bytes += len(propose.command)

    def take(self, slot: int) -> tuple[bytes, ...]:
        """Return as many commands as one slot carries, and remember who asked for them."""
        askers: list[Asker] = []
        commands: list[bytes] = []
        size = 0
        while self.queue and len(commands) < BATCH_COMMANDS_MAX:
            asker, command = self.queue[0]
            size += len(command)
            if size > BATCH_BYTES_MAX:
                break
            self.queue.popleft()
            self.queue_bytes -= len(command)
            askers.append(asker)
            commands.append(command)
        flight = self.in_flight[slot] = Flight(tuple(commands), tuple(askers))
        return flight.commands

    def settle(self, slot: int, commands: tuple[bytes, ...]) -> tuple[Asker, ...]:
        """Return who asked for ``commands``, which were decided for ``slot``.

        Others may have been decided for it: another leads by now, and this node learned what
        it did before it heard that it was deposed. Whoever asked waits to hear of that.
        """
        flight = self.in_flight.get(slot)
        if flight is None or flight.commands != commands:
            return ()
        del self.in_flight[slot]
        return flight.askers

    def clear(self) -> list[Asker]:
        """Forget everything, and return who waited."""
        askers = [asker for flight in self.in_flight.values() for asker in flight.askers]
        askers += [asker for asker, _ in self.queue]
        self.queue.clear()
        self.queue_bytes = 0
        self.in_flight.clear()
        return askers
