"""Commands on the master that wait for a slot, or for their slot's decision. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from holdfast.actors.paxos.message import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, Propose

QUEUE_MAX = 10_000
"""Commands waiting for a slot: a second or two of work."""

QUEUE_BYTES_MAX = 16 << 20
"""The same in bytes (16 MiB)."""


class Flight(NamedTuple):
    """The commands of one slot, and as what they were proposed, in their order."""

    commands: tuple[bytes, ...]
    proposed: tuple[Propose, ...]


class Proposals:
    """A queue, and who asked for what is in which slot."""

    def __init__(self) -> None:
        self.queue: deque[Propose] = deque()
        self.queue_bytes = 0
        self.in_flight: dict[int, Flight] = {}
        """What was given which slot and is not known to be decided."""

    def is_full(self) -> bool:
        """Return whether no more can wait."""
        return len(self.queue) >= QUEUE_MAX or self.queue_bytes >= QUEUE_BYTES_MAX

    def add(self, propose: Propose) -> None:
        """Let a command wait."""
        self.queue.append(propose)
        self.queue_bytes += len(propose.command)

    def take(self, slot: int) -> tuple[bytes, ...]:
        """Return as many commands as one slot carries, and remember who asked for them."""
        queue, size = self.queue, 0
        proposed: list[Propose] = []
        while queue and len(proposed) < BATCH_COMMANDS_MAX:
            more = size + len(queue[0].command)
            if more > BATCH_BYTES_MAX:
                break
            size = more
            proposed.append(queue.popleft())
        self.queue_bytes -= size
        commands = tuple([propose.command for propose in proposed])
        self.in_flight[slot] = Flight(commands, tuple(proposed))
        return commands

    def settle(self, slot: int, commands: tuple[bytes, ...]) -> tuple[Propose, ...]:
        """Return who asked for ``commands``, which were decided for ``slot``.

        Others may have been decided for it: another leads by now, and this node learned what
        it did before it heard that it was deposed. Whoever asked waits to hear of that.
        """
        flight = self.in_flight.get(slot)
        if flight is None or flight.commands != commands:
            return ()
        del self.in_flight[slot]
        return flight.proposed

    def clear(self) -> list[Propose]:
        """Forget everything, and return who waited."""
        proposed = [one for flight in self.in_flight.values() for one in flight.proposed]
        proposed += self.queue
        self.queue.clear()
        self.queue_bytes = 0
        self.in_flight.clear()
        return proposed
