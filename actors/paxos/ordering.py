"""The master's part of a replica: gives commands their slots and log times. Pure."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Observe, Send, Wake
from fencelock.actors.fast_construction import maker
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.config import WINDOW
from fencelock.actors.paxos.event import Gather, Leadership, Order
from fencelock.actors.paxos.logclock import LogClock
from fencelock.actors.paxos.message import Batch, Propose
from fencelock.actors.paxos.proposals import Proposals
from fencelock.actors.paxos.timer import BatchDelay, Tick

_batch = maker(Batch)
_order = maker(Order)

LINGER_MS = 2
"""Maximum delay of a command that would only wait, so that another may share its slot (ms)."""


class Ordering:
    """A command gets a slot in the turn in which it comes, with others of that turn.

    Those are all that other nodes forward, and usually all that reach this node's own proxy.

    That is so while fewer than `WINDOW` slots are undecided. Otherwise it shares a slot with all
    that arrived meanwhile, so batches grow with the load. A *patient* command, which would only
    wait for a later one (an acquire of a lock that is held), is delayed for a moment while
    nothing is under way: usually the later one arrives, and a slot and a sync are saved.

    Log time never goes back: a master's stamps are not below any that was applied or that
    phase one found. The time of a no-op does not count.

    Args:
        opening: commands with which every leadership begins.

    """

    def __init__(self, opening: tuple[bytes, ...]) -> None:
        self.opening = opening
        self.clock = LogClock()
        self.proposals = Proposals()
        self.reign: Leadership | None = None
        self.yielding = False
        """Whether the leadership is about to end and takes no more commands."""
        self.free = 0
        """The first slot without a batch, while this node leads."""
        self.stamped_ms = 0
        """The last stamp given, or the lowest that may be given."""
        self.tick_ms: int | None = None
        """The log time of the `Tick` timer that runs, if any."""
        self.gathering = False
        """Whether a `Gather` is on its way."""
        self.lingering = False
        """Whether a `BatchDelay` timer runs."""

    def begin(self, reign: Leadership, time_ms: int, now: Instant) -> Send:
        """Begin a leadership with its own batch: once that is applied, so are all slots before."""
        self.reign, self.tick_ms, self.yielding = reign, None, False
        self.free = reign.first
        self.stamped_ms = max(time_ms, reign.time_ms)
        if self.clock.read(now) < self.stamped_ms:  # What phase one found was not applied here.
            self.clock.set(self.stamped_ms, now)
        return self._give_slot(self.opening, now)

    def end(self) -> list[Propose]:
        """End the leadership; return the proposals that wait for a slot or a decision."""
        self.reign = None
        self.yielding = False
        return self.proposals.clear()

    def is_drained(self, applied: int) -> bool:
        """Return whether nothing waits for a slot or a decision; ``applied`` is the next slot."""
        return not self.proposals.queue and self.free == applied

    def gather(self, replica: Address) -> list[Effect]:
        """Have `order` called once all that has reached ``replica`` is added."""
        if self.gathering:
            return []
        self.gathering = True
        return [Send(replica, Gather())]

    def linger(self) -> list[Effect]:
        """Have `order` called in `LINGER_MS`, unless something else calls it sooner."""
        if self.lingering:
            return []
        self.lingering = True
        return [Wake(LINGER_MS, BatchDelay())]

    def order(self, applied: int, now: Instant) -> list[Effect]:
        """Give slots to the waiting commands, as far as the window has room."""
        self.gathering = False
        effects: list[Effect] = []
        while self.proposals.queue and self.free < applied + WINDOW:
            effects.append(self._give_slot(self.proposals.take(self.free), now))
        return effects

    def _give_slot(self, commands: tuple[bytes, ...], now: Instant) -> Send:
        assert self.reign is not None
        self.stamped_ms = max(self.stamped_ms, self.clock.read(now))
        batch = _batch(time_ms=self.stamped_ms, commands=commands)
        order = _order(slot=self.free, batch=batch)
        self.free += 1
        return Send(self.reign.commander, order)

    def arm(self, due: int | None, now: Instant) -> list[Effect]:
        """Set a timer for the machine's next deadline, unless one runs that is as early."""
        if self.reign is None or due is None or (self.tick_ms is not None and self.tick_ms <= due):
            return []
        self.tick_ms = due
        return [
            Wake(max(0, due - self.clock.read(now)), Tick(ballot=self.reign.ballot, due_ms=due))
        ]

    def tick(self, tick: Tick, due: int | None, applied: int, now: Instant) -> list[Effect]:
        """Propose a tick, so that log time passes, unless another proposal does that anyway."""
        if self.reign is None or self.yielding or tick.ballot != self.reign.ballot:
            return []
        if tick.due_ms != self.tick_ms:
            return []  # An earlier timer replaced it; setting it again would only add timers.
        self.tick_ms = None
        if due is None or self.free > applied:
            return []  # The timer is set again when the slots under way are applied.
        if due > self.clock.read(now):
            return self.arm(due, now)
        return [self._give_slot((), now), Observe("paxos.ticked")]
