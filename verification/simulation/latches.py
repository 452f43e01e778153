"""A workload with count-down latches instead of locks, and its judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.message import Refused
from fencelock.actors.api.name import kind_of, plain_name, titled
from fencelock.actors.api.request import Key
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.table.wire import Queued
from fencelock.verification.simulation.log_judge import PassJudge, SlotSequence
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import (
    WAIT_MS_MAX,
    ContenderEvent,
    ContenderPhase,
    LockUser,
)

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
                wait = AwaitLatch(
                    latch=plain_name(self.lock),
                    count=COUNT,
                    keep_ms=KEEP_MS,
                    owner=self.owner,
                    wait_ms=LAST_WAIT_MS,
                )
                return [Send(self.session, wait)]
            case CountedDown():
                return [Observe("contender.counts_down"), *self._on_end(left=0)]
            case LatchPassed() if self.finishing:
                self.phase = ContenderPhase.DONE
                return [Observe("contender.passes")]
            case LatchPassed():
                return [Observe("contender.passes"), *self._on_end(left=0)]
            case Refused():
                told = Observe(f"contender.refused_{event.reason.name.lower()}")
                return [told, *self._on_end(left=0)]
            case _:
                return super().handle(sender, event, now)

    def _ask(self, wait_ms: int | None) -> Send:
        name = plain_name(self.lock)
        if not self.finishing and self.random.random() < WAIT_SHARE:
            limit = LONG_WAIT_MS if wait_ms is None else wait_ms
            wait = AwaitLatch(
                latch=name, count=COUNT, keep_ms=KEEP_MS, owner=self.owner, wait_ms=limit
            )
            return Send(self.session, wait)
        amount = COUNT if self.finishing else self.random.randint(1, AMOUNT_MAX)
        down = CountDown(latch=name, count=COUNT, amount=amount, keep_ms=KEEP_MS, owner=self.owner)
        return Send(self.session, down)


@dataclass(slots=True)
class JudgedLatch:
    """The state of a latch, as derived from the outcomes in the log.

    Attributes:
        left: its count.
        gone_ms: the log time at which it is removed, if its count is 0.
        waits: the requests that wait for it, in order.

    """

    left: int = COUNT
    gone_ms: int = 0
    waits: list[Key] = field(default_factory=list[Key])


class LatchLog(SlotSequence):
    """Judges the outcomes of latches in the log; see `LatchJudge`."""

    REQUESTS = (CountDown,)

    def __init__(self) -> None:
        super().__init__()
        self.latches: dict[str, JudgedLatch] = {}
        self.now_ms = 0

    def _judge(self, report: SlotOutcomes, /) -> None:
        self.now_ms = max(self.now_ms, report.time_ms)
        for outcome in report.outcomes:
            match outcome:
                case CountedDown(key=key, lock=lock, left=left):
                    if self.is_first(key, outcome):
                        self._on_counted(key, self._latch(lock), left)
                case LatchPassed(key=key, lock=lock):
                    if self.is_first(key, outcome):
                        self._on_passed(key, self._latch(lock))
                case Queued(key=key, lock=lock) if kind_of(lock) == LATCH:
                    self._on_queued(key, self._latch(lock))
                case Refused(lock=lock, key=key) if kind_of(lock) == LATCH:
                    latch = self._latch(lock)
                    latch.waits = [one for one in latch.waits if one != key]
                case _:
                    pass
        for name, latch in self.latches.items():
            if latch.waits and not latch.left:
                raise ViolationError(f"release: {latch.waits} still wait for {titled(name)} at 0")

    def _latch(self, name: str) -> JudgedLatch:
        latch = self.latches.get(name)
        if latch is None or (not latch.left and latch.gone_ms <= self.now_ms):
            latch = self.latches[name] = JudgedLatch()
        return latch

    def _on_counted(self, key: Key, latch: JudgedLatch, left: int) -> None:
        before = latch.left
        latch.left = max(0, before - self.commands[key].amount)
        if left != latch.left:
            raise ViolationError(
                f"count: {key} took {self.commands[key].amount} of {before}, and left {left}"
            )
        if before and not left:
            latch.gone_ms = self.now_ms + KEEP_MS

    def _on_passed(self, key: Key, latch: JudgedLatch) -> None:
        if latch.left:
            raise ViolationError(f"early: {key} passes while the count is {latch.left}")
        latch.waits = [one for one in latch.waits if one != key]

    def _on_queued(self, key: Key, latch: JudgedLatch) -> None:
        if not latch.left:
            raise ViolationError(f"release: {key} waits although the count is 0")
        if key not in latch.waits:
            latch.waits.append(key)


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
