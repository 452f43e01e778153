"""A workload with pools, whose permits outlive sessions, instead of locks, and its judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.api.message import Refused
from fencelock.actors.api.name import kind_of, plain_name, titled
from fencelock.actors.api.pool import POOL, GivePermits, PermitsGiven, PermitsTaken, TakePermits
from fencelock.actors.api.request import Key
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.table.wire import Queued
from fencelock.verification.simulation.log_judge import PassJudge, SlotSequence
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import (
    WAIT_MS_MAX,
    ContenderEvent,
    ContenderPhase,
    LockUser,
)

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
            case Refused():
                told = Observe(f"contender.refused_{event.reason.name.lower()}")
                return [told, *self._on_end(left=0)]
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


@dataclass(slots=True)
class JudgedPool:
    """The state of a pool, as derived from the outcomes in the log."""

    taken: int = 0
    waits: list[Key] = field(default_factory=list[Key])
    """The requests that wait for it, in order."""


class PoolLog(SlotSequence):
    """Judges the outcomes of pools in the log; see `PoolJudge`."""

    REQUESTS = (TakePermits, GivePermits)

    def __init__(self) -> None:
        super().__init__()
        self.pools: dict[str, JudgedPool] = {}

    def _judge(self, report: SlotOutcomes, /) -> None:
        for outcome in report.outcomes:
            match outcome:
                case PermitsTaken() | PermitsGiven():
                    self._on_outcome(outcome)
                case Queued(key=key, lock=lock) if kind_of(lock) == POOL:
                    waits = self._pool(lock).waits
                    if key not in waits:
                        waits.append(key)
                case Refused(lock=lock, key=key) if kind_of(lock) == POOL:
                    pool = self._pool(lock)
                    pool.waits = [one for one in pool.waits if one != key]
                case _:
                    pass
        for name, pool in self.pools.items():
            if pool.waits and pool.taken + self.commands[pool.waits[0]].amount <= PERMITS:
                raise ViolationError(f"serve: {pool.waits[0]} waits for {titled(name)}: {pool}")

    def _pool(self, name: str) -> JudgedPool:
        return self.pools.setdefault(name, JudgedPool())

    def _on_outcome(self, outcome: PermitsTaken | PermitsGiven) -> None:
        if not self.is_first(outcome.key, outcome):
            return
        pool, amount = self._pool(outcome.lock), self.commands[outcome.key].amount
        if isinstance(outcome, PermitsGiven):
            changed = amount <= pool.taken
            pool.taken -= amount if changed else 0
            if (outcome.changed, outcome.taken) != (changed, pool.taken):
                raise ViolationError(f"count: {outcome!r}, and {pool.taken} are taken")
            return
        if pool.waits and outcome.key != pool.waits[0]:
            raise ViolationError(f"order: {outcome!r} overtakes {pool.waits[0]}")
        pool.waits = pool.waits[1:]
        if outcome.amount != (amount or PERMITS - pool.taken):
            raise ViolationError(f"amount: {outcome!r} of {amount}, while {pool.taken} are taken")
        pool.taken += outcome.amount
        if pool.taken > PERMITS:
            raise ViolationError(f"capacity: {outcome!r}: {pool.taken} of {PERMITS} are taken")


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
