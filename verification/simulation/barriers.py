"""A workload with cyclic barriers instead of locks, and its judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fencelock.actors.api.barrier import BARRIER, AwaitBarrier, BarrierPassed
from fencelock.actors.api.message import Refused
from fencelock.actors.api.name import kind_of, object_name, plain_name, titled
from fencelock.actors.api.request import Key
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.role import Host
from fencelock.actors.table.wire import Queued
from fencelock.verification.simulation.log_judge import PassJudge, SlotSequence
from fencelock.verification.simulation.run import Workload
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
                told = Observe(f"contender.passes_as_{event.index}")
                if self.last_tries:
                    self.phase = ContenderPhase.DONE
                return [told, *self._next()]
            case Refused():
                return [Observe(f"contender.refused_{event.reason.name.lower()}"), *self._next()]
            case PauseEnded() if self.phase is ContenderPhase.DONE:
                return [self._ask(None)]
            case _:
                return super().handle(sender, event, now)

    def _next(self) -> Effects:
        if self.phase is not ContenderPhase.DONE:
            return self._on_end(left=0)
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
        waits: the parties of the present generation, in the order of their arrival.
        broken: parties of broken generations that must be refused in this slot.
        passing: the outcomes of the parties that pass in this slot.
        last: the number of the last generation that has passed.

    """

    waits: list[Key] = field(default_factory=list[Key])
    broken: list[Key] = field(default_factory=list[Key])
    passing: list[BarrierPassed] = field(default_factory=list[BarrierPassed])
    last: int = 0


class BarrierLog(SlotSequence):
    """Judges the outcomes of barriers in the log; see `BarrierJudge`."""

    def __init__(self) -> None:
        super().__init__()
        self.barriers: dict[str, JudgedBarrier] = {}

    def _judge(self, report: SlotOutcomes, /) -> None:
        for outcome in report.outcomes:
            match outcome:
                case BarrierPassed():
                    self._on_passed(outcome)
                case Queued(lock=lock, key=key) if kind_of(lock) == BARRIER:
                    barrier = self._barrier(lock)
                    if key not in barrier.waits:
                        barrier.waits.append(key)
                case Refused(lock=lock, key=key) if kind_of(lock) == BARRIER:
                    self._on_refused(self._barrier(lock), key)
                case _:
                    pass
        for name, barrier in self.barriers.items():
            if barrier.broken:
                raise ViolationError(f"broken: {barrier.broken} still wait at {titled(name)}")
            if barrier.passing:
                raise ViolationError(f"together: {titled(name)} let only {barrier.passing} pass")

    def _barrier(self, name: str) -> JudgedBarrier:
        return self.barriers.setdefault(name, JudgedBarrier())

    def _on_refused(self, barrier: JudgedBarrier, key: Key) -> None:
        if key in barrier.waits:
            barrier.broken += [one for one in barrier.waits if one != key]
            barrier.waits = []
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
        waits, barrier.waits = barrier.waits, []
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
