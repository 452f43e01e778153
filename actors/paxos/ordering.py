"""The leader's part of a replica: gives commands slots and log times, and delays a few of them.

`Proposals` is the queue of commands and those in flight; `LogClock` measures log time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, chain

from msgspec import Struct

from fencelock.actors.effect import Effect, Observe, Send, Wake
from fencelock.actors.membership import Membership
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.paxos.config import TIME_JUMP_MS_MAX, WINDOW, command_of
from fencelock.actors.paxos.event import BatchDelay, Gather, Leadership, LogTimeDue, Order
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.wire import (
    BATCH_BYTES_MAX,
    BATCH_COMMANDS_MAX,
    COMMAND_BYTES_MAX,
    Batch,
)

BATCH_DELAY_MS = 2
"""Maximum delay of a command that would only wait, so that another may share its slot (ms)."""

RECHECKED_MAX = 16
"""Delayed commands that are checked again after each slot; more of them get a slot at once."""

TICK_MS_MAX = TIME_JUMP_MS_MAX // 2
"""Longest time between slots while anything can expire (ms), so that no log time is dropped."""

QUEUE_MAX = 10_000
"""Maximum waiting commands: a second or two of work. The last turn may exceed it."""

QUEUE_BYTES_MAX = 16 << 20
"""The same limit in bytes (16 MiB)."""


class Ordering:
    """Gives commands their slots and log times, while this node leads.

    All commands that arrive in one turn share a slot. While `WINDOW` slots are undecided, commands
    wait, and share the next free slot: so batches grow with the load. A *patient* command (an
    acquire of a lock that is held) would only wait for another one, such as the release. It is
    delayed for a moment: usually the other one follows, and shares its slot. While a slot is
    undecided, which may hold that release, only an acquire behind other waiters counts as patient.

    Log time never goes back: a leader stamps no batch below a stamp that it has applied or that
    phase one found. Only the no-ops that fill holes have the stamp 0, which does not count. Nor
    does log time jump: the docstring of `config` has the rule. While anything can expire, a tick
    follows within `TICK_MS_MAX`.
    """

    def __init__(self, opening: tuple[bytes, ...]) -> None:
        self.opening = opening
        self.clock = LogClock()
        self.proposals = Proposals()
        self.leadership: Leadership | None = None
        self.draining = False
        """Whether the leadership is about to end and takes no more commands."""
        self.free = 0
        """The first slot without a batch, while this node leads."""
        self.stamped_ms = 0
        """The last stamp given, or the lowest that may be given."""
        self.tick_ms: int | None = None
        """The log time of the `LogTimeDue` timer that runs, if any."""
        self.gathering = False
        """Whether a `Gather` is on its way."""
        self.delaying = False
        """Whether a `BatchDelay` timer runs."""

    def begin(self, leadership: Leadership, time_ms: int, now: Instant) -> Send:
        """Begin a leadership with its own batch: once that is applied, so are all slots before."""
        self.leadership, self.tick_ms, self.draining = leadership, None, False
        self.free = leadership.first
        self.stamped_ms = max(time_ms, leadership.time_ms)
        if self.clock.read(now) < self.stamped_ms:  # What phase one found was not applied here.
            self.clock.set(self.stamped_ms, now)
        return self._give_slot(self.opening, now)

    def end(self) -> None:
        """End the leadership, and drop the proposals that wait for a slot or a decision."""
        self.leadership = None
        self.draining = False
        self.proposals = Proposals()

    def is_drained(self, applied: int) -> bool:
        """Return whether nothing waits for a slot or a decision; ``applied`` is the next slot."""
        return not self.proposals.queue and self.free == applied

    def gather(self, replica: Address) -> list[Effect]:
        """Schedule `order` for when all that has reached ``replica`` is added."""
        if self.gathering:
            return []
        self.gathering = True
        return [Send(replica, Gather())]

    def delay(self) -> list[Effect]:
        """Schedule `order` in `BATCH_DELAY_MS`, unless something else calls it sooner."""
        if self.delaying:
            return []
        self.delaying = True
        return [Wake(BATCH_DELAY_MS, BatchDelay())]

    def still_delays(self, machine: Machine, applied: int) -> bool:
        """Return whether all waiting commands still are patient, and a timer runs for them."""
        proposals, undecided = self.proposals, self.free > applied
        if not self.delaying or proposals.queue_commands > RECHECKED_MAX:
            return False
        commands = chain.from_iterable(run.commands for run in proposals.queue)
        return all(machine.is_patient(command, undecided=undecided) for command in commands)

    def order(self, applied: int, now: Instant) -> list[Effect]:
        """Give slots to the waiting commands, as far as the window has room."""
        self.gathering = False
        effects: list[Effect] = []
        while self.proposals.queue and self.free < applied + WINDOW:
            effects.append(self._give_slot(self.proposals.take(self.free), now))
        return effects

    def fill(self, end: int, applied: int, now: Instant) -> list[Effect]:
        """Fill all slots before ``end``, so that the view that begins there comes into force."""
        effects = self.order(applied, now)
        while self.free < min(end, applied + WINDOW):
            effects.append(self._give_slot((), now))
        return effects

    def propose(self, membership: Membership, now: Instant) -> Send:
        return self._give_slot((command_of(membership),), now)

    def _give_slot(self, commands: tuple[bytes, ...], now: Instant) -> Send:
        assert self.leadership is not None
        time_ms = self.clock.read(now)
        if time_ms > self.stamped_ms + TIME_JUMP_MS_MAX:  # The rest of the pause is dropped.
            time_ms = self.stamped_ms + TIME_JUMP_MS_MAX
            self.clock.set(time_ms, now)
        self.stamped_ms = max(self.stamped_ms, time_ms)
        origin = self.leadership.ballot
        batch = Batch(time_ms=self.stamped_ms, commands=commands, origin=origin)
        order = Order(slot=self.free, batch=batch)
        self.free += 1
        return Send(self.leadership.commander, order)

    def arm(self, due: int | None, now: Instant) -> list[Effect]:
        """Set a timer for the machine's next deadline, unless one runs that is as early."""
        if (
            self.leadership is None
            or due is None
            or (self.tick_ms is not None and self.tick_ms <= due)
        ):
            return []
        due = min(due, self.stamped_ms + TICK_MS_MAX)
        self.tick_ms = due
        return [
            Wake(
                max(0, due - self.clock.read(now)),
                LogTimeDue(ballot=self.leadership.ballot, due_ms=due),
            )
        ]

    def tick(self, tick: LogTimeDue, due: int | None, applied: int, now: Instant) -> list[Effect]:
        """Propose a tick, so that log time passes, unless another proposal does that anyway."""
        if self.leadership is None or self.draining or tick.ballot != self.leadership.ballot:
            return []
        if tick.due_ms != self.tick_ms:
            return []  # An earlier timer replaced it; setting it again would only add timers.
        self.tick_ms = None
        if due is None or self.free > applied:
            return []  # The timer is set again when the slots under way are applied.
        if min(due, self.stamped_ms + TICK_MS_MAX) > self.clock.read(now):
            return self.arm(due, now)
        return [self._give_slot((), now), Observe("paxos.ticked")]


class Run(Struct, eq=False):
    """Consecutive commands of one client, and the numbers by which it knows them."""

    client: Address
    numbers: list[int]
    commands: list[bytes]

    def size(self) -> int:
        return sum(map(len, self.commands))

    def split(self, first: int) -> tuple[Run, Run]:
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

    def add(self, client: Address, numbers: Sequence[int], commands: Sequence[bytes]) -> bool:
        """Append ``commands`` of ``client`` to the queue.

        Return False, and add nothing, if the queue is full or a command is too large.
        """
        sizes = list(map(len, commands))
        if self.queue_commands >= QUEUE_MAX or self.queue_bytes >= QUEUE_BYTES_MAX:
            return False
        if max(sizes) > COMMAND_BYTES_MAX:
            return False
        queue = self.queue
        if queue and queue[-1].client == client:
            queue[-1].numbers += numbers
            queue[-1].commands += commands
        else:
            queue.append(Run(client, [*numbers], [*commands]))
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
            run = self.queue.popleft()
            fitting = _fitting(run, BATCH_COMMANDS_MAX - len(commands), BATCH_BYTES_MAX - size)
            if not fitting and not commands:
                fitting = 1  # A large command has a slot of its own.
            has_room = fitting == len(run.commands)
            if not has_room:
                run, rest = run.split(fitting)
                self.queue.appendleft(rest)
            asked.append(run)
            commands += run.commands
            size += run.size()
        self.queue_commands -= len(commands)
        self.queue_bytes -= size
        together = tuple(commands)
        self.in_flight[slot] = together, tuple(asked)
        return together

    def settle(self, slot: int, commands: tuple[bytes, ...]) -> tuple[Run, ...]:
        """Return the runs of ``commands``, which were decided for ``slot``.

        Other commands may have been decided for it: another node leads, and this one applied its
        slot before it learned of the new leader. Then the proposals wait until this node steps
        down.
        """
        in_flight = self.in_flight.get(slot)
        if in_flight is None or in_flight[0] != commands:
            return ()
        del self.in_flight[slot]
        return in_flight[1]


def _fitting(run: Run, room: int, room_bytes: int) -> int:
    """Return how many commands of ``run``, from the first, fit into a slot."""
    if len(run.commands) <= room and run.size() <= room_bytes:
        return len(run.commands)
    sizes = accumulate(map(len, run.commands[:room]))
    return sum(size <= room_bytes for size in sizes)


class LogClock:
    """Counts milliseconds from the last known stamp on.

    Followers set it to each stamp they apply. A leader lets it run: setting it would slow it
    down by the time between stamping and applying.
    """

    def __init__(self) -> None:
        self.base_ms = 0
        self.base_at = Instant(0)

    def read(self, now: Instant) -> int:
        return self.base_ms + max(0, (now - self.base_at) // NS_PER_MS)

    def set(self, time_ms: int, now: Instant) -> None:
        self.base_ms = time_ms
        self.base_at = now
