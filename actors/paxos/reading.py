"""Reads of a replica that wait until it is sure that its state is new enough. Pure."""

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
"""A linearizable read that nobody could confirm for so long is dropped (ms)."""

AGAIN_MS = 250
"""How long a master may take to answer a `ReadIndex` before it is asked again (ms)."""

AGE_WAIT_MS = 150
"""How long a local read waits for a newer proof (ms): a heartbeat, its answers, the next."""

NOTHING_PROVEN = -1
"""The `Consulted.age_ms` of a node that cannot say anything about its age."""


ReadHears = Consult | ReadIndex | ReadIndexReached | Fresh | ReadAgain | AgeCheck
"""What `Reads` handles."""


class Reads:
    """Answers at once what it can; the rest when it is confirmed, learned or too late.

    On the master a linearizable read is answered once all that earlier reigns decided is
    applied (the state is *settled*) and nobody else can have decided anything when it was
    asked: as long as the lease holds, or once a majority answered a heartbeat that was sent
    after the question. What the reign itself decided is applied here before anybody hears
    of it. On a follower the master says, after it has made sure of the same, which slots
    must be applied first. One round, or one `ReadIndex`, serves all reads that wait for it.

    Args:
        node: where it is.
        machine: what is read.
        replicas: those of all members.
        first_number: no `ReadIndex` of an earlier life of this node had a number as near.

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
        """Whether this node leads and all that others decided before is applied."""
        self.lease: Leased | None = None
        self.confirming: Instant | None = None
        """When a heartbeat was asked for that is not yet answered by a majority."""
        self.freshness = Freshness()
        self.barriers = ReadIndexes(node, first_number)
        self.linear: list[Read] = []
        """Linearizable reads that nothing is known for, in the order of asking."""
        self.local: list[Read] = []
        """Reads of what is here that need a newer proof."""
        self.again = False
        """Whether `ReadAgain` runs."""
        self.last: tuple[Local, Local] | None = None
        """The last question and its answer, until more is applied: many ask about one lock."""

    def handle(self, sender: Address, event: ReadHears, now: Instant) -> Effects:
        """Take a question, or what may help to answer one."""
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
        """Take note of the lease, and of the last round that a majority answered."""
        self.lease = leased
        if self.confirming is not None and leased.confirmed >= self.confirming:
            self.confirming = None
        return [*self._serve(now), *self._seek(now)] if self._is_waited_for() else ()

    def progress(self, applied: int, *, settled: bool, now: Instant) -> list[Effect]:
        """Take note that all slots before ``applied`` are applied."""
        self.applied, self.settled, self.last = applied, settled, None
        self.freshness.progress(applied)
        if not self._is_waited_for():
            return []
        return [*self._serve(now), *self._seek(now)]

    def follow(self, master: str, now: Instant) -> list[Effect]:
        """Take note of who leads: another, this node or, if it is empty, nobody known."""
        if master == self.barriers.master:
            return []
        if master != self.node:
            self.settled, self.lease, self.confirming = False, None, None
        self.linear = self.barriers.turn_to(master) + self.linear
        return self._seek(now)

    def distrust(self) -> None:
        """Trust the lease no more, even while the reign lasts."""
        self.lease = None

    def _on_consult(self, asker: Address, consult: Consult, now: Instant) -> Effects:
        """Answer a question of a role of this node, or let it wait."""
        read = Read(asker, consult.number, consult.question, now, consult.age_ms)
        if consult.age_ms is not None:
            return self._consult_local(read, now)
        if self._is_sure(now):
            return [self._answer(read, 0)]
        if len(self.linear) + len(self.barriers) >= READS_MAX:
            return (Observe("paxos.reads_full"),)
        self.linear.append(read)
        return self._seek(now)

    def _on_barrier(self, replica: Address, barrier: ReadIndex, now: Instant) -> Effects:
        """Tell another member's replica what it must apply, as soon as that is known."""
        if not self.settled:
            return (Observe("paxos.barrier_elsewhere"),)  # It asks again, perhaps another.
        if self._is_sure(now):
            return (Send(replica, ReadIndexReached(number=barrier.number, slot=self.applied)),)
        self.barriers.admit(replica, barrier.number, now)
        return self._seek(now)

    def _on_passed(self, replica: Address, passed: ReadIndexReached, now: Instant) -> Effects:
        """Take the master's word on what must be applied."""
        if not self.barriers.take(replica, passed):
            return (Observe("paxos.barrier_ignored"),)
        return [*self._serve(now), *self._seek(now)]

    def _on_again(self, now: Instant) -> Effects:
        """Ask again, and give up what waited too long."""
        self.again = False
        before = len(self.linear) + len(self.barriers)
        self.linear = [read for read in self.linear if _is_young(read, now)]
        self.barriers.drop(lambda read: not _is_young(read, now))
        self.confirming = None
        gone = before - len(self.linear) - len(self.barriers)
        marks = [Observe("paxos.reads_dropped", gone)] if gone else []
        return [*marks, *self.barriers.repeat(), *self._seek(now)]

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
        """Return how old the state is at most, None if nothing is proven."""
        if self._is_sure(now):
            return 0
        if self.settled and self.lease is not None:
            return ms_up(self.lease.confirmed, now)
        return self.freshness.age_ms(now)

    def _is_sure(self, now: Instant) -> bool:
        """Return whether nobody knows of anything that is not applied here."""
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
        return bool(self.linear or self.local or len(self.barriers))

    def _serve(self, now: Instant) -> list[Effect]:
        """Answer whatever can be answered."""
        effects: list[Effect] = []
        effects += [self._answer(read, 0) for read in self.barriers.pop(self.applied)]
        if self.settled and self.lease is not None:
            # What was asked up to then is confirmed; while the lease holds, all that was asked.
            until = now if self._is_sure(now) else self.lease.confirmed
            effects += [self._answer(read, 0) for read in self.linear if read.at <= until]
            self.linear = [read for read in self.linear if read.at > until]
            effects += self.barriers.pass_on(until, self.applied)
        waiting, self.local = self.local, []
        for read in waiting:
            answer = self._answer_local(read, now)
            if answer is None:
                self.local.append(read)
            else:
                effects.append(answer)
        return effects

    def _seek(self, now: Instant) -> list[Effect]:
        """Ask for what linearizable reads wait for, unless it is asked for already."""
        effects: list[Effect] = []
        if self.barriers.master == self.node:
            if self.settled and self.confirming is None and (self.linear or self.barriers.asked):
                self.confirming = now
                effects.append(Send(monitor_of(self.node), Confirm()))
        elif self.linear and self.barriers.is_free():
            reads, self.linear = self.linear, []
            effects.append(self.barriers.ask(reads))
        if not self.again and (self.linear or len(self.barriers)):
            self.again = True
            effects.append(Wake(AGAIN_MS, ReadAgain()))
        return effects


_consulted = maker(Consulted)


def _is_young(read: Read, now: Instant) -> bool:
    return now - read.at < READ_MS_MAX * NS_PER_MS
