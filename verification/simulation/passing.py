"""Workloads of objects at which callers pass, and their judges: barriers, latches, pools."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from fencelock.actors.api.barrier import BARRIER, AwaitBarrier, BarrierPassed
from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.name import object_name, plain_name
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.pool import POOL, GivePermits, PermitsGiven, PermitsTaken, TakePermits
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant
from fencelock.actors.role import Host
from fencelock.verification.simulation.object_judge import ObjectJudge
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
                return [self._ask(None)] if event.turn == self.turn else ()
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


class PassJudge(ObjectJudge):
    """Judges one run of objects at which contenders pass. A pass counts as a grant."""

    passed: ClassVar[type[UpdateReply]]
    """The reply that lets a contender pass."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        super().handled(delivered, effects)
        if isinstance(delivered.event, self.passed) and delivered.to in self.contenders:
            self.grants += 1


class BarrierJudge(PassJudge):
    """Judges one run of barriers.

    - Generations: all parties that pass together have one number, and these numbers rise.
    """

    kind = BARRIER
    passed = BarrierPassed

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.last: Counter[str] = Counter()
        """The last generation that has passed each barrier."""

    def _note(self, outcome: UpdateReply, slot: int) -> None:
        super()._note(outcome, slot)
        if isinstance(outcome, BarrierPassed):
            self._judge_generation(outcome)

    def _judge_generation(self, passed: BarrierPassed) -> None:
        last = self.last[passed.lock]
        if passed.generation <= last if passed.index == 0 else passed.generation != last:
            raise ViolationError(f"generations: {passed} after {last}")
        self.last[passed.lock] = passed.generation


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


class LatchJudge(PassJudge):
    """Judges one run of latches as `PassJudge` does."""

    kind = LATCH
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


class PoolJudge(PassJudge):
    """Judges one run of pools as `PassJudge` does.

    A return counts like a take: while all are taken, there are no others.
    """

    kind = POOL
    passed = UpdateReply


POOLS = Workload(PoolUser, PoolJudge)
