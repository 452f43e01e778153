"""A simulated node: its clock, its scheduler in virtual time, and its lives, which crashes end."""

from __future__ import annotations

import re
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fencelock.actors.bootstrap_message import Founding
from fencelock.actors.effect import CheckpointPart, Effects
from fencelock.actors.message import NS_PER_MS, Address, Event, Instant, Local, Message
from fencelock.actors.role import Role
from fencelock.actors.role_message import Level, LinkDown, LinkUp, RoleNotice
from fencelock.cluster.host.gateway import Gateway, Pace, turn
from fencelock.cluster.host.role_set import RoleSlot
from fencelock.cluster.host.scheduler import Scheduler
from fencelock.cluster.node.storage.record import Mark
from fencelock.cluster.node.topology import MakeRoles, NodeContext, ProtocolSettings
from fencelock.verification.simulation.faults import PPM
from fencelock.verification.simulation.network import VirtualLinks
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError

if TYPE_CHECKING:
    from fencelock.verification.simulation.world import World


class DriftingClock:
    """A node's monotonic clock: piecewise linear in true time, and never going back.

    Args:
        reading: the clock's value at true time 0 (ns).

    """

    def __init__(self, reading: int) -> None:
        self._since = 0
        self._reading = reading
        self.rate = PPM

    def read(self, time: int) -> int:
        """Return the clock's value at true ``time`` (ns), which is not before its last change."""
        return self._reading + (time - self._since) * self.rate // PPM

    def reaches(self, reading: int) -> int:
        """Return the first true time at which the clock shows at least ``reading`` (ns)."""
        return self._since - (self._reading - reading) * PPM // self.rate

    def run_at(self, rate: int, time: int) -> None:
        """Run from true ``time`` on at ``rate`` millionths of true time, at least 1."""
        assert rate > 0
        self._reading = self.read(time)
        self._since = time
        self.rate = rate

    def jump(self, by: int, time: int) -> None:
        """Show ``by`` more from true ``time`` on (ns, not negative)."""
        assert by >= 0
        self._reading = self.read(time) + by
        self._since = time

    def restart(self, reading: int, time: int) -> None:
        """Begin anew with ``reading``, as the clock of a machine that was switched off does."""
        self._reading = reading
        self._since = time


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
        trace = "".join(traceback.format_exception(error))
        raise ViolationError(f"{self.node} raised at {doing}\n{trace}") from error

    def _failed(
        self, role_slot: RoleSlot, event: Event | None, sender: Address, error: Exception
    ) -> Exception:
        if isinstance(error, ViolationError):  # A judge's.
            raise error
        doing = "its first turn" if event is None else f"{event!r} from {sender}"
        trace = "".join(traceback.format_exception(error))
        state = _shown(role_slot.role.state())
        return ViolationError(f"{role_slot.address} broke in {doing}\n{trace}with {state}")


def _shown(state: Mapping[str, Any]) -> str:
    """Put a role's state into words, with the objects in it, and without their addresses."""
    parts: list[str] = []
    for name, value in state.items():
        text = repr(value)
        inside: dict[str, Any] = getattr(value, "__dict__", {})
        parts.append(f"{name}={inside!r}" if " at 0x" in text and inside else f"{name}={text}")
    return re.sub(r" at 0x[0-9a-f]+", "", ", ".join(parts))


class SimulatedGateway(Gateway):
    """A gateway that shows the world what leaves before it does."""

    def __init__(self, machine: SimulatedNode, members: frozenset[str]) -> None:
        super().__init__(machine.scheduler, machine.links, members)
        self._machine = machine

    def flush(self) -> None:
        self._machine.world.departs(self._machine)
        super().flush()


TURNS_MAX = 100
"""Turns in a row; after more the roles of a node keep each other busy forever. The frames that one
client sent while it was cut off take some tens: a turn takes only so many of each client."""


class SimulatedNode:
    """One machine: the real scheduler, gateway and turns over a virtual clock, network and disk.

    A turn that wrote records waits for the disk at the point where a dispatcher syncs its journal.
    """

    def __init__(
        self,
        world: World,
        name: str,
        make_roles: MakeRoles,
        *,
        member: bool,
        settings: ProtocolSettings,
    ) -> None:
        self.world, self.name, self.make_roles = world, name, make_roles
        self.member, self.settings = member, settings
        self.stands_in = False
        """Whether it is no member, but sends to members' roles as a node of their group does."""
        self.disk = world.make_disk(name, member=member)
        self.clock = DriftingClock(0)
        self.dated = True
        """Whether its logical clock begins at the date, as a real node's does, or at 0."""
        self.lives = 0
        self.boot = 0
        self.up = False
        self.paused = False
        self.syncing = False
        self._alarm = 0
        self._alarm_at: int | None = None
        self._begin_life()

    def _begin_life(self) -> None:
        self.scheduler = SimulatedScheduler(self)
        self.links = VirtualLinks(self, self.scheduler.queue)
        members = frozenset(self.world.members) if self.member else frozenset[str]()
        self.gateway = SimulatedGateway(self, members)
        self._pace = Pace(lambda: 0)  # No turn takes virtual time.
        self._amid: Iterator[bool] | None = None
        """The turn that waits for the disk."""

    def now(self) -> Instant:
        return Instant(self.clock.read(self.world.time))

    def power_on(self) -> None:
        """Begin a new life, with a new boot id, its roles, and the disk's content."""
        assert not self.up
        nodes = self.world.streams.nodes
        self.up, self.lives, self.boot = True, self.lives + 1, nodes.getrandbits(63)
        self.clock.restart(nodes.randrange(10**12), self.world.time)
        self.world.mishap(self.name, f"begins life {self.lives}")
        self._begin_life()
        self.disk.open(self.world.streams.fork(f"journal/{self.name}/{self.lives}"))
        context = NodeContext(
            node=self.name,
            nodes=self.world.members,
            boot=self.boot,
            random=self.world.streams.fork(f"nodes/{self.name}/{self.lives}"),
            first_stamp=self.world.date_us() if self.dated else 0,
            settings=self.settings,
            journal=self.disk.records(),
            journal_id=self.disk.journal_id,
            journal_secret=self.disk.journal_id,
            founding=Founding.NEW if self.world.may_found else Founding.NO,
        )
        self._judged(lambda: self.scheduler.open(self.make_roles(context)))
        self._turn()

    def crash(self, *, loses_tail: bool) -> None:
        """Die at once. Memory is gone; of the disk remains what `Disk.crash` says."""
        assert self.up
        lost = self.disk.crash(self.world.streams.disk, loses_tail=loses_tail)
        self.up = self.paused = self.syncing = False
        self._begin_life()
        self._set_alarm()
        self.world.fault_counts["records lost"] += lost
        self.world.mishap(self.name, f"crashes and loses {lost} unsynced records")
        for judge in self.world.judges:
            judge.crashed(self.name, self.boot)

    def pause(self) -> None:
        self.paused = True
        self.world.mishap(self.name, "is paused")

    def resume(self) -> None:
        self.paused = False
        self.world.mishap(self.name, "is resumed")
        self._turn()

    def run_clock_at(self, rate: int) -> None:
        """Make the clock run at ``rate`` millionths of true time."""
        self.clock.run_at(rate, self.world.time)
        self.world.mishap(self.name, f"has a clock at {rate} ppm of true")
        self._set_alarm(moved=True)

    def jump_clock(self, by_ms: int) -> None:
        self.clock.jump(by_ms * NS_PER_MS, self.world.time)
        self.world.mishap(self.name, f"has a clock that jumps {by_ms} ms")
        self._set_alarm(moved=True)

    def tell(self, to: Address, event: Message | Local) -> None:
        self.scheduler.tell(to, event)
        self._turn()

    def notice(self, news: LinkUp | LinkDown) -> None:
        self.links.change(news)
        self._turn()

    def arrive(self, link: str, boot: int, frame: bytes) -> None:
        """Take a frame from the node ``link``, sent in its life ``boot``."""
        if not self.up:
            self.world.fault_counts["sent to a dead node"] += 1
            return
        self.links.arrive(link, boot, frame)
        self._turn()

    def _turn(self) -> None:
        if not self.up or self.paused or self.syncing:
            return
        self._judged(self._take_turns)
        self._set_alarm()

    def _take_turns(self) -> None:
        """Take turns until nothing is left to do, or until a turn waits for the disk."""
        scheduler = self.scheduler
        for _ in range(TURNS_MAX):
            if self._amid is None:
                self._amid = turn(scheduler, self.gateway, self.links, self._pace)
            for _ in self._amid:
                self._judge_records()
                self._begin_sync()
                return
            self._amid = None
            self._judge_records()
            if not scheduler.ready and not scheduler.sync_due and self.links.idle:
                return
        raise ViolationError(f"{self.name}: no end of its turn in {TURNS_MAX} turns")

    def _judge_records(self) -> None:
        """Check that the scheduler gives the journal exactly the records that its roles wrote."""
        written = sum(
            len(one.records) + one.alone + (one.mark is not None) for one in self.disk.tail
        )
        if written != len(self.scheduler.records):
            raise ViolationError(
                f"{self.name}: {written} records were written, "
                f"{len(self.scheduler.records)} would be in the journal"
            )

    def _judged(self, run: Callable[[], None]) -> None:
        """Call ``run``; an error for which a dispatcher would stop is a violation."""
        try:
            run()
        except ViolationError:
            raise
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            raise ViolationError(f"{self.name} broke\n{trace}") from error

    def _begin_sync(self) -> None:
        """Wait for the disk, as a dispatcher does; nothing is handled meanwhile."""
        self.syncing = True
        self.world.after(self.world.sync_time(self.name, self.boot), self._synced, self.boot)

    def _synced(self, boot: int) -> None:
        if not self.up or self.boot != boot:
            return  # It crashed before its disk was done.
        self.disk.sync()
        self.syncing = False
        self._turn()

    def _set_alarm(self, *, moved: bool = False) -> None:
        """Ask the world to be woken for the next timer; ``moved`` is when the clock changed."""
        due = self.scheduler.next_wake() if self.up else None
        if due == self._alarm_at and not moved:
            return
        self._alarm += 1
        self._alarm_at = due
        if due is not None:
            at = max(self.world.time, self.clock.reaches(due)) + self.world.lateness()
            self.world.at(at, self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._alarm_at = None
            self._turn()
