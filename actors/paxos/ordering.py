"""The master's part of a replica: which commands get which slot, at which log time. Pure."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Observe, Send, Wake
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.config import WINDOW
from fencelock.actors.paxos.event import Gather, Leadership, Order
from fencelock.actors.paxos.logclock import LogClock
from fencelock.actors.paxos.message import Batch, Propose
from fencelock.actors.paxos.proposals import Proposals
from fencelock.actors.paxos.timer import BatchDelay, Tick

LINGER_MS = 2
"""How long a command that would only wait may itself wait for another to share a slot with (ms)."""


class Ordering:
    """A command gets a slot in the turn in which it comes, with others of that turn.

    Those are all that other nodes pass on, and mostly what comes to this node's own door.

    That is while fewer than `WINDOW` slots are undecided. If not it shares one with all that
    came meanwhile: the more comes, the more goes at a time. A *patient* command, which would
    only wait for a later one (an acquire of a lock that is held), lingers for a moment while
    nothing is under way: mostly that later one comes, and a slot and a sync are saved.

    Log time never goes back: a master's stamps are not below any that was applied, or
    that phase one found, and a no-op's time does not count.

    Args:
        opening: commands with which every reign begins.

    """

    def __init__(self, opening: tuple[bytes, ...]) -> None:
        self.opening = opening
        self.clock = LogClock()
        self.proposals = Proposals()
        self.reign: Leadership | None = None
        self.yielding = False
        """Whether the reign is about to end, and takes no more commands."""
        self.free = 0
        """The first slot that has no batch, while reigning."""
        self.stamped_ms = 0
        """The last stamp given, or the first that may be."""
        self.tick_ms: int | None = None
        """The log time for which a `Tick` runs."""
        self.gathering = False
        """Whether a `Gather` is on its way."""
        self.lingering = False
        """Whether a `BatchDelay` runs."""

    def begin(self, reign: Leadership, time_ms: int, now: Instant) -> Send:
        """Begin a reign with a batch of its own: when that is applied, so is all before it."""
        self.reign, self.tick_ms, self.yielding = reign, None, False
        self.free = reign.first
        self.stamped_ms = max(time_ms, reign.time_ms)
        if self.clock.read(now) < self.stamped_ms:  # What phase one found was not applied here.
            self.clock.set(self.stamped_ms, now)
        return self._give_slot(self.opening, now)

    def end(self) -> list[Propose]:
        """End the reign; return who waits for a slot, or for its decision."""
        self.reign = None
        self.yielding = False
        return self.proposals.clear()

    def is_settled(self, applied: int) -> bool:
        """Return whether this is a reign, and all that others decided before it is applied."""
        return self.reign is not None and applied > self.reign.first

    def is_drained(self, applied: int) -> bool:
        """Return whether nothing waits for a slot or a decision; slots before it are applied."""
        return not self.proposals.queue and self.free == applied

    def gather(self, replica: Address) -> list[Effect]:
        """Have `order` called once everything that has come to ``replica`` is added."""
        if self.gathering:
            return []
        self.gathering = True
        return [Send(replica, Gather())]

    def linger(self) -> list[Effect]:
        """Have `order` called in `LINGER_MS`, unless something else has it called before."""
        if self.lingering:
            return []
        self.lingering = True
        return [Wake(LINGER_MS, BatchDelay())]

    def order(self, applied: int, now: Instant) -> list[Effect]:
        """Give slots to what waits, as far as the window has room."""
        self.gathering = False
        effects: list[Effect] = []
        while self.proposals.queue and self.free < applied + WINDOW:
            effects.append(self._give_slot(self.proposals.take(self.free), now))
        return effects

    def _give_slot(self, commands: tuple[bytes, ...], now: Instant) -> Send:
        assert self.reign is not None
        self.stamped_ms = max(self.stamped_ms, self.clock.read(now))
        order = Order(slot=self.free, batch=Batch(time_ms=self.stamped_ms, commands=commands))
        self.free += 1
        return Send(self.reign.commander, order)

    def arm(self, due: int | None, now: Instant) -> list[Effect]:
        """Set a timer for what the machine has due next, unless one runs that is as early."""
        if self.reign is None or due is None or (self.tick_ms is not None and self.tick_ms <= due):
            return []
        self.tick_ms = due
        return [
            Wake(max(0, due - self.clock.read(now)), Tick(ballot=self.reign.ballot, due_ms=due))
        ]

    def tick(self, tick: Tick, due: int | None, applied: int, now: Instant) -> list[Effect]:
        """Let log time pass in the log, if nothing that is proposed does so anyway."""
        if self.reign is None or self.yielding or tick.ballot != self.reign.ballot:
            return []
        if tick.due_ms != self.tick_ms:
            return []  # An earlier one was set after it, or else timers would only become more.
        self.tick_ms = None
        if due is None or self.free > applied:
            return []  # When what is under way is applied, the timer is set again.
        if due > self.clock.read(now):
            return self.arm(due, now)
        return [self._give_slot((), now), Observe("paxos.ticked")]
