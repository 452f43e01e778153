"""Workloads of objects at which callers pass, and their judges: barriers, latches, pools."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fencelock.actors.api.barrier import BARRIER, AwaitBarrier, BarrierPassed
from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.message import Refused
from fencelock.actors.api.name import kind_of, object_name, plain_name, titled
from fencelock.actors.api.pool import POOL, GivePermits, PermitsGiven, PermitsTaken, TakePermits
from fencelock.actors.api.request import Key
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.role import Host
from fencelock.actors.table.wire import Queued
from fencelock.verification.simulation.deadlines import is_expiry
from fencelock.verification.simulation.log_judge import PassJudge, SlotSequence
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import (
    PAUSE_MS_MAX,
    WAIT_MS_MAX,
    ContenderEvent,
    ContenderPhase,
    LockUser,
    PauseEnded,
)

ALONE = object_name(BARRIER, "alone-0")
"""A barrier for one party."""

LAST_TRIES = 5
"""Number of waits after all faults have ended, before a contender assumes that it is alone."""


def parties_of(name: str) -> int:
    """Return the number of parties of a barrier: 2 for the first, 3 for the second, and so on."""
    return 1 + int(plain_name(name).rpartition("-")[2])


class BarrierUser(LockUser):
    """Arrives at one of a few barriers, again and again.

    At the end of a run it arrives at the first barrier until it has passed, and then goes on so
    that other users can pass too. After several waits without success, it may be the only user
    left, and arrives at a barrier for one party.
    """

    _named = (*LockUser._named, BarrierPassed)
    KIND = BARRIER

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        super().__init__(address, host, **options)
        self.last_tries = 0

    def handle(
        self, sender: Address, event: ContenderEvent | BarrierPassed, now: Instant
    ) -> Effects:
        match event:
            case BarrierPassed():
                observed = Observe(f"contender.passes_as_{event.index}")
                if self.last_tries:
                    self.phase = ContenderPhase.DONE
                return [observed, *self._on_end(left=0)]
            case PauseEnded() if self.phase is ContenderPhase.DONE:
                return [self._ask(None)]
            case _:
                return super().handle(sender, event, now)

    def _on_end(self, left: int) -> Effects:
        if self.phase is not ContenderPhase.DONE:
            return super()._on_end(left)
        return [Wake(self.random.randint(1, PAUSE_MS_MAX), PauseEnded(turn=self.turn))]

    def _ask(self, wait_ms: int | None) -> Send:
        if self.finishing:
            self.last_tries += 1
            alone = self.last_tries > LAST_TRIES and self.phase is not ContenderPhase.DONE
            self.lock = ALONE if alone else self.locks[0]
        arrive = AwaitBarrier(
            barrier=plain_name(self.lock),
            parties=parties_of(self.lock),
            owner=self.owner,
            wait_ms=2 * WAIT_MS_MAX if wait_ms is None else wait_ms,
        )
        return Send(self.session, arrive)


@dataclass(slots=True)
class JudgedBarrier:
    """The state of a barrier, as derived from the outcomes in the log.

    Attributes:
        broken: parties of broken generations that must be refused in this slot.
        passing: the outcomes of the parties that pass in this slot.
        last: the number of the last generation that has passed.

    """

    broken: list[Key] = field(default_factory=list[Key])
    passing: list[BarrierPassed] = field(default_factory=list[BarrierPassed])
    last: int = 0


class BarrierLog(SlotSequence):
    """Judges the outcomes of barriers in the log; see `BarrierJudge`.

    In the queue of a barrier are the parties of its present generation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.barriers: dict[str, JudgedBarrier] = {}

    def _judge(self, report: SlotOutcomes, /) -> None:
        for outcome in report.outcomes:
            match outcome:
                case BarrierPassed():
                    self._on_passed(outcome)
                case Queued(lock=lock) if kind_of(lock) == BARRIER:
                    self.follow_queue(lock, outcome)
                case Refused(lock=lock, key=key) if kind_of(lock) == BARRIER:
                    self._on_refused(lock, key)
                case _:
                    pass
        for name, barrier in self.barriers.items():
            if barrier.broken:
                raise ViolationError(f"broken: {barrier.broken} still wait at {titled(name)}")
            if barrier.passing:
                raise ViolationError(f"together: {titled(name)} let only {barrier.passing} pass")

    def _barrier(self, name: str) -> JudgedBarrier:
        return self.barriers.setdefault(name, JudgedBarrier())

    def _on_refused(self, name: str, key: Key) -> None:
        barrier = self._barrier(name)
        if key in self.queues[name]:
            barrier.broken += [one for one in self.queues.pop(name) if one != key]
        elif key in barrier.broken:
            barrier.broken.remove(key)

    def _on_passed(self, passed: BarrierPassed) -> None:
        if not self.is_first(passed.key, passed):
            return
        barrier = self._barrier(passed.lock)
        barrier.passing.append(passed)
        parties = parties_of(passed.lock)
        if len(barrier.passing) < parties:
            return
        group, barrier.passing = barrier.passing, []
        waits = self.queues.pop(passed.lock, [])
        if [one.index for one in group] != list(range(parties)):
            raise ViolationError(f"index: {group}")
        if [one.key for one in group][:-1] != waits:
            raise ViolationError(f"together: {group} passes, but {waits} waited")
        numbers = {one.generation for one in group}
        if len(numbers) != 1 or min(numbers) <= barrier.last:
            raise ViolationError(f"generations: {group} after {barrier.last}")
        barrier.last = min(numbers)


class BarrierJudge(PassJudge):
    """Judges one run of barriers.

    - Together: all parties of a generation pass in one step, each for one arrival.
    - Broken: if a party stops waiting, all others of its generation are refused in that step.
    - Index: the indices of a generation are 0 to the number of parties - 1, in order of arrival.
    - Generations: the numbers of generations rise.
    """

    LOG = BarrierLog
    passed = BarrierPassed


BARRIERS = Workload(BarrierUser, BarrierJudge)


COUNT = 4
"""The count of each latch. A few requests of different contenders reach 0."""

AMOUNT_MAX = 2
"""Maximum amount by which a contender lowers a count."""

KEEP_MS = 300
"""Time for which a latch is kept (ms). In most runs, some latches are removed and created again."""

WAIT_SHARE = 0.4
"""Share of requests that wait for a latch."""

LONG_WAIT_MS = 4 * WAIT_MS_MAX
"""Longest timeout of a wait (ms). It ends the wait if all contenders wait for the same latch."""

LAST_WAIT_MS = 1_000
"""Timeout of waits after all faults have ended (ms). By then the name may stand for a new latch."""


class LatchUser(LockUser):
    """Counts one of a few latches down, or waits for it, again and again.

    At the end of a run it counts one latch down to 0 and waits for it, until it has passed once.
    """

    _named = (*LockUser._named, CountedDown, LatchPassed)
    KIND = LATCH

    def handle(
        self, sender: Address, event: ContenderEvent | CountedDown | LatchPassed, now: Instant
    ) -> Effects:
        match event:
            case CountedDown() if self.finishing and not event.left:
                return [self._wait(LAST_WAIT_MS)]
            case CountedDown():
                return [Observe("contender.counts_down"), *self._on_end(left=0)]
            case LatchPassed() if self.finishing:
                self.phase = ContenderPhase.DONE
                return [Observe("contender.passes")]
            case LatchPassed():
                return [Observe("contender.passes"), *self._on_end(left=0)]
            case _:
                return super().handle(sender, event, now)

    def _ask(self, wait_ms: int | None) -> Send:
        if not self.finishing and self.random.random() < WAIT_SHARE:
            return self._wait(LONG_WAIT_MS if wait_ms is None else wait_ms)
        amount = COUNT if self.finishing else self.random.randint(1, AMOUNT_MAX)
        name = plain_name(self.lock)
        down = CountDown(latch=name, count=COUNT, amount=amount, keep_ms=KEEP_MS, owner=self.owner)
        return Send(self.session, down)

    def _wait(self, wait_ms: int) -> Send:
        name = plain_name(self.lock)
        wait = AwaitLatch(
            latch=name, count=COUNT, keep_ms=KEEP_MS, owner=self.owner, wait_ms=wait_ms
        )
        return Send(self.session, wait)


@dataclass(slots=True)
class JudgedLatch:
    """The state of a latch, as derived from the outcomes in the log.

    Attributes:
        left: its count.
        due_ms: the log time at which it is removed, if its count is 0, or the next one if sessions
            expire then.
        may_go_ms: the same, or earlier if it may be a latch that had opened before.

    """

    left: int = COUNT
    due_ms: int = 0
    may_go_ms: int = 0


class LatchLog(SlotSequence):
    """Judges the outcomes of latches in the log; see `LatchJudge`."""

    REQUESTS = (CountDown,)

    def __init__(self) -> None:
        super().__init__()
        self.latches: dict[str, JudgedLatch] = {}
        self.now_ms = 0
        self.ended_ms = 0
        """The highest log time by which all that was due has ended."""

    def _judge(self, report: SlotOutcomes, /) -> None:
        self._pass_time(report)
        for outcome in report.outcomes:
            match outcome:
                case CountedDown(key=key, lock=lock, left=left):
                    if self.is_first(key, outcome):
                        self._on_counted(key, lock, left)
                case LatchPassed(key=key, lock=lock):
                    if self.is_first(key, outcome):
                        self._on_passed(key, lock)
                case Queued(key=key, lock=lock) if kind_of(lock) == LATCH:
                    if not self._latch(lock, is_open=False).left:
                        raise ViolationError(f"release: {key} waits although the count is 0")
                    self.follow_queue(lock, outcome)
                case Refused(lock=lock) if kind_of(lock) == LATCH:
                    self.follow_queue(lock, outcome)
                case _:
                    pass
        for name, latch in self.latches.items():
            if self.queues[name] and not latch.left:
                waits = self.queues[name]
                raise ViolationError(f"release: {waits} still wait for {titled(name)} at 0")

    def _pass_time(self, report: SlotOutcomes) -> None:
        if report.time_ms > self.now_ms:
            self.now_ms = report.time_ms
            if not any(map(is_expiry, report.outcomes)):
                self.ended_ms = self.now_ms

    def _latch(self, name: str, *, is_open: bool) -> JudgedLatch:
        """Return the latch, a new one if it was removed; ``is_open`` if an outcome shows it open.

        At a log time at which sessions expire, only that tells.
        """
        latch = self.latches.get(name)
        removed = latch is not None and not latch.left and latch.may_go_ms <= self.now_ms
        if latch is None or (removed and not (is_open and latch.due_ms > self.ended_ms)):
            latch = self.latches[name] = JudgedLatch()
        return latch

    def _on_counted(self, key: Key, name: str, left: int) -> None:
        amount, former = self.commands[key].amount, self.latches.get(name)
        latch = self._latch(name, is_open=not left and amount < COUNT)
        before = latch.left
        latch.left = max(0, before - amount)
        if left != latch.left:
            raise ViolationError(f"count: {key} took {amount} of {before}, and left {left}")
        if before and not left:
            latch.due_ms = latch.may_go_ms = self.now_ms + KEEP_MS
            if former is not None and not former.left and former.due_ms > self.ended_ms:
                latch.may_go_ms = former.may_go_ms  # Perhaps the former latch is still there.

    def _on_passed(self, key: Key, name: str) -> None:
        if left := self._latch(name, is_open=True).left:
            raise ViolationError(f"early: {key} passes while the count is {left}")
        self.queues[name] = [one for one in self.queues[name] if one != key]


class LatchJudge(PassJudge):
    """Judges one run of latches.

    - Count: each request to count down lowers the count by its amount, once.
    - Early: no contender passes before the count is 0.
    - Release: when the count is 0, all waiting contenders pass, and later ones do not wait until
      the latch is removed.
    """

    LOG = LatchLog
    passed = LatchPassed


LATCHES = Workload(LatchUser, LatchJudge)


PERMITS = 4
"""Permits of each pool."""

GIVE_SHARE = 0.5
"""Share of requests that give permits back. Clients that die leave permits taken, so contenders
also give back what they have not taken, and some of these requests are refused."""

DRAIN_SHARE = 0.3
"""Share of takes without a wait that are for all permits that are free."""


class PoolUser(LockUser):
    """Takes permits of one of a few pools, or gives some back, again and again.

    At the end of a run it gives one back, whether or not one is taken.
    """

    _named = (*LockUser._named, PermitsTaken, PermitsGiven)
    KIND = POOL

    def handle(
        self, sender: Address, event: ContenderEvent | PermitsTaken | PermitsGiven, now: Instant
    ) -> Effects:
        match event:
            case PermitsGiven() if self.finishing:
                self.phase = ContenderPhase.DONE
                return [Observe("contender.gives")]
            case PermitsTaken():
                return [Observe("contender.takes"), *self._on_end(left=0)]
            case PermitsGiven(changed=changed):
                given = Observe(f"contender.gives{'' if changed else '_too_many'}")
                return [given, *self._on_end(left=0)]
            case _:
                return super().handle(sender, event, now)

    def _ask(self, wait_ms: int | None) -> Send:
        name, amount = plain_name(self.lock), self.random.randint(1, PERMITS - 1)
        if self.finishing or self.random.random() < GIVE_SHARE:
            give = GivePermits(pool=name, amount=1 if self.finishing else amount, owner=self.owner)
            return Send(self.session, give)
        drains = wait_ms == 0 and self.random.random() < DRAIN_SHARE
        take = TakePermits(
            pool=name,
            size=PERMITS,
            amount=0 if drains else amount,
            owner=self.owner,
            wait_ms=WAIT_MS_MAX if wait_ms is None else wait_ms,
        )
        return Send(self.session, take)


class PoolLog(SlotSequence):
    """Judges the outcomes of pools in the log; see `PoolJudge`."""

    REQUESTS = (TakePermits, GivePermits)

    def __init__(self) -> None:
        super().__init__()
        self.taken: Counter[str] = Counter()
        """The permits that are taken, by pool."""

    def _judge(self, report: SlotOutcomes, /) -> None:
        for outcome in report.outcomes:
            match outcome:
                case PermitsTaken() | PermitsGiven():
                    self._on_outcome(outcome)
                case Queued(lock=lock) | Refused(lock=lock) if kind_of(lock) == POOL:
                    self.follow_queue(lock, outcome)
                case _:
                    pass
        for name, waits in self.queues.items():
            if waits and self.taken[name] + self.commands[waits[0]].amount <= PERMITS:
                taken = self.taken[name]
                raise ViolationError(f"serve: {waits} wait for {titled(name)}: {taken} are taken")

    def _on_outcome(self, outcome: PermitsTaken | PermitsGiven) -> None:
        if not self.is_first(outcome.key, outcome):
            return
        name, amount = outcome.lock, self.commands[outcome.key].amount
        taken, queue = self.taken[name], self.queues[name]
        if isinstance(outcome, PermitsGiven):
            changed = amount <= taken
            self.taken[name] = taken - (amount if changed else 0)
            if (outcome.changed, outcome.taken) != (changed, self.taken[name]):
                raise ViolationError(f"count: {outcome!r}, and {self.taken[name]} are taken")
            return
        if queue and outcome.key != queue[0]:
            raise ViolationError(f"order: {outcome!r} overtakes {queue[0]}")
        del queue[:1]
        if outcome.amount != (amount or PERMITS - taken):
            raise ViolationError(f"amount: {outcome!r} of {amount}, while {taken} are taken")
        self.taken[name] += outcome.amount
        if self.taken[name] > PERMITS:
            raise ViolationError(
                f"capacity: {outcome!r}: {self.taken[name]} of {PERMITS} are taken"
            )


class PoolJudge(PassJudge):
    """Judges one run of pools.

    - Capacity, amount: a take gets its amount, or for a drain all that is free; and no more permits
      are taken than there are, whatever sessions end.
    - Count, once: what is given back is free, once, and no more than was taken.
    - Order, serve: takes are served in their order, as soon as their amount is free.
    """

    LOG = PoolLog
    passed = PermitsTaken

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        """Observe what contenders give back, too."""
        event = delivered.event
        if isinstance(event, PermitsGiven) and delivered.to in self.contenders:
            # A return counts like a take: while all are taken, there are no others.
            self.grants += 1
        super().handled(delivered, effects)


POOLS = Workload(PoolUser, PoolJudge)
