"""The scheduler of one life of a simulated node: production's, watched by trace and judges."""

from __future__ import annotations

import re
import traceback
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fencelock.actors.effect import CheckpointPart, Effects
from fencelock.actors.message import Address, Event, Instant, Local, Message
from fencelock.actors.role import Role
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.cluster.host.role_set import RoleSlot
from fencelock.cluster.host.scheduler import Scheduler
from fencelock.cluster.node.storage.record import Mark
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError

if TYPE_CHECKING:
    from fencelock.verification.simulation.node import SimulatedNode

Waiting = tuple[RoleSlot, Address, Event]
"""A role, the sender of an event, and the event."""


class EventQueue(deque[Waiting]):
    """The events that wait on a node, with the life of the node that sent each of them.

    Each event that leaves the queue is written into the trace.

    Attributes:
        boot: the life of the sender of the next appended message.
        delivered: the message that left last.

    """

    def __init__(self, machine: SimulatedNode) -> None:
        super().__init__()
        self.boot = machine.boot
        self.delivered: Delivery | None = None
        self._machine = machine
        self._boots: deque[int] = deque()

    def append(self, waiting: Waiting, /) -> None:
        self._boots.append(self.boot)
        super().append(waiting)

    def popleft(self) -> Waiting:
        role_slot, sender, event = waiting = super().popleft()
        world = self._machine.world
        boot = self._boots.popleft()
        self.delivered = Delivery(
            world.time, self._machine.name, sender, role_slot.address, event, boot
        )
        if not role_slot.dead:
            world.record(self.delivered)
        return waiting


class TurnCount(Counter[str]):
    """The counters of one life of a node; they also count into ``marks``, which are the world's."""

    def __init__(self, marks: Counter[str]) -> None:
        super().__init__()
        self._marks = marks

    def __setitem__(self, name: str, value: int) -> None:
        """Set a counter, and let its mark rise by as much."""
        if value != (before := self.get(name, 0)):
            self._marks[name] += value - before
        super().__setitem__(name, value)

    def add(self, counts: Mapping[str, int]) -> None:
        """Add ``counts``, which the marks contain already."""
        for name, times in counts.items():
            super().__setitem__(name, self[name] + times)


class SimulatedScheduler(Scheduler):
    """Production's scheduler over a virtual clock and disk; judges see all that roles handle."""

    def __init__(self, machine: SimulatedNode) -> None:
        self._tally = TurnCount(machine.world.marks)
        super().__init__(machine.name, self._watch, self._tally, machine.now)
        self.machine = machine
        self.queue = EventQueue(machine)
        self.ready = self.queue

    def tell(self, to: Address, event: Message | Local) -> None:
        """Post ``event`` from the host to the role at ``to``."""
        role_slot = self.roles.get(to)
        if role_slot is None:
            self.counters["host.nobody_there"] += 1
        else:
            self.post(role_slot, self.here, event)

    def next_wake(self) -> int | None:
        """Return when the next timer is due, on the node's own clock (ns)."""
        return self.timers[0][0] if self.timers else None

    def _register(self, role: Role[Any]) -> None:
        """Do nothing: simulated roles are not in Pykka's registry."""

    def _keep_counters(self, role_slot: RoleSlot) -> None:
        """Add the counters of a role that retires, which the marks contain already."""
        self._tally.add(role_slot.counters)

    def _watch(self, role_slot: RoleSlot) -> None:
        role_slot.counters = TurnCount(self.machine.world.marks)
        role, judges, queue = role_slot.role, self.machine.world.judges, self.queue

        def handle(sender: Address, event: Any, now: Instant) -> Effects:
            effects = role.handle(sender, event, now)
            delivered = queue.delivered
            assert delivered is not None
            for judge in judges:
                judge.handled(delivered, effects)
            return effects

        role_slot.handle = handle

    def _begin(self, role_slot: RoleSlot) -> None:
        super()._begin(role_slot)
        _, effects = self._performing[-1]
        for watch in self.machine.world.begin_watchers:
            watch(role_slot.address, effects)

    def _write(self, role_slot: RoleSlot, records: Sequence[Message | Mark | None]) -> None:
        super()._write(role_slot, records)
        name, disk = role_slot.name, self.machine.disk
        messages = [record for record in records if isinstance(record, Message)]
        if records[0] is None:
            disk.checkpoint(name, messages)
        elif records[0] is Mark.END:
            disk.end_checkpoint(name)
        else:
            disk.append(name, messages[0])

    def _write_part(self, role_slot: RoleSlot, part: CheckpointPart) -> None:
        super()._write_part(role_slot, part)
        self.machine.disk.checkpoint_part(role_slot.name, part.records, first=part.first)

    def _write_notice(self, notice: RoleNotice) -> None:
        if notice.level is Level.DEBUG:
            return
        world = self.machine.world
        world.marks[f"notice.{notice.level.name.lower()}"] += 1
        world.mishap(self.node, notice.text)

    def note_fault(self, doing: str, error: Exception) -> None:
        """Fail the seed: what a node survives in production is a bug all the same."""
        told = "".join(traceback.format_exception(error))
        raise ViolationError(f"{self.node} raised at {doing}\n{told}") from error

    def _failed(
        self, role_slot: RoleSlot, event: Event | None, sender: Address, error: Exception
    ) -> Exception:
        if isinstance(error, ViolationError):  # A judge's.
            raise error
        doing = "its first turn" if event is None else f"{event!r} from {sender}"
        told = "".join(traceback.format_exception(error))
        state = _shown(role_slot.role.state())
        return ViolationError(f"{role_slot.address} broke in {doing}\n{told}with {state}")


def _shown(state: Mapping[str, Any]) -> str:
    """Put a role's state into words, with the objects in it, and without their addresses."""
    parts: list[str] = []
    for name, value in state.items():
        text = repr(value)
        inside: dict[str, Any] = getattr(value, "__dict__", {})
        parts.append(f"{name}={inside!r}" if " at 0x" in text and inside else f"{name}={text}")
    return re.sub(r" at 0x[0-9a-f]+", "", ", ".join(parts))
