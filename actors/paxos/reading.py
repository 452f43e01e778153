"""Reads of a replica, which wait until its state is provably fresh enough. Pure."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.fast_construction import maker
from fencelock.actors.message import NS_PER_MS, Address, Instant, Local, ms_between
from fencelock.actors.paxos.config import monitor_of
from fencelock.actors.paxos.event import Confirm, Consult, Consulted, Fresh, Leased
from fencelock.actors.paxos.freshness import Freshness, ms_up
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.read_index import Read, ReadIndexes
from fencelock.actors.paxos.read_message import ReadIndex, ReadIndexReached
from fencelock.actors.paxos.timer import AgeCheck, ReadAgain

READS_MAX = 10_000
"""Reads of each kind that may wait on a node; more are dropped."""

READ_MS_MAX = 15_000
"""A linearizable read that was not confirmed for this long is dropped (ms)."""

AGAIN_MS = 250
"""Timeout of a `ReadIndex` before it is sent again (ms)."""

AGE_WAIT_MS = 150
"""Maximum wait of a local read for a newer proof (ms): a heartbeat, its answers, the next."""

NOTHING_PROVEN = -1
"""The `Consulted.age_ms` of a node that cannot bound the age of its state."""


ReadHears = Consult | ReadIndex | ReadIndexReached | Fresh | ReadAgain | AgeCheck
"""Events that `Reads` handles."""


class Reads:
    """Answers reads at once if it can, otherwise when they are confirmed or have timed out.

    On the master a linearizable read needs two things. All that earlier leaders decided must be
    applied (the state is *settled*). And no other node can have decided anything by the time of
    the read: that is so while the lease holds, or once a majority answered a heartbeat that was
    sent after it. This leader's own decisions are applied here before any client learns of them.
    On a follower, the master makes sure of the same, then sends the slots that must be applied
    first. One round, or one `ReadIndex`, serves all reads that wait for it.

    Args:
        node: where it is.
        machine: the state machine to read.
        replicas: the replicas of all members.
        first_number: a random start, so that no earlier life of this node used a `ReadIndex` near
        it.

    """

    def __init__(
        self, node: str, machine: Machine, replicas: tuple[Address, ...], first_number: int
    ) -> None:
        self.node = node
        self.machine = machine
        self.replicas = replicas
        self.applied = 1
        """All slots before it are applied."""
        self.settled = False
        """Whether this node leads and has applied all that earlier leaders decided."""
        self.lease: Leased | None = None
        self.confirming: Instant | None = None
        """The time at which a heartbeat was requested that no majority has answered yet."""
        self.freshness = Freshness()
        self.indexes = ReadIndexes(node, first_number)
        self.linear: list[Read] = []
        """Linearizable reads without a read index, in the order of arrival."""
        self.local: list[Read] = []
        """Reads of the local state that need a newer proof."""
        self.again = False
        """Whether the `ReadAgain` timer runs."""
        self.last: tuple[Local, Local] | None = None
        """The last query and its answer, until more is applied: many queries are about one lock."""

    def handle(self, sender: Address, event: ReadHears, now: Instant) -> Effects:
        """Take a read, or an event that may let one be answered."""
        match event:
            case Consult():
                return self._on_consult(sender, event, now)
            case Fresh():
                self.freshness.take(event, self.applied)
                return self._serve(now) if self.local else ()
            case ReadAgain():
                return self._on_again(now)
            case AgeCheck():
                return self._on_age_check(now)
            case ReadIndex() | ReadIndexReached():
                if sender not in self.replicas:
                    return (Observe("paxos.stranger_reads"),)
                if isinstance(event, ReadIndex):
                    return self._on_barrier(sender, event, now)
                return self._on_passed(sender, event, now)

    def leased(self, leased: Leased, now: Instant) -> Effects:
        """Note the lease, and the last round that a majority answered."""
        self.lease = leased
        if self.confirming is not None and leased.confirmed >= self.confirming:
            self.confirming = None
        return [*self._serve(now), *self._seek(now)] if self._is_waited_for() else ()

    def progress(self, applied: int, *, settled: bool, now: Instant) -> list[Effect]:
        """Note that all slots before ``applied`` are applied."""
        self.applied, self.settled, self.last = applied, settled, None
        if self.freshness.pending:
            self.freshness.progress(applied)
        indexes = self.indexes
        if self.linear or self.local or indexes.passed or indexes.waiting or indexes.asked:
            return [*self._serve(now), *self._seek(now)]
        return []

    def follow(self, master: str, now: Instant) -> list[Effect]:
        """Note which node leads: another, this one or, if it is empty, none that is known."""
        if master == self.indexes.master:
            return []
        if master != self.node:
            self.settled, self.lease, self.confirming = False, None, None
        self.linear = self.indexes.turn_to(master) + self.linear
        return self._seek(now)

    def distrust(self) -> None:
        """Stop relying on the lease, even while this node leads."""
        self.lease = None

    def _on_consult(self, asker: Address, consult: Consult, now: Instant) -> Effects:
        """Answer a query of a role of this node, or let it wait."""
        read = Read(asker, consult.number, consult.question, now, consult.age_ms)
        if consult.age_ms is not None:
            return self._consult_local(read, now)
        if self._is_sure(now):
            return [self._answer(read, 0)]
        if len(self.linear) + len(self.indexes) >= READS_MAX:
            return (Observe("paxos.reads_full"),)
        self.linear.append(read)
        return self._seek(now)

    def _on_barrier(self, replica: Address, barrier: ReadIndex, now: Instant) -> Effects:
        """Send another member's replica its read index, as soon as that is known."""
        if not self.settled:
            return (Observe("paxos.barrier_elsewhere"),)  # It asks again, perhaps another node.
        if self._is_sure(now):
            return (Send(replica, ReadIndexReached(number=barrier.number, slot=self.applied)),)
        self.indexes.admit(replica, barrier.number, now)
        return self._seek(now)

    def _on_passed(self, replica: Address, passed: ReadIndexReached, now: Instant) -> Effects:
        """Take the read index that the master sent."""
        if not self.indexes.take(replica, passed):
            return (Observe("paxos.barrier_ignored"),)
        return [*self._serve(now), *self._seek(now)]

    def _on_again(self, now: Instant) -> Effects:
        """Ask again, and drop reads that have waited too long."""
        self.again = False
        before = len(self.linear) + len(self.indexes)
        self.linear = [read for read in self.linear if _is_young(read, now)]
        self.indexes.drop(lambda read: not _is_young(read, now))
        self.confirming = None
        gone = before - len(self.linear) - len(self.indexes)
        marks = [Observe("paxos.reads_dropped", gone)] if gone else []
        return [*marks, *self.indexes.repeat(), *self._seek(now)]

    def _on_age_check(self, now: Instant) -> Effects:
        """Answer the local reads that have waited for long enough."""
        effects: list[Effect] = self._serve(now)
        late = [read for read in self.local if ms_between(read.at, now) >= AGE_WAIT_MS]
        self.local = [read for read in self.local if ms_between(read.at, now) < AGE_WAIT_MS]
        return [*effects, *(self._refuse(read, now) for read in late)]

    def _consult_local(self, read: Read, now: Instant) -> Effects:
        answer = self._answer_local(read, now)
        if answer is not None:
            return [answer]
        if len(self.local) >= READS_MAX:
            return [self._refuse(read, now), Observe("paxos.reads_full")]
        self.local.append(read)
        return [Wake(AGE_WAIT_MS, AgeCheck())]

    def _answer_local(self, read: Read, now: Instant) -> Send | None:
        age_ms = self._age_ms(now)
        if age_ms is None or read.age_ms is None or age_ms > read.age_ms:
            return None
        return self._answer(read, age_ms)

    def _age_ms(self, now: Instant) -> int | None:
        """Return an upper bound on the state's age (ms), None if nothing is proven."""
        if self._is_sure(now):
            return 0
        if self.settled and self.lease is not None:
            return ms_up(self.lease.confirmed, now)
        return self.freshness.age_ms(now)

    def _is_sure(self, now: Instant) -> bool:
        """Return whether everything decided anywhere is applied here."""
        return self.settled and self.lease is not None and now < self.lease.until

    def _answer(self, read: Read, age_ms: int) -> Send:
        last = self.last
        if last is None or last[0] != read.question:
            self.last = last = read.question, self.machine.read(read.question)
        told = _consulted(number=read.number, answer=last[1], slot=self.applied, age_ms=age_ms)
        return Send(read.asker, told)

    def _refuse(self, read: Read, now: Instant) -> Send:
        age_ms = self._age_ms(now)
        shown = NOTHING_PROVEN if age_ms is None else age_ms
        told = Consulted(number=read.number, answer=None, slot=self.applied, age_ms=shown)
        return Send(read.asker, told)

    def _is_waited_for(self) -> bool:
        return bool(self.linear or self.local or len(self.indexes))

    def _serve(self, now: Instant) -> list[Effect]:
        """Answer the reads that can be answered."""
        effects: list[Effect] = []
        effects += [self._answer(read, 0) for read in self.indexes.pop(self.applied)]
        if self.settled and self.lease is not None:
            # Reads up to then are confirmed; while the lease holds, all of them are.
            until = now if self._is_sure(now) else self.lease.confirmed
            effects += [self._answer(read, 0) for read in self.linear if read.at <= until]
            self.linear = [read for read in self.linear if read.at > until]
            effects += self.indexes.pass_on(until, self.applied)
        waiting, self.local = self.local, []
        for read in waiting:
            answer = self._answer_local(read, now)
            if answer is None:
                self.local.append(read)
            else:
                effects.append(answer)
        return effects

    def _seek(self, now: Instant) -> list[Effect]:
        """Request what linearizable reads wait for, unless that is under way."""
        effects: list[Effect] = []
        if self.indexes.master == self.node:
            if self.settled and self.confirming is None and (self.linear or self.indexes.asked):
                self.confirming = now
                effects.append(Send(monitor_of(self.node), Confirm()))
        elif self.linear and self.indexes.is_free():
            reads, self.linear = self.linear, []
            effects.append(self.indexes.ask(reads))
        if not self.again and (self.linear or len(self.indexes)):
            self.again = True
            effects.append(Wake(AGAIN_MS, ReadAgain()))
        return effects


_consulted = maker(Consulted)


def _is_young(read: Read, now: Instant) -> bool:
    return now - read.at < READ_MS_MAX * NS_PER_MS
