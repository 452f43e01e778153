"""The state of a node: gives commands slots while it is master, and applies what is decided."""

from __future__ import annotations

from holdfast.actors.effect import Effect, Effects, Observe, Send, Wake
from holdfast.actors.message import Address, Instant, Message
from holdfast.actors.paxos.config import (
    LOG_MAX,
    WINDOW,
    Config,
    acceptor_of,
    catchup_of,
    leader_of,
)
from holdfast.actors.paxos.event import (
    Applied,
    Decided,
    Deposed,
    Everywhere,
    Excerpt,
    Follow,
    GapCheck,
    Happened,
    Idle,
    Lacking,
    Learned,
    Leased,
    Order,
    Photographed,
    Reign,
    ReplicaHears,
    Restore,
    Tick,
)
from holdfast.actors.paxos.journal import Recovered
from holdfast.actors.paxos.ledger import Ledger
from holdfast.actors.paxos.logclock import LogClock
from holdfast.actors.paxos.machine import Machine
from holdfast.actors.paxos.message import (
    Batch,
    Decline,
    Propose,
    Proposed,
    Slots,
)
from holdfast.actors.paxos.proposals import Asker, Proposals
from holdfast.actors.paxos.reception import Reception
from holdfast.actors.role import Host, Role

GAP_MS = 50
"""How long a decided slot may be missing before others are asked for it (ms): it may be under
way, overtaken by what came after it."""


class Replica(Role[ReplicaHears]):
    """One replica. Source: PMMC, section 2.1.

    Where this differs: only the master's gives slots. A command gets one at once while
    fewer than `WINDOW` slots are undecided, and shares one with all that came meanwhile
    if not; so nothing waits for a timer, and the more comes the more goes at a time.

    Log time never goes back: a master's stamps are not below any that was applied, or
    that phase one found, and a no-op's time does not count.

    Args:
        node: where it is.
        config: who is a member.
        machine: what commands are applied to.
        recovered: what the journal of this node holds; it is applied again.
        listener: a role of this node that hears of all outcomes (`Happened`), or None.
        opening: commands with which every reign begins.
        log_max: decided slots that are kept for others, 1 or more.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        config: Config,
        machine: Machine,
        recovered: Recovered,
        listener: Address | None = None,
        opening: tuple[bytes, ...] = (),
        log_max: int = LOG_MAX,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.config = config
        self.machine = machine
        self.listener = listener
        self.opening = opening
        self.ledger = Ledger(log_max)
        self.clock = LogClock()
        self.proposals = Proposals()
        self.reign: Reign | None = None
        self.lease: Leased | None = None
        """Of the reign, as it was last extended."""
        self.free = 0
        """The first slot that has no batch, while reigning."""
        self.stamped_ms = 0
        """The last stamp given, or the first that may be."""
        self.tick_ms: int | None = None
        """The log time for which a `Tick` runs."""
        self.reception = Reception(node)
        self.committed = 1
        """All slots before it are decided, as far as is known here."""
        self.checking = 0
        """The slot for which a `GapCheck` runs, 0 if none does."""
        self._recovered = recovered

    def begin(self, now: Instant) -> Effects:
        """Apply what the journal knows to be decided. Whom that concerns was told long ago."""
        self.ledger.ready.update(enumerate(self._recovered.decided, start=1))
        self.ledger.ready.update(self._recovered.later)
        self._recovered = Recovered()
        for _, batch in self.ledger.drain():
            self._run(batch)
        self.committed = self.ledger.next
        self.clock.set(self.ledger.time_ms, now)
        return self._tell_applied() if self.ledger.next > 1 else ()

    def handle(self, sender: Address, event: ReplicaHears, now: Instant) -> Effects:
        """Order, apply, answer."""
        del sender
        match event:
            case Propose():
                return self._on_propose(event, now)
            case Decided():
                self._take(event.slot, event.batch)
                return self._apply(now)
            case Learned():
                return self._on_learned(event, now)
            case Reign():
                return self._on_reign(event, now)
            case Deposed():
                return self._on_deposed()
            case Follow():
                return self.reception.follow(event.master)
            case Leased():
                self.lease = event
                return ()
            case Everywhere():
                self.ledger.trim(event.slot)
                return ()
            case Excerpt():
                return self._on_excerpt(event)
            case Restore():
                return self._on_restore(event, now)
            case Tick():
                return self._on_tick(event, now)
            case GapCheck():
                return self._on_gap_check(event)

    def _on_propose(self, propose: Propose, now: Instant) -> Effects:
        refusal = self.reception.refusal(propose, self.machine)
        if refusal:
            return refusal
        if self.reign is None:
            return self.reception.pass_on(propose)
        if self.proposals.is_full():
            asker = Asker(propose.client, propose.number)
            return (self.reception.decline(asker, Decline.OVERLOADED),)
        self.proposals.add(propose)
        return self._order(now)

    def _order(self, now: Instant) -> list[Effect]:
        """Give slots to what waits, as far as the window has room."""
        effects: list[Effect] = []
        while self.proposals.queue and self.free < self.ledger.next + WINDOW:
            effects.append(self._give_slot(self.proposals.take(self.free), now))
        return effects

    def _give_slot(self, commands: tuple[bytes, ...], now: Instant) -> Send:
        assert self.reign is not None
        self.stamped_ms = max(self.stamped_ms, self.clock.read(now))
        order = Order(slot=self.free, batch=Batch(time_ms=self.stamped_ms, commands=commands))
        self.free += 1
        return Send(self.reign.commander, order)

    def _on_reign(self, reign: Reign, now: Instant) -> Effects:
        """Begin a reign with a batch of its own: when that is applied, so is all before it."""
        assert reign.first >= self.ledger.next
        self.reign, self.lease, self.tick_ms = reign, None, None
        self.reception.follow(self.node)
        self.free = reign.first
        self.stamped_ms = max(self.ledger.time_ms, reign.time_ms)
        effects: list[Effect] = [self._give_slot(self.opening, now)]
        for propose in self.reception.take_waiting():
            self.proposals.add(propose)
        return [*effects, *self._order(now)]

    def _on_deposed(self) -> Effects:
        """Tell whoever waits to propose again: what has a slot may still be decided, or not."""
        self.reign = self.lease = None
        self.reception.follow("")
        askers = self.proposals.clear()
        return [self.reception.decline(asker, Decline.NOT_MASTER) for asker in askers]

    def _take(self, slot: int, batch: Batch) -> list[Effect]:
        return [] if self.ledger.take(slot, batch) else [Observe("paxos.far_behind")]

    def _on_learned(self, learned: Learned, now: Instant) -> Effects:
        effects = [mark for slot, batch in learned.slots for mark in self._take(slot, batch)]
        self.committed = max(self.committed, learned.committed)
        return [*effects, *self._apply(now), *self._watch_gap()]

    def _apply(self, now: Instant) -> list[Effect]:
        """Apply what is decided without a gap, answer, and go on ordering."""
        first = self.ledger.next
        effects: list[Effect] = []
        for slot, batch in self.ledger.drain():
            askers = self.proposals.in_flight.pop(slot, ())
            outcomes = self._run(batch)
            for asker, told in zip(askers, outcomes[1:], strict=False):
                effects += [Send(asker.client, outcome) for outcome in told]
                effects.append(Send(asker.client, Proposed(number=asker.number, slot=slot)))
            everything = tuple(outcome for told in outcomes for outcome in told)
            if self.listener is not None and everything:
                time_ms = self.ledger.time_ms
                happened = Happened(slot=slot, time_ms=time_ms, outcomes=everything)
                effects.append(Send(self.listener, happened))
        if self.ledger.next == first:
            return effects
        effects += self._tell_applied()
        if self.reign is None:
            self.clock.set(self.ledger.time_ms, now)
            return effects
        ordered = self._order(now) or [Send(self.reign.commander, Idle())]
        return [*effects, *ordered, *self._arm(now)]

    def _run(self, batch: Batch) -> list[tuple[Message, ...]]:
        """Apply one batch; return what fell due by its time, and what came of each command."""
        time_ms = self.ledger.time_ms
        if not batch.commands:
            return [tuple(self.machine.advance(time_ms))]
        outcomes: list[tuple[Message, ...]] = [()]  # The first command lets time go on itself.
        outcomes += [tuple(self.machine.apply(time_ms, command)) for command in batch.commands]
        return outcomes

    def _tell_applied(self) -> list[Effect]:
        applied = Applied(slot=self.ledger.next)
        return [Send(acceptor_of(self.node), applied), Send(leader_of(self.node), applied)]

    def _arm(self, now: Instant) -> list[Effect]:
        """Set a timer for what the machine has due next, unless one runs that is as early."""
        due = self.machine.due_ms()
        if self.reign is None or due is None or (self.tick_ms is not None and self.tick_ms <= due):
            return []
        self.tick_ms = due
        return [Wake(max(0, due - self.clock.read(now)), Tick(ballot=self.reign.ballot))]

    def _on_tick(self, tick: Tick, now: Instant) -> Effects:
        """Let log time pass in the log, if nothing that is proposed does so anyway."""
        if self.reign is None or tick.ballot != self.reign.ballot:
            return ()
        self.tick_ms = None
        due = self.machine.due_ms()
        if due is None or self.free > self.ledger.next:
            return ()  # When what is under way is applied, the timer is set again.
        if due > self.clock.read(now):
            return self._arm(now)
        return (self._give_slot((), now), Observe("paxos.ticked"))

    def _watch_gap(self) -> list[Effect]:
        if self.committed <= self.ledger.next or self.checking or self.reign is not None:
            return []
        self.checking = self.ledger.next
        return [Wake(GAP_MS, GapCheck(slot=self.checking))]

    def _on_gap_check(self, check: GapCheck) -> Effects:
        self.checking = 0
        again = self._watch_gap()
        if check.slot != self.ledger.next or not again:
            return again
        lacking = Lacking(first=check.slot, target=self.committed, source=self.reception.master)
        return [Send(catchup_of(self.node), lacking), *again]

    def _on_excerpt(self, excerpt: Excerpt) -> Effects:
        batches = self.ledger.page(excerpt.first)
        if batches is not None:
            return (Send(excerpt.asker, Slots(first=excerpt.first, batches=batches)),)
        photographed = Photographed(
            asker=excerpt.asker,
            slot=self.ledger.next,
            time_ms=self.ledger.time_ms,
            chunks=self.machine.snapshot(),
        )
        return (Send(catchup_of(self.node), photographed), Observe("paxos.photographed"))

    def _on_restore(self, restore: Restore, now: Instant) -> Effects:
        if restore.slot <= self.ledger.next or self.reign is not None:
            return (Observe("paxos.snapshot_too_old"),)
        self.machine.restore(restore.chunks)
        self.ledger.jump(restore.slot, restore.time_ms)
        self.clock.set(self.ledger.time_ms, now)
        return [*self._tell_applied(), Observe("paxos.restored"), *self._apply(now)]
